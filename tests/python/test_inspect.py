"""buddy inspect against the safetensors library, on the weights of a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from typer.testing import CliRunner

from buddy_gen.cli import app
from buddy_gen.errors import BuddyError
from buddy_gen.generate.__main__ import main
from buddy_gen.models.tiny import write_tiny_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("build")
    model = write_tiny_llama(base / "tiny", seed=3, num_hidden_layers=2)
    places = ["--output-dir", str(base / "out"), "--runtime-dir", str(base / "bin")]
    options = ["--dtype", "w4a8", "--group", "32", "--kv-dtype", "i8", "--target", "x86-64-v3", "--quiet"]
    assert main(["--name", "llama", "--model", str(model), *places, *options]) == 0
    return base / "bin"


def _inspect(path: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["inspect", str(path), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_json_says_what_the_file_holds(folder: Path) -> None:
    found = _inspect(folder)
    weights = folder / "llama.weights.safetensors"
    assert _inspect(weights) == found
    assert found["files"] == {weights.name: weights.stat().st_size}
    assert (found["dtype"], found["kv_dtype"], found["target"], found["source"]) == ("w4a8", "i8", "x86-64-v3", "tiny")
    assert found["entry_points"] == ["prefill", "decode"]
    tensors = {one["name"]: one for one in found["tensors"]}
    with safe_open(weights, "numpy") as file:
        names = {name for name in file.keys() if not name.startswith("__pad.")}  # noqa: SIM118
        assert tensors.keys() == names
        assert {"abi": found["abi"], "model_id": found["model_id"]}.items() <= file.metadata().items()
        for name, one in tensors.items():
            assert one["stored"] == list(file.get_slice(name).get_shape())
    gate = tensors["model.layers.1.mlp.gate_proj.weight"]
    assert (gate["format"], gate["shape"], gate["layout"]) == ("q4_1", [112, 64], "blocks of 16 rows x 32")
    assert gate["bytes"] == 112 * 64 // 32 * 20
    head = tensors.get("lm_head.weight") or tensors["model.embed_tokens.weight"]
    assert (head["format"], head["shape"], head["bytes"]) == ("q8", [97, 64], 112 * 64 // 32 * 34)
    assert tensors["model.norm.weight"]["format"] == "f32"
    assert found["weight_bytes_per_token"] == sum(one["bytes"] for one in tensors.values())
    assert found["cache_bytes_per_position"] == 2 * 2 * 2 * (8 + 4)


def test_people_get_a_table(folder: Path) -> None:
    for option, lines in (([], 1), (["--all"], 2)):
        done = CliRunner().invoke(app, ["inspect", str(folder), *option], catch_exceptions=False)
        assert done.stdout.count("gate_proj.weight") == lines
        assert "blocks of 16 rows x 32" in done.stdout


def test_foreign_files_are_refused(folder: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "m.safetensors")
    (tmp_path / "text").write_text("nothing of the kind")
    (tmp_path / "a.weights.safetensors").write_bytes((folder / "llama.weights.safetensors").read_bytes()[:300])
    for path, part in (
        (tmp_path / "m.safetensors", "not one that buddy-gen packed"),
        (tmp_path / "text", "text"),
        (tmp_path / "a.weights.safetensors", "a.weights.safetensors"),
        (tmp_path / "nowhere", "does not exist"),
    ):
        with pytest.raises(BuddyError, match=part):
            CliRunner().invoke(app, ["inspect", str(path)], catch_exceptions=False)
    (tmp_path / "b.weights.safetensors").write_bytes(b"")
    with pytest.raises(BuddyError, match="several weights files"):
        CliRunner().invoke(app, ["inspect", str(tmp_path)], catch_exceptions=False)

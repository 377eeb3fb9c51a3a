"""The generator: what it writes, when it does nothing, and what it says when it can't."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from buddy_gen.generate.__main__ import main
from buddy_gen.models.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

OUTPUTS = ("out/llama_prefill.mlir", "out/llama_decode.mlir", "out/llama_config.h", "out/llama.cmake")
WEIGHTS = "bin/llama.weights.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", seed=3, num_hidden_layers=2, hidden_size=32, intermediate_size=40)


def _arguments(model: Path | str, folder: Path, *options: str) -> list[str]:
    places = ["--output-dir", str(folder / "out"), "--runtime-dir", str(folder / "bin")]
    return ["--name", "llama", "--model", str(model), *places, "--quiet", *options]


def _times(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_mtime_ns for name in (*OUTPUTS, WEIGHTS)}


def test_everything_is_written_and_a_second_run_does_nothing(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    before = _times(tmp_path)
    assert main(_arguments(model, tmp_path)) == 0
    assert _times(tmp_path) == before
    assert not list(tmp_path.rglob("*.part"))


def test_a_touched_model_is_not_imported_again(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    before = _times(tmp_path)
    os.utime(model / "model.safetensors")
    assert main(_arguments(model, tmp_path)) == 0
    assert _times(tmp_path) == before


def test_a_changed_model_is_imported_again(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    before = (tmp_path / WEIGHTS).read_bytes()
    other = write_tiny_llama(tmp_path / "other", seed=4, num_hidden_layers=2, hidden_size=32, intermediate_size=40)
    shutil.copyfile(other / "model.safetensors", model / "model.safetensors")
    assert main(_arguments(model, tmp_path)) == 0
    assert (tmp_path / WEIGHTS).read_bytes() != before


@pytest.mark.parametrize("lost", [*OUTPUTS, WEIGHTS])
def test_a_lost_file_is_made_again_byte_for_byte(lost: str, model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    content = (tmp_path / lost).read_bytes()
    (tmp_path / lost).unlink()
    assert main(_arguments(model, tmp_path)) == 0
    assert (tmp_path / lost).read_bytes() == content


def test_a_cut_weights_file_is_made_again(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    content = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(content[: len(content) // 2])
    assert main(_arguments(model, tmp_path)) == 0
    assert (tmp_path / WEIGHTS).read_bytes() == content


def test_score_is_built_on_request(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path, "--entry-points", "prefill,decode,score")) == 0
    text = (tmp_path / "out/llama_score.mlir").read_text(encoding="utf-8")
    assert 'buddy.entry = "score"' in text
    assert "tensor<1x?x97xf32>" in text


def test_report_as_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_arguments(model, tmp_path, "--json")) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["layer_functions"] == {"prefill": 1, "decode": 1}
    assert set(report["dialects"]["aten.linear.default"]) == {"linalg"}
    with safe_open(tmp_path / WEIGHTS, "numpy") as weights:
        metadata = weights.metadata()
    assert (metadata["abi"], metadata["model_id"]) == (report["abi"], report["model_id"])


def test_weights_in_the_module_are_never_constants(model: Path, tmp_path: Path) -> None:
    assert main(_arguments(model, tmp_path)) == 0
    for stem in ("llama_prefill", "llama_decode"):
        text = (tmp_path / "out" / f"{stem}.mlir").read_text(encoding="utf-8")
        assert max(map(len, text.splitlines())) < 4000
        assert "dense<" not in text


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--target", "z80"], "unknown target 'z80'"),
        (["--dialect-priority", "linalg,stablehlo"], "unknown dialect 'stablehlo'"),
        (["--dialect-priority", "linalg,linalg"], "named once"),
        (["--entry-points", "prefill"], "prefill and decode"),
        (["--entry-points", "prefill,decode,train"], "unknown entry point 'train'"),
        (["--name", "7up"], "no name for a model"),
        (["--dialect-priority", "tosa"], "without a lowering rule"),
        (["--dtype", "f16", "--group", "32"], "only w8 and w4 have groups to choose, not f16"),
        (["--dtype", "gguf"], "the dtype gguf keeps the blocks of a GGUF file"),
    ],
)
def test_wrong_options_are_one_sentence(
    options: list[str], part: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_arguments(model, tmp_path), *options]) == 1
    errors = capsys.readouterr().err.splitlines()
    lines = [line for line in errors if line.startswith("buddy: error:")]
    assert len(lines) == 1
    assert part in lines[0]
    assert "Traceback" not in "".join(errors)


def test_a_missing_model_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_arguments(tmp_path / "nowhere", tmp_path)) == 1
    assert "there is no model at" in capsys.readouterr().err


def test_an_unwritable_folder_is_one_sentence(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    arguments = ["--name", "llama", "--model", str(model), "--quiet", "--output-dir", str(tmp_path / "file" / "out")]
    assert main([*arguments, "--runtime-dir", str(tmp_path / "bin")]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert "file" in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "layers", "bytes_"), [("f32", 16, 1.1e9), ("w4a8", 4, 6e7)])
def test_memory_while_importing_does_not_grow_with_the_model(
    dtype: str, layers: int, bytes_: float, tmp_path: Path
) -> None:
    """Models of 1.2 GB and 0.4 GB in f32 whose largest tensor is 100 MB: the first import stays far below that size,
    and quantising the second takes no more."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": layers, "vocab_size": 25000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16}
    model = write_tiny_llama(tmp_path / "model", dtype="f16", **sizes, **heads)
    command = [sys.executable, "-m", "buddy_gen.generate", *_arguments(model, tmp_path, "--dtype", dtype)]
    script = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=True)
    largest = 25000 * 1024 * 4
    assert (tmp_path / WEIGHTS).stat().st_size > bytes_
    assert int(done.stdout.split()[-1]) * 1024 < 0.75 * 2**30 + 2 * largest


@pytest.mark.parametrize(
    "options",
    [["--dtype", "f16"], ["--dtype", "w8a8"], ["--dtype", "w8a8", "--group", "32"], ["--kv-dtype", "f16"]],
    ids=" ".join,
)
def test_each_precision_is_a_program_of_its_own(
    options: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code and weights of two precisions never fit together, and a build folder follows the options."""
    abis = []
    for chosen in (["--dtype", "f32"], options, options):
        assert main(_arguments(model, tmp_path, "--json", *chosen)) == 0
        abis.append(json.loads(capsys.readouterr().out)["abi"])
        with safe_open(tmp_path / WEIGHTS, "numpy") as weights:
            assert weights.metadata()["abi"] == abis[-1]
        assert abis[-1] in (tmp_path / "out/llama_config.h").read_text(encoding="utf-8")
    assert abis[0] != abis[1] == abis[2]


@pytest.mark.parametrize(
    ("value", "dtype", "part"),
    [
        ("nan", "f32", "holds NaN"),
        ("nan", "w4a8", "holds NaN"),
        ("inf", "bf16", "holds infinity"),
        ("1e5", "f16", "holds 100000, beyond the largest number of f16 (65504); build this model as bf16 or f32"),
        ("1e9", "w8a32", "does not fit"),
    ],
)
def test_weights_that_can_not_be_stored_are_named(
    value: str, dtype: str, part: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][7, 3] = float(value)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert main(_arguments(model, tmp_path, "--dtype", dtype)) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("buddy: error:")]
    assert len(lines) == 1 and name in lines[0] and part in lines[0]
    assert not list(tmp_path.rglob("*.part")) and not (tmp_path / WEIGHTS).exists()

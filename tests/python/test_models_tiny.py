"""The tiny models that other tests stand on: deterministic, varied, all fields reachable."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from buddy_gen.errors import BuddyError
from buddy_gen.models import open_model
from buddy_gen.models.tiny import main, write_tiny_llama

pytestmark = pytest.mark.slow


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_equal_bytes_from_equal_arguments(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"shards": 2, "dtype": "bf16", "attention_bias": True}
    one = digests(write_tiny_llama(tmp_path / "a", **arguments))
    assert one == digests(write_tiny_llama(tmp_path / "b", **arguments))
    assert one != digests(write_tiny_llama(tmp_path / "c", seed=1, **arguments))


def test_equal_bytes_in_another_process(tmp_path: Path) -> None:
    here = digests(write_tiny_llama(tmp_path / "a"))
    command = [sys.executable, "-m", "buddy_gen.models.tiny", str(tmp_path / "b")]
    subprocess.run(command, check=True, capture_output=True)
    assert digests(tmp_path / "b") == here


@pytest.mark.parametrize(
    "overrides",
    [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True},
     {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12, "vocab_size": 101}],
)  # fmt: skip
def test_output_is_varied(tmp_path: Path, overrides: dict[str, Any]) -> None:
    model = LlamaForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "m", **overrides), dtype=torch.float32)
    ids = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=64, do_sample=False)[0].tolist()
    assert len(ids) == 67 and len(set(ids)) > 20
    two = model(torch.tensor([[1, 2, 3, 4]])).logits.detach()[0, -1].topk(2).values
    assert 0.01 < float(two[0] - two[1]) < 20


def test_biases_and_norms_are_random(tmp_path: Path) -> None:
    weights = open_model(write_tiny_llama(tmp_path / "m", attention_bias=True, mlp_bias=True)).weights
    for name in weights.names():
        values = weights.read(name)
        assert values.std() > 0.05, name
        if name.endswith("norm.weight"):
            assert 0.8 < values.mean() < 1.2


@pytest.mark.parametrize(
    ("spelling", "present", "absent"),
    [("new", {"rope_parameters", "dtype"}, {"rope_theta", "rope_scaling"}),
     ("old", {"rope_theta", "rope_scaling", "torch_dtype"}, {"rope_parameters"}),
     ("old-type", {"rope_theta", "rope_scaling"}, {"rope_parameters"})],
)  # fmt: skip
def test_rope_spellings(tmp_path: Path, spelling: str, present: set[str], absent: set[str]) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    folder = write_tiny_llama(tmp_path / "m", rope_scaling=scaling, rope_spelling=spelling)
    content = json.loads((folder / "config.json").read_text())
    assert present <= content.keys() and not absent & content.keys()
    if spelling != "new":
        assert content["rope_scaling"] == {"type" if spelling == "old-type" else "rope_type": "linear", "factor": 2.0}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--hidden-size", "36", "--num-attention-heads", "3", "--num-key-value-heads", "1", "--head-dim", "12",
             "--attention-bias", "true", "--rope-scaling", '{"type": "linear", "factor": 2}']  # fmt: skip
    assert main([str(tmp_path / "m"), *flags, "--shards", "2", "--dtype", "f16"]) == 0
    model = open_model(tmp_path / "m")
    assert (model.config.hidden_size, model.config.head_dim, model.config.attention_bias) == (36, 12, True)
    assert model.config.rope_parameters["rope_type"] == "linear"
    assert model.weights.dtype("model.norm.weight") == "f16" and len(model.files) == 4
    assert main([str(tmp_path / "g"), "--gguf", "q8_0"]) == 0
    assert open_model(tmp_path / "g" / "g-q8_0.gguf").config.hidden_size == 64
    capsys.readouterr()
    assert main([str(tmp_path / "x"), "--num-attention-heads", "7"]) == 1
    assert "multiple" in capsys.readouterr().err
    for wrong in (["--no-such-field", "1"], ["--hidden-size"], ["8"]):
        with pytest.raises(SystemExit) as stop:
            main([str(tmp_path / "x"), *wrong])
        assert stop.value.code == 2


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(BuddyError, match="not 'f8'"):
        write_tiny_llama(tmp_path / "m", dtype="f8")
    with pytest.raises(BuddyError, match="not 'other'"):
        write_tiny_llama(tmp_path / "m", rope_spelling="other")

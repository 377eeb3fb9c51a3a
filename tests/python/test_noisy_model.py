"""benchmarks/noisy_model.py: noise of half a step, and nothing else changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from buddy_gen.models import open_model
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "noisy_model.py"


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_weight_moves_by_at_most_half_a_step(tmp_path: Path) -> None:
    plain = write_tiny_llama(tmp_path / "tiny", seed=4, intermediate_size=96)
    tokens = ["a", "b", "c"]
    source = write_tiny_gguf(
        tmp_path / "source.gguf", plain, "q4_1", extra=lambda writer: writer.add_token_list(tokens)
    )
    outputs = [tmp_path / name for name in ("one.gguf", "again.gguf", "other.gguf")]
    for output, seed in zip(outputs, ("1", "1", "2"), strict=True):
        done = _run(source, output, "--seed", seed)
        assert done.returncode == 0, done.stderr
    assert outputs[0].read_bytes() == outputs[1].read_bytes() != outputs[2].read_bytes()
    still = tmp_path / "still.gguf"
    assert _run(source, still, "--reach", "0").returncode == 0
    before, after, unmoved = open_model(source), open_model(outputs[0]), open_model(still)
    assert before.config.to_dict() == after.config.to_dict()
    assert gguf.GGUFReader(outputs[0]).fields["tokenizer.ggml.tokens"].contents() == tokens
    for name in before.weights.names():
        old, new = before.weights.read(name), after.weights.read(name)
        np.testing.assert_array_equal(unmoved.weights.read(name), old)
        if old.ndim == 1:
            np.testing.assert_array_equal(old, new)
            continue
        groups = old.reshape(-1, 32)
        steps = np.ptp(groups, axis=1, keepdims=True) / 15
        moved = np.abs(new.reshape(-1, 32) - groups)
        assert np.all(moved <= steps * 0.5001)
        assert moved.mean() > 0.2 * steps.mean()


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    done = _run(tmp_path / "text.gguf", tmp_path / "out.gguf")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "should be a GGUF model" in done.stderr

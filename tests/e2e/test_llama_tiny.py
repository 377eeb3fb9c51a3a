"""Tiny random LLaMAs of every shape that a config can ask for, against Hugging Face's own f32 model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_program import AppObjects, Program, build_program, eager_greedy, eager_logits, eager_model

from buddy_gen.models.tiny import write_tiny_llama

pytestmark = pytest.mark.slow

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa-9-3": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8},
    "mha-untied": {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "tie_word_embeddings": False},
    "llama3-rope": {"rope_scaling": LLAMA3_ROPE, "rope_theta": 10000.0, "rms_norm_eps": 1e-4},
    "odd-sizes": {
        "hidden_size": 36,
        "head_dim": 12,
        "vocab_size": 101,
        "intermediate_size": 57,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "num_hidden_layers": 1,
    },
    "biases-wide-heads": {"attention_bias": True, "mlp_bias": True, "head_dim": 20, "num_hidden_layers": 2},
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppObjects:
    return AppObjects(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module", params=VARIANTS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, app: AppObjects) -> Program:
    folder = tmp_path_factory.mktemp(request.param)
    model = write_tiny_llama(folder / "model", seed=7, **VARIANTS[request.param])
    return build_program(model, folder, app)


def _ids(program: Program, count: int) -> list[int]:
    vocab = eager_model(program.model).config.vocab_size
    return [int(token) for token in np.random.default_rng(3).integers(0, vocab, count)]


def test_decode_logits_of_every_position(program: Program) -> None:
    ids = _ids(program, 64)
    ours = program.logits(ids, "--ubatch-size", "1")
    assert ours.shape[0] == len(ids)
    np.testing.assert_allclose(ours, eager_logits(eager_model(program.model), ids), atol=1e-3, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 12, 13, 31, 64])
def test_prefill_logits(program: Program, length: int) -> None:
    ids = _ids(program, length)
    ours = program.logits(ids)
    expected = eager_logits(eager_model(program.model), ids)[-1:]
    np.testing.assert_allclose(ours, expected, atol=1e-3, rtol=0)


def test_prefill_from_any_position(program: Program) -> None:
    ids = _ids(program, 47)
    ours = program.logits(ids, "--ubatch-size", "9")
    expected = eager_logits(eager_model(program.model), ids)
    rows = [min(end, len(ids)) - 1 for end in range(9, len(ids) + 9, 9)]
    np.testing.assert_allclose(ours, expected[rows], atol=1e-3, rtol=0)


def test_greedy_tokens(program: Program) -> None:
    ids = _ids(program, 11)
    answer = program.answer("--ids", ",".join(map(str, ids)), "-n", "64", "--ignore-eos")
    assert answer["prompt_ids"] == ids
    assert answer["ids"] == eager_greedy(eager_model(program.model), ids, 64)


def test_any_number_of_threads_gives_the_same_logits(program: Program) -> None:
    ids = _ids(program, 33)
    one, two, five = (program.logits(ids, "-t", threads) for threads in ("1", "2", "5"))
    assert np.array_equal(one, two)
    assert np.array_equal(one, five)


def test_context_ends_exactly(program: Program, tmp_path: Path) -> None:
    ids = _ids(program, 16)
    full = program.answer("--ids", ",".join(map(str, ids)), "-c", "16", "-n", "8", "--ignore-eos")
    assert (len(full["ids"]), full["stop"]) in ((0, "context"), (1, "context"))
    over = program.run("--ids", ",".join(map(str, [*ids, 1])), "-c", "16", "-n", "8")
    assert over.returncode != 0
    assert over.stderr.decode().count("\n") == 1

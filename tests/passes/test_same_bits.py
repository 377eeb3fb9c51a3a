"""Optimisations that must not change a bit: without each one random shapes give the same results as with all."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from compiled_module import V3, CompiledModule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_memory_plan import logits
from toy_model import Shape, toy_module

pytestmark = pytest.mark.slow

SWITCHES = ["memory-plan=false internalize=false", "group=false"]


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3), (5, 1)]),
    head_dim=st.sampled_from([4, 6, 10, 16]),
    hidden=st.integers(3, 40),
    ffn=st.integers(3, 60),
    layers=st.integers(1, 3),
    tokens=st.integers(1, 20),
)
def test_same_bits(heads: tuple[int, int], head_dim: int, hidden: int, ffn: int, layers: int, tokens: int) -> None:
    shape = Shape(layers, hidden, heads[0], heads[1], head_dim, ffn, vocab=50, context=32)
    entry = "decode" if tokens == 1 else "score"
    ids = np.random.default_rng(tokens).integers(0, shape.vocab, tokens)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for options in ("", *SWITCHES):
            module = CompiledModule(toy_module(V3, shape, entry), Path(folder) / "m", V3, options)
            results.append(logits(module, entry, shape, V3, ids, module.arena(entry, tokens)))
    assert np.isfinite(results[0]).all()
    for switch, result in zip(SWITCHES, results[1:], strict=True):
        np.testing.assert_array_equal(result, results[0], err_msg=switch)

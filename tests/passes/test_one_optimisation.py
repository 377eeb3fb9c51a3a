"""Each optimisation alone against the pipeline without any, on random shapes, entry points and vector widths."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from compiled_module import CompiledModule, Machine, machines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_execution import OFF
from test_memory_plan import logits
from toy_model import Shape, toy_module

pytestmark = pytest.mark.slow

ALONE = [
    ["fuse"],
    ["pack"],
    ["pack", "vectorize"],
    ["pack", "vectorize", "group"],
    ["attention"],
    ["parallelize"],
    ["memory-plan", "internalize"],
]
"""Optimisations that are switched on together; `vectorize` and `group` have nothing to do without the one before."""


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    machine=st.sampled_from(machines()),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3), (5, 1)]),
    head_dim=st.sampled_from([4, 6, 10, 16, 34]),
    hidden=st.integers(3, 70),
    ffn=st.integers(3, 70),
    tokens=st.sampled_from([1, 2, 3, 5, 7, 11, 13, 20, 31]),
)
def test_one_optimisation(
    machine: Machine, heads: tuple[int, int], head_dim: int, hidden: int, ffn: int, tokens: int
) -> None:
    shape = Shape(2, hidden, heads[0], heads[1], head_dim, ffn, vocab=50, context=32)
    entry = "decode" if tokens == 1 else "score"
    ids = np.random.default_rng(tokens).integers(0, shape.vocab, tokens)

    def result(folder: str, on: list[str]) -> np.ndarray:
        options = " ".join(switch for switch in OFF if switch.partition("=")[0] not in on)
        module = CompiledModule(toy_module(machine, shape, entry), Path(folder) / "m", machine, options)
        return logits(module, entry, shape, machine, ids, module.arena(entry, tokens))

    with tempfile.TemporaryDirectory() as folder:
        expected = result(folder, [])
        assert np.isfinite(expected).all()
        for on in ALONE:
            np.testing.assert_allclose(result(folder, on), expected, atol=1e-4, err_msg=" ".join(on))

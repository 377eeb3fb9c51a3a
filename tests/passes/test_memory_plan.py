"""The arena: its size, that what it held does not matter, that buffers in use together are apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_module import V3, CompiledModule, Machine
from toy_model import Shape, Weights, toy_module

Array = np.ndarray[Any, Any]
SHAPE = Shape()


def logits(module: CompiledModule, entry: str, shape: Shape, machine: Machine, ids: Array, arena: Array) -> Array:
    """The logits of a text, fed at position 0."""
    size = (shape.layers, shape.kv_heads, shape.context, shape.head_dim)
    filled = [np.full(size, np.nan, np.float32) for _ in range(2)]
    out = np.full((1, ids.size if entry == "score" else 1, shape.vocab), np.nan, np.float32)
    module(entry, Weights(shape, machine.panel).data(), ids[None].copy(), 0, *filled, out, arena)
    return out


@pytest.mark.parametrize("entry", ["prefill", "decode", "score"])
def test_nothing_is_allocated_and_the_arena_may_hold_anything(entry: str, tmp_path: Path) -> None:
    module = CompiledModule(toy_module(V3, SHAPE, entry), tmp_path / "m", V3)
    assert "@malloc" not in module.lowered
    assert "@free" not in module.lowered
    ids = np.arange(1 if entry == "decode" else 13)
    results = []
    for filler in (0, 127, 255):  # zeros, large numbers, NaN
        arena = module.arena(entry, ids.size, filler)
        guard = np.full(64, 77, np.int8)
        held = np.concatenate([arena, guard])  # not aligned on purpose: only speed depends on it
        results.append(logits(module, entry, SHAPE, V3, ids, held[: arena.size]))
        np.testing.assert_array_equal(held[arena.size :], guard)
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_size_grows_with_the_tokens(tmp_path: Path) -> None:
    module = CompiledModule(toy_module(V3, SHAPE, "prefill"), tmp_path / "m", V3)
    sizes = [module.arena("prefill", tokens).size for tokens in (1, 2, 3, 100)]
    assert all(size % 64 == 0 for size in sizes)
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == (sizes[3] - sizes[0]) // 99
    # At least the two activations of the feed-forward layer, and not what all temporaries take together.
    assert 2 * 4 * SHAPE.ffn <= sizes[1] - sizes[0] < 16 * 4 * SHAPE.ffn

"""Runs compiled modules and compares them with numpy: shapes with tails, every vector width, every optimisation off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_module import V3, CompiledModule, Machine, aligned, machines, pack
from toy_model import Shape, Weights, attention_module, attention_reference, toy_module, toy_reference

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
MACHINES = [pytest.param(machine, id=machine.name) for machine in machines()]
OFF = [
    "fuse=false",
    "pack=false",
    "vectorize=false",
    "attention=false",
    "parallelize=false",
    "memory-plan=false",
    "internalize=false",
    "group=false",
]
SWITCHES = ["", *OFF, " ".join(OFF)]


def matmul_module(machine: Machine, shapes: list[tuple[str, int, int]]) -> str:
    """Entries ``@fI(weights, x (M, K), out (M, N))``, one for each (M, K, N); M may be ``?``."""
    functions = []
    for number, (m, k, n) in enumerate(shapes):
        panel = machine.panel
        stored = f"{-(-n // panel)}x{k}x{panel}xf32"
        x, out, weight = f"tensor<{m}x{k}xf32>", f"tensor<{m}x{n}xf32>", f"tensor<{n}x{k}xf32>"
        dim, size = (f"%m = tensor.dim %x, %c0 : {x}", "%m") if m == "?" else ("", "")
        functions.append(f"""
func.func @f{number}(%weights: memref<?xi8>, %x: {x}, %out: {out} {{bufferization.writable = true}}) -> {out}
    attributes {{llvm.emit_c_interface}} {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %view = memref.view %weights[%c0][] : memref<?xi8> to memref<{stored}>
  %packed = bufferization.to_tensor %view restrict : memref<{stored}> to tensor<{stored}>
  %e = tensor.empty() : {weight}
  %w = linalg.unpack %packed inner_dims_pos = [0] inner_tiles = [{panel}] into %e : tensor<{stored}> -> {weight}
  {dim}
  %o = tensor.empty({size}) : {out}
  %z = linalg.fill ins(%zero : f32) outs(%o : {out}) -> {out}
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>] ins(%x, %w : {x}, {weight}) outs(%z : {out}) -> {out}
  %r = bufferization.materialize_in_destination %y in %out : ({out}, {out}) -> {out}
  return %r : {out}
}}""")
    return f"module attributes {{{machine.attribute}}} {{{''.join(functions)}\n}}"


@pytest.mark.parametrize("machine", MACHINES)
def test_matmul_rows_and_tails(machine: Machine, tmp_path: Path) -> None:
    sizes = [(37, 50), (64, 64), (1, 33)]
    shapes = [(m, k, n) for k, n in sizes for m in ("?", "1", "7") if m == "?" or k > 40]
    module = CompiledModule(matmul_module(machine, shapes), tmp_path / "m", machine)
    rng = np.random.default_rng(3)
    for number, (m, k, n) in enumerate(shapes):
        weight = rng.standard_normal((n, k), dtype=np.float32)
        stored = pack(weight, machine.panel)
        data = aligned(stored.nbytes)
        data[:] = stored.reshape(-1).view(np.uint8)
        for rows in (1, 2, 5, 6, 7, 13, 64, 301) if m == "?" else (int(m),):
            x = rng.standard_normal((rows, k), dtype=np.float32)
            out = np.full((rows, n), np.nan, np.float32)
            module(f"f{number}", data.view(np.int8), x, out)
            np.testing.assert_allclose(out, x @ weight.T, atol=2e-5, err_msg=f"{rows} x {k} x {n}")


ATTENTION_SHAPES = [
    (9, 3, 64, "?"),
    (8, 1, 96, "1"),
    (4, 4, 12, "?"),
    (9, 3, 64, "1"),
    (2, 1, 13, "?"),
    (14, 2, 8, "1"),
]


@pytest.mark.parametrize(
    ("machine", "heads", "kv_heads", "head_dim", "queries"),
    [(machine, *shape) for i, machine in enumerate(machines()) for shape in ATTENTION_SHAPES[i % 3 :: 2]],
    ids=lambda value: value.name if isinstance(value, Machine) else str(value),
)
def test_attention(machine: Machine, heads: int, kv_heads: int, head_dim: int, queries: str, tmp_path: Path) -> None:
    module = CompiledModule(attention_module(machine, 2, heads, kv_heads, head_dim, queries), tmp_path / "m", machine)
    rng = np.random.default_rng(4)
    for count in (1, 2, 5, 6, 7, 13, 130) if queries == "?" else (1,):
        for position in (0, 3, 63, 200, *([2100] if count == 1 else [])):
            q = 3 * rng.standard_normal((1, heads, count, head_dim), dtype=np.float32)
            # What lies past the filled positions, and in other layers, must not be looked at.
            k = np.full((2, kv_heads, position + count + 3, head_dim), np.nan, np.float32)
            v = k.copy()
            k[1, :, : position + count] = rng.standard_normal((kv_heads, position + count, head_dim))
            v[1, :, : position + count] = rng.standard_normal((kv_heads, position + count, head_dim))
            out = np.full((1, count, heads, head_dim), np.nan, np.float32)
            module("run", q, k, v, 1, position, out)
            expected = attention_reference(q, k[1], v[1], position, head_dim**-0.5)
            np.testing.assert_allclose(out, expected, atol=1e-5, err_msg=f"{count} at {position}")


def as_bf16(values: Array) -> tuple[Array, Array]:
    """f32 values cut to bf16: the stored halves, and what they stand for."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & 0xFFFF0000
    return (bits >> 16).astype(np.uint16), bits.view(np.float32)


def as_rows_of_i8(values: Array) -> tuple[Array, Array]:
    """f32 rows as integers with their scale behind them: the stored bytes, and what they stand for."""
    scale = (np.abs(values).max(-1, keepdims=True) / 127).astype(np.float32)
    with np.errstate(invalid="ignore"):
        integers = np.rint(values / scale).astype(np.int8)
    return np.concatenate([integers, scale.view(np.int8)], -1), integers * scale


def as_f16(values: Array) -> tuple[Array, Array]:
    halves = values.astype(np.float16)
    return halves, halves.astype(np.float32)


@pytest.mark.parametrize(("element", "store"), [("f16", as_f16), ("bf16", as_bf16), ("i8", as_rows_of_i8)])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "queries"), [(9, 3, 64, "1"), (9, 3, 64, "?"), (4, 2, 12, "1"), (4, 2, 20, "?")]
)
def test_attention_over_narrow_caches(
    element: str,
    store: Callable[[Array], tuple[Array, Array]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    queries: str,
    tmp_path: Path,
) -> None:
    text = attention_module(V3, 2, heads, kv_heads, head_dim, queries, element)
    module = CompiledModule(text, tmp_path / "m", V3)
    rng = np.random.default_rng(5)
    for count, position in [(1, 0), (1, 100), *([(7, 0), (50, 70)] if queries == "?" else [])]:
        q = rng.standard_normal((1, heads, count, head_dim), dtype=np.float32)
        rows = rng.standard_normal((2, 2, kv_heads, position + count + 3, head_dim), dtype=np.float32)
        rows[:, :, :, position + count :] = np.nan
        (k, k_values), (v, v_values) = store(rows[0]), store(rows[1])
        out = np.full((1, count, heads, head_dim), np.nan, np.float32)
        module("run", q, k, v, 1, position, out)
        expected = attention_reference(q, k_values[1], v_values[1], position, head_dim**-0.5)
        np.testing.assert_allclose(out, expected, atol=1e-5, err_msg=f"{count} at {position}")


@pytest.mark.parametrize("machine", MACHINES)
def test_exp_is_accurate(machine: Machine, tmp_path: Path) -> None:
    text = f"""module attributes {{{machine.attribute}}} {{
func.func @run(%x: tensor<4096xf32>, %y: tensor<4096xf32> {{bufferization.writable = true}}) -> tensor<4096xf32>
    attributes {{llvm.emit_c_interface}} {{
  %r = linalg.exp ins(%x : tensor<4096xf32>) outs(%y : tensor<4096xf32>) -> tensor<4096xf32>
  return %r : tensor<4096xf32>
}}
}}"""
    module = CompiledModule(text, tmp_path / "m", machine)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -100, -103.9, -104.1, 1e30, -1e30])
    x = np.concatenate([special, np.linspace(-95, 88.7, 4096 - special.size)]).astype(np.float32)
    y = np.full_like(x, 7)
    module("run", x, y)
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(y[~finite & ~np.isnan(x)], expected[~finite & ~np.isnan(x)])
    ulps = np.abs(y[finite].astype(np.float64) - expected[finite]) / np.spacing(expected[finite])
    assert ulps.max() <= 2


def caches(shape: Shape) -> list[Array]:
    """Empty K and V caches; whoever reads what was not written gets NaN."""
    size = (shape.layers, shape.kv_heads, shape.context, shape.head_dim)
    return [np.full(size, np.nan, np.float32) for _ in range(2)]


def toy_error(machine: Machine, shape: Shape, options: str, folder: Path) -> float:
    """The largest error of a toy model's logits: a prefill in two parts, then token by token."""
    weights = Weights(shape, machine.panel)
    data, ids = weights.data(), np.random.default_rng(1).integers(0, shape.vocab, 61)
    expected = toy_reference(weights, ids)
    prefill, decode = (
        CompiledModule(toy_module(machine, shape, entry), folder / entry, machine, options)
        for entry in ("prefill", "decode")
    )
    filled, logits = caches(shape), np.full((1, 1, shape.vocab), np.nan, np.float32)
    errors = []
    for start, end in [(0, 13), (13, 40), *((i, i + 1) for i in range(40, ids.size))]:
        module, entry = (decode, "decode") if end - start == 1 else (prefill, "prefill")
        arena = module.arena(entry, end - start)
        module(entry, data, ids[None, start:end].copy(), start, *filled, logits, arena)
        errors.append(np.abs(logits[0, 0] - expected[end - 1]).max())
    return float(np.max(errors))


def test_toy_model_scores_every_position(tmp_path: Path) -> None:
    shape = Shape()
    weights = Weights(shape, V3.panel)
    ids = np.random.default_rng(2).integers(0, shape.vocab, 61)
    module = CompiledModule(toy_module(V3, shape, "score"), tmp_path / "m", V3)
    logits = np.full((1, ids.size, shape.vocab), np.nan, np.float32)
    module("score", weights.data(), ids[None].copy(), 0, *caches(shape), logits, module.arena("score", ids.size))
    np.testing.assert_allclose(logits[0], toy_reference(weights, ids), atol=1e-4)


@pytest.mark.parametrize("options", SWITCHES)
def test_toy_model_with_each_optimisation_off(options: str, tmp_path: Path) -> None:
    assert toy_error(V3, Shape(), options, tmp_path) < 1e-4


@pytest.mark.parametrize("machine", MACHINES)
def test_toy_model_on_each_machine(machine: Machine, tmp_path: Path) -> None:
    shape = Shape(layers=3, hidden=64, heads=4, kv_heads=1, head_dim=16, ffn=96, vocab=128)
    assert toy_error(machine, shape, "", tmp_path) < 1e-4

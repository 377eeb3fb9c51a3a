"""The two ops of our own: attention over a KV cache, and the cache's update.

Both see the caches as the function's two tensors (layers, kv_heads, capacity, head_dim); a layer's own is a slice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from mlir import ir
from mlir.dialects import arith, bufferization, func, linalg, tensor

import buddy_gen.capture  # noqa: F401 - defines the two ops
from buddy_gen.lowering.activations import integer_factor, integer_of, integer_scale, largest_magnitude
from buddy_gen.lowering.context import (
    CacheSlice,
    Context,
    Size,
    constant_index,
    convert,
    element_of,
    loop_index,
    static_shape,
    tensor_type,
)
from buddy_gen.lowering.registry import lowering
from buddy_gen.lowering.shape import extract, insert, view_as

SCALE_BYTES = 4
"""A row of an int8 cache is head_dim integers and their scale, an f32 in this many bytes, the lowest first."""


@lowering("linalg", torch.ops.buddy.kv_update.default)
def kv_update(ctx: Context, cache: CacheSlice, new: ir.Value, position: ir.Value) -> CacheSlice:
    """The new rows (1, kv_heads, length, head_dim) inserted at (layer, 0, position, 0); it bufferises in place."""
    assert ctx.caches is not None
    tensors = ctx.caches.tensors
    sizes = [ctx.size(size) for size in ctx.operand(1).shape]
    element = element_of(tensors[cache.kind])
    place = [cache.layer, 0, ctx.index(position)]
    if isinstance(element, ir.IntegerType):
        integers, scales = _quantised_rows(ctx, new, sizes)
        held = insert(integers, tensors[cache.kind], [*place, 0], sizes)
        tensors[cache.kind] = insert(scales, held, [*place, sizes[3]], [*sizes[:3], SCALE_BYTES])
    else:
        rows = new if element_of(new) == element else _each(ctx, [new], sizes, element, lambda x: convert(x, element))
        tensors[cache.kind] = insert(rows, tensors[cache.kind], [*place, 0], sizes)
    return cache


def _each(
    ctx: Context, inputs: list[ir.Value], sizes: list[Size], element: ir.Type, body: Callable[..., ir.Value]
) -> ir.Value:
    """A tensor of `sizes`, element by element; an input of lower rank is the same along the last dimensions."""
    rank = len(sizes)
    dims = [ir.AffineDimExpr.get(i) for i in range(rank)]
    maps = [ir.AffineMap.get(rank, 0, dims[: len(static_shape(value))]) for value in inputs]
    init = ctx.empty(sizes, element)
    every = ir.AffineMap.get_identity(rank)
    return ctx.generic(inputs, init, [*maps, every], ["parallel"] * rank, lambda *elements: body(*elements[:-1]))


def _quantised_rows(ctx: Context, rows: ir.Value, sizes: list[Size]) -> tuple[ir.Value, ir.Value]:
    """Rows (1, kv_heads, length, head_dim) as int8, and the bytes of their scales (1, kv_heads, length, 4)."""
    f32, i8, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(8), ir.IntegerType.get_signless(32)
    dims = [ir.AffineDimExpr.get(i) for i in range(4)]
    largest = ctx.generic(
        [rows],
        ctx.filled(sizes[:3], f32, 0),
        [ir.AffineMap.get_identity(4), ir.AffineMap.get(4, 0, dims[:3])],
        ["parallel"] * 3 + ["reduction"],
        largest_magnitude,
    )
    factors = _each(ctx, [largest], sizes[:3], f32, lambda most: integer_factor(ctx, most))
    integers = _each(ctx, [rows, factors], sizes, i8, integer_of)

    def byte(most: ir.Value) -> ir.Value:
        bits = arith.bitcast(i32, integer_scale(ctx, most))
        shift = arith.muli(arith.index_cast(i32, loop_index(3)), ctx.scalar(8, i32))
        return arith.trunci(i8, arith.shrui(bits, shift))

    return integers, _each(ctx, [largest], [*sizes[:3], SCALE_BYTES], i8, byte)


@lowering("linalg", torch.ops.buddy.attention.default)
def attention(ctx: Context, q: ir.Value, k: CacheSlice, v: CacheSlice, position: ir.Value, scale: float) -> ir.Value:
    """A call of the private function that holds the reference of attention for these types."""
    assert ctx.caches is not None
    k_cache, v_cache = ctx.caches.tensors["k"], ctx.caches.tensors["v"]
    out = ctx.empty(ctx.result_sizes(), ctx.result_element())
    operands = [q, k_cache, v_cache, k.layer, ctx.index(position), out]
    key = ("attention", scale, *(str(value.type) for value in operands))
    function = ctx.functions.get(key, "attention", lambda name: _define(name, [v.type for v in operands], scale))
    return func.call([out.type], ir.FlatSymbolRefAttr.get(function), operands)


def _define(name: str, types: list[ir.Type], scale: float) -> func.FuncOp:
    function = func.FuncOp(name, ir.FunctionType.get(types, [types[-1]]), visibility="private")
    kind = ir.DictAttr.get({"scale": ir.FloatAttr.get(ir.F32Type.get(), scale)})
    function.attributes["buddy.attention"] = kind
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        func.ReturnOp([_reference(list(block.arguments), scale)])
    return function


def _reference(arguments: list[ir.Value], scale: float) -> ir.Value:
    """softmax(mask(scale · q kᵀ)) v, with query heads grouped over KV heads by the indexing maps alone."""
    q, k_cache, v_cache, layer, position, out = arguments
    ctx = Context({}, None, None)
    _, heads, length, head_dim = static_shape(q)
    kv_heads = static_shape(k_cache)[1]
    assert heads is not None and kv_heads is not None and head_dim is not None
    groups = heads // kv_heads
    queries: Size = tensor.dim(q, constant_index(2)) if length is None else length
    filled = arith.addi(position, ctx.index(queries))
    f32 = ir.F32Type.get()

    def part_of(cache: ir.Value, start: int, width: int) -> ir.Value:
        sizes: list[Size] = [1, kv_heads, filled, width]
        part = extract(cache, [layer, 0, 0, start], sizes, [1] * 4)
        return tensor.collapse_shape(tensor_type(sizes[1:], element_of(cache)), part, [[0, 1], [2], [3]])

    def filled_part(cache: ir.Value) -> list[ir.Value]:
        """The filled rows (kv_heads, positions, head_dim), and their scales (kv_heads, positions) if they have any."""
        rows = part_of(cache, 0, head_dim)
        if not isinstance(element_of(cache), ir.IntegerType):
            return [rows]
        return [rows, _scales(ctx, part_of(cache, head_dim, SCALE_BYTES), [kv_heads, filled, SCALE_BYTES])]

    keys, values = filled_part(k_cache), filled_part(v_cache)
    grouped = view_as(ctx, q, [1, heads, queries, head_dim], [kv_heads, groups, queries, head_dim])

    h, g, s, p, d = (ir.AffineDimExpr.get(i) for i in range(5))
    parallel, reduction = "parallel", "reduction"
    score_sizes: list[Size] = [kv_heads, groups, queries, filled]

    def multiply_add(left: ir.Value, *cached: ir.Value) -> ir.Value:
        right = _wide(cached[0])
        for scale in cached[1:-1]:
            right = arith.mulf(right, scale)
        return arith.addf(cached[-1], arith.mulf(_wide(left), right))

    cached = [[h, p, d], [h, p]][: len(keys)]
    scores = ctx.generic(
        [grouped, *keys],
        ctx.filled(score_sizes, f32, 0),
        [ir.AffineMap.get(5, 0, e) for e in ([h, g, s, d], *cached, [h, g, s, p])],
        [parallel] * 4 + [reduction],
        multiply_add,
    )

    def mask(score: ir.Value, _: ir.Value) -> ir.Value:
        last = arith.addi(position, loop_index(2))
        seen = arith.cmpi(arith.CmpIPredicate.ule, loop_index(3), last)
        return arith.select(seen, arith.mulf(score, ctx.scalar(scale, f32)), ctx.scalar(float("-inf"), f32))

    identity = ir.AffineMap.get_identity(4)
    masked = ctx.generic([scores], ctx.empty(score_sizes, f32), [identity] * 2, [parallel] * 4, mask)
    softmax = linalg.SoftmaxOp([masked.type], masked, ctx.empty(score_sizes, f32), 3).results[0]
    result_sizes: list[Size] = [queries, kv_heads, groups, head_dim]
    mixed = ctx.generic(
        [softmax, *values],
        ctx.filled(result_sizes, f32, 0),
        [ir.AffineMap.get(5, 0, e) for e in ([h, g, s, p], *cached, [s, h, g, d])],
        [parallel, parallel, parallel, reduction, parallel],
        multiply_add,
    )
    if element_of(out) != f32:
        narrow = element_of(out)
        mixed = ctx.generic(
            [mixed],
            ctx.empty(result_sizes, narrow),
            [identity] * 2,
            [parallel] * 4,
            lambda x, _: arith.truncf(narrow, x),
        )
    shaped = view_as(ctx, mixed, result_sizes, [1, queries, heads, head_dim])
    return bufferization.materialize_in_destination(out.type, shaped, out)


def _scales(ctx: Context, bytes_: ir.Value, sizes: list[Size]) -> ir.Value:
    """Scales (kv_heads, positions) from their bytes (kv_heads, positions, 4)."""
    i32 = ir.IntegerType.get_signless(32)
    dims = [ir.AffineDimExpr.get(i) for i in range(3)]

    def put(byte: ir.Value, bits: ir.Value) -> ir.Value:
        shift = arith.muli(arith.index_cast(i32, loop_index(2)), ctx.scalar(8, i32))
        return arith.ori(bits, arith.shli(arith.extui(i32, byte), shift))

    bits = ctx.generic(
        [bytes_],
        ctx.filled(sizes[:2], i32, 0),
        [ir.AffineMap.get_identity(3), ir.AffineMap.get(3, 0, dims[:2])],
        ["parallel"] * 2 + ["reduction"],
        put,
    )
    return _each(ctx, [bits], sizes[:2], ir.F32Type.get(), lambda value: arith.bitcast(ir.F32Type.get(), value))


def _wide(value: ir.Value) -> ir.Value:
    return convert(value, ir.F32Type.get())

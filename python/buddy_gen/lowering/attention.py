"""The two ops of our own: attention over a KV cache, and the cache's update.

Both see the caches as the function's two tensors (layers, kv_heads, capacity, head_dim); a layer's own is a slice.
"""

from __future__ import annotations

import torch
from mlir import ir
from mlir.dialects import arith, bufferization, func, linalg, tensor

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


@lowering("linalg", torch.ops.buddy.kv_update.default)
def kv_update(ctx: Context, cache: CacheSlice, new: ir.Value, position: ir.Value) -> CacheSlice:
    """The new rows (1, kv_heads, length, head_dim) inserted at (layer, 0, position, 0); it bufferises in place."""
    assert ctx.caches is not None
    tensors = ctx.caches.tensors
    sizes = [ctx.size(size) for size in ctx.operand(1).shape]
    new = _narrowed(ctx, new, sizes, element_of(tensors[cache.kind]))
    tensors[cache.kind] = insert(new, tensors[cache.kind], [cache.layer, 0, ctx.index(position), 0], sizes)
    return cache


def _narrowed(ctx: Context, new: ir.Value, sizes: list[Size], element: ir.Type) -> ir.Value:
    """Rows as the cache holds them."""
    if element_of(new) == element:
        return new
    identity = ir.AffineMap.get_identity(len(sizes))
    return ctx.generic(
        [new],
        ctx.empty(sizes, element),
        [identity, identity],
        ["parallel"] * len(sizes),
        lambda value, _: convert(value, element),
    )


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

    def filled_part(cache: ir.Value) -> ir.Value:
        sizes: list[Size] = [1, kv_heads, filled, head_dim]
        part = extract(cache, [layer, 0, 0, 0], sizes, [1] * 4)
        return tensor.collapse_shape(tensor_type(sizes[1:], element_of(cache)), part, [[0, 1], [2], [3]])

    keys, values = filled_part(k_cache), filled_part(v_cache)
    grouped = view_as(ctx, q, [1, heads, queries, head_dim], [kv_heads, groups, queries, head_dim])

    h, g, s, p, d = (ir.AffineDimExpr.get(i) for i in range(5))
    parallel, reduction = "parallel", "reduction"
    score_sizes: list[Size] = [kv_heads, groups, queries, filled]

    def multiply_add(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        return arith.addf(total, arith.mulf(_wide(left), _wide(right)))

    scores = ctx.generic(
        [grouped, keys],
        ctx.filled(score_sizes, f32, 0),
        [ir.AffineMap.get(5, 0, e) for e in ([h, g, s, d], [h, p, d], [h, g, s, p])],
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
        [softmax, values],
        ctx.filled(result_sizes, f32, 0),
        [ir.AffineMap.get(5, 0, e) for e in ([h, g, s, p], [h, p, d], [s, h, g, d])],
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


def _wide(value: ir.Value) -> ir.Value:
    return value if isinstance(value.type, ir.F32Type) else arith.extf(ir.F32Type.get(), value)

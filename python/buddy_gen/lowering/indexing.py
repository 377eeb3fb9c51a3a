"""Ops that read by index or make indices: embedding, arange."""

from __future__ import annotations

from typing import Any

import torch
from mlir import ir
from mlir.dialects import arith, tensor, tosa

from buddy_gen.lowering.context import Context, convert, element_of, loop_index, tensor_type
from buddy_gen.lowering.registry import Declined, lowering
from buddy_gen.lowering.tosa_values import require_static, reshape

aten = torch.ops.aten


@lowering("linalg", aten.arange.start_step)
def arange(ctx: Context, start: Any, end: Any, step: Any = 1, **options: Any) -> ir.Value:
    """start, start + step, ... (the number of elements is the node's own size)."""
    element = ctx.result_element()
    if isinstance(start, ir.Value) or isinstance(step, ir.Value):
        raise Declined("a symbolic start or step")

    def body(_: ir.Value) -> ir.Value:
        index = loop_index(0)
        wide = arith.index_cast(ir.IntegerType.get_signless(64), index)
        value = convert(wide, element)
        add, mul = (arith.addf, arith.mulf) if isinstance(element, ir.FloatType) else (arith.addi, arith.muli)
        if step != 1:
            value = mul(value, ctx.scalar(step, element))
        return value if start == 0 else add(value, ctx.scalar(start, element))

    init = ctx.empty(ctx.result_sizes(), element)
    return ctx.generic([], init, [ir.AffineMap.get_identity(1)], ["parallel"], body)


@lowering("linalg", aten.embedding.default)
def embedding(ctx: Context, weight: ir.Value, ids: ir.Value, *options: Any) -> ir.Value:
    """Rows of `weight` (vocabulary, width or more) chosen by `ids`: a gather, read element by element."""
    rank = len(ctx.result.shape)
    init = ctx.empty(ctx.result_sizes(), element_of(weight))
    dims = [ir.AffineDimExpr.get(i) for i in range(rank)]
    maps = [ir.AffineMap.get(rank, 0, dims[:-1]), ir.AffineMap.get_identity(rank)]

    def body(token: ir.Value, _: ir.Value) -> ir.Value:
        row = arith.index_cast(ir.IndexType.get(), token)
        return tensor.extract(weight, [row, loop_index(rank - 1)])

    return ctx.generic([ids], init, maps, ["parallel"] * rank, body)


@lowering("tosa", aten.embedding.default)
def tosa_embedding(ctx: Context, weight: ir.Value, ids: ir.Value, *options: Any) -> ir.Value:
    """A ``tosa.gather`` of one batch."""
    if weight in ctx.formats:
        raise Declined("a table in blocks")
    rows, width = require_static(weight)
    if ctx.operand(1).dim() != 2 or ctx.operand(1).shape[0] != 1:
        raise Declined("a batch of ids")
    size = ctx.size(ctx.operand(1).shape[1])
    narrow = tosa.cast(tensor_type([1, size], ir.IntegerType.get_signless(32)), ids)
    values = reshape(weight, [1, rows, width])
    return tosa.gather(tensor_type([1, size, width], element_of(weight)), values, narrow)

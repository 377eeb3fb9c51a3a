"""Reductions over dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mlir import ir
from mlir.dialects import arith, tosa

from buddy_gen.lowering.context import Context, convert, element_of, static_shape
from buddy_gen.lowering.elementwise import _tosa_mul
from buddy_gen.lowering.registry import Declined, lowering
from buddy_gen.lowering.shape import view_as
from buddy_gen.lowering.tosa_values import constant, require_float

aten = torch.ops.aten


def _dims(rank: int, dims: Sequence[int] | int | None) -> list[int]:
    if dims is None:
        return list(range(rank))
    chosen = [dims] if isinstance(dims, int) else list(dims)
    return sorted({dim % max(rank, 1) for dim in chosen} if chosen else set(range(rank)))


def _reduce(
    ctx: Context,
    x: ir.Value,
    dims: list[int],
    initial: float | int,
    accumulator: ir.Type,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
    finish: Callable[[ir.Value], ir.Value] | None = None,
) -> ir.Value:
    """Folds `dims` of `x` with `combine`; the node's result decides whether they stay as sizes of 1."""
    source = ctx.operand(0)
    rank = source.dim()
    sizes = [ctx.size(size) for i, size in enumerate(source.shape) if i not in dims]
    init = ctx.filled(sizes, accumulator, initial)
    identity = ir.AffineMap.get_identity(rank)
    kept = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(i) for i in range(rank) if i not in dims])
    iterators = ["reduction" if i in dims else "parallel" for i in range(rank)]
    value = ctx.generic(
        [x], init, [identity, kept], iterators, lambda item, total: combine(total, convert(item, accumulator))
    )
    value = view_as(ctx, value, sizes, ctx.result_sizes())
    if finish is None and accumulator == ctx.result_element():
        return value
    done = finish or (lambda item: item)
    return ctx.elementwise([value], lambda item: convert(done(item), ctx.result_element()))


def _sum_type(ctx: Context) -> ir.Type:
    element = ctx.result_element()
    narrow = isinstance(element, ir.FloatType) and ir.FloatType(element).width < 32
    return ir.F32Type.get() if narrow else element


@lowering("linalg", aten.sum.dim_IntList)
def sum_dims(ctx: Context, x: ir.Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ir.Value:
    """The sum over `dim` (narrow floats are summed in f32)."""
    accumulator = _sum_type(ctx)
    add = arith.addf if isinstance(accumulator, ir.FloatType) else arith.addi
    return _reduce(ctx, x, _dims(ctx.operand(0).dim(), dim), 0, accumulator, add)


@lowering("linalg", aten.mean.dim)
def mean_dims(ctx: Context, x: ir.Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ir.Value:
    """The mean over `dim`: the sum, divided by the number of elements."""
    source = ctx.operand(0)
    dims = _dims(source.dim(), dim)
    count: int | ir.Value = 1
    for i in dims:
        size = ctx.size(source.shape[i])
        if isinstance(count, int) and isinstance(size, int):
            count *= size
        else:
            count = arith.muli(ctx.index(count), ctx.index(size))
    accumulator = _sum_type(ctx)
    if isinstance(count, int):
        divisor = ctx.scalar(count, accumulator)
    else:
        wide = arith.index_cast(ir.IntegerType.get_signless(64), count)
        divisor = arith.sitofp(accumulator, wide)
    return _reduce(ctx, x, dims, 0, accumulator, arith.addf, lambda total: arith.divf(total, divisor))


@lowering("linalg", aten.amax.default)
def amax(ctx: Context, x: ir.Value, dim: Any = (), keepdim: bool = False) -> ir.Value:
    """The maximum over `dim`; NaN wins."""
    element = element_of(x)
    if not isinstance(element, ir.FloatType):
        raise Declined("integer maximum")
    return _reduce(ctx, x, _dims(ctx.operand(0).dim(), dim), float("-inf"), element, arith.maximumf)


def _tosa_sum(ctx: Context, x: ir.Value, dim: Any) -> tuple[ir.Value, int]:
    """The sum with the reduced sizes kept as 1, and the number of elements that went into one."""
    require_float(x)
    shape = static_shape(x)
    if not shape:
        raise Declined("rank 0")
    count = 1
    for axis in _dims(len(shape), dim):
        size = shape[axis]
        if size is None:
            raise Declined("a reduction over a dynamic size")
        count *= size
        shape[axis] = 1
        dynamic = ir.ShapedType.get_dynamic_size()
        kind = ir.RankedTensorType.get([dynamic if size is None else size for size in shape], element_of(x))
        x = tosa.reduce_sum(x, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), axis), results=[kind])
    return x, count


@lowering("tosa", aten.mean.dim)
def tosa_mean(ctx: Context, x: ir.Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ir.Value:
    """The sum times the reciprocal of the number of elements."""
    if not keepdim:
        raise Declined("keepdim=False")
    total, count = _tosa_sum(ctx, x, dim)
    if count == 0:
        raise Declined("an empty dimension")
    factor = constant([1] * len(static_shape(total)), element_of(total), 1.0 / count)
    return _tosa_mul(total.type, total, factor)


@lowering("tosa", aten.sum.dim_IntList)
def tosa_sum(ctx: Context, x: ir.Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> ir.Value:
    """The sum over `dim`, kept as a size of 1."""
    if not keepdim or element_of(x) != ctx.result_element():
        raise Declined("keepdim=False or another result type")
    return _tosa_sum(ctx, x, dim)[0]

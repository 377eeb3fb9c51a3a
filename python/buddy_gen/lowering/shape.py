"""Ops that change the shape, or choose or join parts: view, permute, slice, cat, expand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mlir import ir
from mlir.dialects import arith, linalg, tensor, tosa

from buddy_gen.lowering.context import Context, Size, constant_index, element_of, static_shape, tensor_type
from buddy_gen.lowering.registry import Declined, lowering
from buddy_gen.lowering.tosa_values import require_static, reshape, shape_constant

aten = torch.ops.aten


def _same(left: Size, right: Size) -> bool:
    return left == right if isinstance(left, int) == isinstance(right, int) else False


def _reassociation(source: Sequence[Size], target: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Groups of dimensions of both shapes with equal products, in order; None where no such grouping exists.

    Dynamic sizes are equal when they are the same value; within a group they must stand on both sides.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = ([i] if i < len(source) else []), ([j] if j < len(target) else [])
        while not _products_equal([source[d] for d in left], [target[d] for d in right]):
            if _static_product(source, left) <= _static_product(target, right) and i + len(left) < len(source):
                left.append(i + len(left))
            elif j + len(right) < len(target):
                right.append(j + len(right))
            elif i + len(left) < len(source):
                left.append(i + len(left))
            else:
                return None
        groups.append((left, right))
        i, j = i + len(left), j + len(right)
    return groups


def _static_product(sizes: Sequence[Size], dims: list[int]) -> int:
    product = 1
    for dim in dims:
        size = sizes[dim]
        product *= size if isinstance(size, int) else 1
    return product


def _products_equal(left: list[Size], right: list[Size]) -> bool:
    dynamic_left = [size for size in left if not isinstance(size, int)]
    dynamic_right = [size for size in right if not isinstance(size, int)]
    static = _static_product(left, list(range(len(left)))) == _static_product(right, list(range(len(right))))
    return static and dynamic_left == dynamic_right


def view_as(ctx: Context, value: ir.Value, source: Sequence[Size], target: Sequence[Size]) -> ir.Value:
    """`value` of shape `source` seen with the shape `target`, through collapse and expand."""
    if len(source) == len(target) and all(_same(a, b) for a, b in zip(source, target, strict=True)):
        return value
    groups = _reassociation(source, target)
    if groups is None or not source or not target:
        return _flat_view(ctx, value, source, target)
    collapsed: list[Size] = [_group_size(source, left) for left, _ in _merge_empty(groups)]
    merged = _merge_empty(groups)
    element = element_of(value)
    if len(collapsed) != len(source):
        value = tensor.collapse_shape(tensor_type(collapsed, element), value, [left for left, _ in merged])
    if len(collapsed) != len(target):
        value = split_dims(value, [right for _, right in merged], target)
    return value


def _merge_empty(groups: list[tuple[list[int], list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Groups without a dimension on one side (sizes of 1 at an end) joined to their neighbour."""
    merged: list[tuple[list[int], list[int]]] = []
    for left, right in groups:
        if merged and (not left or not right or not merged[-1][0] or not merged[-1][1]):
            merged[-1] = (merged[-1][0] + left, merged[-1][1] + right)
        else:
            merged.append((list(left), list(right)))
    return merged


def _group_size(sizes: Sequence[Size], dims: list[int]) -> Size:
    dynamic = [size for size in (sizes[dim] for dim in dims) if not isinstance(size, int)]
    static = _static_product(sizes, dims)
    if not dynamic:
        return static
    return dynamic[0] if static == 1 and len(dynamic) == 1 else _product_value([*dynamic, static])


def _product_value(sizes: Sequence[Size]) -> ir.Value:
    value = None
    for size in sizes:
        index = constant_index(size) if isinstance(size, int) else size
        value = index if value is None else arith.muli(value, index)
    assert value is not None
    return value


def split_dims(value: ir.Value, groups: Sequence[Sequence[int]], target: Sequence[Size]) -> ir.Value:
    """`value` with each of its dimensions as those of `target` that its group lists."""
    dynamic = ir.ShapedType.get_dynamic_size()
    static = [size if isinstance(size, int) else dynamic for size in target]
    sizes = [size for size in target if not isinstance(size, int)]
    return tensor.expand_shape(tensor_type(target, element_of(value)), value, groups, sizes, static)


def _flat_view(ctx: Context, value: ir.Value, source: Sequence[Size], target: Sequence[Size]) -> ir.Value:
    """A view through one dimension, for shapes that share no border (and those of rank 0)."""
    element = element_of(value)
    if not source:
        return split_dims(value, [], target) if target else value
    flat: Size = _group_size(source, list(range(len(source))))
    if len(source) > 1:
        value = tensor.collapse_shape(tensor_type([flat], element), value, [list(range(len(source)))])
    if not target:
        return tensor.collapse_shape(tensor_type([], element), value, [])
    return value if len(target) == 1 else split_dims(value, [list(range(len(target)))], target)


@lowering("linalg", aten.view.default)
def view(ctx: Context, x: ir.Value, shape: Any) -> ir.Value:
    """The same elements in the order of rows with another shape."""
    return view_as(ctx, x, [ctx.size(size) for size in ctx.operand(0).shape], ctx.result_sizes())


@lowering("linalg", aten.permute.default)
def permute(ctx: Context, x: ir.Value, dims: Sequence[int]) -> ir.Value:
    """Dimensions in another order."""
    order = [dim % len(dims) for dim in dims]
    if order == sorted(order):
        return x
    init = ctx.empty(ctx.result_sizes(), element_of(x))
    op = linalg.TransposeOp(result=[init.type], input=x, init=init, permutation=order)
    linalg.fill_builtin_region(op.operation)
    return op.results[0]


def _bounds(ctx: Context, size: Size, start: Any, end: Any) -> tuple[Size, Size]:
    """Python's rules for a slice's start and end, where they can be told at compile time."""

    def bound(value: Any, default: int) -> Size:
        value = default if value is None else value
        if isinstance(value, ir.Value):
            return value
        if isinstance(size, int):
            return max(0, min(size, value + size if value < 0 else value))
        if value < 0:
            return arith.addi(ctx.index(size), constant_index(value))
        return size if value >= 2**62 else value

    return bound(start, 0), bound(end, 2**63 - 1)


@lowering("linalg", aten.slice.Tensor)
def slice_tensor(
    ctx: Context, x: ir.Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> ir.Value:
    """x[..., start:end:step, ...]."""
    sizes = [ctx.size(size) for size in ctx.operand(0).shape]
    dim %= len(sizes)
    first, _ = _bounds(ctx, sizes[dim], start, end)
    result = ctx.result_sizes()
    if first == 0 and step == 1 and all(_same(a, b) for a, b in zip(sizes, result, strict=True)):
        return x
    offsets: list[Size] = [0] * len(sizes)
    offsets[dim] = first
    strides = [1] * len(sizes)
    strides[dim] = step
    return extract(x, offsets, result, strides)


def extract(x: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size], strides: Sequence[int]) -> ir.Value:
    """A ``tensor.extract_slice`` with static and dynamic offsets and sizes."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return tensor.ExtractSliceOp(
        tensor_type(sizes, element_of(x)),
        x,
        [offset for offset in offsets if not isinstance(offset, int)],
        [size for size in sizes if not isinstance(size, int)],
        [],
        [offset if isinstance(offset, int) else dynamic for offset in offsets],
        [size if isinstance(size, int) else dynamic for size in sizes],
        list(strides),
    ).result


def insert(x: ir.Value, into: ir.Value, offsets: Sequence[Size], sizes: Sequence[Size]) -> ir.Value:
    """A ``tensor.insert_slice`` with unit strides."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return tensor.InsertSliceOp(
        x,
        into,
        [offset for offset in offsets if not isinstance(offset, int)],
        [size for size in sizes if not isinstance(size, int)],
        [],
        [offset if isinstance(offset, int) else dynamic for offset in offsets],
        [size if isinstance(size, int) else dynamic for size in sizes],
        [1] * len(offsets),
    ).result


@lowering("linalg", aten.cat.default)
def cat(ctx: Context, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    """Tensors one after the other along `dim`."""
    kept = [value for value in tensors if static_shape(value) != [0]]
    rank = len(ctx.result.shape)
    if any(element_of(value) != ctx.result_element() for value in kept):
        raise Declined("operands of different types")
    if len(kept) == 1:
        return kept[0]
    dim %= rank
    result = ctx.empty(ctx.result_sizes(), ctx.result_element())
    offset: Size = 0
    for value in kept:
        shape = static_shape(value)
        sizes: list[Size] = list(ctx.result_sizes())
        size = shape[dim]
        sizes[dim] = tensor.dim(value, constant_index(dim)) if size is None else size
        offsets: list[Size] = [0] * rank
        offsets[dim] = offset
        result = insert(value, result, offsets, sizes)
        if isinstance(offset, int) and isinstance(sizes[dim], int):
            offset += sizes[dim]
        else:
            offset = arith.addi(ctx.index(offset), ctx.index(sizes[dim]))
    return result


@lowering("linalg", aten.expand.default)
def expand(ctx: Context, x: ir.Value, size: Any, *, implicit: bool = False) -> ir.Value:
    """Sizes of 1 repeated."""
    if x.type == ctx.result_type():
        return x
    return ctx.elementwise([x], lambda value: value)


# tosa


@lowering("tosa", aten.view.default)
def tosa_view(ctx: Context, x: ir.Value, shape: Any) -> ir.Value:
    """A ``tosa.reshape``, where at most one size is dynamic."""
    sizes = [size if isinstance(size, int) else None for size in ctx.result.shape]
    if not sizes or not static_shape(x):
        raise Declined("rank 0")
    return x if x.type == ctx.result_type() else reshape(x, sizes)


@lowering("tosa", aten.permute.default)
def tosa_permute(ctx: Context, x: ir.Value, dims: Sequence[int]) -> ir.Value:
    """A ``tosa.transpose``."""
    order = [dim % len(dims) for dim in dims]
    return x if order == sorted(order) else tosa.transpose(ctx.result_type(), x, order)


@lowering("tosa", aten.slice.Tensor)
def tosa_slice(ctx: Context, x: ir.Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> ir.Value:
    """A ``tosa.slice``, where all sizes are static and the step is 1."""
    sizes = require_static(x)
    if step != 1:
        raise Declined("a step other than 1")
    dim %= len(sizes)
    first, _ = _bounds(ctx, sizes[dim], start, end)
    if not isinstance(first, int) or 0 in ctx.result.shape:
        raise Declined("a dynamic start")
    if x.type == ctx.result_type():
        return x
    starts = [first if i == dim else 0 for i in range(len(sizes))]
    return tosa.slice(ctx.result_type(), x, shape_constant(starts), shape_constant([int(s) for s in ctx.result.shape]))


@lowering("tosa", aten.cat.default)
def tosa_cat(ctx: Context, tensors: Sequence[ir.Value], dim: int = 0) -> ir.Value:
    """A ``tosa.concat``."""
    rank = len(ctx.result.shape)
    if any(len(static_shape(value)) != rank or element_of(value) != ctx.result_element() for value in tensors):
        raise Declined("operands of different ranks or types")
    return tosa.concat(list(tensors), dim % rank, results=[ctx.result_type()])

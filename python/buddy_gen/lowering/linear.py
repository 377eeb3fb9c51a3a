"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch
from mlir import ir
from mlir.dialects import arith, linalg, tensor, tosa

from buddy_gen.lowering.activations import prepare_activations
from buddy_gen.lowering.context import Context, Size, convert, element_of, static_shape, tensor_type
from buddy_gen.lowering.registry import Declined, lowering
from buddy_gen.lowering.shape import view_as
from buddy_gen.lowering.tosa_values import require_float, reshape, zero_point

aten = torch.ops.aten


def _accumulator(element: ir.Type) -> ir.Type:
    narrow = isinstance(element, ir.FloatType) and ir.FloatType(element).width < 32
    return ir.F32Type.get() if narrow else element


def transposed(ctx: Context, weight: ir.Value) -> ir.Value:
    """`weight` (N, K) as (K, N); a weight that is stored in panels is unpacked in that order."""
    owner = weight.owner
    if isinstance(owner, ir.Operation | ir.OpView) and owner.name == "linalg.unpack":
        return unpack(owner.operands[0], *require_matrix(weight), transpose=True)
    rows, columns = require_matrix(weight)
    init = ctx.empty([columns, rows], element_of(weight))
    op = linalg.TransposeOp(result=[init.type], input=weight, init=init, permutation=[1, 0])
    linalg.fill_builtin_region(op.operation)
    return op.results[0]


def require_matrix(value: ir.Value) -> tuple[int, int]:
    """The static shape of a matrix; raises `Declined` for anything else."""
    shape = static_shape(value)
    if len(shape) != 2 or shape[0] is None or shape[1] is None:
        raise Declined("a weight that is no matrix of known size")
    return shape[0], shape[1]


def unpack(packed: ir.Value, rows: int, columns: int, transpose: bool = False) -> ir.Value:
    """The logical matrix of a weight that is stored in panels.

    Args:
        packed: (panels, columns, panel), as the weights file holds it.
        rows: N of the logical matrix (N, K).
        columns: K of the logical matrix.
        transpose: Gives (K, N) instead.
    """
    panel = static_shape(packed)[2]
    shape = [columns, rows] if transpose else [rows, columns]
    init = tensor.empty(shape, element_of(packed))
    return linalg.UnPackOp(
        packed,
        init,
        inner_dims_pos=[1] if transpose else [0],
        inner_tiles=[],
        static_inner_tiles=[panel],
        outer_dims_perm=[1, 0] if transpose else [],
        results=[init.type],
    ).result


def _matmul(ctx: Context, x: ir.Value, weight: ir.Value, rows: Size, columns: Size, transpose: bool) -> ir.Value:
    """x (M, K) times weight, (N, K) if `transpose` else (K, N), with narrow floats summed in f32."""
    m, n, k = (ir.AffineDimExpr.get(i) for i in range(3))
    maps = [
        ir.AffineMap.get(3, 0, [m, k]),
        ir.AffineMap.get(3, 0, [n, k] if transpose else [k, n]),
        ir.AffineMap.get(3, 0, [m, n]),
    ]
    element = element_of(x)
    accumulator = _accumulator(element)
    init = ctx.filled([rows, columns], accumulator, 0)
    product = linalg.matmul(x, weight, outs=[init], indexing_maps=maps)
    if accumulator == element:
        return product
    identity = ir.AffineMap.get_identity(2)
    return ctx.generic(
        [product],
        ctx.empty([rows, columns], element),
        [identity, identity],
        ["parallel"] * 2,
        lambda value, _: convert(value, element),
    )


def _add_bias(ctx: Context, product: ir.Value, bias: ir.Value) -> ir.Value:
    return ctx.elementwise([product, bias], lambda value, shift: arith.addf(value, shift))


def _rows(ctx: Context, sizes: list[Size]) -> Size:
    rows: Size = 1
    for size in sizes:
        if isinstance(rows, int) and isinstance(size, int):
            rows *= size
        elif isinstance(rows, int) and rows == 1:
            rows = size
        else:
            rows = arith.muli(ctx.index(rows), ctx.index(size))
    return rows


def _flat(ctx: Context, x: ir.Value, source: list[Size], rows: Size) -> ir.Value:
    """x (..., K) as (M, K), made once for all products that read it."""
    if x not in ctx.flattened:
        ctx.flattened[x] = view_as(ctx, x, source, [rows, source[-1]])
    return ctx.flattened[x]


@lowering("linalg", aten.linear.default)
def linear(ctx: Context, x: ir.Value, weight: ir.Value, bias: Any = None) -> ir.Value:
    """x (..., K) · weightᵀ + bias, weight (N, K)."""
    source = [ctx.size(size) for size in ctx.operand(0).shape]
    rows_count, _ = require_matrix(weight)
    rows = _rows(ctx, source[:-1])
    flat = _flat(ctx, x, source, rows)
    taken = prepare_activations(ctx, flat, rows, weight)
    product = _matmul(ctx, taken, weight, rows, rows_count, transpose=True)
    product = view_as(ctx, product, [rows, rows_count], ctx.result_sizes())
    return product if bias is None else _add_bias(ctx, product, bias)


@lowering("linalg", aten.mm.default)
def mm(ctx: Context, x: ir.Value, y: ir.Value) -> ir.Value:
    """x (M, K) · y (K, N)."""
    rows, columns = ctx.result_sizes()
    return _matmul(ctx, x, y, rows, columns, transpose=False)


@lowering("linalg", aten.addmm.default)
def addmm(ctx: Context, bias: ir.Value, x: ir.Value, y: ir.Value, *, beta: float = 1, alpha: float = 1) -> ir.Value:
    """bias + x · y."""
    if beta != 1 or alpha != 1:
        raise Declined("beta or alpha other than 1")
    rows, columns = ctx.result_sizes()
    return _add_bias(ctx, _matmul(ctx, x, y, rows, columns, transpose=False), bias)


@lowering("linalg", aten.bmm.default)
def bmm(ctx: Context, x: ir.Value, y: ir.Value) -> ir.Value:
    """x (B, M, K) · y (B, K, N)."""
    element = element_of(x)
    if _accumulator(element) != element:
        raise Declined("a batched product in half precision")
    return linalg.batch_matmul(x, y, outs=[ctx.filled(ctx.result_sizes(), element, 0)])


# tosa


def _tosa_matmul(x: ir.Value, y: ir.Value, rows: Size, columns: Size) -> ir.Value:
    kind = tensor_type([1, rows, columns], element_of(x))
    return tosa.matmul(kind, x, y, zero_point(x), zero_point(y))


@lowering("tosa", aten.linear.default)
def tosa_linear(ctx: Context, x: ir.Value, weight: ir.Value, bias: Any = None) -> ir.Value:
    """A ``tosa.matmul`` of one batch, and a ``tosa.add`` for the bias."""
    require_float(x)
    if not isinstance(element_of(x), ir.F32Type):
        raise Declined("half precision")
    if weight in ctx.formats:
        raise Declined("a weight in blocks")
    source = [ctx.size(size) for size in ctx.operand(0).shape]
    rows_count, columns = require_matrix(weight)
    lead = source[:-1]
    if sum(not isinstance(size, int) for size in lead) > 1:
        raise Declined("several dynamic sizes")
    rows = _rows(ctx, lead)
    flat = [1, rows if isinstance(rows, int) else None, columns]
    left = x if static_shape(x) == flat else reshape(x, flat)
    right = reshape(transposed(ctx, weight), [1, columns, rows_count])
    product = _tosa_matmul(left, right, rows, rows_count)
    if bias is not None:
        product = tosa.add(product.type, product, reshape(bias, [1, 1, rows_count]))
    shape = static_shape_of(ctx.result_sizes())
    return product if static_shape(product) == shape else reshape(product, shape)


def static_shape_of(sizes: list[Size]) -> list[int | None]:
    """Sizes with None in place of values."""
    return [size if isinstance(size, int) else None for size in sizes]


@lowering("tosa", aten.mm.default)
def tosa_mm(ctx: Context, x: ir.Value, y: ir.Value) -> ir.Value:
    """A ``tosa.matmul`` of one batch."""
    if not isinstance(element_of(x), ir.F32Type):
        raise Declined("half precision or integers")
    rows, columns = ctx.result_sizes()
    product = _tosa_matmul(reshape(x, [1, *static_shape(x)]), reshape(y, [1, *static_shape(y)]), rows, columns)
    return reshape(product, static_shape_of([rows, columns]))


@lowering("tosa", aten.bmm.default)
def tosa_bmm(ctx: Context, x: ir.Value, y: ir.Value) -> ir.Value:
    """A ``tosa.matmul``."""
    if not isinstance(element_of(x), ir.F32Type):
        raise Declined("half precision or integers")
    return tosa.matmul(ctx.result_type(), x, y, zero_point(x), zero_point(y))

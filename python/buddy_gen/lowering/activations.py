"""Activations in front of a product with a weight in blocks: padded to whole groups, and quantised where asked for."""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, math, tensor

from buddy_gen.lowering.context import Context, Size, element_of, static_shape, tensor_type
from buddy_gen.weights.formats import QUAD, Format

__all__ = ["integer_factor", "integer_of", "integer_scale", "largest_magnitude", "prepare_activations"]

_SMALLEST = 2.0**-100  # a group whose largest number is below this becomes zero: 127 / it would not be finite


def _largest_integer(bits: int) -> float:
    return 2.0 ** (bits - 1) - 1


def largest_magnitude(value: ir.Value, most: ir.Value) -> ir.Value:
    """The body of a reduction to the largest magnitude."""
    return arith.maximumf(math.absf(value), most)


def integer_factor(ctx: Context, most: ir.Value, bits: int = 8) -> ir.Value:
    """What numbers of at most this magnitude are multiplied with to fill integers; 0 where all count as zero."""
    f32 = ir.F32Type.get()
    none = arith.cmpf(arith.CmpFPredicate.OLT, most, ctx.scalar(_SMALLEST, f32))
    return arith.select(none, ctx.scalar(0, f32), arith.divf(ctx.scalar(_largest_integer(bits), f32), most))


def integer_scale(ctx: Context, most: ir.Value, bits: int = 8) -> ir.Value:
    """What those integers are multiplied with to give the numbers back."""
    return arith.divf(most, ctx.scalar(_largest_integer(bits), ir.F32Type.get()))


def integer_of(value: ir.Value, factor: ir.Value, bits: int = 8) -> ir.Value:
    """The integer nearest to value * factor, the even one of two."""
    return arith.fptosi(ir.IntegerType.get_signless(bits), math.roundeven(arith.mulf(value, factor)))


def prepare_activations(ctx: Context, x: ir.Value, rows: Size, form: Format | None) -> ir.Value:
    """x (M, K) as the product with a weight of `form` takes it: (M, G * g).

    With integer activations that is x rounded in each group of a row (8 bits: to 255 steps): a tensor of integers and
    one of scales, behind a dequantiser.
    """
    if form is None:
        return x
    key = (x, form)
    if key not in ctx.prepared:
        columns = static_shape(x)[1]
        assert columns is not None
        padded = _padded(ctx, x, rows, form.padded(columns))
        bits = ctx.activation_bits
        ctx.prepared[key] = padded if bits is None else _quantised(ctx, padded, rows, form, bits)
    return ctx.prepared[key]


def _padded(ctx: Context, x: ir.Value, rows: Size, columns: int) -> ir.Value:
    missing = columns - (static_shape(x)[1] or 0)
    if missing == 0:
        return x
    zero = ctx.scalar(0, element_of(x))
    op = tensor.PadOp(tensor_type([rows, columns], element_of(x)), x, [], [], [0, 0], [0, missing])
    index = ir.IndexType.get()
    block = op.regions[0].blocks.append(index, index)
    with ir.InsertionPoint(block):
        tensor.YieldOp(zero)
    return op.result


def _quantised(ctx: Context, x: ir.Value, rows: Size, form: Format, bits: int) -> ir.Value:
    """x (M, G * g) as sitofp(q) * scale, with q and scale by row and group.

    Where a block of the weight has several groups, q and scale get its two dimensions in place of one for the product.
    """
    columns = static_shape(x)[1]
    assert columns is not None
    inner = [2, form.integer_bytes // QUAD, QUAD] if form.is_nibbles else [form.group // QUAD, QUAD]
    sizes: list[Size] = [rows, columns // form.group, *inner]
    rank = len(sizes)
    f32 = ir.F32Type.get()
    dynamic = [] if isinstance(rows, int) else [rows]
    static = [size if isinstance(size, int) else ir.ShapedType.get_dynamic_size() for size in sizes]
    grouping = [[0], list(range(1, rank))]
    grouped = tensor.expand_shape(tensor_type(sizes, f32), x, grouping, dynamic, static)
    every = ir.AffineMap.get_identity(rank)
    by_group = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(0), ir.AffineDimExpr.get(1)])
    largest = ctx.generic(
        [grouped],
        ctx.filled(sizes[:2], f32, 0),
        [every, by_group],
        ["parallel"] * 2 + ["reduction"] * (rank - 2),
        largest_magnitude,
    )
    pair = ir.AffineMap.get_identity(2)

    parallel = ["parallel"] * rank
    factors = ctx.generic(
        [largest], ctx.empty(sizes[:2], f32), [pair, pair], ["parallel"] * 2, lambda m, _: integer_factor(ctx, m, bits)
    )
    scales = ctx.generic(
        [largest],
        ctx.empty(sizes[:2], f32),
        [pair, pair],
        ["parallel"] * 2,
        lambda most, _: integer_scale(ctx, most, bits),
    )
    integers = ctx.generic(
        [grouped, factors],
        ctx.empty(sizes, ir.IntegerType.get_signless(bits)),
        [every, by_group, every],
        parallel,
        lambda x, factor, _: integer_of(x, factor, bits),
    )
    if form.has_factors:
        outer: list[Size] = [rows, form.blocks(columns), form.encoding.groups]
        integers = _by_block(integers, [*outer, *inner])
        scales = _by_block(scales, outer)
        sizes = [*outer, *inner]
    return _values(ctx, integers, scales, sizes, [rows, columns])


def _by_block(value: ir.Value, sizes: list[Size]) -> ir.Value:
    """(M, G, ...) as (M, blocks, groups of a block, ...)."""
    rank = len(sizes)
    static = [size if isinstance(size, int) else ir.ShapedType.get_dynamic_size() for size in sizes]
    dynamic = [size for size in sizes if not isinstance(size, int)]
    grouping = [[0], [1, 2], *([i] for i in range(3, rank))]
    return tensor.expand_shape(tensor_type(sizes, element_of(value)), value, grouping, dynamic, static)


def _values(ctx: Context, integers: ir.Value, scales: ir.Value, sizes: list[Size], result: list[Size]) -> ir.Value:
    """sitofp(integers) * scales, whose dimensions lead in those of the integers, as a matrix."""
    rank, f32 = len(sizes), ir.F32Type.get()
    every = ir.AffineMap.get_identity(rank)
    leading = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(i) for i in range(len(static_shape(scales)))])
    values = ctx.generic(
        [integers, scales],
        ctx.empty(sizes, f32),
        [every, leading, every],
        ["parallel"] * rank,
        lambda q, scale, _: arith.mulf(arith.sitofp(f32, q), scale),
    )
    return tensor.collapse_shape(tensor_type(result, f32), values, [[0], list(range(1, rank))])

"""Activations in front of a product with a weight in blocks: padded to whole groups, and quantised where asked for."""

from __future__ import annotations

from collections.abc import Callable

from mlir import ir
from mlir.dialects import arith, bufferization, func, math, tensor

from buddy_gen.lowering.context import (
    Context,
    Size,
    constant_index,
    element_of,
    loop_index,
    static_shape,
    tensor_type,
)
from buddy_gen.lowering.shape import split_dims
from buddy_gen.weights.formats import QUAD, Format
from buddy_gen.weights.rotation import activation_share

__all__ = [
    "define_quantizer",
    "integer_factor",
    "integer_of",
    "integer_scale",
    "largest_magnitude",
    "prepare_activations",
]

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


def prepare_activations(ctx: Context, x: ir.Value, rows: Size, weight: ir.Value) -> ir.Value:
    """x (M, K) as the product with `weight` takes it; (M, G * g) if that is stored in blocks.

    With integer activations that is x rounded in each group of a row (8 bits: to 255 steps): a tensor of integers and
    one of scales, behind a dequantiser. If the weight's columns were mixed, so are those of x before.
    """
    form = ctx.formats.get(weight)
    if form is None:
        return x
    bits = ctx.activation_bits[weight]
    key = (x, form, bits)
    if key not in ctx.prepared:
        columns = static_shape(x)[1]
        assert columns is not None
        padded = _padded(ctx, x, rows, form.padded(columns))
        assert bits is not None or not form.is_rotated
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
    operands = [x, ctx.empty(sizes, ir.IntegerType.get_signless(bits)), ctx.empty(sizes[:2], ir.F32Type.get())]
    types = [value.type for value in operands]
    key = ("quantize", form.rotation, *map(str, types))
    function = ctx.functions.get(key, "quantize", lambda name: define_quantizer(name, types, form.rotation))
    integers, scales = func.CallOp(types[1:], function, operands).results
    if form.has_factors:
        outer: list[Size] = [rows, form.blocks(columns), form.encoding.groups]
        integers = _by_block(integers, [*outer, *inner])
        scales = _by_block(scales, outer)
        sizes = [*outer, *inner]
    return _values(ctx, integers, scales, sizes, [rows, columns])


def define_quantizer(name: str, types: list[ir.Type], rotation: int) -> func.FuncOp:
    """A private function (x, integers, scales) -> (integers, scales) that rounds activations.

    Its body is the reference of what a pass does in registers.

    Args:
        name: Of the function.
        types: x (M, K) of f32, integers (M, G, ...) of i8 or i16, scales (M, G) of f32; M is 1 or dynamic.
        rotation: So many consecutive columns of x are mixed before (a power of two that divides a group); 1: none.
    """
    function = func.FuncOp(name, ir.FunctionType.get(types, types[1:]), visibility="private")
    i64 = ir.IntegerType.get_signless(64)
    function.attributes["buddy.quantize"] = ir.DictAttr.get({"rotation": ir.IntegerAttr.get(i64, rotation)})
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
        func.ReturnOp(_reference(list(block.arguments), rotation))
    return function


def _reference(arguments: list[ir.Value], rotation: int) -> list[ir.Value]:
    """The integers of x (M, K) and their scales (M, G)."""
    x, integers, scales = arguments
    ctx = Context({}, None, None)
    bits = ir.IntegerType(element_of(integers)).width
    static_rows = static_shape(x)[0]
    rows: Size = tensor.dim(x, constant_index(0)) if static_rows is None else static_rows
    if rotation > 1:
        x = _rotated(ctx, x, rows, rotation)
    sizes: list[Size] = [rows, *(size for size in static_shape(integers)[1:] if size is not None)]
    rank = len(sizes)
    f32 = ir.F32Type.get()
    grouped = split_dims(x, [[0], list(range(1, rank))], sizes)
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

    def of_groups(body: Callable[[ir.Value], ir.Value]) -> ir.Value:
        init = ctx.empty(sizes[:2], f32)
        return ctx.generic([largest], init, [pair, pair], ["parallel"] * 2, lambda most, _: body(most))

    factors = of_groups(lambda most: integer_factor(ctx, most, bits))
    made_scales = of_groups(lambda most: integer_scale(ctx, most, bits))
    made = ctx.generic(
        [grouped, factors],
        ctx.empty(sizes, element_of(integers)),
        [every, by_group, every],
        ["parallel"] * rank,
        lambda x, factor, _: integer_of(x, factor, bits),
    )
    results = ((made, integers), (made_scales, scales))
    return [bufferization.materialize_in_destination(out.type, value, out) for value, out in results]


def _rotated(ctx: Context, x: ir.Value, rows: Size, rotation: int) -> ir.Value:
    """x (M, K) with each `rotation` columns times a Hadamard matrix, and the power of two that is left to activations.

    The sign at (k, n) is that of the parity of the bits that k and n share.
    """
    columns = static_shape(x)[1]
    assert columns is not None
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    sizes: list[Size] = [rows, columns // rotation, rotation]
    m, c, n, k = (ir.AffineDimExpr.get(i) for i in range(4))
    share = activation_share(rotation)

    def add_term(value: ir.Value, total: ir.Value) -> ir.Value:
        shared = arith.andi(arith.index_cast(i32, loop_index(2)), arith.index_cast(i32, loop_index(3)))
        is_odd = arith.trunci(ir.IntegerType.get_signless(1), math.ctpop(shared))
        factor = arith.select(is_odd, ctx.scalar(-share, f32), ctx.scalar(share, f32))
        return arith.addf(total, arith.mulf(value, factor))

    mixed = ctx.generic(
        [split_dims(x, [[0], [1, 2]], sizes)],
        ctx.filled(sizes, f32, 0),
        [ir.AffineMap.get(4, 0, [m, c, k]), ir.AffineMap.get(4, 0, [m, c, n])],
        ["parallel"] * 3 + ["reduction"],
        add_term,
    )
    return tensor.collapse_shape(tensor_type([rows, columns], f32), mixed, [[0], [1, 2]])


def _by_block(value: ir.Value, sizes: list[Size]) -> ir.Value:
    """(M, G, ...) as (M, blocks, groups of a block, ...)."""
    return split_dims(value, [[0], [1, 2], *([i] for i in range(3, len(sizes)))], sizes)


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

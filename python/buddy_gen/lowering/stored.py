"""Parameters as the weights file holds them -> tensors of f32, by the formats of docs/quantization.md.

A narrow weight is read through a dequantiser: a ``linalg.generic`` over the fields of its blocks that gives the panels
of an f32 weight. It says what the numbers mean; passes fold it into the products and gathers that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, bufferization, memref, tensor

from buddy_gen.lowering.context import Context, constant_index, element_of, element_type, loop_index, static_shape
from buddy_gen.lowering.linear import unpack
from buddy_gen.parameters import StoredParameter
from buddy_gen.weights.formats import QUAD, Format

__all__ = ["read_parameter"]

_NIBBLE_MIDDLE = 8.0  # the zero of a 4-bit format without a minimum


@dataclass(frozen=True)
class _Place:
    """Where a parameter stands: the weights' base and its offset in bytes."""

    weights: ir.Value
    offset: ir.Value

    def view(self, shape: Sequence[int], element: ir.Type, skip: int = 0) -> ir.Value:
        """A buffer of `shape` that begins `skip` bytes further on."""
        offset = self.offset if skip == 0 else arith.addi(self.offset, constant_index(skip))
        return memref.view(ir.MemRefType.get(list(shape), element), self.weights, offset, [])

    def tensor(self, shape: Sequence[int], element: ir.Type) -> ir.Value:
        """A tensor that is stored contiguously."""
        kind = ir.RankedTensorType.get(list(shape), element)
        return bufferization.to_tensor(kind, self.view(shape, element), restrict=True)

    def field(self, count: int, element: ir.Type, skip: int, sizes: list[int], strides: list[int]) -> ir.Value:
        """One field of all blocks, out of `count` elements from `skip` bytes on, with strides in elements."""
        flat = self.view([count], element, skip)
        layout = ir.StridedLayoutAttr.get(0, strides)
        strided = memref.ReinterpretCastOp(
            ir.MemRefType.get(sizes, element, layout), flat, [], [], [], [0], sizes, strides
        ).result
        return bufferization.to_tensor(ir.RankedTensorType.get(sizes, element), strided, restrict=True)


def read_parameter(ctx: Context, weights: ir.Value, offset: ir.Value, stored: StoredParameter, panel: int) -> ir.Value:
    """A parameter at `offset` bytes, as a tensor of its logical shape; rows of blocks are as long as their groups.

    Args:
        ctx: The function under construction; it learns the format of a weight in blocks.
        weights: The weights' base.
        offset: Of index type.
        stored: What stands there.
        panel: R.
    """
    place = _Place(weights, offset)
    if stored.format.in_blocks:
        rows, columns = stored.shape
        form = stored.format.of_columns(columns)
        weight = unpack(_dequantised(ctx, place, form, (rows, columns), panel), rows, form.padded(columns))
        ctx.formats[weight] = form
        return weight
    narrow = {"f16": ir.F16Type.get, "bf16": ir.BF16Type.get}.get(stored.format.kind)
    element = narrow() if narrow else element_type(stored.dtype)
    shape = stored.shape
    if stored.panels:
        shape = stored.format.stored_shape((stored.shape[0], stored.shape[1]), panel)
    value = place.tensor(shape, element)
    if narrow:
        value = _widened(ctx, value)
    return unpack(value, stored.shape[0], stored.shape[1]) if stored.panels else value


def _widened(ctx: Context, value: ir.Value) -> ir.Value:
    """Floats as f32."""
    sizes = [size for size in static_shape(value) if size is not None]
    identity = ir.AffineMap.get_identity(len(sizes))
    f32 = ir.F32Type.get()
    return ctx.generic(
        [value],
        ctx.empty(sizes, f32),
        [identity, identity],
        ["parallel"] * len(sizes),
        lambda narrow, _: arith.extf(f32, narrow),
    )


def _dequantised(ctx: Context, place: _Place, form: Format, shape: tuple[int, int], panel: int) -> ir.Value:
    """The panels (P, G * g, R) of a weight in blocks."""
    panels, groups, size = form.stored_shape(shape, panel)
    quads = form.integer_bytes // QUAD
    i8, f16 = ir.IntegerType.get_signless(8), ir.F16Type.get()
    integers = place.field(
        panels * groups * size,
        i8,
        0,
        [panels, groups, quads, panel, QUAD],
        [groups * size, size, QUAD * panel, QUAD, 1],
    )

    def halves(skip: int) -> ir.Value:
        last = (panels * groups - 1) * size // 2 + panel
        return place.field(last, f16, skip, [panels, groups, panel], [groups * size // 2, size // 2, 1])

    scales = [halves(form.integer_bytes * panel)]
    if form.has_minimum:
        scales.append(halves(form.integer_bytes * panel + 2 * panel))
    middle = [2] if form.is_nibbles else []
    sizes = [panels, groups, *middle, quads, QUAD, panel]
    rank = len(sizes)
    dims = [ir.AffineDimExpr.get(i) for i in range(rank)]
    p, g, quad, r, j = dims[0], dims[1], dims[-3], dims[-2], dims[-1]
    maps = [
        ir.AffineMap.get(rank, 0, [p, g, quad, j, r]),
        *[ir.AffineMap.get(rank, 0, [p, g, j])] * len(scales),
        ir.AffineMap.get_identity(rank),
    ]
    body = _BODIES[form.kind]
    value = ctx.generic(
        [integers, *scales],
        ctx.empty(sizes, ir.F32Type.get()),
        maps,
        ["parallel"] * rank,
        lambda *elements: body(*elements[:-1]),
    )
    result = ir.RankedTensorType.get([panels, form.padded(shape[1]), panel], element_of(value))
    return tensor.collapse_shape(result, value, [[0], list(range(1, rank - 1)), [rank - 1]])


def _wide(half: ir.Value) -> ir.Value:
    return arith.extf(ir.F32Type.get(), half)


def _int8(q: ir.Value, d: ir.Value) -> ir.Value:
    return arith.mulf(arith.sitofp(ir.F32Type.get(), q), _wide(d))


def _nibble(byte: ir.Value) -> ir.Value:
    """The nibble that loop 2 names: 0 the low one, 1 the high one."""
    i8 = ir.IntegerType.get_signless(8)
    shift = arith.muli(arith.index_cast(i8, loop_index(2)), arith.constant(i8, 4))
    nibble = arith.andi(arith.shrui(byte, shift), arith.constant(i8, 15))
    return arith.uitofp(ir.F32Type.get(), nibble)


def _nibble_around_zero(byte: ir.Value, d: ir.Value) -> ir.Value:
    return arith.mulf(arith.subf(_nibble(byte), arith.constant(ir.F32Type.get(), _NIBBLE_MIDDLE)), _wide(d))


def _nibble_above_minimum(byte: ir.Value, d: ir.Value, m: ir.Value) -> ir.Value:
    return arith.addf(arith.mulf(_nibble(byte), _wide(d)), _wide(m))


_BODIES: dict[str, Callable[..., ir.Value]] = {
    "q8": _int8,
    "q4_0": _nibble_around_zero,
    "q4_1": _nibble_above_minimum,
}

"""Parameters as the weights file holds them -> tensors of f32, by the formats of docs/quantization.md.

A narrow weight is read through a dequantiser: a ``linalg.generic`` over the fields of its blocks that gives the panels
of an f32 weight. It says what the numbers mean; passes fold it into the products and gathers that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlir import ir
from mlir.dialects import arith, bufferization, memref, tensor

from buddy_gen.lowering.context import Context, constant_index, element_of, element_type, loop_index, static_shape
from buddy_gen.lowering.linear import unpack
from buddy_gen.parameters import StoredParameter
from buddy_gen.weights.formats import QUAD, Format

__all__ = ["read_parameter"]


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
        ctx.activation_bits[weight] = stored.activation_bits
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


@dataclass(frozen=True)
class _Blocks:
    """The fields of a weight's blocks, as tensors: those of blocks (p, b, ...), those of groups (p, b, s, ...).

    With one group in a block, s is left out.
    """

    place: _Place
    form: Format
    panels: int
    count: int  # blocks of a row
    panel: int

    @property
    def outer(self) -> list[int]:
        """The sizes of b and s."""
        return [self.count, self.form.encoding.groups] if self.form.has_factors else [self.count]

    @property
    def size(self) -> int:
        return self.form.block_bytes(self.panel)

    def of_groups(self, skip: int, inner: Sequence[int]) -> ir.Value:
        """Bytes of shape `inner` in each group, `skip` bytes from its start."""
        group = self.form.group_bytes(self.panel)
        strides = [self.count * self.size, self.size] + ([group] if self.form.has_factors else [])
        return self._field(ir.IntegerType.get_signless(8), skip, [*self.outer, *inner], strides, inner)

    def of_blocks(self, number: int) -> ir.Value:
        """The half `number` of each row in each block."""
        start = self.form.encoding.groups * self.form.group_bytes(self.panel)
        strides = [self.count * self.size // 2, self.size // 2]
        skip = start + 2 * self.panel * number
        return self._field(ir.F16Type.get(), skip, [self.count, self.panel], strides, [self.panel])

    def _field(
        self, element: ir.Type, skip: int, sizes: Sequence[int], strides: Sequence[int], inner: Sequence[int]
    ) -> ir.Value:
        """A field of the panels, contiguous in its `inner` sizes; strides are in elements."""
        dense = [prod(inner[i + 1 :]) for i in range(len(inner))]
        sizes, strides = [self.panels, *sizes], [*strides, *dense]
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return self.place.field(last + 1, element, skip, sizes, strides)


def _dequantised(ctx: Context, place: _Place, form: Format, shape: tuple[int, int], panel: int) -> ir.Value:
    """The panels (P, G * g, R) of a weight in blocks."""
    panels, count, _ = form.stored_shape(shape, panel)
    blocks = _Blocks(place, form, panels, count, panel)
    quads = form.integer_bytes // QUAD
    sizes = [panels, *blocks.outer, *([2] if form.is_nibbles else []), quads, QUAD, panel]
    rank = len(sizes)
    dims = [ir.AffineDimExpr.get(i) for i in range(rank)]
    block, group = dims[:2], dims[: 1 + len(blocks.outer)]
    quad, r, j = dims[-3:]

    inputs: dict[str, tuple[ir.Value, list[ir.AffineExpr]]] = {}
    skip = form.integer_bytes * panel
    inputs["integers"] = blocks.of_groups(0, [quads, panel, QUAD]), [*group, quad, j, r]
    if form.high_bytes:
        inputs["high"] = blocks.of_groups(skip, [panel, QUAD]), [*group, j, r]
        skip += form.high_bytes * panel
    if form.has_factors:
        inputs["factors"] = blocks.of_groups(skip, [panel]), [*group, j]
        if form.has_minimum:
            inputs["minimum_factors"] = blocks.of_groups(skip + panel, [panel]), [*group, j]
    inputs["scales"] = blocks.of_blocks(0), [*block, j]
    if form.has_minimum:
        inputs["minima"] = blocks.of_blocks(1), [*block, j]
    maps = [ir.AffineMap.get(rank, 0, places) for _, places in inputs.values()]

    def value_of(*elements: ir.Value) -> ir.Value:
        return _value(form, dict(zip(inputs, elements, strict=False)), rank - 4, rank - 3)

    value = ctx.generic(
        [field for field, _ in inputs.values()],
        ctx.empty(sizes, ir.F32Type.get()),
        [*maps, ir.AffineMap.get_identity(rank)],
        ["parallel"] * rank,
        value_of,
    )
    result = ir.RankedTensorType.get([panels, form.padded(shape[1]), panel], element_of(value))
    return tensor.collapse_shape(result, value, [[0], list(range(1, rank - 1)), [rank - 1]])


def _value(form: Format, elements: dict[str, ir.Value], half_loop: int, quad_loop: int) -> ir.Value:
    """scale * (integer - zero) + sign * minimum."""
    encoding, f32 = form.encoding, ir.F32Type.get()
    if encoding.bits == 8:
        number = arith.sitofp(f32, elements["integers"])
    else:
        half = _small_index(half_loop)
        integer = _part(elements["integers"], half, 4)
        if "high" in elements:
            # Bits of (half, quad), the quads of a half one after the other.
            place = arith.muli(half, _byte(form.integer_bytes // QUAD))
            upper = _part(elements["high"], arith.addi(place, _small_index(quad_loop)), form.high_bits)
            integer = arith.ori(integer, arith.shli(upper, _byte(4)))
        number = arith.uitofp(f32, integer)
    if encoding.zero:
        number = arith.subf(number, arith.constant(f32, float(encoding.zero)))
    value = arith.mulf(number, _product(elements["scales"], elements.get("factors"), encoding.has_signed_factors))
    if not encoding.sign:
        return value
    minimum = _product(elements["minima"], elements.get("minimum_factors"), False)
    return arith.addf(value, minimum) if encoding.sign > 0 else arith.subf(value, minimum)


def _product(half: ir.Value, factor: ir.Value | None, is_signed: bool) -> ir.Value:
    """A half, times an integer if there is one; exact in f32."""
    f32 = ir.F32Type.get()
    wide = arith.extf(f32, half)
    if factor is None:
        return wide
    return arith.mulf(wide, arith.sitofp(f32, factor) if is_signed else arith.uitofp(f32, factor))


def _byte(value: int) -> ir.Value:
    return arith.constant(ir.IntegerType.get_signless(8), value)


def _small_index(loop: int) -> ir.Value:
    return arith.index_cast(ir.IntegerType.get_signless(8), loop_index(loop))


def _part(byte: ir.Value, number: ir.Value, bits: int) -> ir.Value:
    """Bits number * bits, ..., number * bits + bits - 1 of a byte."""
    moved = arith.shrui(byte, number if bits == 1 else arith.muli(number, _byte(bits)))
    return arith.andi(moved, _byte((1 << bits) - 1))

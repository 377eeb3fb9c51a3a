"""Operands that TOSA asks for: constants, zero points, shapes, operands of one rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mlir import ir
from mlir.dialects import tosa

from buddy_gen.lowering.context import element_of, static_shape
from buddy_gen.lowering.registry import Declined


def constant(shape: Sequence[int], element: ir.Type, value: float | int) -> ir.Value:
    """A ``tosa.const`` whose elements are all `value`."""
    kind = ir.RankedTensorType.get(list(shape), element)
    if isinstance(element, ir.IntegerType):
        scalar: ir.Attribute = ir.IntegerAttr.get(element, int(value))
    else:
        scalar = ir.FloatAttr.get(element, float(value))
    return tosa.const(ir.DenseElementsAttr.get_splat(kind, scalar))


def zero_point(value: ir.Value) -> ir.Value:
    """The zero point 0 that float ops take for the operand `value`."""
    return constant([1], element_of(value), 0)


def shape_constant(sizes: Sequence[int]) -> ir.Value:
    """A ``tosa.const_shape``."""
    attribute = ir.DenseElementsAttr.get(np.array(sizes, dtype=np.int64), type=ir.IndexType.get())
    return tosa.const_shape(ir.Type.parse(f"!tosa.shape<{len(sizes)}>"), attribute)


def same_rank(value: ir.Value, rank: int) -> ir.Value:
    """`value` with sizes of 1 in front, so that it has `rank` dimensions."""
    shape = static_shape(value)
    if len(shape) == rank:
        return value
    return reshape(value, [1] * (rank - len(shape)) + shape)


def reshape(value: ir.Value, shape: Sequence[int | None]) -> ir.Value:
    """A ``tosa.reshape``.

    Raises:
        Declined: More than one size is unknown.
    """
    if sum(size is None for size in shape) > 1 or any(size == 0 for size in shape):
        raise Declined("a reshape to several dynamic sizes")
    sizes = [-1 if size is None else size for size in shape]
    dynamic = ir.ShapedType.get_dynamic_size()
    kind = ir.RankedTensorType.get([dynamic if size is None else size for size in shape], element_of(value))
    return tosa.reshape(value, shape_constant(sizes), results=[kind])


def require_float(value: ir.Value) -> None:
    """Raises `Declined` unless the elements are floats that TOSA computes in (and the rank is not 0)."""
    element = element_of(value)
    if not isinstance(element, ir.F32Type | ir.F16Type | ir.BF16Type):
        raise Declined(f"elements of type {element}")


def require_static(value: ir.Value) -> list[int]:
    """The shape; raises `Declined` where a size is dynamic."""
    shape = static_shape(value)
    sizes = [size for size in shape if size is not None]
    if len(sizes) != len(shape):
        raise Declined("dynamic sizes")
    return sizes


__all__ = [
    "constant",
    "require_float",
    "require_static",
    "reshape",
    "same_rank",
    "shape_constant",
    "zero_point",
]

"""Elementwise ops: arithmetic, activations, casts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from mlir import ir
from mlir.dialects import arith, math, tosa

from buddy_gen.lowering.context import Context, convert, element_of, element_type, static_shape, tensor_type
from buddy_gen.lowering.registry import Declined, lowering
from buddy_gen.lowering.tosa_values import constant, require_float, same_rank, zero_point

aten = torch.ops.aten

# linalg ----------------------------------------------------------------------------------------------------------


def _is_float(value: ir.Value) -> bool:
    return isinstance(value.type, ir.FloatType)


def _apply(ctx: Context, inputs: list[Any], compute: ir.Type, body: Callable[..., ir.Value]) -> ir.Value:
    """`body` over inputs (tensors and Python numbers) that are converted to the `compute` type first."""
    tensors = [value for value in inputs if isinstance(value, ir.Value)]

    def elements(*given: ir.Value) -> ir.Value:
        rest = iter(given)
        values = [
            convert(next(rest), compute) if isinstance(value, ir.Value) else ctx.scalar(value, compute)
            for value in inputs
        ]
        return convert(body(*values), ctx.result_element(), to_bool=True)

    return ctx.elementwise(tensors, elements)


def _leaves(ctx: Context, x: Any, y: Any, neutral: float | None) -> bool:
    """Whether y is the number that leaves x as it is."""
    return not isinstance(y, ir.Value) and y == neutral and isinstance(x, ir.Value) and x.type == ctx.result_type()


def _binary(on_float: Callable[..., ir.Value], on_int: Callable[..., ir.Value], neutral: float | None) -> Any:
    """A rule for ``op(x, y, *, alpha=1)``; a Python number `neutral` on the right leaves `x` as it is."""

    def rule(ctx: Context, x: Any, y: Any, *, alpha: float = 1) -> ir.Value:
        if _leaves(ctx, x, y, neutral):
            return cast(ir.Value, x)
        compute = ctx.result_element()

        def body(left: ir.Value, right: ir.Value) -> ir.Value:
            if alpha != 1:
                factor = ctx.scalar(alpha, compute)
                right = arith.mulf(right, factor) if _is_float(right) else arith.muli(right, factor)
            return on_float(left, right) if _is_float(left) else on_int(left, right)

        return _apply(ctx, [x, y], compute, body)

    return rule


lowering("linalg", aten.add.Tensor, aten.add.Scalar)(_binary(arith.addf, arith.addi, 0))
lowering("linalg", aten.sub.Tensor, aten.sub.Scalar)(_binary(arith.subf, arith.subi, 0))
lowering("linalg", aten.mul.Tensor, aten.mul.Scalar)(_binary(arith.mulf, arith.muli, 1))
lowering("linalg", aten.maximum.default)(_binary(arith.maximumf, arith.maxsi, None))
lowering("linalg", aten.minimum.default)(_binary(arith.minimumf, arith.minsi, None))


@lowering("linalg", aten.div.Tensor, aten.div.Scalar)
def div(ctx: Context, x: Any, y: Any) -> ir.Value:
    """True division; integers divide as floats."""
    return _apply(ctx, [x, y], ctx.result_element(), arith.divf)


def _unary(body: Callable[[Context, ir.Value], ir.Value]) -> Any:
    def rule(ctx: Context, x: ir.Value) -> ir.Value:
        return _apply(ctx, [x], ctx.result_element(), lambda value: body(ctx, value))

    return rule


def _in_f32(body: Callable[[Context, ir.Value], ir.Value]) -> Callable[[Context, ir.Value], ir.Value]:
    """Computes in f32 where the elements are narrower, as eager PyTorch does."""

    def wide(ctx: Context, value: ir.Value) -> ir.Value:
        if ir.FloatType(value.type).width >= 32:
            return body(ctx, value)
        return convert(body(ctx, convert(value, ir.F32Type.get())), value.type)

    return wide


def _math(function: Callable[[ir.Value], ir.Value]) -> Any:
    return _unary(_in_f32(lambda _, value: function(value)))


def _sigmoid(ctx: Context, x: ir.Value) -> ir.Value:
    one = ctx.scalar(1.0, x.type)
    return arith.divf(one, arith.addf(one, math.exp(arith.negf(x))))


lowering("linalg", aten.rsqrt.default)(_math(math.rsqrt))
lowering("linalg", aten.sqrt.default)(_math(math.sqrt))
lowering("linalg", aten.exp.default)(_math(math.exp))
lowering("linalg", aten.log.default)(_math(math.log))
lowering("linalg", aten.tanh.default)(_math(math.tanh))
lowering("linalg", aten.erf.default)(_math(math.erf))
lowering("linalg", aten.cos.default)(_math(math.cos))
lowering("linalg", aten.sin.default)(_math(math.sin))
lowering("linalg", aten.sigmoid.default)(_unary(_in_f32(_sigmoid)))
lowering("linalg", aten.silu.default)(_unary(_in_f32(lambda ctx, x: arith.mulf(x, _sigmoid(ctx, x)))))


@lowering("linalg", aten.neg.default)
def neg(ctx: Context, x: ir.Value) -> ir.Value:
    """-x."""

    def body(value: ir.Value) -> ir.Value:
        return arith.negf(value) if _is_float(value) else arith.subi(ctx.scalar(0, value.type), value)

    return _apply(ctx, [x], ctx.result_element(), body)


@lowering("linalg", aten.relu.default)
def relu(ctx: Context, x: ir.Value) -> ir.Value:
    """max(x, 0); NaN stays NaN."""

    def body(value: ir.Value) -> ir.Value:
        zero = ctx.scalar(0, value.type)
        return arith.maximumf(value, zero) if _is_float(value) else arith.maxsi(value, zero)

    return _apply(ctx, [x], ctx.result_element(), body)


@lowering("linalg", aten._to_copy.default)
def to_copy(ctx: Context, x: ir.Value, *, dtype: Any = None, **options: Any) -> ir.Value:
    """A conversion of the element type (a copy of the same type is the value itself)."""
    if x.type == ctx.result_type():
        return x
    target = ctx.result_element()
    return ctx.elementwise([x], lambda value: convert(value, target, to_bool=True))


@lowering("linalg", aten.clone.default, aten.alias.default, aten.detach.default)
@lowering("tosa", aten.clone.default, aten.alias.default, aten.detach.default)
def same(ctx: Context, x: ir.Value, **options: Any) -> ir.Value:
    """Values are immutable here: a copy is the value itself."""
    return x


_FLOAT_COMPARE = {"eq": "OEQ", "ne": "UNE", "lt": "OLT", "le": "OLE", "gt": "OGT", "ge": "OGE"}
_INT_COMPARE = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def _compare(kind: str, ctx: Context, x: ir.Value, y: Any) -> ir.Value:
    dtype = torch.result_type(ctx.operand(0), ctx.operand(1) if isinstance(y, ir.Value) else y)
    compute = element_type(dtype)

    def body(left: ir.Value, right: ir.Value) -> ir.Value:
        if _is_float(left):
            return arith.cmpf(getattr(arith.CmpFPredicate, _FLOAT_COMPARE[kind]), left, right)
        return arith.cmpi(getattr(arith.CmpIPredicate, _INT_COMPARE[kind]), left, right)

    return _apply(ctx, [x, y], compute, body)


for _kind in _FLOAT_COMPARE:
    _op = getattr(aten, _kind)
    lowering("linalg", _op.Tensor, _op.Scalar)(partial(_compare, _kind))


@lowering("linalg", aten.where.self)
def where(ctx: Context, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """x where the condition holds, y elsewhere."""
    target = ctx.result_element()
    return ctx.elementwise(
        [condition, x, y], lambda c, left, right: arith.select(c, convert(left, target), convert(right, target))
    )


@lowering("linalg", aten.full.default)
def full(ctx: Context, size: Any, value: float | int, **options: Any) -> ir.Value:
    """A tensor of one value."""
    return ctx.filled(ctx.result_sizes(), ctx.result_element(), value)


@lowering("linalg", aten.full_like.default)
def full_like(ctx: Context, x: ir.Value, value: float | int, **options: Any) -> ir.Value:
    """A tensor of one value in the shape of another."""
    return ctx.filled(ctx.result_sizes(), ctx.result_element(), value)


@lowering("linalg", aten.scalar_tensor.default)
def scalar_tensor(ctx: Context, value: float | int, **options: Any) -> ir.Value:
    """A tensor of rank 0."""
    return ctx.filled([], ctx.result_element(), value)


@lowering("linalg", aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Context, x: ir.Value, exponent: float | int) -> ir.Value:
    """x ** exponent, for floats."""
    if not isinstance(element_of(x), ir.FloatType):
        raise Declined("integer power")
    compute = ctx.result_element()
    return _apply(ctx, [x], compute, lambda value: math.powf(value, ctx.scalar(float(exponent), compute)))


# tosa ------------------------------------------------------------------------------------------------------------


def _tosa_inputs(ctx: Context, *inputs: Any) -> list[ir.Value]:
    """Inputs of one rank and of the result's element type (TOSA broadcasts sizes of 1, not ranks)."""
    rank, element = len(ctx.result.shape), ctx.result_element()
    if rank == 0:
        raise Declined("rank 0")
    values = []
    for value in inputs:
        if not isinstance(value, ir.Value):
            values.append(constant([1] * rank, element, value))
        elif element_of(value) != element:
            raise Declined("operands of different types")
        else:
            values.append(same_rank(value, rank))
    return values


def _tosa_binary(build: Callable[..., ir.Value], neutral: float) -> Any:
    def rule(ctx: Context, x: Any, y: Any, *, alpha: float = 1) -> ir.Value:
        if _leaves(ctx, x, y, neutral):
            return cast(ir.Value, x)
        if alpha != 1:
            raise Declined("alpha")
        return build(ctx.result_type(), *_tosa_inputs(ctx, x, y))

    return rule


def _tosa_mul(result: ir.Type, x: ir.Value, y: ir.Value) -> ir.Value:
    return tosa.mul(result, x, y, constant([1], ir.IntegerType.get_signless(8), 0))


lowering("tosa", aten.add.Tensor, aten.add.Scalar)(_tosa_binary(tosa.add, 0))
lowering("tosa", aten.sub.Tensor, aten.sub.Scalar)(_tosa_binary(tosa.sub, 0))
lowering("tosa", aten.mul.Tensor, aten.mul.Scalar)(_tosa_binary(_tosa_mul, 1))


def _tosa_unary(build: Callable[..., ir.Value]) -> Any:
    def rule(ctx: Context, x: ir.Value) -> ir.Value:
        require_float(x)
        return build(ctx.result_type(), x)

    return rule


lowering("tosa", aten.rsqrt.default)(_tosa_unary(tosa.rsqrt))
lowering("tosa", aten.exp.default)(_tosa_unary(tosa.exp))
lowering("tosa", aten.log.default)(_tosa_unary(tosa.log))
lowering("tosa", aten.tanh.default)(_tosa_unary(tosa.tanh))
lowering("tosa", aten.erf.default)(_tosa_unary(tosa.erf))
lowering("tosa", aten.cos.default)(_tosa_unary(tosa.cos))
lowering("tosa", aten.sin.default)(_tosa_unary(tosa.sin))
lowering("tosa", aten.sigmoid.default)(_tosa_unary(tosa.sigmoid))


@lowering("tosa", aten.silu.default)
def tosa_silu(ctx: Context, x: ir.Value) -> ir.Value:
    """x · sigmoid(x)."""
    require_float(x)
    return _tosa_mul(ctx.result_type(), x, tosa.sigmoid(ctx.result_type(), x))


@lowering("tosa", aten.neg.default)
def tosa_neg(ctx: Context, x: ir.Value) -> ir.Value:
    """-x."""
    require_float(x)
    return tosa.negate(ctx.result_type(), x, zero_point(x), zero_point(x))


@lowering("tosa", aten._to_copy.default)
def tosa_to_copy(ctx: Context, x: ir.Value, *, dtype: Any = None, **options: Any) -> ir.Value:
    """A conversion between float types, or from an integer to a float."""
    if x.type == ctx.result_type():
        return x
    source, target = element_of(x), ctx.result_element()
    narrow = isinstance(source, ir.IntegerType) and ir.IntegerType(source).width in (8, 16, 32)
    if not isinstance(target, ir.FloatType) or not (isinstance(source, ir.FloatType) or narrow):
        raise Declined(f"cast of {source} to {target}")
    return tosa.cast(tensor_type(ctx.result_sizes(), target), x)


@lowering("tosa", aten.pow.Tensor_Scalar)
def tosa_pow(ctx: Context, x: ir.Value, exponent: float | int) -> ir.Value:
    """x ** exponent."""
    require_float(x)
    rank = len(static_shape(x))
    if rank == 0:
        raise Declined("rank 0")
    return tosa.pow(ctx.result_type(), x, constant([1] * rank, element_of(x), float(exponent)))

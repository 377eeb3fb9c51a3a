"""What a lowering rule sees of the function that is being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from mlir import ir
from mlir.dialects import arith, linalg, tensor
from torch import fx

from buddy_gen.errors import BuddyError
from buddy_gen.weights.formats import Format

# A constant, or a value of index type (MLIR's bindings carry no types).
Size: TypeAlias = int | Any


class CacheState(Protocol):
    """The function's KV caches as they stand at this point."""

    tensors: dict[str, ir.Value]  # "k", "v" -> tensor (layers, kv_heads, capacity, head_dim)


@dataclass(frozen=True)
class CacheSlice:
    """The value of a graph's per-layer cache: one layer of the function's cache tensor.

    Attributes:
        kind: ``k`` or ``v``.
        layer: Index of the layer, of index type.
    """

    kind: str
    layer: ir.Value


_ELEMENTS: dict[torch.dtype, Callable[[], ir.Type]] = {
    torch.float32: ir.F32Type.get,
    torch.float64: ir.F64Type.get,
    torch.float16: ir.F16Type.get,
    torch.bfloat16: ir.BF16Type.get,
    torch.int64: lambda: ir.IntegerType.get_signless(64),
    torch.int32: lambda: ir.IntegerType.get_signless(32),
    torch.int16: lambda: ir.IntegerType.get_signless(16),
    torch.int8: lambda: ir.IntegerType.get_signless(8),
    torch.bool: lambda: ir.IntegerType.get_signless(1),
}


def element_type(dtype: torch.dtype) -> ir.Type:
    """The MLIR type of a dtype's elements.

    Raises:
        BuddyError: The dtype has no counterpart yet.
    """
    if dtype not in _ELEMENTS:
        raise BuddyError(f"the model computes in {dtype}, which is not supported yet")
    return _ELEMENTS[dtype]()


def constant_index(value: int) -> ir.Value:
    """A constant of index type."""
    return arith.constant(ir.IndexType.get(), value)


def loop_index(dim: int) -> ir.Value:
    """The index of loop `dim`, inside the body of a ``linalg.generic``."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    return ir.Operation.create("linalg.index", results=[ir.IndexType.get()], attributes={"dim": attribute}).result


def static_shape(value: ir.Value) -> list[int | None]:
    """The shape of a tensor value; None where a size is known at run time only."""
    kind = ir.RankedTensorType(value.type)
    return [None if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i in range(kind.rank)]


def tensor_type(sizes: Sequence[Size], element: ir.Type) -> ir.RankedTensorType:
    """The tensor type of these sizes."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([size if isinstance(size, int) else dynamic for size in sizes], element)


def element_of(value: ir.Value) -> ir.Type:
    """The element type of a tensor value."""
    return ir.RankedTensorType(value.type).element_type


class Context:
    """The state of one function under construction, as the rules use it.

    Attributes:
        node: The FX node that is being lowered.
        symbols: Symbolic size -> its value, of index type.
        caches: The function's caches, None where it has none.
        formats: The weights in blocks that were read -> their format.
        activation_bits: The same weights -> the bits of the integers (8, 16) that are the activations of their
            products; None: f32.
        flattened: Activations of products -> their matrix.
        prepared: Activations that were prepared for such products, by themselves, the format and the bits.
    """

    def __init__(
        self,
        symbols: dict[sympy.Symbol, ir.Value],
        caches: CacheState | None,
        functions: Any,
    ) -> None:
        self.node: fx.Node | None = None
        self.symbols = symbols
        self._expressions: dict[sympy.Expr, ir.Value] = {}
        self.caches = caches
        self.functions = functions
        self.formats: dict[ir.Value, Format] = {}
        self.activation_bits: dict[ir.Value, int | None] = {}
        self.flattened: dict[ir.Value, ir.Value] = {}
        self.prepared: dict[tuple[ir.Value, Format, int | None], ir.Value] = {}

    # Of the node being lowered

    @property
    def result(self) -> torch.Tensor:
        """The fake tensor that the node gives: its shape and dtype."""
        assert self.node is not None
        value = self.node.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value

    def operand(self, position: int) -> torch.Tensor:
        """The fake tensor of the node's argument at `position`."""
        assert self.node is not None
        argument = self.node.args[position]
        assert isinstance(argument, fx.Node)
        value = argument.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value

    def result_sizes(self) -> list[Size]:
        """The sizes of the node's result, constants or values of index type."""
        return [self.size(size) for size in self.result.shape]

    def result_element(self) -> ir.Type:
        """The element type of the node's result."""
        return element_type(self.result.dtype)

    def result_type(self) -> ir.RankedTensorType:
        """The tensor type of the node's result."""
        return tensor_type(self.result_sizes(), self.result_element())

    # Building blocks

    def size(self, size: int | torch.SymInt) -> Size:
        """A size as a constant or, where it is symbolic, as a value computed from the function's symbols."""
        if isinstance(size, int):
            return size
        return self._expression(size.node.expr)

    def _expression(self, expression: sympy.Expr) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self.symbols[expression]
        if expression in self._expressions:
            return self._expressions[expression]
        combine = {sympy.Add: arith.addi, sympy.Mul: arith.muli}.get(expression.func)
        if combine is None:
            raise BuddyError(f"a tensor of the model has the size '{expression}', which is not supported yet")
        terms = [self.index(self._expression(term)) for term in expression.args]
        value = terms[0]
        for term in terms[1:]:
            value = combine(value, term)
        self._expressions[expression] = value
        return value

    def index(self, value: Any) -> ir.Value:
        """`value` (a number, a value of integer type, a tensor of rank 0) as a value of index type."""
        if isinstance(value, int):
            return constant_index(value)
        assert isinstance(value, ir.Value)
        if isinstance(value.type, ir.RankedTensorType):
            value = tensor.extract(value, [])
        if isinstance(value.type, ir.IndexType):
            return value
        return arith.index_cast(ir.IndexType.get(), value)

    def empty(self, sizes: Sequence[Size], element: ir.Type) -> ir.Value:
        """A tensor of unspecified content."""
        return tensor.empty(list(sizes), element)

    def scalar(self, value: float | int | bool, element: ir.Type) -> ir.Value:
        """A scalar constant of `element` type."""
        if isinstance(element, ir.IntegerType | ir.IndexType):
            return arith.constant(element, int(value))
        return arith.constant(element, float(value))

    def filled(self, sizes: Sequence[Size], element: ir.Type, value: float | int) -> ir.Value:
        """A tensor whose elements are all `value`."""
        return linalg.fill(self.scalar(value, element), outs=[self.empty(sizes, element)])

    def generic(
        self,
        inputs: Sequence[ir.Value],
        init: ir.Value,
        maps: Sequence[ir.AffineMap],
        iterators: Sequence[str],
        body: Callable[..., ir.Value],
    ) -> ir.Value:
        """One ``linalg.generic`` with one result.

        Args:
            inputs: The input tensors.
            init: The initial value of the result.
            maps: The indexing maps of the inputs and the result.
            iterators: ``parallel`` or ``reduction`` for each loop.
            body: Takes the elements (inputs, then the result's) and gives the new element.
        """
        op = linalg.GenericOp(
            result_tensors=[init.type],
            inputs=list(inputs),
            outputs=[init],
            indexing_maps=ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            iterator_types=ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{i}>") for i in iterators]),
        )
        elements = [element_of(value) for value in (*inputs, init)]
        block = op.regions[0].blocks.append(*elements)
        with ir.InsertionPoint(block):
            linalg.YieldOp([body(*block.arguments)])
        return op.results[0]

    def elementwise(self, inputs: Sequence[ir.Value], body: Callable[..., ir.Value]) -> ir.Value:
        """The node's result, element by element, from inputs that broadcast to it.

        A size of 1 in an input that the result does not have is read at 0; as dynamic sizes are never 1, that decides
        broadcasting at compile time.
        """
        sizes = self.result_sizes()
        init = self.empty(sizes, self.result_element())
        rank = len(sizes)
        dims = [ir.AffineDimExpr.get(i) for i in range(rank)]
        zero = ir.AffineConstantExpr.get(0)
        maps = []
        for value in inputs:
            shape = static_shape(value)
            lead = rank - len(shape)
            exprs = [zero if size == 1 and sizes[lead + i] != 1 else dims[lead + i] for i, size in enumerate(shape)]
            maps.append(ir.AffineMap.get(rank, 0, exprs))
        maps.append(ir.AffineMap.get_identity(rank))
        return self.generic(inputs, init, maps, ["parallel"] * rank, lambda *elements: body(*elements[:-1]))


def convert(value: ir.Value, target: ir.Type, to_bool: bool = False) -> ir.Value:
    """A scalar of another element type, as ``Tensor.to`` converts it.

    Args:
        value: A scalar of float or integer type (i1 is a bool).
        target: The element type wanted.
        to_bool: Whether an i1 target means "is not zero".
    """
    source = value.type
    if source == target:
        return value
    from_float, to_float = isinstance(source, ir.FloatType), isinstance(target, ir.FloatType)
    if to_bool and not to_float and ir.IntegerType(target).width == 1:
        if from_float:
            return arith.cmpf(arith.CmpFPredicate.UNE, value, arith.constant(source, 0.0))
        return arith.cmpi(arith.CmpIPredicate.ne, value, arith.constant(source, 0))
    if from_float and to_float:
        if ir.FloatType(target).width == ir.FloatType(source).width:
            return arith.truncf(target, arith.extf(ir.F32Type.get(), value))
        wider = ir.FloatType(target).width > ir.FloatType(source).width
        return arith.extf(target, value) if wider else arith.truncf(target, value)
    if from_float:
        return arith.fptosi(target, value)
    is_bool = isinstance(source, ir.IntegerType) and ir.IntegerType(source).width == 1
    if to_float:
        return arith.uitofp(target, value) if is_bool else arith.sitofp(target, value)
    if isinstance(source, ir.IndexType) or isinstance(target, ir.IndexType):
        return arith.index_cast(target, value)
    if ir.IntegerType(target).width > ir.IntegerType(source).width:
        return arith.extui(target, value) if is_bool else arith.extsi(target, value)
    return arith.trunci(target, value)

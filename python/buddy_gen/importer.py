"""ATen FX graph -> MLIR module. The importer knows no op: rules live in `buddy_gen.lowering`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sympy  # type: ignore[import-untyped]
import torch
from mlir import ir
from mlir.dialects import arith, bufferization, func, scf, tensor
from torch import fx

from buddy_gen.capture import Cache, CapturedGraph, Input, Parameter
from buddy_gen.errors import BuddyError
from buddy_gen.lowering import Declined, find_rules
from buddy_gen.lowering.attention import SCALE_BYTES
from buddy_gen.lowering.context import CacheSlice, Context, constant_index, element_type
from buddy_gen.lowering.stored import read_parameter
from buddy_gen.parameters import StoredParameter, layer_parameter
from buddy_gen.target import Target
from buddy_gen.transforms.layers import LayerLoop, Unit

_OWN_OPS = (torch.ops.buddy.kv_update.default, torch.ops.buddy.attention.default)


class Offsets(Protocol):
    """Where each parameter stands in the weights file."""

    def offset(self, name: str) -> int:
        """Bytes from the data section's start."""


CACHE_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}
"""The element types of KV caches, by the names that a user gives."""


@dataclass(frozen=True)
class CacheShape:
    """The shape of each KV cache; its capacity is known at run time only. A row of int8 ends with its scale, an f32."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def row(self) -> int:
        """Elements of one row."""
        return self.head_dim + (SCALE_BYTES if self.dtype == torch.int8 else 0)

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position takes in both caches."""
        return 2 * self.layers * self.kv_heads * self.row * self.dtype.itemsize


@dataclass(frozen=True)
class ImportedModule:
    """What an import gives.

    Attributes:
        text: The MLIR module.
        signature: The entry point's signature, for the ABI hash.
        dialects: (op, dialect) -> how many calls of the op that dialect's rule served.
        layer_functions: How many functions the layers became (0 where nothing repeats).
    """

    text: str
    signature: str
    dialects: Counter[tuple[str, str]]
    layer_functions: int


# What has no rule ------------------------------------------------------------------------------------------------

_SOURCE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


def _origin(node: fx.Node) -> tuple[str, tuple[str, int] | None]:
    """The module that a node comes from (empty at the top), and the file and line of its source where recorded."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = stack[-1][0].partition("].")[2] if stack else ""
    lines = _SOURCE.findall(node.meta.get("stack_trace") or "")
    return module, (lines[-1][0], int(lines[-1][1])) if lines else None


def source_of(node: fx.Node) -> str:
    """``module (file:line)`` of a node, as far as the capture recorded it."""
    module, source = _origin(node)
    place = f"{source[0]}:{source[1]}" if source else "unknown source"
    return f"{module} ({place})" if module else place


def report_missing(missing: dict[str, list[str]]) -> BuddyError:
    """One error for every op that can't be lowered: each with its count and the places it comes from."""
    lines = []
    for op, places in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0])):
        distinct = list(dict.fromkeys(places))
        more = f" and {len(distinct) - 3} more places" if len(distinct) > 3 else ""
        lines.append(f"  {op} ({len(places)}x): {'; '.join(distinct[:3])}{more}")
    count = len(missing)
    return BuddyError(
        f"the model uses {count} op{'s' if count > 1 else ''} without a lowering rule; add one in "
        "buddy_gen/lowering (see CONTRIBUTING.md):\n" + "\n".join(lines)
    )


def _is_size(node: fx.Node) -> bool:
    """Whether a node computes a size: its value follows from its symbolic expression, and needs no rule."""
    return isinstance(node.meta.get("val"), torch.SymInt | int)


def check_supported(graphs: Sequence[CapturedGraph], priority: tuple[str, ...]) -> None:
    """Raises one `BuddyError` that names every op of all graphs without a rule."""
    missing: dict[str, list[str]] = {}
    for captured in graphs:
        for node in captured.graph.nodes:
            if node.op == "call_function" and not _is_size(node) and not find_rules(node.target, priority):
                missing.setdefault(str(node.target), []).append(source_of(node))
            elif node.op in ("call_module", "call_method", "get_attr"):
                missing.setdefault(f"{node.op} {node.target}", []).append(source_of(node))
    if missing:
        raise report_missing(missing)


# Functions -------------------------------------------------------------------------------------------------------


@dataclass
class _Caches:
    tensors: dict[str, ir.Value]


class _Functions:
    """The module's private functions, each made once for each key.

    Their names begin with the module's, so that several modules can be linked into one program.
    """

    def __init__(self, body: ir.Block, module: str) -> None:
        self._body, self._module = body, module
        self._names: dict[Any, str] = {}

    def get(self, key: Any, stem: str, define: Callable[[str], func.FuncOp]) -> str:
        """The name of the function for `key`, defined by ``define(name)`` at first use."""
        stem = f"{self._module}_{stem}"
        if key not in self._names:
            taken = sum(name == stem or re.fullmatch(rf"{stem}_\d+", name) is not None for name in self._names.values())
            name = stem if taken == 0 else f"{stem}_{taken}"
            self._names[key] = name
            with ir.InsertionPoint.at_block_begin(self._body):
                define(name)
        return self._names[key]

    def count(self, stem: str) -> int:
        """How many functions have been made under this stem."""
        stem = f"{self._module}_{stem}"
        return sum(name == stem or name.startswith(f"{stem}_") for name in self._names.values())


@dataclass
class _Scope:
    """One function under construction."""

    ctx: Context
    weights: ir.Value
    caches: _Caches | None
    values: dict[fx.Node, Any] = field(default_factory=dict)
    parameters: dict[str, ir.Value] = field(default_factory=dict)


class _Importer:
    def __init__(
        self,
        captured: CapturedGraph,
        units: Sequence[Unit],
        parameters: Sequence[StoredParameter],
        offsets: Offsets,
        target: Target,
        priority: tuple[str, ...],
        cache: CacheShape | None,
    ) -> None:
        self.captured, self.units, self.target = captured, units, target
        self.parameters = {stored.name: stored for stored in parameters}
        self.offsets, self.priority, self.cache = offsets, priority, cache
        self.dialects: Counter[tuple[str, str]] = Counter()
        self.refused: dict[str, list[str]] = {}

    # The module

    def run(self, name: str, abi: str) -> ImportedModule:
        with ir.Context(), ir.Location.name(name):
            module = ir.Module.create()
            summary = {key: _attribute(value) for key, value in self.target.summary().items()}
            module.operation.attributes["buddy.target"] = ir.DictAttr.get(summary)
            module.operation.attributes["buddy.abi"] = ir.StringAttr.get(abi)
            self.functions = _Functions(module.body, name)
            with ir.InsertionPoint(module.body):
                signature = self._entry(name)
            if self.refused:
                raise report_missing(self.refused)
            if not module.operation.verify():
                raise BuddyError(f"the importer made an invalid module for '{name}'; please report this model")
            text = module.operation.get_asm(enable_debug_info=True)
            return ImportedModule(text, signature, self.dialects, self.functions.count("layer"))

    def _entry(self, name: str) -> str:
        placeholders = {node.name: node for node in self.captured.graph.nodes if node.op == "placeholder"}
        inputs = [
            (binding, placeholders[key])
            for key, binding in self.captured.bindings.items()
            if isinstance(binding, Input)
        ]
        inputs.sort(key=lambda item: (item[0].name == "position", item[0].name))
        output = next(node for node in self.captured.graph.nodes if node.op == "output")
        outputs = [node for node in output.args[0] if not self._is_cache(node)]
        types = [_weights_type()]
        for binding, node in inputs:
            types.append(_argument_type(node, scalar=binding.name == "position"))
        if self.cache is not None:
            types += [self._cache_type()] * 2
        results = types[1 + len(inputs) :] + [_argument_type(node) for node in outputs]
        types += results[-len(outputs) :]
        function = func.FuncOp(name, ir.FunctionType.get(types, results))
        function.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        function.attributes["buddy.entry"] = ir.StringAttr.get(self.captured.entry)
        writable = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(True)})
        first_result = len(types) - len(results)
        function.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get({})] * first_result + [writable] * len(results))
        block = function.add_entry_block()
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            caches = None
            if self.cache is not None:
                caches = _Caches(dict(zip("kv", arguments[first_result : first_result + 2], strict=True)))
            nodes = [node for _, node in inputs]
            values = dict(zip(nodes, arguments[1:], strict=False))
            scope = self._scope(arguments[0], caches, values)
            for unit in self.units:
                if isinstance(unit, fx.Node):
                    self._lower(scope, unit)
                else:
                    self._loop(scope, unit)
            given = []
            for node, destination in zip(outputs, arguments[-len(outputs) :], strict=True):
                value = self._tensor(scope, node)
                given.append(bufferization.materialize_in_destination(destination.type, value, destination))
            kept = list(caches.tensors.values()) if caches is not None else []
            func.ReturnOp(kept + given)
        return f"{self.captured.entry}{function.type}"

    def _is_cache(self, node: Any) -> bool:
        is_update = isinstance(node, fx.Node) and node.target is torch.ops.buddy.kv_update.default
        return is_update or isinstance(self.captured.bindings.get(getattr(node, "name", "")), Cache)

    def _cache_type(self) -> ir.Type:
        assert self.cache is not None
        dynamic = ir.ShapedType.get_dynamic_size()
        shape = [self.cache.layers, self.cache.kv_heads, dynamic, self.cache.row]
        return ir.RankedTensorType.get(shape, element_type(self.cache.dtype))

    def _scope(self, weights: ir.Value, caches: _Caches | None, values: dict[fx.Node, Any]) -> _Scope:
        """A scope in which the symbols of the given tensors' shapes are known."""
        symbols: dict[sympy.Symbol, ir.Value] = {}
        for node, value in values.items():
            for dim, size in enumerate(getattr(node.meta["val"], "shape", ())):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.expr not in symbols:
                    symbols[size.node.expr] = tensor.dim(value, constant_index(dim))
        ctx = Context(symbols, caches, self.functions)
        return _Scope(ctx, weights, caches, dict(values))

    # Values

    def _value(self, scope: _Scope, node: fx.Node) -> Any:
        if node in scope.values:
            return scope.values[node]
        if _is_size(node):
            return scope.ctx.index(scope.ctx.size(node.meta["val"]))
        binding = self.captured.bindings.get(node.name)
        if isinstance(binding, Parameter):
            value: Any = self._parameter(scope, binding.name, constant_index(self.offsets.offset(binding.name)))
        elif isinstance(binding, Cache):
            value = CacheSlice(binding.kind, constant_index(binding.layer))
        else:
            raise BuddyError(f"'{node.name}' is used before it is made; please report this model")
        scope.values[node] = value
        return value

    def _tensor(self, scope: _Scope, node: fx.Node) -> Any:
        """The value of a node, a scalar argument as a tensor of rank 0."""
        value = self._value(scope, node)
        if isinstance(node.meta.get("val"), torch.Tensor) and isinstance(value, ir.Value):
            if not isinstance(value.type, ir.RankedTensorType):
                return tensor.from_elements(ir.RankedTensorType.get([], value.type), [value])
        return value

    def _parameter(self, scope: _Scope, name: str, offset: ir.Value) -> ir.Value:
        """A parameter read from the weights at `offset` bytes, as a tensor of its logical shape."""
        return read_parameter(scope.ctx, scope.weights, offset, self.parameters[name], self.target.panel)

    # Ops

    def _lower(self, scope: _Scope, node: fx.Node) -> None:
        if _is_size(node):
            return
        read = self._value if node.target in _OWN_OPS else self._tensor
        scope.ctx.node = node
        with _location(node):
            args = _map_nodes(node.args, lambda source: _Held(read(scope, source)))
            kwargs = _map_nodes(node.kwargs, lambda source: _Held(read(scope, source)))
            reasons = []
            for dialect, rule in find_rules(node.target, self.priority):
                try:
                    scope.values[node] = rule(scope.ctx, *_release(args), **_release(kwargs))
                except Declined as declined:
                    reasons.append(f"{dialect}: {declined}")
                    continue
                self.dialects[str(node.target), dialect] += 1
                return
            place = f"{source_of(node)} [{', '.join(reasons)}]"
            self.refused.setdefault(str(node.target), []).append(place)
            scope.values[node] = scope.ctx.empty(scope.ctx.result_sizes(), scope.ctx.result_element())

    # Layers

    def _loop(self, scope: _Scope, loop: LayerLoop) -> None:
        operands = loop.layer.operands
        carried = [operand.node for operand in operands if operand.role == "carried"]
        has_cache = any(operand.role == "cache" for operand in operands)
        given = [self._value(scope, operand.node) for operand in operands if operand.role == "invariant"]
        state = [self._tensor(scope, node) for node in carried]
        if has_cache:
            assert scope.caches is not None
            state += [scope.caches.tensors["k"], scope.caches.tensors["v"]]
        for first, blocks in self._stretches(loop):
            state = self._calls(scope, loop, first, blocks, state, given)
        scope.values.update(zip(loop.outputs, state, strict=False))
        if has_cache:
            assert scope.caches is not None
            scope.caches.tensors.update(k=state[-2], v=state[-1])

    def _calls(
        self,
        scope: _Scope,
        loop: LayerLoop,
        first: int,
        blocks: list[int],
        state: list[ir.Value],
        given: list[ir.Value],
    ) -> list[ir.Value]:
        """The layers from `first` on, one for each block of parameters: calls of one function, in a loop."""
        function = self._layer_function(loop, first, blocks[0])
        types = [value.type for value in state]

        def call(index: ir.Value, current: Sequence[ir.Value]) -> list[ir.Value]:
            layer = index if first == 0 else arith.addi(index, constant_index(first))
            arguments = [scope.weights, _block_offset(index, blocks), layer, *current, *given]
            result = func.CallOp(types, ir.FlatSymbolRefAttr.get(function), arguments)
            return list(result.operation.results)

        if len(blocks) == 1:
            return call(constant_index(0), state)
        bounds = [constant_index(value) for value in (0, len(blocks), 1)]
        for_op = scf.ForOp(*bounds, state)
        with ir.InsertionPoint(for_op.body):
            scf.YieldOp(call(for_op.induction_variable, list(for_op.inner_iter_args)))
        return list(for_op.results)

    def _stretches(self, loop: LayerLoop) -> list[tuple[int, list[int]]]:
        """The layers of a run in stretches of equal formats: the first one's index, and where each block begins."""
        names = [operand.name for operand in loop.layer.operands if operand.role == "parameter"]
        stretches: list[tuple[int, list[int]]] = []
        before: Any = None
        for index in range(loop.run.first, loop.run.first + loop.run.count):
            own = [layer_parameter(loop, index, name) for name in names]
            offsets = [self.offsets.offset(name) for name in own]
            begin = min(offsets, default=0)
            layout = [(self.parameters[name].format, o - begin) for name, o in zip(own, offsets, strict=True)]
            if layout != before:
                stretches.append((index, []))
            stretches[-1][1].append(begin)
            before = layout
        return stretches

    def _layer_function(self, loop: LayerLoop, first: int, block: int) -> str:
        """The function of the layer `first`, whose parameters begin at `block`."""
        operands = loop.layer.operands
        carried = [operand.node for operand in operands if operand.role == "carried"]
        invariants = [operand.node for operand in operands if operand.role == "invariant"]
        has_cache = any(operand.role == "cache" for operand in operands)
        own = {o.node: layer_parameter(loop, first, o.name) for o in operands if o.role == "parameter"}
        relative = {node: self.offsets.offset(name) - block for node, name in own.items()}
        types = [_argument_type(node) for node in carried] + ([self._cache_type()] * 2 if has_cache else [])
        index = ir.IndexType.get()
        fixed = [_weights_type(), index, index]
        inner = fixed + types + [_argument_type(node, scalar=self._is_position(node)) for node in invariants]

        def define(name: str) -> func.FuncOp:
            function = func.FuncOp(name, ir.FunctionType.get(inner, types), visibility="private")
            function.attributes["buddy.layer"] = ir.UnitAttr.get()
            body = function.add_entry_block()
            with ir.InsertionPoint(body):
                arguments = list(body.arguments)
                func.ReturnOp(self._layer_body(loop, arguments, carried, invariants, has_cache, own, relative))
            return function

        places = {node: f"{self.parameters[own[node]].format}@{offset}" for node, offset in relative.items()}
        return self.functions.get(_layer_key(loop, places, inner), "layer", define)

    def _layer_body(
        self,
        loop: LayerLoop,
        arguments: list[ir.Value],
        carried: list[fx.Node],
        invariants: list[fx.Node],
        has_cache: bool,
        own: dict[fx.Node, str],
        relative: dict[fx.Node, int],
    ) -> list[ir.Value]:
        weights, block, layer = arguments[:3]
        state = arguments[3 : 3 + len(carried)]
        rest = arguments[3 + len(carried) :]
        caches = _Caches({"k": rest.pop(0), "v": rest.pop(0)}) if has_cache else None
        values = dict(zip([*carried, *invariants], [*state, *rest], strict=True))
        scope = self._scope(weights, caches, values)
        for operand in loop.layer.operands:
            if operand.role == "cache":
                scope.values[operand.node] = CacheSlice(operand.name, layer)
            elif operand.role == "parameter":
                offset = arith.addi(block, constant_index(relative[operand.node]))
                scope.values[operand.node] = self._parameter(scope, own[operand.node], offset)
        for node in loop.layer.nodes:
            self._lower(scope, node)
        results = []
        for node, destination in zip(loop.layer.results, state, strict=True):
            value = self._tensor(scope, node)
            results.append(bufferization.materialize_in_destination(destination.type, value, destination))
        return results + (list(caches.tensors.values()) if caches is not None else [])

    def _is_position(self, node: fx.Node) -> bool:
        return self.captured.bindings.get(node.name) == Input("position")


def _map_nodes(arguments: Any, change: Callable[[fx.Node], Any]) -> Any:
    """An op's arguments with every node replaced by ``change(node)``, whatever that is."""
    return fx.node.map_arg(arguments, change)


class _Held:
    """Keeps an MLIR value whole inside FX's argument mapping."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _release(held: Any) -> Any:
    if isinstance(held, _Held):
        return held.value
    if isinstance(held, list | tuple):
        return [_release(item) for item in held]
    if isinstance(held, dict):
        return {key: _release(item) for key, item in held.items()}
    return held


def _attribute(value: str | int) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _weights_type() -> ir.Type:
    return ir.MemRefType.get([ir.ShapedType.get_dynamic_size()], ir.IntegerType.get_signless(8))


def _argument_type(node: fx.Node, scalar: bool = False) -> ir.Type:
    value = node.meta["val"]
    element = element_type(value.dtype)
    if scalar:
        return element
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([size if isinstance(size, int) else dynamic for size in value.shape], element)


def _block_offset(index: ir.Value, blocks: list[int]) -> ir.Value:
    """The byte offset of layer `index`'s block: an affine function where the blocks are evenly spaced, else a table."""
    stride = blocks[1] - blocks[0] if len(blocks) > 1 else 0
    if all(block == blocks[0] + i * stride for i, block in enumerate(blocks)):
        if len(blocks) == 1:
            return constant_index(blocks[0])
        scaled = arith.muli(index, constant_index(stride))
        return arith.addi(scaled, constant_index(blocks[0]))
    table = ir.DenseElementsAttr.get(
        [ir.IntegerAttr.get(ir.IndexType.get(), block) for block in blocks],
        ir.RankedTensorType.get([len(blocks)], ir.IndexType.get()),
    )
    return tensor.extract(arith.constant(table.type, table), [index])


def _layer_key(loop: LayerLoop, places: dict[fx.Node, str], types: list[ir.Type]) -> str:
    """A text that is equal for layers that compute the same function of their arguments."""
    names: dict[fx.Node, str] = {}
    for place, operand in enumerate(loop.layer.operands):
        name = operand.name if operand.role in ("parameter", "shared", "cache") else ""
        names[operand.node] = f"{operand.role}{place}:{name}@{places.get(operand.node, '')}"
    lines = [str(kind) for kind in types]
    for place, node in enumerate(loop.layer.nodes):
        names[node] = f"%{place}"
        value = node.meta.get("val")
        shape = f"{list(value.shape)}{value.dtype}" if isinstance(value, torch.Tensor) else str(value)
        args = _map_nodes((node.args, node.kwargs), lambda source: _Name(names[source]))
        lines.append(f"{node.target}{args}->{shape}")
    lines += [names[result] for result in loop.layer.results]
    return "\n".join(lines)


class _Name:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _location(node: fx.Node) -> ir.Location:
    """``module/op`` at the file and line of the model's source."""
    module, source = _origin(node)
    place = ir.Location.file(source[0].rpartition("/")[2], source[1], 1) if source else ir.Location.unknown()
    return ir.Location.name(f"{module}/{node.name}", place)


def import_graph(
    captured: CapturedGraph,
    units: Sequence[Unit],
    name: str,
    *,
    parameters: Sequence[StoredParameter],
    offsets: Offsets,
    target: Target,
    priority: tuple[str, ...] = ("linalg", "tosa"),
    cache: CacheShape | None = None,
    abi: str = "",
) -> ImportedModule:
    """Builds the MLIR module of one entry point (contract: docs/architecture.md).

    Args:
        captured: The graph.
        units: Its schedule, from `buddy_gen.transforms.layers.schedule`.
        name: Name of the public function.
        parameters: Every parameter that the graph reads.
        offsets: Where they stand in the weights file.
        target: Decides the panel width.
        priority: Dialects in order of preference.
        cache: Shape of the KV caches, None for a module without.
        abi: The ABI hash, recorded in the module.

    Raises:
        BuddyError: Some op can't be lowered; the message names all of them.
    """
    check_supported([captured], priority)
    return _Importer(captured, units, parameters, offsets, target, priority, cache).run(name, abi)


__all__ = [
    "CacheShape",
    "ImportedModule",
    "check_supported",
    "import_graph",
    "source_of",
]

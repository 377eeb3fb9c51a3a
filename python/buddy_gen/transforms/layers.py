"""Repeated layers: found in the module tree, proven in the graph, made one function.

Two proofs stand behind a merged layer. Before the capture, layers of a list are compared as modules: the same classes,
attributes (their own index apart), parameter shapes and hooks all the way down. What is equal in all that runs the same
code, so two layers of each run of equal ones are enough to trace, and the time to capture does not grow with depth.
After the capture, the traced layers are compared node by node (`prove_isomorphic`): ops, constants, shapes and operand
structure. Only what passes both becomes one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from buddy_gen.capture import CapturedGraph


@dataclass(frozen=True)
class LayerRun:
    """Consecutive layers of one list that are built alike.

    Attributes:
        path: Qualified name of the ``nn.ModuleList``.
        first: Index of the first layer in the whole model.
        count: Number of layers.
        kept: Where the traced representatives stand in the shortened list.
    """

    path: str
    first: int
    count: int
    kept: tuple[int, ...]


# In the module tree ----------------------------------------------------------------------------------------------

_TENSOR_DICTS = ("_parameters", "_buffers", "_modules")


def _value_key(value: Any) -> Any:
    """A key that is equal for attribute values that make code behave alike; identity where nothing is known."""
    if isinstance(value, int | float | complex | str | bytes | bool | type(None)):
        return (type(value).__name__, value)
    if isinstance(value, torch.dtype | torch.device | type):
        return ("named", str(value))
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value))
    if isinstance(value, MethodType):
        return ("method", id(value.__func__))
    if isinstance(value, FunctionType):
        return ("function", id(value))
    if isinstance(value, Mapping):
        return ("mapping", tuple((_value_key(key), _value_key(item)) for key, item in value.items()))
    if isinstance(value, Sequence | set | frozenset):
        return (type(value).__name__, tuple(_value_key(item) for item in value))
    return ("object", id(value))


def _tensor_key(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tuple(tensor.shape), str(tensor.dtype), tuple(tensor.stride()))


def module_key(module: nn.Module, index: int) -> Any:
    """A key that is equal for modules that run the same code on tensors of the same shapes.

    Args:
        module: A layer.
        index: Its place in the list; an attribute ``layer_idx`` of that value does not tell layers apart.
    """
    attributes = []
    for name, value in sorted(module.__dict__.items()):
        if name in _TENSOR_DICTS:
            continue
        own_index = name == "layer_idx" and value == index
        attributes.append((name, "own index" if own_index else _value_key(value)))
    return (
        module.__class__.__qualname__,
        id(module.__class__),
        tuple(attributes),
        tuple((name, _tensor_key(tensor)) for name, tensor in module._parameters.items()),
        tuple((name, _tensor_key(tensor)) for name, tensor in module._buffers.items()),
        tuple((name, None if child is None else module_key(child, index)) for name, child in module._modules.items()),
    )


def _outermost_lists(module: nn.Module, path: str = "") -> Iterable[tuple[nn.Module, str, str, nn.ModuleList]]:
    for name, child in module.named_children():
        below = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList):
            yield module, name, below, child
        else:
            yield from _outermost_lists(child, below)


def keep_representatives(model: nn.Module, most: int | None = 2) -> tuple[LayerRun, ...]:
    """Shortens every list of layers in `model` to at most `most` layers of each run of equal ones.

    Args:
        model: Changed in place; its parameters may be fake.
        most: How many of a run stay; None keeps all and only names the runs.

    Returns:
        The runs, in order.
    """
    runs: list[LayerRun] = []
    for owner, name, path, layers in list(_outermost_lists(model)):
        keys = [module_key(layer, index) for index, layer in enumerate(layers)]
        kept: list[nn.Module] = []
        first = 0
        while first < len(keys):
            count = next((i for i in range(1, len(keys) - first) if keys[first + i] != keys[first]), len(keys) - first)
            stay = count if most is None else min(count, most)
            positions = tuple(range(len(kept), len(kept) + stay))
            kept += list(layers)[first : first + stay]
            runs.append(LayerRun(path, first, count, positions))
            first += count
        setattr(owner, name, nn.ModuleList(kept))
    return tuple(runs)


# In the graph ----------------------------------------------------------------------------------------------------


class NotIsomorphicError(Exception):
    """Traced layers of one run differ; the message names the first difference."""


@dataclass(frozen=True)
class Operand:
    """A value that a layer takes from outside.

    `role` is ``parameter`` (`name` relative to the layer), ``shared`` (a parameter that all layers read), ``cache``
    (`name` is k or v), ``symbol``, ``carried`` (the previous layer's output) or ``invariant``.
    """

    role: str
    name: str
    node: fx.Node


@dataclass(frozen=True)
class Layer:
    """The nodes of one traced layer in order, and what crosses its border.

    `results` stand in the order of the carried operands: each takes the place of one.
    """

    nodes: tuple[fx.Node, ...]
    operands: tuple[Operand, ...]
    results: tuple[fx.Node, ...]


@dataclass(frozen=True)
class LayerLoop:
    """One run of layers: its first traced layer stands for all of them; `outputs` are the last one's results."""

    run: LayerRun
    layer: Layer
    outputs: tuple[fx.Node, ...]


@dataclass
class _Members:
    run: LayerRun
    nodes: list[list[fx.Node]] = field(default_factory=list)


def _layer_paths(node: fx.Node) -> set[str]:
    return {path for path, _ in (node.meta.get("nn_module_stack") or {}).values()}


def _collect(captured: CapturedGraph) -> list[_Members]:
    members = [_Members(run, [[] for _ in run.kept]) for run in captured.runs]
    places: dict[str, list[fx.Node]] = {}
    for group in members:
        for slot, position in enumerate(group.run.kept):
            below = ".".join(part for part in (captured.prefix, group.run.path, str(position)) if part)
            places[f"L['self'].{below}"] = group.nodes[slot]
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        for path in _layer_paths(node) & places.keys():
            places[path].append(node)
    return [group for group in members if all(group.nodes)]


def _shape_key(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (tuple(str(size) for size in value.shape), str(value.dtype))
    return str(value)


def _results(nodes: list[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    return [node for node in nodes if any(user not in inside for user in node.users)]


class _Prover:
    """Compares one traced layer with the next one of its run."""

    def __init__(self, captured: CapturedGraph, run: LayerRun, slot: int, first: list[fx.Node], second: list[fx.Node]):
        self.captured, self.run, self.slot = captured, run, slot
        self.first, self.second = first, second
        self.place_first = {node: place for place, node in enumerate(first)}
        self.place_second = {node: place for place, node in enumerate(second)}
        # What the second layer takes from the first -> what stands in that place for the first: its initial value.
        self.carried: dict[fx.Node, fx.Node] = {}

    def compare(self) -> None:
        if len(self.first) != len(self.second):
            raise NotIsomorphicError(f"{len(self.first)} ops against {len(self.second)}")
        for a, b in zip(self.first, self.second, strict=True):
            if a.target != b.target:
                raise NotIsomorphicError(f"{a.target} against {b.target}")
            if _shape_key(a) != _shape_key(b):
                raise NotIsomorphicError(f"{a.target} gives {_shape_key(a)} against {_shape_key(b)}")
            self._compare(a.args, b.args, a)
            self._compare(a.kwargs, b.kwargs, a)

    def _compare(self, a: Any, b: Any, at: fx.Node) -> None:
        if isinstance(a, fx.Node) and isinstance(b, fx.Node):
            self._compare_nodes(a, b, at)
        elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
            for left, right in zip(a, b, strict=True):
                self._compare(left, right, at)
        elif isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
            for key in a:
                self._compare(a[key], b[key], at)
        elif type(a) is not type(b) or a != b:
            raise NotIsomorphicError(f"{at.target} has {a} against {b}")

    def _compare_nodes(self, a: fx.Node, b: fx.Node, at: fx.Node) -> None:
        if a in self.place_first or b in self.place_second:
            if self.place_first.get(a) == self.place_second.get(b):
                return
            if b in self.place_second or a in self.place_first:
                raise NotIsomorphicError(f"{at.target} reads another op's result")
        if _shape_key(a) != _shape_key(b):
            raise NotIsomorphicError(f"{at.target} reads {_shape_key(a)} against {_shape_key(b)}")
        if a is b:
            return
        left, right = (_local(self.captured, self.run, self.slot + i, node) for i, node in ((0, a), (1, b)))
        if left is not None and left == right:
            return
        if b in self.place_first and self.carried.setdefault(b, a) is a:
            if len(set(self.carried.values())) == len(self.carried):
                return
        raise NotIsomorphicError(f"{at.target} reads '{a.name}' against '{b.name}'")


def _local(captured: CapturedGraph, run: LayerRun, slot: int, node: fx.Node) -> tuple[str, str] | None:
    """What a placeholder is to the layer in `slot`: a parameter by its relative name, or its cache."""
    from buddy_gen.capture import Cache, Parameter

    binding = captured.bindings.get(node.name)
    if isinstance(binding, Parameter):
        below = f"{run.path}.{run.kept[slot]}."
        if binding.name.startswith(below):
            return ("parameter", binding.name.removeprefix(below))
    if isinstance(binding, Cache) and binding.layer == run.first + slot:
        return ("cache", binding.kind)
    return None


def _operands(captured: CapturedGraph, run: LayerRun, slot: int, nodes: list[fx.Node], carried: set[fx.Node]) -> Any:
    from buddy_gen.capture import Cache, Parameter, Symbol

    inside, seen = set(nodes), set()
    for node in nodes:
        for source in node.all_input_nodes:
            if source in inside or source in seen:
                continue
            seen.add(source)
            binding = captured.bindings.get(source.name)
            local = _local(captured, run, slot, source)
            if local is not None:
                yield Operand(local[0], local[1], source)
            elif isinstance(binding, Parameter):
                yield Operand("shared", binding.name, source)
            elif isinstance(binding, Symbol):
                yield Operand("symbol", source.name, source)
            elif isinstance(binding, Cache):
                raise NotIsomorphicError(f"a layer reads the cache of layer {binding.layer}")
            else:
                yield Operand("carried" if source in carried else "invariant", source.name, source)


def _is_cache_update(node: fx.Node) -> bool:
    return node.target is torch.ops.buddy.kv_update.default


def _carried_of_single(nodes: list[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For a run of one layer: each result -> the first outside value of its type, whose buffer it may take."""
    inside = set(nodes)
    carried: dict[fx.Node, fx.Node] = {}
    for result in _results(nodes):
        if _is_cache_update(result):
            continue
        outside = (source for node in nodes for source in node.all_input_nodes if source not in inside)
        same = (node for node in outside if node.op != "placeholder" and _shape_key(node) == _shape_key(result))
        if (found := next((node for node in same if node not in carried.values()), None)) is None:
            raise NotIsomorphicError("a layer's result has no input of its type")
        carried[result] = found
    return carried


def _carried_of_run(captured: CapturedGraph, run: LayerRun, layers: list[list[fx.Node]]) -> dict[fx.Node, fx.Node]:
    """Proves that the layers are isomorphic; each result of the first one -> the initial value in its place."""
    provers = [_Prover(captured, run, slot, layers[slot], layers[slot + 1]) for slot in range(len(layers) - 1)]
    for prover in provers:
        prover.compare()
    for before, after in pairwise(provers):
        if any(before.place_first.get(initial) != after.place_first[made] for made, initial in after.carried.items()):
            raise NotIsomorphicError("layers hand on different results")
    return provers[0].carried


def _loop(captured: CapturedGraph, group: _Members) -> LayerLoop:
    run, layers = group.run, group.nodes
    single = len(layers) == 1
    carried = _carried_of_single(layers[0]) if single else _carried_of_run(captured, run, layers)
    places = [{node: place for place, node in enumerate(nodes)} for nodes in layers]
    order = [places[0][result] for result in carried]
    for slot, nodes in enumerate(layers):
        given = {places[slot][node] for node in _results(nodes) if not _is_cache_update(node)}
        if not given <= set(order):
            raise NotIsomorphicError("a result of one layer is used outside, and not by the next layer")
    operands = tuple(_operands(captured, run, 0, layers[0], set(carried.values())))
    initial = [operand for operand in operands if operand.role == "carried"]
    results = {carried[result]: place for result, place in zip(carried, order, strict=True)}
    first, last = (tuple(nodes[results[operand.node]] for operand in initial) for nodes in (layers[0], layers[-1]))
    return LayerLoop(run, Layer(tuple(layers[0]), operands, first), last)


Unit = fx.Node | LayerLoop


def schedule(captured: CapturedGraph) -> list[Unit]:
    """The graph as a list of single ops and loops over layers, in an order that respects every use.

    Raises:
        NotIsomorphicError: Traced layers of one run differ, or their ops interleave with others that need them.
    """
    groups = _collect(captured)
    loops = [_loop(captured, group) for group in groups]
    in_loop: dict[fx.Node, LayerLoop] = {}
    last_node: dict[fx.Node, LayerLoop] = {}
    for group, loop in zip(groups, loops, strict=True):
        for nodes in group.nodes:
            in_loop.update(dict.fromkeys(nodes, loop))
        last_node[group.nodes[-1][-1]] = loop
    units: list[Unit] = []
    ready: set[fx.Node] = {node for node in captured.graph.nodes if node.op == "placeholder"}
    for node in captured.graph.nodes:
        if node.op != "call_function":
            continue
        if node not in in_loop:
            if not ready.issuperset(node.all_input_nodes):
                raise NotIsomorphicError(f"'{node.name}' stands between the ops of a layer and needs one of them")
            units.append(node)
            ready.add(node)
        elif node in last_node:
            loop = last_node[node]
            if not all(operand.node in ready for operand in loop.layer.operands):
                raise NotIsomorphicError("a layer needs a value that is made after it")
            units.append(loop)
            ready.update(inner for inner, owner in in_loop.items() if owner is loop)
    return units

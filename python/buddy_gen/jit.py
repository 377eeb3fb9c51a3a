"""``torch.compile(model, backend="buddy")``: graphs that TorchDynamo finds, compiled by this stack and run in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]

from buddy_gen.capture import Binding, CapturedGraph, Input, Symbol, composites_kept, decompositions
from buddy_gen.importer import import_graph
from buddy_gen.native import NativeModule, compile_module
from buddy_gen.target import Target, host_target

DEFAULT_PRIORITY = ("linalg", "tosa")


class _NoParameters:
    def offset(self, name: str) -> int:
        raise KeyError(name)


def capture_inputs(module: fx.GraphModule, entry: str) -> CapturedGraph:
    """An ATen graph whose placeholders are all inputs, numbered in order."""
    bindings: dict[str, Binding] = {}
    for place, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder"):
        symbolic = not isinstance(node.meta["val"], torch.Tensor)
        bindings[node.name] = Symbol() if symbolic else Input(f"{place:05d}")
    return CapturedGraph(entry, module.graph, bindings, (), "")


def _array(value: torch.Tensor) -> npt.NDArray[Any]:
    value = value.detach().contiguous()
    if value.dtype == torch.bfloat16:
        value = value.view(torch.int16)
    array: npt.NDArray[Any] = value.numpy()
    return array.view(np.int8) if array.dtype == np.bool_ else array


class CompiledGraph:
    """One compiled graph: call it with the graph's inputs, get its outputs.

    Args:
        module: The ATen graph.
        target: The machine to compile for.
        priority: Dialects in order of preference.
        pipeline: The named pipeline of buddy-opt.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        target: Target | None = None,
        priority: tuple[str, ...] = DEFAULT_PRIORITY,
        pipeline: str = "buddy-lower-to-llvm",
    ) -> None:
        self.captured = capture_inputs(module, "graph")
        nodes = list(self.captured.graph.nodes)
        self._placeholders = [node for node in nodes if node.op == "placeholder"]
        self._outputs = list(next(node for node in nodes if node.op == "output").args[0])
        self._tensors = [node for node in self._outputs if isinstance(node, fx.Node) and _is_tensor(node)]
        machine = target or host_target()
        self.native: NativeModule | None = None
        self.dialects: dict[tuple[str, str], int] = {}
        if self._tensors:
            units = [node for node in nodes if node.op == "call_function"]
            imported = import_graph(
                self.captured, units, "graph", parameters=(), offsets=_NoParameters(), target=machine, priority=priority
            )
            self.dialects = dict(imported.dialects)
            self.native = compile_module(imported.text, machine, pipeline)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        symbols: dict[sympy.Symbol, int] = {}
        for node, value in zip(self._placeholders, inputs, strict=True):
            _bind(node.meta["val"], value, symbols)
        given = [_array(value) for node, value in zip(self._placeholders, inputs, strict=True) if _is_tensor(node)]
        made = [_empty(node.meta["val"], symbols) for node in self._tensors]
        if self.native is not None:
            base = np.zeros(64, np.int8)
            self.native.entry("graph")(base, *given, *[_array(value) for value in made])
        results = dict(zip(self._tensors, made, strict=True))
        return tuple(results[node] if node in results else _size(node, symbols) for node in self._outputs)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bind(fake: Any, value: Any, symbols: dict[sympy.Symbol, int]) -> None:
    """Learns the symbols of a placeholder's shape from the tensor that came in."""
    pairs = zip(fake.shape, value.shape, strict=True) if isinstance(fake, torch.Tensor) else [(fake, value)]
    for size, actual in pairs:
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            symbols[size.node.expr] = int(actual)


def _size(value: Any, symbols: dict[sympy.Symbol, int]) -> Any:
    if isinstance(value, fx.Node):
        value = value.meta["val"]
    return int(value.node.expr.subs(symbols)) if isinstance(value, torch.SymInt) else value


def _empty(fake: torch.Tensor, symbols: dict[sympy.Symbol, int]) -> torch.Tensor:
    return torch.empty([_size(size, symbols) for size in fake.shape], dtype=fake.dtype)


def compile_with(
    priority: tuple[str, ...] = DEFAULT_PRIORITY,
    pipeline: str = "buddy-lower-to-llvm",
    seen: list[CompiledGraph] | None = None,
) -> Callable[[fx.GraphModule, list[Any]], Any]:
    """A backend for ``torch.compile`` with options.

    Args:
        priority: Dialects in order of preference.
        pipeline: The named pipeline of buddy-opt, with its options.
        seen: Gets every graph that is compiled.
    """

    def lower(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        compiled = CompiledGraph(module, priority=priority, pipeline=pipeline)
        if seen is not None:
            seen.append(compiled)
        return make_boxed_func(compiled)

    def backend(module: fx.GraphModule, inputs: list[Any]) -> Any:
        compiler = aot_autograd(fw_compiler=lower, inference_compiler=lower, decompositions=decompositions())
        with composites_kept():
            return compiler(module, inputs)

    return backend


@register_backend(name="buddy")
def buddy(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """The backend ``buddy`` of ``torch.compile``.

    Raises:
        BuddyError: The graph uses an op without a rule (all of them are named), or a tool is missing.
    """
    return compile_with()(module, inputs)

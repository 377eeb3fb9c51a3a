"""PyTorch module -> ATen FX graph, by TorchDynamo under fake tensors.

transformers' own extension points keep two things whole on the way: an attention function registered under the name
``buddy`` becomes the op ``buddy::attention``, and a cache object made inside the traced forward turns each cache update
into the functional op ``buddy::kv_update``. No model code is patched, and no weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._export.utils import _special_op_to_preserve_cia
from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from buddy_gen.errors import BuddyError
from buddy_gen.models.llama import sizes_of
from buddy_gen.transforms.layers import LayerRun, keep_representatives

aten = torch.ops.aten


# The two ops of our own ------------------------------------------------------------------------------------------


@torch.library.custom_op("buddy::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention over a KV cache.

    Args:
        q: (1, heads, length, head_dim), the new queries.
        k: (1, kv_heads, capacity, head_dim), the cache of keys, the new ones included.
        v: (1, kv_heads, capacity, head_dim), the cache of values.
        position: () int64, the number of tokens before the first query.
        scale: Factor of the scores.

    Returns:
        (1, length, heads, head_dim).
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    last = position + torch.arange(q.shape[2])[:, None]
    mask = torch.arange(k.shape[2])[None] <= last
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v).transpose(1, 2).contiguous()


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor, scale: float) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


@torch.library.custom_op("buddy::kv_update", mutates_args=())
def kv_update(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The cache (1, kv_heads, capacity, head_dim) with `new` (1, kv_heads, length, head_dim) at `position`."""
    result, start = cache.clone(), int(position)
    result[:, :, start : start + new.shape[2]] = new
    return result


@kv_update.register_fake
def _(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache)


def _attention_function(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    return torch.ops.buddy.attention(query, key, value, options["buddy_position"], options["scaling"]), None


# Registered among the attention functions but not among the masks: transformers builds no mask and repeats no head.
ALL_ATTENTION_FUNCTIONS.register("buddy", _attention_function)


class _GraphCache:
    """What transformers asks of a cache, with every update recorded as ``buddy::kv_update``."""

    is_compileable = True
    is_sliding: tuple[bool, ...] = ()
    layers: tuple[Any, ...] = ()

    def __init__(self, k: Sequence[torch.Tensor], v: Sequence[torch.Tensor], position: torch.Tensor) -> None:
        self.k, self.v, self.position = list(k), list(v), position

    def update(
        self, k: torch.Tensor, v: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.k[layer] = torch.ops.buddy.kv_update(self.k[layer], k, self.position)
        self.v[layer] = torch.ops.buddy.kv_update(self.v[layer], v, self.position)
        return self.k[layer], self.v[layer]


class _Step(nn.Module):
    """One call of a causal language model over explicit caches."""

    def __init__(self, model: nn.Module, logits_to_keep: int) -> None:
        super().__init__()
        self.model = model
        self.logits_to_keep = logits_to_keep

    def forward(
        self, ids: torch.Tensor, position: torch.Tensor, k: list[torch.Tensor], v: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        cache = _GraphCache(k, v, position)
        out = self.model(
            input_ids=ids,
            position_ids=(position + torch.arange(ids.shape[1])).unsqueeze(0),
            cache=cache,
            use_cache=True,
            logits_to_keep=self.logits_to_keep,
            buddy_position=position,
        )
        return out.logits, cache.k, cache.v


# What a captured graph is ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """A parameter or buffer, by its qualified name in the model."""

    name: str


@dataclass(frozen=True)
class Cache:
    """The K or V cache of one layer."""

    kind: str
    layer: int


@dataclass(frozen=True)
class Input:
    """An argument of the entry point: ``ids`` or ``position`` of a language model, or an input of any other module."""

    name: str


@dataclass(frozen=True)
class Symbol:
    """A size that is known at run time only; the placeholder's value is its symbolic expression."""


Binding = Parameter | Cache | Input | Symbol


@dataclass(frozen=True)
class CapturedGraph:
    """An ATen graph and what each of its placeholders stands for.

    Attributes:
        entry: ``prefill``, ``decode``, ``score``, or the name of another module's entry point.
        graph: The FX graph of ATen ops, free of side effects.
        bindings: Placeholder name -> binding.
        runs: Runs of layers that the model repeats; the graph holds at most two layers of each run.
        prefix: Where the model stands below the traced module, for names in `nn_module_stack`.
    """

    entry: str
    graph: fx.Graph
    bindings: dict[str, Binding]
    runs: tuple[LayerRun, ...]
    prefix: str


# Decompositions: `linear`, `silu` and `embedding` stay whole; everything that is only another spelling becomes one op.


def _transpose(x: torch.Tensor, first: int, second: int) -> Any:
    order = list(range(x.dim()))
    order[first], order[second] = order[second], order[first]
    return aten.permute.default(x, order)


def _unsqueeze(x: torch.Tensor, dim: int) -> Any:
    shape = list(x.shape)
    shape.insert(dim % (x.dim() + 1), 1)
    return aten.view.default(x, shape)


def _square(x: torch.Tensor, exponent: float) -> Any:
    return aten.mul.Tensor(x, x) if exponent == 2 and x.is_floating_point() else NotImplemented


_OWN: dict[Any, Callable[..., Any]] = {
    aten.t.default: lambda x: aten.permute.default(x, [1, 0]),
    aten.transpose.int: _transpose,
    aten._unsafe_view.default: lambda x, shape: aten.view.default(x, shape),
    aten.unsqueeze.default: _unsqueeze,
    aten.pow.Tensor_Scalar: _square,
}
_WHOLE = (aten.silu.default, aten.embedding.default, aten.linear.default)
_WHOLE_COMPOSITE = (aten.linear.default,)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition table of the frontend: core ATen, less what we keep whole, plus our own spellings."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    for op in _WHOLE:
        table.pop(op, None)
    return {**table, **_OWN}


@contextmanager
def composites_kept() -> Iterator[None]:
    """Keeps composite ops whole that we have rules for, while AOTAutograd runs."""
    with _override_composite_implicit_decomp(dict.fromkeys(_WHOLE_COMPOSITE, _special_op_to_preserve_cia)):
        yield


# Capture ---------------------------------------------------------------------------------------------------------


class _Backend:
    """A TorchDynamo backend that keeps the graph before (for its sources) and after AOTAutograd."""

    def __init__(self) -> None:
        self.dynamo: list[fx.GraphModule] = []
        self.aten: list[fx.GraphModule] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        self.dynamo.append(module)

        def keep(lowered: fx.GraphModule, _: list[Any]) -> Any:
            self.aten.append(lowered)
            return make_boxed_func(lowered.forward)

        compiler = aot_autograd(
            fw_compiler=keep,
            inference_compiler=keep,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
        with composites_kept():
            return compiler(module, inputs)


_MODULE = re.compile(r"_modules\['([^']+)'\]|_(?:parameters|buffers)\['([^']+)'\]")


def _binding(source: Any, prefix: str) -> Binding:
    name = source.name if isinstance(source.name, str) else source.name()
    if match := re.fullmatch(r"L\['([kv])'\]\[(\d+)\]", name):
        return Cache(match[1], int(match[2]))
    if match := re.fullmatch(r"L\['(\w+)'\](?:\[(\d+)\])?", name):
        return Input(match[1] if match[2] is None else f"{match[1]}.{match[2]}")
    parts = [module or tensor for module, tensor in _MODULE.findall(name)]
    if not parts:
        raise BuddyError(f"the traced model reads '{name}', which is neither a parameter, a buffer nor an input")
    qualified = ".".join(parts)
    return Parameter(qualified.removeprefix(f"{prefix}." if prefix else ""))


def trace(
    module: nn.Module, args: tuple[Any, ...], entry: str, runs: tuple[LayerRun, ...] = (), prefix: str = ""
) -> CapturedGraph:
    """Captures one call of `module` as one ATen graph.

    Args:
        module: Any module; its parameters may be fake.
        args: The example arguments; mark dynamic dimensions before with ``torch._dynamo.mark_dynamic``.
        entry: Name of the entry point.
        runs: Runs of repeated layers, of which `module` holds representatives only.
        prefix: Where the model stands below `module`.

    Raises:
        BuddyError: The module breaks into several graphs or uses something that Dynamo can't trace.
    """
    backend = _Backend()
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(module, backend=backend, fullgraph=True, dynamic=None)(*args)
    except torch._dynamo.exc.Unsupported as error:
        reason = str(error).strip().splitlines()[0]
        raise BuddyError(f"TorchDynamo cannot trace the model's '{entry}' as one graph: {reason}") from error
    finally:
        torch._dynamo.reset()
    if len(backend.aten) != 1:
        raise BuddyError(f"the model's '{entry}' broke into {len(backend.aten)} graphs; one is needed")
    dynamo = [node for node in backend.dynamo[0].graph.nodes if node.op == "placeholder"]
    lowered = [node for node in backend.aten[0].graph.nodes if node.op == "placeholder"]
    if len(dynamo) != len(lowered):
        raise BuddyError(f"AOTAutograd changed the number of inputs of '{entry}': {len(dynamo)} -> {len(lowered)}")
    bindings: dict[str, Binding] = {}
    for before, after in zip(dynamo, lowered, strict=True):
        symbolic = isinstance(after.meta["val"], torch.SymInt)
        bindings[after.name] = Symbol() if symbolic else _binding(before._dynamo_source, prefix)
    return CapturedGraph(entry, backend.aten[0].graph, bindings, runs, prefix)


_EXAMPLE_LENGTH = 7
_LOGITS_TO_KEEP = {"prefill": 1, "decode": 1, "score": 0}


def capture_llama(
    config: LlamaConfig,
    entries: Sequence[str],
    customise: Callable[[LlamaForCausalLM], None] | None = None,
    merge_layers: bool = True,
) -> list[CapturedGraph]:
    """Captures the entry points of a LLaMA from its configuration alone, in time that does not grow with its depth.

    Layers that are built alike (same classes, attributes and parameter shapes) run alike, so two of each run of such
    layers are traced; the importer proves that those two are isomorphic before it makes one function of them.

    Args:
        config: The model's configuration.
        entries: Any of ``prefill``, ``decode``, ``score``.
        customise: Changes the model (under fake tensors) before it is traced.
        merge_layers: Whether runs of equal layers are traced by their representatives; otherwise every layer is.

    Raises:
        BuddyError: The model can't be traced as one graph.
    """
    config._attn_implementation = "buddy"
    captured = []
    for entry in entries:
        # A fresh mode for each entry: a symbol of one capture must not leak into the next.
        with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.no_grad():
            model: Any = LlamaForCausalLM(config).requires_grad_(False)
            model.eval()
            if customise is not None:
                customise(model)
            runs = keep_representatives(model) if merge_layers else keep_representatives(model, most=None)
            sizes = sizes_of(config)
            shape = (1, sizes.kv_heads, config.max_position_embeddings, sizes.head_dim)
            k, v = ([torch.empty(shape) for _ in range(sizes.layers)] for _ in range(2))
            ids = torch.zeros(1, 1 if entry == "decode" else _EXAMPLE_LENGTH, dtype=torch.int64)
            if entry != "decode":
                torch._dynamo.mark_dynamic(ids, 1, min=2, max=config.max_position_embeddings)
            step = _Step(model, _LOGITS_TO_KEEP[entry])
            captured.append(trace(step, (ids, torch.zeros((), dtype=torch.int64), k, v), entry, runs, "model"))
    return captured

"""A tiny model compiled in a chosen precision and run in this process, and what eager PyTorch makes of its numbers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import DynamicCache, LlamaForCausalLM

from buddy_gen.generate.llama import Graph, capture_and_schedule
from buddy_gen.generate.packing import packed_tensor
from buddy_gen.importer import CACHE_DTYPES, CacheShape, ImportedModule, import_graph
from buddy_gen.models import open_model
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.llama import EMBEDDING, HEAD, sizes_of
from buddy_gen.native import NativeModule, compile_module
from buddy_gen.parameters import StoredParameter, collect_parameters
from buddy_gen.target import Target, host_target
from buddy_gen.transforms.precision import Precision
from buddy_gen.transforms.quantization import assign_formats
from buddy_gen.weights.blocks import dequantize, unpack_blocks
from buddy_gen.weights.formats import Format
from buddy_gen.weights.packed import WeightsLayout, unpack_panels
from buddy_gen.weights.raw_floats import bf16_to_f32

Floats = npt.NDArray[np.float32]
CONTEXT = 32
PLAIN = "pack=false vectorize=false attention=false fuse=false"
"""The options of a pipeline that optimises nothing."""

_NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i8": np.int8}


@cache
def captured(model: Path, entries: tuple[str, ...]) -> tuple[ModelDescription, list[Graph]]:
    """A model's description and graphs, captured once for a session."""
    description = open_model(model)
    return description, capture_and_schedule(description, entries)


@dataclass
class NarrowModel:
    """One precision of one model: its modules, its weights' bytes, and how each parameter is stored."""

    description: ModelDescription
    precision: Precision
    target: Target
    parameters: list[StoredParameter]
    layout: WeightsLayout
    modules: dict[str, ImportedModule]

    def weights(self) -> npt.NDArray[np.int8]:
        """The data section of the weights file."""
        base = np.zeros(self.layout.total_bytes + 64, np.uint8)
        data = base[-base.ctypes.data % 64 :][: self.layout.total_bytes]
        for one in self.layout.tensors:
            bytes_ = np.ascontiguousarray(one.produce()).reshape(-1).view(np.uint8)
            data[self.layout.offset(one.name) :][: bytes_.size] = bytes_
        return data.view(np.int8)

    def logits(self, entry: str, ids: Sequence[int], options: str = "", parts: Sequence[int] = ()) -> list[Floats]:
        """The logits of each call of `entry`, which takes `ids` in parts of these lengths (decode: one by one)."""
        lengths = [1] * len(ids) if entry == "decode" else list(parts) or [len(ids)]
        native = compile_module(self.modules[entry].text, self.target, f"buddy-lower-to-llvm={options}")
        sizes = sizes_of(self.description.config)
        kind = self.precision.kv_dtype
        row = sizes.head_dim + (4 if kind == "i8" else 0)
        caches = [np.zeros((sizes.layers, sizes.kv_heads, CONTEXT, row), _NUMPY[kind]) for _ in range(2)]
        weights, made, position = self.weights(), [], 0
        for length in lengths:
            part = np.array([ids[position : position + length]], np.int64)
            out = np.full((1, length if entry == "score" else 1, sizes.vocab), np.nan, np.float32)
            arena = _arena(native, entry, length)
            native.entry(entry)(weights, part, position, *caches, out, arena)
            made.append(out[0])
            position += length
        return made

    def stored_values(self) -> dict[str, Floats]:
        """What the stored numbers stand for, by the parameters' names."""
        values = {}
        for stored, one in zip(self.parameters, self.layout.tensors, strict=True):
            values[stored.name] = _values(stored, one.produce())
        if self.description.tied_head:
            values.setdefault(HEAD, values.get(EMBEDDING, values.get(HEAD)))
            values.setdefault(EMBEDDING, values[HEAD])
        return values

    def eager(self) -> LlamaForCausalLM:
        """Hugging Face's model over the stored numbers, with int8 activations where the precision has them."""
        config = self.description.config
        config._attn_implementation = "eager"
        model = LlamaForCausalLM(config).eval()
        state = {name: torch.from_numpy(value) for name, value in self.stored_values().items()}
        model.load_state_dict(state, strict=False)
        if self.precision.activation_bits == 8:
            by_name = {stored.name: stored for stored in self.parameters}
            for name, module in model.named_modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(_rounding(by_name.get(name + ".weight") or by_name[EMBEDDING]))
        return model

    def eager_logits(self, ids: Sequence[int]) -> Floats:
        """Logits of every position: (length, vocabulary)."""
        with torch.no_grad():
            cache_ = _RoundedCache(self.precision.kv_dtype)
            result: Floats = self.eager()(torch.tensor([list(ids)]), cache=cache_, use_cache=True).logits[0].numpy()
        return result


def narrow_model(
    model: Path,
    precision: Precision,
    entries: tuple[str, ...] = ("decode",),
    target: Target | None = None,
    priority: tuple[str, ...] = ("linalg", "tosa"),
) -> NarrowModel:
    """Imports `model` in `precision`."""
    description, graphs = captured(model, entries)
    machine = target or host_target()
    found = collect_parameters(graphs)
    parameters = assign_formats(found, precision, description.weights, description.tied_head)
    layout = WeightsLayout([packed_tensor(description, stored, machine.panel, precision) for stored in parameters])
    sizes = sizes_of(description.config)
    modules = {
        graph.entry: import_graph(
            graph,
            units,
            graph.entry,
            parameters=parameters,
            offsets=layout,
            target=machine,
            priority=priority,
            cache=CacheShape(sizes.layers, sizes.kv_heads, sizes.head_dim, CACHE_DTYPES[precision.kv_dtype]),
        )
        for graph, units in graphs
    }
    return NarrowModel(description, precision, machine, parameters, layout, modules)


def _arena(native: NativeModule, entry: str, tokens: int) -> npt.NDArray[np.int8]:
    size = native._library[f"_mlir_ciface_{entry}_arena_size"]
    size.restype = ctypes.c_int64
    count = int(size(ctypes.c_int64(tokens)))
    base = np.full(count + 64, 255, np.uint8)
    return base[-base.ctypes.data % 64 :][:count].view(np.int8)


def _values(stored: StoredParameter, data: npt.NDArray[Any]) -> Floats:
    if stored.format.in_blocks:
        rows, columns = stored.shape
        form = stored.format.of_columns(columns)
        values = torch.from_numpy(dequantize(unpack_blocks(data, form, rows), form.kind))
        # Sizes that are no square: their root's power of two stands in the weight.
        part = form.rotation**0.5 / 2 ** (math.log2(form.rotation) // 2)
        return np.ascontiguousarray((values @ _rotation(form, values.shape[1]).T)[:, :columns].numpy() / part)
    wide = bf16_to_f32(data) if stored.format.kind == "bf16" else data.astype(np.float32)
    return unpack_panels(wide, stored.shape[0]) if stored.panels else wide


def _rotation(form: Format, columns: int) -> torch.Tensor:
    """R (K, K) of docs/quantization.md, divided by the root of its size: its inverse is its transpose."""
    blocks = []
    for _ in range(columns // form.rotation):
        block = torch.ones(1, 1)
        while len(block) < form.rotation:
            block = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), block)
        blocks.append(block / form.rotation**0.5)
    return torch.block_diag(*blocks)


def rounded_activations(x: torch.Tensor, group: int, bits: int = 8) -> torch.Tensor:
    """x rounded to integers by row and group, as docs/quantization.md says it."""
    columns = x.shape[-1]
    padded = nn.functional.pad(x, (0, -columns % group)).unflatten(-1, (-1, group))
    largest = padded.abs().amax(-1, keepdim=True)
    most = 2.0 ** (bits - 1) - 1
    factor = torch.where(largest < 2.0**-100, torch.zeros_like(largest), most / largest)
    return (torch.round(padded * factor) * (largest / most)).flatten(-2)[..., :columns]


def _rounding(stored: StoredParameter) -> Any:
    columns, bits = stored.shape[1], stored.activation_bits
    form = stored.format.of_columns(columns)
    assert bits is not None
    rotation = _rotation(form, form.padded(columns))

    def hook(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        padded = nn.functional.pad(args[0], (0, form.padded(columns) - columns))
        return ((rounded_activations(padded @ rotation, form.group, bits) @ rotation.T)[..., :columns],)

    return hook


class _RoundedCache(DynamicCache):
    """A cache that holds its numbers in a narrow type."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def update(self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().update(self._rounded(key), self._rounded(value), *args, **kwargs)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self._kind == "i8":
            return rounded_activations(x, x.shape[-1])
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[self._kind]
        return x.to(dtype).to(torch.float32)

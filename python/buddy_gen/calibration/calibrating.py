"""Rounds a model's weights on a text, one layer after another.

What comes into a layer is what the layers before it, already rounded, make of the text. So what is in memory is one
hidden state for each token, one layer's weights in f32, and H of each of its inputs.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM

from buddy_gen.calibration.compensation import movements, round_columns
from buddy_gen.calibration.rounded_weights import RoundedWeights
from buddy_gen.calibration.workers import Workers
from buddy_gen.errors import BuddyError
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.llama import EMBEDDING
from buddy_gen.weights.blocks import Fields, dequantize
from buddy_gen.weights.formats import Format
from buddy_gen.weights.quantizers import nibble_fields
from buddy_gen.weights.source import FloatArray
from buddy_gen.weights.storing import read_finite

__all__ = ["round_on_text"]

_ROWS = 256  # of a weight or of H that are one part of the work

Done = Callable[[int, int], None]
"""Called with the layers done so far and in all."""


def round_on_text(
    description: ModelDescription,
    formats: Mapping[str, Format],
    windows: Sequence[Sequence[int]],
    rounded: RoundedWeights,
    done: Done | None = None,
    threads: int = 0,
) -> None:
    """Rounds the weights of the linear layers that stand in the model's list of layers.

    The same model and windows give the same bytes on machines of one kind, whatever the number of threads.

    Args:
        description: The model.
        formats: Name -> format of the weights that may be rounded here: those of 4 bits.
        windows: Token ids, all windows of one length.
        rounded: Where the rounded weights go.
        done: Told after each layer.
        threads: How many; 0: the CPUs allowed.

    Raises:
        BuddyError: A weight holds NaN or infinity, or doesn't fit into its format, or the text makes a layer's inputs
            infinite; the message names it.
    """
    with Workers(threads) as workers, torch.no_grad():
        layers, prefix, states, options = _first_layer_inputs(description, windows)
        for place, layer in enumerate(layers):
            name = f"{prefix}.{place}"
            _load(layer, name, description)
            linears = {
                f"{name}.{path}.weight": module
                for path, module in layer.named_modules()
                if isinstance(module, nn.Linear) and f"{name}.{path}.weight" in formats
            }
            for names, hessian in _hessians(layer, linears, states, options, workers).items():
                if not torch.isfinite(hessian).all():
                    raise BuddyError(f"the calibration text makes the inputs of {names[0]} infinite or NaN")
                moves = movements(hessian, workers)
                for one in names:
                    _round(one, linears[one], formats[one], moves, rounded, workers)
            if place + 1 < len(layers):
                _advance(layer, states, options, workers)
            layer.to("meta")
            if done is not None:
                done(place + 1, len(layers))


class _FirstLayerError(Exception):
    """Ends a run of the model at its first layer."""


class _Listener(nn.Module):
    """Stands in the place of the layers and keeps what the first one is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: tuple[torch.Tensor, dict[str, Any]] | None = None

    def forward(self, states: torch.Tensor, **options: Any) -> None:
        self.heard = states, options
        raise _FirstLayerError


def _first_layer_inputs(
    description: ModelDescription, windows: Sequence[Sequence[int]]
) -> tuple[nn.ModuleList, str, torch.Tensor, dict[str, Any]]:
    """The layers without weights, the name of their list, the first one's inputs [windows, length, hidden], and the
    options (mask, positions) that the model calls all of them with."""
    config = copy.deepcopy(description.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model: Any = LlamaForCausalLM(config)
    model.eval()
    decoder, layers = model.model, model.model.layers
    rotary = torch.from_numpy(np.array(description.rotary()[0], np.float32))
    decoder.rotary_emb.inv_freq = rotary
    decoder.rotary_emb.original_inv_freq = rotary.clone()
    listener = _Listener()
    decoder.layers = nn.ModuleList([listener])
    states = _embedded(description, windows)
    with contextlib.suppress(_FirstLayerError):
        decoder(inputs_embeds=states[:1], use_cache=False)
    assert listener.heard is not None
    return layers, "model.layers", states, listener.heard[1]


def _embedded(description: ModelDescription, windows: Sequence[Sequence[int]]) -> torch.Tensor:
    """The tokens' rows of the embedding, of which no others are in memory."""
    ids = np.array(windows, np.int64)
    known, places = np.unique(ids, return_inverse=True)
    vocabulary = description.weights.shape(EMBEDDING)[0]
    if known[-1] >= vocabulary:
        raise BuddyError(f"the text has the token {known[-1]}, but the model knows {vocabulary} tokens")
    rows = np.concatenate([read_finite(description.weights, EMBEDDING, token, token + 1) for token in map(int, known)])
    return torch.from_numpy(rows[places.reshape(ids.shape)])


def _load(layer: nn.Module, name: str, description: ModelDescription) -> None:
    source = description.weights
    state = {}
    for own in layer.state_dict():
        shape = source.shape(f"{name}.{own}")
        state[own] = torch.from_numpy(read_finite(source, f"{name}.{own}", 0, shape[0]).reshape(shape))
    layer.load_state_dict(state, assign=True)


def _output(layer: nn.Module, states: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    out = layer(states, **options)
    found: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return found


def _advance(layer: nn.Module, states: torch.Tensor, options: Mapping[str, Any], workers: Workers) -> None:
    """Replaces each window's states by the layer's outputs."""

    def run(window: int) -> None:
        states[window] = _output(layer, states[window : window + 1], options)[0]

    workers.map(run, range(len(states)))


class _Taps:
    """Hears what linear layers are given, in the thread that asks."""

    def __init__(self, linears: Mapping[str, nn.Module]) -> None:
        self._of_thread = threading.local()
        self._handles = [
            module.register_forward_pre_hook(functools.partial(self._hear, name)) for name, module in linears.items()
        ]

    def _hear(self, name: str, module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        self._of_thread.heard.append((name, given[0]))

    def inputs(self, layer: nn.Module, states: torch.Tensor, options: Mapping[str, Any]) -> list[_Input]:
        """Each input once, for one window [1, length, hidden]."""
        heard: list[tuple[str, torch.Tensor]] = []
        self._of_thread.heard = heard
        _output(layer, states, options)
        names: dict[int, list[str]] = {}
        for name, given in heard:
            names.setdefault(id(given), []).append(name)  # `heard` keeps them alive, so that an id means one tensor
        tensors = {id(given): given for _, given in heard}
        return [_Input(tuple(names[key]), given.reshape(-1, given.shape[-1])) for key, given in tensors.items()]

    def remove(self) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()


@dataclass(frozen=True)
class _Input:
    """X [tokens, K], and the names of the weights that it meets."""

    names: tuple[str, ...]
    rows: torch.Tensor


def _hessians(
    layer: nn.Module,
    linears: Mapping[str, nn.Module],
    states: torch.Tensor,
    options: Mapping[str, Any],
    workers: Workers,
) -> dict[tuple[str, ...], torch.Tensor]:
    """H = Xᵀ X of each input, by the names of the weights that it meets; windows are added in their order."""
    found: dict[tuple[str, ...], torch.Tensor] = {}
    taps = _Taps(linears)
    for start in range(0, len(states), workers.count):
        taken = range(start, min(start + workers.count, len(states)))
        for inputs in workers.map(lambda window: taps.inputs(layer, states[window : window + 1], options), taken):
            for one in inputs:
                columns = one.rows.shape[1]
                _add_products(found.setdefault(one.names, torch.zeros(columns, columns)), one.rows, workers)
    taps.remove()
    return found


def _add_products(hessian: torch.Tensor, rows: torch.Tensor, workers: Workers) -> None:
    """H += Xᵀ X."""

    def add(start: int) -> None:
        hessian[start : start + _ROWS].addmm_(rows[:, start : start + _ROWS].t(), rows)

    workers.map(add, range(0, len(hessian), _ROWS))


def _round(
    name: str, linear: nn.Module, form: Format, moves: torch.Tensor, rounded: RoundedWeights, workers: Workers
) -> None:
    """Rounds a weight, keeps its fields, and gives the module what they stand for."""
    weight: FloatArray = linear.get_parameter("weight").numpy()

    def work(start: int) -> Fields:
        rows = weight[start : start + _ROWS]
        fields = nibble_fields(*round_columns(rows, moves, form), form)
        rows[:] = dequantize(fields, form.kind)[:, : rows.shape[1]]
        return fields

    try:
        parts = workers.map(work, range(0, len(weight), _ROWS))
    except BuddyError as error:
        raise BuddyError(f"the weight {name} does not fit: {error}") from None
    minima = [part.minima for part in parts if part.minima is not None]
    fields = Fields(
        np.concatenate([part.integers for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima),
    )
    rounded.write(name, fields)

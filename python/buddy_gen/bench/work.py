"""How much work a model is: bytes read and floating-point operations, from the header of its weights file alone.

They are what has to be done, not what a program does: each weight is read once, each multiply-add counts two
operations, attention is causal, and the head is applied to the last position of a prompt only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from buddy_gen.errors import BuddyError
from buddy_gen.weights.safetensors_reader import read_safetensors_header

__all__ = ["Limits", "ModelWork", "Task", "read_model_work", "threads_label"]

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_PAD = "__pad."


@dataclass(frozen=True)
class Task:
    """What a contender is timed at: `tokens` tokens of a prompt (prefill), or `tokens` decoded behind `prompt`."""

    kind: str
    """prefill or decode."""
    tokens: int
    prompt: int = 0
    """Tokens in the cache before the first decoded one; 0 for prefill."""
    context: int = 0
    """Positions of our programs' context; 0: as many as the task needs. Peers have none to choose."""

    @property
    def positions(self) -> int:
        """Positions of the cache that the task fills."""
        return self.prompt + self.tokens + 1

    @property
    def average_position(self) -> float:
        """Positions that a decoded token sees on the average, itself included."""
        return self.prompt + (self.tokens + 1) / 2

    @property
    def label(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.tokens}"
        return f"decode {self.tokens} after {self.prompt}" + (f", -c {self.context}" if self.context else "")


def threads_label(count: int) -> str:
    """A thread count for a reader."""
    return f"{count} thread{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class Limits:
    """What the machine can do with some number of threads."""

    read_bytes_per_second: float
    fma_flops_per_second: float
    anonymous_bytes_per_second: float | None = None
    """The same read loop over anonymous memory in 4 KiB pages, as large as the KV cache; None: not measured."""


@dataclass(frozen=True)
class ModelWork:
    """The sizes of a Llama model that decide about its work."""

    layers: int
    weight_bytes: int
    """Bytes of weights that one token needs: all but the embedding of an untied model."""
    layer_weights: int
    """Elements of all linear layers' matrices, without the head."""
    head_weights: int
    """Elements of the head's matrix."""
    query_rows: int
    """Query heads times head_dim."""
    kv_rows: int
    """Key/value heads times head_dim."""
    vocabulary: int
    kv_element_bytes: float = 4
    """Bytes of an element of the KV cache, its share of a row's scale included."""
    other_weights: int = 0
    """Elements of norms, biases and rotary frequencies."""

    def in_floats(self) -> ModelWork:
        """The same model with weights and KV cache in float32."""
        weights = 4 * (self.layer_weights + self.head_weights + self.other_weights)
        return replace(self, weight_bytes=weights, kv_element_bytes=4)

    def kv_bytes(self, positions: float) -> float:
        """Bytes of the KV cache's first `positions` positions."""
        return 2 * self.layers * self.kv_rows * positions * self.kv_element_bytes

    def bytes_read(self, task: Task) -> float:
        """Bytes that must be read: for decode per token, on the average; for prefill in all."""
        if task.kind == "prefill":
            return float(self.weight_bytes)
        return self.weight_bytes + self.kv_bytes(task.average_position)

    def flops(self, task: Task) -> float:
        """Floating-point operations: for decode per token, on the average; for prefill in all."""
        if task.kind == "prefill":
            return 2.0 * (self.layer_weights * task.tokens + self.head_weights) + self.attention_flops(
                task.tokens * (task.tokens + 1) / 2
            )
        return 2.0 * (self.layer_weights + self.head_weights) + self.attention_flops(task.average_position)

    def attention_flops(self, pairs: float) -> float:
        """Operations of Q times K and P times V, for `pairs` of a query and a key position."""
        return 4.0 * self.layers * self.query_rows * pairs

    def bound(self, task: Task, limits: Limits) -> str:
        """Which limit the roofline of a task is: memory or compute."""
        reading = self.bytes_read(task) / limits.read_bytes_per_second
        return "memory" if reading >= self.flops(task) / limits.fma_flops_per_second else "compute"

    def roofline(self, task: Task, limits: Limits) -> float:
        """Tokens per second at the machine's limit: reading and computing overlap, so the slower one decides."""
        seconds = max(
            self.bytes_read(task) / limits.read_bytes_per_second, self.flops(task) / limits.fma_flops_per_second
        )
        return (task.tokens if task.kind == "prefill" else 1) / seconds


def read_model_work(path: Path) -> ModelWork:
    """The work of the model whose packed weights file is `path`.

    Raises:
        BuddyError: The file is damaged, or was not written by buddy-gen for a Llama model.
    """
    header = read_safetensors_header(path)
    try:
        layout = json.loads(header.metadata["layout"])
        shapes = {name: tuple(one["shape"]) for name, one in layout.items() if "shape" in one}
        first = "model.layers.0.self_attn."
        query_rows, kv_rows = shapes[f"{first}q_proj.weight"][0], shapes[f"{first}k_proj.weight"][0]
        vocabulary = shapes[_EMBEDDING][0] if _EMBEDDING in shapes else header.tensors[_EMBEDDING].shape[0]
        head = shapes.get(_HEAD) or shapes[_EMBEDDING]
    except (KeyError, ValueError, TypeError, IndexError):
        raise BuddyError(f"{path} is not a weights file that buddy-gen wrote for a Llama model; build it.") from None
    stored = {name: entry.end - entry.begin for name, entry in header.tensors.items() if not name.startswith(_PAD)}
    untied = _HEAD in stored
    linears = {name: shape for name, shape in shapes.items() if name not in (_EMBEDDING, _HEAD)}
    layers = 1 + max(int(name.split(".")[2]) for name in stored if name.startswith("model.layers."))
    cached = header.metadata.get("cache_bytes_per_position", "")
    return ModelWork(
        layers=layers,
        weight_bytes=sum(stored.values()) - (stored[_EMBEDDING] if untied else 0),
        layer_weights=sum(rows * columns for rows, columns in linears.values()),
        head_weights=head[0] * head[1],
        query_rows=query_rows,
        kv_rows=kv_rows,
        vocabulary=vocabulary,
        kv_element_bytes=int(cached) / (2 * layers * kv_rows) if cached.isdigit() else 4,
        other_weights=sum(prod(header.tensors[name].shape) for name in stored if name not in shapes),
    )

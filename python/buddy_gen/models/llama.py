"""The Llama family: parameter names and shapes, rope settings, and the check of a checkpoint against a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from buddy_gen.errors import BuddyError
from buddy_gen.weights.source import FloatArray, SelectedSource, WeightSource, equal_tensors

__all__ = [
    "EMBEDDING",
    "HEAD",
    "Sizes",
    "make_config",
    "parameter_names",
    "parameter_shapes",
    "resolve_parameters",
    "rope_parameters",
    "rotary_inv_freq",
    "sizes_of",
]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_ROPE_TYPES = ("default", "linear", "llama3")
_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_LISTED = 12  # names that an error lists of each kind


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Llama model, defaults filled in."""

    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def sizes_of(config: LlamaConfig) -> Sizes:
    """The sizes that `config` says; LlamaConfig types some as optional although it fills them in."""
    heads = config.num_attention_heads
    return Sizes(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        ffn=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=heads if config.num_key_value_heads is None else config.num_key_value_heads,
        head_dim=config.hidden_size // heads if config.head_dim is None else config.head_dim,
    )


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter, in the model's order; no `lm_head.weight` when the head is tied."""
    sizes = sizes_of(config)
    hidden, ffn = sizes.hidden, sizes.ffn
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.attention_bias),
        "self_attn.k_proj": (keys, hidden, config.attention_bias),
        "self_attn.v_proj": (keys, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, queries, config.attention_bias),
        "mlp.gate_proj": (ffn, hidden, config.mlp_bias),
        "mlp.up_proj": (ffn, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, ffn, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (sizes.vocab, hidden)}
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}."
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (sizes.vocab, hidden)
    return shapes


def parameter_names(config: LlamaConfig) -> list[str]:
    """The names of `parameter_shapes`."""
    return list(parameter_shapes(config))


def rotary_inv_freq(config: LlamaConfig) -> tuple[FloatArray, float]:
    """The rotary inverse frequencies [head_dim / 2] and the factor on cos and sin.

    transformers' own module computes them, with real tensors: call it outside any fake-tensor mode.
    """
    rotary = LlamaRotaryEmbedding(config)
    return rotary.inv_freq.detach().numpy().astype(np.float32, copy=True), float(rotary.attention_scaling)


def rope_parameters(raw: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rope settings of a config.json in transformers 5's spelling, whichever spelling it has.

    The old one is `rope_theta` beside `rope_scaling` (with `type` or `rope_type`), the new one `rope_parameters`.
    Raises BuddyError for a scaling that is not supported, by name, and for two spellings that disagree.
    """
    old, new = raw.get("rope_scaling") or {}, raw.get("rope_parameters") or {}
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        raise BuddyError(f"{where}: rope_scaling and rope_parameters must be JSON objects.")
    theta = raw.get("rope_theta")
    found = _one_spelling(new, theta, raw, where)
    if old and new:
        other = _one_spelling(old, new.get("rope_theta", theta), raw, where)
        if other != found:
            raise BuddyError(f"{where}: rope_scaling says {dict(old)}, but rope_parameters says {dict(new)}.")
    return _one_spelling(old, theta, raw, where) if old and not new else found


def _one_spelling(scaling: Mapping[str, Any], theta: Any, raw: Mapping[str, Any], where: Path) -> dict[str, Any]:
    kind = scaling.get("rope_type", scaling.get("type")) or "default"
    if kind not in _ROPE_TYPES:
        raise BuddyError(f"{where}: rope scaling of type {kind!r} is not supported; none, linear and llama3 are.")
    theta = scaling.get("rope_theta", theta)
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": _number(10000.0 if theta is None else theta, where)}
    for source in (scaling, raw):
        if source.get("partial_rotary_factor", 1.0) != 1.0:
            raise BuddyError(f"{where}: a partial_rotary_factor other than 1 is not supported.")
    values = dict(scaling)
    if raw.get("original_max_position_embeddings") is not None:  # transformers lets the outer one win
        values["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    values.setdefault("original_max_position_embeddings", raw.get("max_position_embeddings"))
    for key in _ROPE_KEYS[kind]:
        if values.get(key) is None:
            raise BuddyError(f"{where}: rope scaling of type {kind} needs {key}, which is not there.")
        found[key] = _number(values[key], where)
    if "original_max_position_embeddings" in found:
        found["original_max_position_embeddings"] = int(found["original_max_position_embeddings"])
    return found


def _number(value: Any, where: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise BuddyError(f"{where}: {value!r} stands where the rope settings need a number above 0.")
    return float(value)


def make_config(values: Mapping[str, Any], where: Path) -> LlamaConfig:
    """A LlamaConfig from checked values; transformers' own objections become a sentence about `where`.

    Its dtype is float32 whatever the file's: weights are always read as float32.
    """
    for key in _COUNTS:
        value = values.get(key)
        if type(value) is int and value < 1:
            raise BuddyError(f"{where}: {key} is {value}, but must be at least 1.")
    try:
        config = LlamaConfig(**{key: value for key, value in values.items() if key != "torch_dtype"})
    except Exception as error:  # transformers' strict configs raise several kinds
        reason = " ".join(str(error).split()).rstrip(".")
        raise BuddyError(f"{where} is no config that transformers takes as a Llama model: {reason}.") from None
    config.dtype = torch.float32
    sizes = sizes_of(config)
    if sizes.heads % sizes.kv_heads:
        raise BuddyError(f"{where}: {sizes.heads} query heads cannot share {sizes.kv_heads} key/value heads evenly.")
    if sizes.head_dim % 2:
        raise BuddyError(f"{where}: head_dim is {sizes.head_dim}; rotary embedding needs an even number.")
    return config


def resolve_parameters(
    source: WeightSource, config: LlamaConfig, declared_tied: bool | None, where: Path
) -> tuple[bool, WeightSource]:
    """Decides whether the head is tied, sets `config.tie_word_embeddings` so, and checks every tensor.

    `declared_tied` is the config's own word, None where the format has none (GGUF). Head and embedding that hold the
    same numbers are tied whatever was declared, so that they are stored once. Returns the decision and a source with
    exactly the model's parameters. Raises BuddyError for a combination that is wrong and, in one sentence, for all
    tensors that are missing, unexpected or of the wrong shape.
    """
    present = set(source.names())
    both = HEAD in present and EMBEDDING in present
    equal = both and equal_tensors(source, HEAD, EMBEDDING)
    if declared_tied and both and not equal:
        raise BuddyError(
            f"{where} declares that head and embedding are tied (tie_word_embeddings), but {HEAD} and {EMBEDDING} "
            "differ; set tie_word_embeddings to false if both are meant."
        )
    if declared_tied is False and HEAD not in present:
        raise BuddyError(
            f"{where} declares an untied head (tie_word_embeddings is false), but the checkpoint has no {HEAD}; "
            "set tie_word_embeddings to true if the embedding serves as the head."
        )
    tied = equal or (not both and declared_tied is not False)
    config.tie_word_embeddings = tied
    stored = {name: name for name in parameter_names(config)}
    if tied and EMBEDDING not in present and HEAD in present:
        stored[EMBEDDING] = HEAD  # shared storage, exported under the other name
    _check_tensors(source, parameter_shapes(config), stored, where)
    return tied, SelectedSource(source, stored)


def _check_tensors(
    source: WeightSource, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, str], where: Path
) -> None:
    present = set(source.names())
    missing = [name for name in shapes if stored[name] not in present]
    known = set(stored.values()) | {HEAD, EMBEDDING}
    unexpected = sorted(name for name in present - known if not _is_ignored(name))
    wrong = [
        f"{stored[name]} is {list(source.shape(stored[name]))} instead of {list(shape)}"
        for name, shape in shapes.items()
        if stored[name] in present and source.shape(stored[name]) != shape
    ]
    parts = [
        f"{label}: {_listed(names)}"
        for label, names in (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", wrong))
        if names
    ]
    if parts:
        raise BuddyError(f"{where}: the checkpoint does not fit the Llama model of its config; {'; '.join(parts)}.")


def _is_ignored(name: str) -> bool:
    """Buffers that old checkpoints carry and transformers computes itself."""
    return name.endswith("rotary_emb.inv_freq")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more

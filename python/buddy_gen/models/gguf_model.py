"""A GGUF file of the llama architecture: its metadata as a LlamaConfig, its tokenizer settings, its template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buddy_gen.errors import BuddyError
from buddy_gen.models.description import ModelDescription, TokenizerFiles
from buddy_gen.models.llama import make_config, resolve_parameters, rotary_inv_freq
from buddy_gen.weights.gguf_file import GgufFile, read_gguf
from buddy_gen.weights.gguf_reader import GgufSource
from buddy_gen.weights.source import FloatArray

__all__ = ["open_gguf"]

_TOKENIZER = "tokenizer.ggml."
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_LLAMA3_CONTEXT = 8192  # what llama.cpp's converter assumes; the factors carry the scaling, no key does
_FACTOR_TOLERANCE = 1e-5  # float32 rounding of converter and reader


def open_gguf(path: Path) -> ModelDescription:
    """Describes the model in `path`. Raises BuddyError for another architecture, unsupported settings, damage."""
    file = read_gguf(path)
    metadata = _Metadata(file)
    metadata.check_supported()
    heads = metadata.integer("attention.head_count")
    kv_heads = metadata.integer("attention.head_count_kv", heads)
    source = GgufSource(file, heads, kv_heads)
    values = _config_values(metadata, source, heads, kv_heads)
    config = make_config(values, path)
    tied, weights = resolve_parameters(source, config, None, path)
    override = None
    factors = source.rope_factors()
    if factors is not None:
        override = _apply_rope_factors(config, factors, metadata)
    tokens = file.metadata.get(f"{_TOKENIZER}tokens")
    template = file.metadata.get("tokenizer.chat_template")
    add_bos = file.metadata.get(f"{_TOKENIZER}add_bos_token")
    name = file.metadata.get("general.name")
    return ModelDescription(
        name=name if isinstance(name, str) and name else path.stem,
        config=config,
        tied_head=tied,
        weights=weights,
        tokenizer=TokenizerFiles(gguf=path) if tokens else None,
        chat_template=template if isinstance(template, str) else None,
        eos_token_ids=metadata.end_tokens(),
        bos_token_id=metadata.token("bos_token_id"),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        context_length=config.max_position_embeddings,
        files=[path],
        inv_freq_override=override,
    )


class _Metadata:
    """The `llama.*` keys, typed; every error names the key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._values: Mapping[str, Any] = file.metadata

    def _fail(self, what: str) -> BuddyError:
        return BuddyError(f"{self.file.path}: {what}.")

    def check_supported(self) -> None:
        architecture = self._values.get("general.architecture")
        if architecture != "llama":
            raise self._fail(f"the architecture {architecture!r} is not supported; GGUF files of 'llama' are")
        if self._values.get("split.count", 1) not in (0, 1):
            raise self._fail("it is one part of a split model; join the parts first (llama-gguf-split --merge)")
        if self._values.get("llama.expert_count", 0) not in (0, None):
            raise self._fail("mixtures of experts (llama.expert_count) are not supported; dense Llama models are")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._values.get(f"llama.{key}", default)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]  # one value a layer, all alike
        if isinstance(value, list):
            raise self._fail(f"llama.{key} differs from layer to layer, which is not supported")
        if value is None:
            raise self._fail(f"the metadata lack llama.{key}")
        if type(value) is not int or value < 1:
            raise self._fail(f"llama.{key} is {value!r}, but must be a whole number of at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(f"llama.{key}", default)
        if value is None:
            raise self._fail(f"the metadata lack llama.{key}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise self._fail(f"llama.{key} is {value!r}, but must be a number")
        return _shortest(float(value))

    def text(self, key: str, default: str) -> str:
        return str(self._values.get(f"llama.{key}", default))

    def token(self, key: str) -> int | None:
        value = self._values.get(f"{_TOKENIZER}{key}")
        return value if type(value) is int else None

    def end_tokens(self) -> list[int]:
        """Every id that ends a text, each once; the keys are eos, eot, eom."""
        tokens = [self.token(key) for key in _EOS_KEYS]
        return list(dict.fromkeys(token for token in tokens if token is not None))


def _shortest(value: float) -> float:
    """The decimal that a float32 was written from: 9.99999975e-06 -> 1e-05; the float32 stays the same."""
    return float(str(np.float32(value)))


def _config_values(metadata: _Metadata, source: GgufSource, heads: int, kv_heads: int) -> dict[str, Any]:
    hidden = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", max(1, hidden // heads))
    if metadata.integer("attention.value_length", head_dim) != head_dim:
        raise BuddyError(f"{metadata.file.path}: values of another length than keys are not supported.")
    if metadata.integer("rope.dimension_count", head_dim) != head_dim:
        raise BuddyError(f"{metadata.file.path}: rotating only a part of each head is not supported.")
    context = metadata.integer("context_length")
    names = source.names()
    embedding = next((name for name in ("model.embed_tokens.weight", "lm_head.weight") if name in names), None)
    vocabulary = len(metadata.file.metadata.get(f"{_TOKENIZER}tokens", ()))
    return {
        "vocab_size": source.shape(embedding)[0] if embedding is not None else max(1, vocabulary),
        "hidden_size": hidden,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata),
        "attention_bias": any(name.endswith("self_attn.q_proj.bias") for name in names),
        "mlp_bias": any(name.endswith("mlp.gate_proj.bias") for name in names),
        "bos_token_id": metadata.token("bos_token_id"),
        "eos_token_id": metadata.end_tokens() or None,
        "pad_token_id": metadata.token("padding_token_id"),
        "architectures": ["LlamaForCausalLM"],
    }


def _rope(metadata: _Metadata) -> dict[str, Any]:
    theta = metadata.number("rope.freq_base", 10000.0)
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 0.0))
    kind = metadata.text("rope.scaling.type", "linear" if factor else "none")
    if kind not in ("none", "linear"):
        raise BuddyError(
            f"{metadata.file.path}: rope scaling of type {kind!r} is not supported; none, linear and llama3 are."
        )
    if kind == "none" or factor in (0.0, 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": factor}


def _apply_rope_factors(config: Any, factors: FloatArray, metadata: _Metadata) -> FloatArray | None:
    """Finds the llama3 scaling that gives `factors` and sets it in `config`, or returns the inverse frequencies.

    `factors` divide the base inverse frequencies. llama.cpp's converter keeps nothing of the scaling but them, so the
    usual parameters are tried: factor from the largest, low 1, high 4, the original context of Llama 3 or the file's.
    """
    base, _ = rotary_inv_freq(config)
    if factors.shape != base.shape or not np.all(np.isfinite(factors)) or not np.all(factors > 0):
        raise BuddyError(
            f"{metadata.file.path}: rope_freqs.weight must hold {base.size} factors above 0, one for each pair of "
            "a head's dimensions."
        )
    wanted = (base / factors).astype(np.float32)
    if np.array_equal(wanted, base):
        return None
    before = dict(config.rope_parameters)
    contexts = [_LLAMA3_CONTEXT]
    if "llama.rope.scaling.original_context_length" in metadata.file.metadata:
        contexts.insert(0, metadata.integer("rope.scaling.original_context_length"))
    for context in contexts if before["rope_type"] == "default" else []:
        config.rope_parameters = {
            "rope_type": "llama3",
            "rope_theta": before["rope_theta"],
            "factor": _shortest(float(factors.max())),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        }
        if np.allclose(rotary_inv_freq(config)[0], wanted, rtol=_FACTOR_TOLERANCE, atol=0.0):
            return None
    config.rope_parameters = before
    return wanted

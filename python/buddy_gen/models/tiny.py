"""Tiny random Llama models with a fixed seed, for tests that need no download.

python -m buddy_gen.models.tiny DIR --hidden-size 36 --num-attention-heads 3 --head-dim 12
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType, RopeScalingType
from gguf.quants import quantize
from safetensors.torch import save_file
from transformers import LlamaConfig

from buddy_gen.errors import BuddyError
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.huggingface import open_huggingface
from buddy_gen.models.llama import (
    EMBEDDING,
    HEAD,
    make_config,
    parameter_shapes,
    rope_parameters,
    rotary_inv_freq,
    sizes_of,
)
from buddy_gen.weights.gguf_reader import ROPE_FACTORS, permute_rows
from buddy_gen.weights.source import FloatArray

__all__ = ["main", "write_tiny_gguf", "write_tiny_llama"]

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
_TORCH_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_ROPE_SPELLINGS = ("new", "old", "old-type")


def write_tiny_llama(
    directory: Path,
    *,
    seed: int = 0,
    dtype: str = "f32",
    shards: int = 1,
    rope_spelling: str = "new",
    **overrides: Any,
) -> Path:
    """Writes a Hugging Face folder (config.json and safetensors) and returns it; equal arguments give equal bytes.

    `overrides` are LlamaConfig fields, `rope_theta` and `rope_scaling` among them. `rope_spelling` is how config.json
    puts rope settings: "new" (rope_parameters), "old" (rope_theta, rope_scaling with rope_type), "old-type" (with
    type). `dtype` is f32, f16 or bf16. Raises BuddyError for values that make no Llama model.
    """
    directory = Path(directory)
    if dtype not in _TORCH_TYPES:
        raise BuddyError(f"A tiny model can be f32, f16 or bf16, not {dtype!r}.")
    if rope_spelling not in _ROPE_SPELLINGS:
        raise BuddyError(f"Rope settings can be spelled {', '.join(_ROPE_SPELLINGS)}, not {rope_spelling!r}.")
    config = _config({**_DEFAULTS, **overrides}, directory)
    tensors = {name: torch.from_numpy(data).to(_TORCH_TYPES[dtype]) for name, data in _weights(config, seed).items()}
    directory.mkdir(parents=True, exist_ok=True)
    _save(directory, tensors, max(1, min(shards, len(tensors))))
    content = _config_json(config, dtype, rope_spelling)
    (directory / "config.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return directory


def _config(values: dict[str, Any], where: Path) -> LlamaConfig:
    rope = rope_parameters(values, where)
    for key in ("rope_theta", "rope_scaling", "original_max_position_embeddings"):
        values.pop(key, None)
    return make_config({**values, "rope_parameters": rope}, where)


def _config_json(config: LlamaConfig, dtype: str, rope_spelling: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    content.pop("transformers_version", None)
    content |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    content["dtype"] = str(_TORCH_TYPES[dtype]).removeprefix("torch.")
    if rope_spelling == "new":
        return content
    rope = dict(content.pop("rope_parameters"))
    content["torch_dtype"] = content.pop("dtype")
    content["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    key = "rope_type" if rope_spelling == "old" else "type"
    content["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    return content


def _weights(config: LlamaConfig, seed: int) -> dict[str, FloatArray]:
    """Random weights whose logits vary: layers outweigh the embedding in the residual stream, so that a tied head
    does not just repeat the last token."""
    random = np.random.default_rng(seed)
    weights: dict[str, FloatArray] = {}
    for name, shape in parameter_shapes(config).items():
        values = random.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * values
        elif name.endswith(".bias"):
            values = 0.2 * values
        elif name == EMBEDDING:
            values = 0.5 * values
        else:
            values = values * np.float32(2.0 / np.sqrt(shape[1]))
        weights[name] = values.astype(np.float32)
    return weights


def _save(directory: Path, tensors: Mapping[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        held = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        save_file({name: tensors[name] for name in held}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(held, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


_GGUF_TOP = {EMBEDDING: "token_embd.weight", "model.norm.weight": "output_norm.weight", HEAD: "output.weight"}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(
    target: Path,
    from_hf_dir: Path,
    dtype: str = "f32",
    extra: Callable[[gguf.GGUFWriter], None] | None = None,
    exceptions: Mapping[str, str] | None = None,
) -> Path:
    """Writes a Hugging Face folder as a GGUF file the way llama.cpp's converter does, and returns the file.

    `target` is the file or a folder. Q and K rows are permuted, llama3 rope scaling becomes `rope_freqs.weight`.
    `dtype` is that of the matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1; rows that are no multiple of its
    block are stored as f16. `extra` may add metadata (a tokenizer, end tokens). `exceptions` gives some tensors, by
    their Hugging Face names, a type of their own.
    """
    model = open_huggingface(Path(from_hf_dir))
    path = Path(target) / f"{model.name}-{dtype}.gguf" if Path(target).is_dir() else Path(target)
    beside = path.with_name(f".{path.name}.part")
    writer = gguf.GGUFWriter(beside, "llama")
    _add_metadata(writer, model)
    if extra is not None:
        extra(writer)
    config = model.config
    factors = _rope_factors(config)
    if factors is not None:
        writer.add_tensor(ROPE_FACTORS, factors)
    sizes = sizes_of(config)
    heads = {"q_proj": sizes.heads, "k_proj": sizes.kv_heads}
    for name in model.weights.names():
        data = model.weights.read(name)
        linear = name.split(".")[-2]
        if linear in heads:
            data = permute_rows(data, heads[linear])
        _add_tensor(writer, _gguf_name(name), data, (exceptions or {}).get(name, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside.replace(path)
    return path


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_LAYER[module]}.{kind}"


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: FloatArray, dtype: str) -> None:
    kind = GGMLQuantizationType[dtype.upper()] if data.ndim > 1 else GGMLQuantizationType.F32
    if data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F16
    if kind == GGMLQuantizationType.F32:
        writer.add_tensor(name, data)
    elif kind == GGMLQuantizationType.F16:
        writer.add_tensor(name, data.astype(np.float16))
    else:
        writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)


def _add_metadata(writer: gguf.GGUFWriter, model: ModelDescription) -> None:
    config, sizes = model.config, sizes_of(model.config)
    writer.add_name(model.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(sizes.hidden)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.ffn)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(sizes.vocab)
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _rope_factors(config: LlamaConfig) -> FloatArray | None:
    """llama.cpp's `rope_freqs`: the base inverse frequencies divided by the scaled ones."""
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    if rope["rope_type"] != "llama3":
        return None
    scaled, _ = rotary_inv_freq(config)
    exponents = np.arange(0, 2 * scaled.size, 2, dtype=np.float64) / (2 * scaled.size)
    return np.asarray(1.0 / rope["rope_theta"] ** exponents / scaled, np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: every LlamaConfig field is a flag (`--hidden-size 36`, `--rope-scaling '{"type": ...}'`)."""
    parser = argparse.ArgumentParser(
        prog="python -m buddy_gen.models.tiny",
        description="Write a tiny random Llama model; other flags are LlamaConfig fields with JSON values.",
    )
    parser.add_argument("directory", type=Path, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=sorted(_TORCH_TYPES), default="f32", help="type of the weights")
    parser.add_argument("--shards", type=int, default=1, help="number of safetensors files")
    parser.add_argument("--rope-spelling", choices=_ROPE_SPELLINGS, default="new", help="spelling in config.json")
    parser.add_argument("--gguf", metavar="TYPE", help="write a GGUF of this type beside the folder's other files too")
    known, rest = parser.parse_known_args(arguments)
    if len(rest) % 2 or not all(flag.startswith("--") for flag in rest[::2]):
        parser.error(f"flags come as --field VALUE: {' '.join(rest)}")
    overrides = {
        flag[2:].replace("-", "_"): _json_value(value) for flag, value in zip(rest[::2], rest[1::2], strict=True)
    }
    unknown = set(overrides) - {*LlamaConfig().to_dict(), "rope_theta", "rope_scaling"}
    if unknown:
        parser.error(f"LlamaConfig has no field {', '.join(sorted(unknown))}")
    try:
        directory = write_tiny_llama(
            known.directory, seed=known.seed, dtype=known.dtype, shards=known.shards,
            rope_spelling=known.rope_spelling, **overrides,
        )  # fmt: skip
        written = write_tiny_gguf(directory, directory, known.gguf) if known.gguf else directory
    except (BuddyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Wrote {written}.")
    return 0


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    sys.exit(main())

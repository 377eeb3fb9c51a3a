"""GGUF models: the same numbers as the Hugging Face folder they were made from, and eager transformers runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from transformers import LlamaForCausalLM

from buddy_gen.errors import BuddyError
from buddy_gen.models import open_model
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama


def llama3(original: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "odd sizes": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12,
                  "vocab_size": 101},
    "head_dim of its own": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "theta": {"rope_theta": 500000.0, "max_position_embeddings": 8192},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {"rope_scaling": llama3(8192), "rope_theta": 500000.0, "max_position_embeddings": 131072,
               "hidden_size": 128, "num_attention_heads": 4, "head_dim": 64},
    "llama3, unusual": {"rope_scaling": llama3(32), "max_position_embeddings": 512, "head_dim": 16},
}  # fmt: skip


def eager(model: ModelDescription) -> LlamaForCausalLM:
    """transformers' model with our config and our weights."""
    reference = LlamaForCausalLM(model.config)
    state = {name: torch.from_numpy(model.weights.read(name)) for name in model.weights.names()}
    missing, unexpected = reference.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    reference.tie_weights()
    reference.model.rotary_emb.inv_freq.copy_(torch.from_numpy(model.rotary()[0]))
    return reference.eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_folder(tmp_path: Path, variant: str) -> None:
    folder = write_tiny_llama(tmp_path / "m", **VARIANTS[variant])
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = open_model(write_tiny_gguf(tmp_path, folder))
    state = reference.state_dict()
    assert set(model.weights.names()) == set(dict(reference.named_parameters()))
    for name in model.weights.names():
        np.testing.assert_array_equal(model.weights.read(name), state[name].numpy(), name)
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "attention_bias",
                "mlp_bias", "tie_word_embeddings"):  # fmt: skip
        assert getattr(model.config, key) == getattr(reference.config, key), key
    if variant == "llama3, unusual":
        assert model.inv_freq_override is not None
    else:
        assert model.inv_freq_override is None
        assert model.config.rope_parameters == reference.config.rope_parameters
    np.testing.assert_allclose(model.rotary()[0], reference.model.rotary_emb.inv_freq.numpy(), rtol=1e-6)
    ids = torch.tensor([[1, 5, 9, 2, 7, 7, 3]])
    positions = torch.arange(7)[None] + 200  # past the original context
    with torch.no_grad():
        expected = reference(ids, position_ids=positions).logits
        got = eager(model)(ids, position_ids=positions).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3 if "unusual" in variant else 0)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_1"])
def test_quantised_equals_the_package(tmp_path: Path, dtype: str) -> None:
    """FFN 112 and hidden 64: rows of 112 are no multiple of 32 and fall back to f16 (case F7)."""
    folder = write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
    path = write_tiny_gguf(tmp_path / "m.gguf", folder, dtype)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    model = open_model(path)
    by_name = {
        "lm_head.weight": "output.weight",
        "model.layers.2.mlp.down_proj.weight": "blk.2.ffn_down.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
    }
    for ours, theirs in by_name.items():
        tensor = stored[theirs]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(model.weights.read(ours), expected)
    if dtype.startswith("q"):
        assert stored["blk.2.ffn_down.weight"].tensor_type == GGMLQuantizationType.F16
        assert model.weights.dtype("model.layers.0.mlp.up_proj.weight") == dtype
    original = open_model(folder)
    error = np.abs(model.weights.read("lm_head.weight") - original.weights.read("lm_head.weight")).max()
    assert error < {"f16": 1e-3, "bf16": 1e-2, "q8_0": 2e-2}.get(dtype, 0.2)
    q = "model.layers.0.self_attn.q_proj.weight"  # permuted, quantised, put back: near the original row by row
    assert np.abs(model.weights.read(q) - original.weights.read(q)).max() < 0.2


def test_tokenizer_settings(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")

    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{number}" for number in range(97)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(7)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 2)
        writer.add_add_bos_token(False)
        writer.add_chat_template("{{ messages }}")

    path = write_tiny_gguf(tmp_path / "m.gguf", folder, extra=extra)
    model = open_model(path)
    assert model.eos_token_ids == [2, 7] and model.bos_token_id == 1 and model.add_bos is False
    assert model.chat_template == "{{ messages }}" and model.name == "m"
    assert model.tokenizer is not None and model.tokenizer.main == path and model.files == [path]
    plain = open_model(write_tiny_gguf(tmp_path / "plain.gguf", folder))
    assert plain.tokenizer is None and plain.add_bos is None and plain.eos_token_ids == []
    assert plain.chat_template is None and plain.bos_token_id is None


def test_a_folder_with_one_gguf(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    holder = tmp_path / "holder"
    holder.mkdir()
    path = write_tiny_gguf(holder, folder, "q8_0")
    assert open_model(holder).files == [path]
    write_tiny_gguf(holder, folder, "f16")
    with pytest.raises(BuddyError, match=r"several GGUF models, name one: m-f16\.gguf, m-q8_0\.gguf"):
        open_model(holder)


def broken(tmp_path: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A one-layer header with `llama.*` keys changed (None removes one) and no tensors."""
    values: dict[str, Any] = {
        "block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 16,
        "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    } | changes  # fmt: skip
    path = tmp_path / "broken.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        name = key if key.startswith("split") else f"llama.{key}"
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    writer.add_tensor("token_embd.weight", np.zeros((10, 8), np.float32))
    if "factors" in changes:
        writer.add_tensor("rope_freqs.weight", np.array([1, 0], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2' is not supported"),
        ({"split.count": 3}, "one part of a split model"),
        ({"expert_count": 8}, "mixtures of experts"),
        ({"block_count": None}, r"lack llama\.block_count"),
        ({"attention.head_count": 0}, "at least 1"),
        ({"attention.head_count": "two"}, "whole number"),
        ({"attention.head_count": [2, 3]}, "differs from layer to layer"),
        ({"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "must be a number"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, "type 'yarn' is not supported"),
        ({"rope.dimension_count": 2}, "part of each head"),
        ({"attention.value_length": 16}, "values of another length"),
        ({}, r"missing: model\.layers\.0\.self_attn\.q_proj\.weight"),
    ],
)
def test_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = broken(tmp_path, **changes)
    with pytest.raises(BuddyError, match=message) as caught:
        open_model(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_older_spelling_of_linear_scaling(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    old = write_tiny_gguf(tmp_path / "o.gguf", folder, extra=lambda w: w.add_float32("llama.rope.scale_linear", 2.0))
    assert open_model(old).config.rope_parameters["rope_type"] == "linear"

    def unscaled(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(2.0)

    none = write_tiny_gguf(tmp_path / "n.gguf", folder, extra=unscaled)
    assert open_model(none).config.rope_parameters["rope_type"] == "default"


@pytest.mark.slow
def test_default_model_speaks() -> None:
    model = open_model(fetch_default_model())
    assert model.tied_head and model.eos_token_ids == [2] and model.add_bos is False
    assert model.context_length == 8192 and model.config.rope_parameters["rope_theta"] == 100000.0
    assert model.chat_template is not None and "<|im_start|>" in model.chat_template
    prompt = torch.tensor([[504, 3575, 282, 4649, 314]])  # "The capital of France is"
    with torch.no_grad():
        ids = eager(model).generate(prompt, max_new_tokens=3, do_sample=False)[0].tolist()
    assert model.tokenizer is not None and model.tokenizer.gguf is not None
    field = gguf.GGUFReader(model.tokenizer.gguf).fields["tokenizer.ggml.tokens"]
    text = "".join(field.contents(token) for token in ids[5:])
    assert "Paris" in text, text


@pytest.mark.slow
def test_default_model_equals_the_package() -> None:
    path = fetch_default_model()
    model = open_model(path)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for ours, theirs in (("model.embed_tokens.weight", "token_embd.weight"),
                         ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight")):  # fmt: skip
        tensor = stored[theirs]
        np.testing.assert_array_equal(model.weights.read(ours), gguf.quants.dequantize(tensor.data, tensor.tensor_type))

"""Hugging Face folders: tensors and config judged by transformers' own loading."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from buddy_gen.errors import BuddyError
from buddy_gen.models import open_model
from buddy_gen.models.llama import parameter_names, parameter_shapes, rotary_inv_freq
from buddy_gen.models.tiny import write_tiny_llama

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "odd sizes": {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12,
                  "vocab_size": 101},
    "head_dim of its own": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
    "shards": {"shards": 3, "tie_word_embeddings": False},
    "f16": {"dtype": "f16"},
    "bf16 in shards": {"dtype": "bf16", "shards": 2},
    "llama3": {"rope_scaling": LLAMA3},
    "llama3, old": {"rope_scaling": LLAMA3, "rope_spelling": "old", "rope_theta": 500000.0},
    "llama3, old type": {"rope_scaling": LLAMA3, "rope_spelling": "old-type"},
    "linear, old type": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_spelling": "old-type"},
    "theta, old": {"rope_theta": 100000.0, "rope_spelling": "old"},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_transformers(tmp_path: Path, variant: str) -> None:
    folder = write_tiny_llama(tmp_path / "m", **VARIANTS[variant])
    model = open_model(folder)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = reference.state_dict()
    assert set(model.weights.names()) == set(dict(reference.named_parameters()))
    assert model.tied_head == ("lm_head.weight" not in dict(reference.named_parameters()))
    for name in model.weights.names():
        assert model.weights.shape(name) == tuple(state[name].shape)
        np.testing.assert_array_equal(model.weights.read(name).view(np.uint32), state[name].numpy().view(np.uint32))
    inv_freq, scaling = model.rotary()
    rotary = reference.model.rotary_emb
    np.testing.assert_array_equal(inv_freq, rotary.inv_freq.numpy())
    assert inv_freq.dtype == np.float32 and scaling == rotary.attention_scaling
    rope = {key: value for key, value in reference.config.rope_parameters.items() if key != "type"}
    assert model.config.rope_parameters == rope
    for key in ("vocab_size", "hidden_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "attention_bias",
                "mlp_bias", "tie_word_embeddings", "max_position_embeddings"):  # fmt: skip
        assert getattr(model.config, key) == getattr(reference.config, key), key
    built = LlamaForCausalLM._from_config(model.config)
    assert {p.dtype for p in built.parameters()} == {torch.float32}
    assert {name: tuple(p.shape) for name, p in built.named_parameters()} == parameter_shapes(model.config)
    assert parameter_names(model.config) == list(parameter_shapes(model.config))
    assert model.context_length == 256 and model.name == "m"


def test_what_a_folder_says(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", eos_token_id=2, bos_token_id=1)
    assert open_model(folder).tokenizer is None and open_model(folder).chat_template is None
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5], "bos_token_id": 1}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {}, "added_tokens": []}))
    (folder / "special_tokens_map.json").write_text("{}")
    settings: dict[str, Any] = {"add_bos_token": False, "chat_template": "one"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = open_model(str(folder))
    assert model.eos_token_ids == [3, 5, 2] and model.bos_token_id == 1 and model.add_bos is False
    assert model.chat_template == "one"
    assert model.tokenizer is not None and model.tokenizer.main == folder / "tokenizer.json"
    assert set(model.files) == {folder / name for name in (
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "generation_config.json",
    )}  # fmt: skip
    assert len(model.files) == len(set(model.files))
    settings["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert open_model(folder).chat_template == "yes"
    (folder / "chat_template.jinja").write_text("three 🙂")
    model = open_model(folder)
    assert model.chat_template == "three 🙂" and folder / "chat_template.jinja" in model.files


def test_name_in_the_hub_s_cache(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "models--org--Tiny-1B" / "snapshots" / "0123abc")
    assert open_model(folder).name == "Tiny-1B"


@pytest.mark.parametrize("eos", [None, -1, [], 97])
def test_no_end_token(tmp_path: Path, eos: Any) -> None:
    assert open_model(write_tiny_llama(tmp_path / "m", eos_token_id=eos)).eos_token_ids == []


def test_files_instead_of_the_folder(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    expected = open_model(folder).weights.read("model.norm.weight")
    torch.save(load_file(folder / "model.safetensors"), folder / "model.pth")
    for name in ("model.safetensors", "config.json", "model.pth"):
        np.testing.assert_array_equal(open_model(folder / name).weights.read("model.norm.weight"), expected)
    (folder / "model.safetensors").unlink()
    assert open_model(folder).files[1] == folder / "model.pth"
    (folder / "model.pth").rename(folder / "pytorch_model.bin")
    np.testing.assert_array_equal(open_model(folder).weights.read("model.norm.weight"), expected)


def rewrite(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "config.json").read_text())
    content = {key: value for key, value in {**content, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(content))


def retensor(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors: dict[str, Any] = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


class TestTiedHead:
    """Case M2 and M8: config and tensors together."""

    embedding, head = "model.embed_tokens.weight", "lm_head.weight"

    def test_tied_with_an_equal_head(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m")
        embedding = load_file(folder / "model.safetensors")[self.embedding]
        retensor(folder, **{self.head: embedding.clone()})
        model = open_model(folder)
        assert model.tied_head and self.head not in model.weights.names()

    def test_tied_but_different(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m")
        embedding = load_file(folder / "model.safetensors")[self.embedding].clone()
        embedding[96, 63] += 1
        retensor(folder, **{self.head: embedding})
        with pytest.raises(BuddyError, match=r"lm_head\.weight and model\.embed_tokens\.weight differ"):
            open_model(folder)

    def test_untied_without_a_head(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
        retensor(folder, **{self.head: None})
        with pytest.raises(BuddyError, match=r"untied head .* no lm_head\.weight"):
            open_model(folder)

    def test_untied_without_an_embedding(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
        retensor(folder, **{self.embedding: None})
        with pytest.raises(BuddyError, match=r"missing: model\.embed_tokens\.weight"):
            open_model(folder)

    def test_tied_under_the_head_s_name(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m")
        embedding = load_file(folder / "model.safetensors")[self.embedding]
        retensor(folder, **{self.embedding: None, self.head: embedding})
        model = open_model(folder)
        assert model.tied_head
        np.testing.assert_array_equal(model.weights.read(self.embedding), embedding.numpy())

    def test_untied_but_equal_is_stored_once(self, tmp_path: Path) -> None:
        folder = write_tiny_llama(tmp_path / "m", tie_word_embeddings=False)
        retensor(folder, **{self.head: load_file(folder / "model.safetensors")[self.embedding].clone()})
        model = open_model(folder)
        assert model.tied_head and model.config.tie_word_embeddings


def test_all_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    retensor(folder, **{
        "model.layers.1.mlp.up_proj.weight": None,
        "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
        "model.norm.weight": torch.zeros(63),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    })  # fmt: skip
    with pytest.raises(BuddyError) as caught:
        open_model(folder)
    message = str(caught.value)
    assert "missing: model.layers.1.mlp.up_proj.weight;" in message
    assert "unexpected: model.layers.0.self_attn.q_proj.bias;" in message
    assert "model.norm.weight is [63] instead of [64]" in message
    assert "inv_freq" not in message and "\n" not in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mistral", "architectures": ["MistralForCausalLM"]},
            "architecture MistralForCausalLM .* is not",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "architecture LlamaForSequenceClassification .* is not",
        ),
        ({"model_type": "qwen2", "architectures": "absent"}, "architecture unnamed .model_type qwen2. is not"),
        ({"model_type": "absent", "architectures": "absent"}, "names no architecture"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0}, "rope_parameters": "absent"},
            "type 'yarn' is not supported",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope"}, "rope_parameters": "absent"}, "type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "needs low_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear"}}, "needs factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "need a number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "need a number above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling says"),
        ({"rope_scaling": [1]}, "must be JSON objects"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"head_dim": 7}, "head_dim"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_attention_heads": 7}, "multiple of the number of attention heads"),
    ],
)
def test_refused_configs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    rewrite(folder, **changes)
    with pytest.raises(BuddyError, match=message) as caught:
        open_model(folder)
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_null_rope_settings_are_the_default(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    rewrite(folder, rope_parameters="absent", rope_scaling=None)
    assert open_model(folder).config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}


def test_outer_original_context_wins_as_in_transformers(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", rope_scaling=LLAMA3, rope_spelling="old")
    rewrite(folder, original_max_position_embeddings=64)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    np.testing.assert_array_equal(open_model(folder).rotary()[0], reference.model.rotary_emb.inv_freq.numpy())


def test_wrong_files(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"model": {}, "added_tokens": []}))
    with pytest.raises(BuddyError, match=r"tokenizer\.json is a tokenizer \(tokenizer\.json\) and no model"):
        open_model(tokenizer)
    with pytest.raises(BuddyError, match="does not exist"):
        open_model(tmp_path / "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BuddyError, match="is no model: it has neither"):
        open_model(empty)
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(BuddyError, match="HTML page"):
        open_model(page)
    lone = tmp_path / "lone.safetensors"
    shutil.copy(folder / "model.safetensors", lone)
    with pytest.raises(BuddyError, match=r"needs its model's config\.json beside it"):
        open_model(lone)
    shutil.copy(folder / "model.safetensors", folder / "tokenizer.model")
    with pytest.raises(BuddyError, match=r"tokenizer\.model should be a tokenizer, but it is a safetensors"):
        open_model(folder)
    (folder / "tokenizer.model").unlink()
    shutil.copy(tokenizer, folder / "model.safetensors")
    with pytest.raises(BuddyError, match="should be a safetensors weights file, but it is a tokenizer"):
        open_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BuddyError, match="has no weights"):
        open_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(BuddyError, match="not valid JSON"):
        open_model(folder)


def test_rotary_frequencies_are_copies(tmp_path: Path) -> None:
    config = open_model(write_tiny_llama(tmp_path / "m")).config
    first, _ = rotary_inv_freq(config)
    first[:] = 0
    assert rotary_inv_freq(config)[0][0] == 1

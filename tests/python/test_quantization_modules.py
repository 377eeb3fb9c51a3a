"""Narrow modules against eager PyTorch over the very numbers that the weights file holds.

The pipeline without any optimisation shows what the importer wrote; the default one must give the same.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import k_quants
import numpy as np
import pytest
import torch
from narrow_model import PLAIN, NarrowModel, narrow_model, rounded_activations
from safetensors.torch import load_file, save_file

from buddy_gen.errors import BuddyError
from buddy_gen.models.llama import HEAD
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama
from buddy_gen.transforms.precision import Precision
from buddy_gen.weights.blocks import unpack_blocks
from buddy_gen.weights.gguf_blocks import to_gguf_blocks
from buddy_gen.weights.gguf_reader import huggingface_name, permute_rows

pytestmark = pytest.mark.slow

PRECISIONS = {
    "f16": Precision.of("f16", None, "f32"),
    "bf16": Precision.of("bf16", None, "f32"),
    "w8a32": Precision.of("w8a32", None, "f32"),
    "w8a32-channel": Precision.of("w8a32", "channel", "f32"),
    "w8a8": Precision.of("w8a8", None, "f32"),
    "w8a8-32": Precision.of("w8a8", "32", "f32"),
    "w8a8-channel": Precision.of("w8a8", "channel", "f32"),
    "w4a32": Precision.of("w4a32", None, "f32"),
    "w4a8": Precision.of("w4a8", None, "f32"),
}
CACHES = {kind: Precision.of("f32", None, kind) for kind in ("f16", "bf16", "i8")}
NAMES = [*PRECISIONS, *(f"kv-{kind}" for kind in CACHES)]
IDS = [5, 80, 31, 2, 66, 9, 9, 41, 17, 93, 3]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 64 and 112: whole groups of 32 and 64, and ones that are not."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), seed=5, num_hidden_layers=2)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No size is a multiple of anything; head and embedding are two."""
    sizes = {"hidden_size": 36, "head_dim": 12, "vocab_size": 101, "intermediate_size": 57, "num_attention_heads": 3}
    folder = tmp_path_factory.mktemp("odd")
    return write_tiny_llama(
        folder, seed=6, num_hidden_layers=1, num_key_value_heads=1, tie_word_embeddings=False, mlp_bias=True, **sizes
    )


def _precision(name: str) -> Precision:
    return CACHES[name.removeprefix("kv-")] if name.startswith("kv-") else PRECISIONS[name]


def _tolerance(precision: Precision) -> float:
    if precision.kv_dtype in ("f16", "bf16"):
        return 2e-2
    if precision.activation_bits == 8:
        return 1.5e-1  # a last bit decides here and there between two integers, and a step is 1/127 of a group's range
    if precision.kv_dtype == "i8":
        return 5e-2
    return 2e-2 if precision.activation_bits == 16 else 2e-4


def _compare_decode(ours: NarrowModel, options: str) -> None:
    expected = ours.eager_logits(IDS)
    decoded = np.concatenate(ours.logits("decode", IDS, options))
    np.testing.assert_allclose(decoded, expected, rtol=0, atol=_tolerance(ours.precision))


@pytest.mark.parametrize("name", NAMES)
def test_the_importer_says_what_the_numbers_mean(name: str, odd: Path) -> None:
    _compare_decode(narrow_model(odd, _precision(name)), PLAIN)


@pytest.mark.parametrize("name", NAMES)
def test_decode_through_the_passes(name: str, odd: Path) -> None:
    _compare_decode(narrow_model(odd, _precision(name)), "")


@pytest.mark.parametrize("name", [name for name in NAMES if name.count("-") == 0 or name.startswith("kv-")])
def test_prefill_through_the_passes(name: str, tiny: Path) -> None:
    ours = narrow_model(tiny, _precision(name), ("prefill",))
    parts = ours.logits("prefill", IDS, parts=[7, 4])
    expected = ours.eager_logits(IDS)[[6, 10]]
    np.testing.assert_allclose(np.concatenate(parts), expected, rtol=0, atol=_tolerance(ours.precision))


def test_either_dialect_first(tiny: Path) -> None:
    """TOSA has no rules for weights in blocks; linalg's serve them."""
    ours = narrow_model(tiny, PRECISIONS["w8a8"], priority=("tosa", "linalg"))
    assert ours.modules["decode"].dialects["aten.linear.default", "tosa"] == 0
    _compare_decode(ours, "")


# GGUF


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers of Q4_0 with one tensor of Q8_0, of Q4_1 and of F32: four kinds of layers, the first of them twice."""
    folder = tmp_path_factory.mktemp("mixed")
    model = write_tiny_llama(folder, seed=8, num_hidden_layers=6, intermediate_size=96)
    exceptions = {
        "model.embed_tokens.weight": "q8_0",
        "model.layers.1.mlp.down_proj.weight": "q8_0",
        "model.layers.3.self_attn.k_proj.weight": "q4_1",
        "model.layers.4.self_attn.q_proj.weight": "f32",
    }
    return write_tiny_gguf(folder, model, "q4_0", exceptions=exceptions)


@pytest.fixture(scope="session")
def k_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As llama-quantize mixes types: Q4_K with some tensors of more bits; rows of 288 can't be K blocks."""
    folder = tmp_path_factory.mktemp("k-types")
    sizes = {"hidden_size": 256, "head_dim": 32, "intermediate_size": 288, "vocab_size": 101}
    model = write_tiny_llama(folder, seed=8, num_hidden_layers=3, **sizes)
    exceptions = {
        "model.embed_tokens.weight": "q6_k",
        **{f"model.layers.{layer}.self_attn.v_proj.weight": "q6_k" for layer in range(2)},
        **{f"model.layers.{layer}.mlp.down_proj.weight": "q5_0" for layer in range(2)},
        "model.layers.2.self_attn.k_proj.weight": "q5_k",
        "model.layers.2.mlp.up_proj.weight": "q8_0",
        "model.layers.2.mlp.down_proj.weight": "q5_1",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("buddy_gen.models.tiny.quantize", k_quants.quantize)
        return write_tiny_gguf(folder, model, "q4_k", exceptions=exceptions)


@pytest.fixture(params=["mixed", "k_types"])
def any_gguf(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def test_a_gguf_with_layers_of_many_types(mixed: Path) -> None:
    ours = narrow_model(mixed, Precision.of("gguf", None, "f32"))
    assert ours.modules["decode"].layer_functions == 4
    text = ours.modules["decode"].text
    assert text.count("call @decode_layer") == 6  # layers 0, 1, 2, 3, 4 and 5
    _compare_decode(ours, "")


@pytest.mark.parametrize("options", [PLAIN, ""])
def test_a_gguf_of_k_types(options: str, k_types: Path) -> None:
    ours = narrow_model(k_types, Precision.of("gguf", None, "f32"))
    kinds = {stored.format.kind for stored in ours.parameters if stored.format.in_blocks}
    assert kinds == {"q4_k", "q5_k", "q6_k", "q5_0", "q5_1", "q8"}
    assert ours.modules["decode"].layer_functions == 2
    _compare_decode(ours, options)


def test_a_gguf_is_kept_bit_for_bit(any_gguf: Path) -> None:
    """Undo the packing and llama.cpp's order of rows: what is left are the file's bytes."""
    ours = narrow_model(any_gguf, Precision.of("gguf", None, "f32"))
    config = ours.description.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    packed = {one.name: one.produce() for one in ours.layout.tensors}
    names = {stored.name: stored for stored in ours.parameters}
    compared = 0
    for tensor in gguf.GGUFReader(any_gguf).tensors:
        name = huggingface_name(tensor.name)
        stored = names.get(name) or names[HEAD]
        if not stored.format.in_blocks:
            continue
        rows = stored.shape[0]
        fields = unpack_blocks(packed[stored.name], stored.format, rows)
        back = to_gguf_blocks(fields)
        if name.split(".")[-2] in heads:
            back = permute_rows(back, heads[name.split(".")[-2]])
        np.testing.assert_array_equal(back, np.asarray(tensor.data).reshape(rows, -1), err_msg=name)
        compared += 1
    blocks = [stored for stored in ours.parameters if stored.format.in_blocks]
    assert compared == len(blocks) > 20


def test_a_gguf_means_what_its_dequantised_numbers_mean(any_gguf: Path) -> None:
    kept = narrow_model(any_gguf, Precision.of("gguf", None, "f32"))
    plain = narrow_model(any_gguf, Precision.of("f32"))
    ours, expected = (np.concatenate(model.logits("decode", IDS)) for model in (kept, plain))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=_tolerance(kept.precision))


def test_types_that_can_not_be_kept_are_named(tiny: Path, tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path, tiny, "mxfp4")
    with pytest.raises(BuddyError, match=r"MXFP4: model.* more.*Q5_1, Q4_K.*w8a8 or w4a8 take any file"):
        narrow_model(model, Precision.of("gguf"))


def test_the_dtype_gguf_needs_a_gguf(tiny: Path) -> None:
    with pytest.raises(BuddyError, match=r"the dtype gguf keeps the blocks of a GGUF file, but .* is none"):
        narrow_model(tiny, Precision.of("gguf"))


# Traps of half precision


def _with_large_logits(folder: Path) -> Path:
    """A model whose logits lie far past 65504, and whose attention scores do before they are masked."""
    model = write_tiny_llama(folder, seed=9, num_hidden_layers=1, tie_word_embeddings=False)
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] *= 40000
    tensors["model.layers.0.self_attn.q_proj.weight"] *= 300
    tensors["model.layers.0.self_attn.k_proj.weight"] *= 300
    tensors["model.layers.0.mlp.gate_proj.weight"] *= 100
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("name", ["f16", "kv-f16"])
def test_numbers_past_half_precision_stay_numbers(name: str, tmp_path: Path) -> None:
    """Logits past 65504, exp of far more than half can hold, rows that see one position only: all are in f32."""
    ours = narrow_model(_with_large_logits(tmp_path), _precision(name))
    expected = ours.eager_logits(IDS)
    assert np.abs(expected).max() > 65504
    decoded = np.concatenate(ours.logits("decode", IDS))
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(decoded, expected, rtol=0, atol=2e-3 * float(np.abs(expected).max()))


def test_a_row_of_zeros_is_quantised_to_zeros() -> None:
    x = torch.zeros(2, 64)
    x[0, :4] = torch.tensor([1.0, -2.0, 0.5, 1e-38])
    assert not rounded_activations(x, 32)[:, 32:].any()
    assert torch.isfinite(rounded_activations(x * 1e-38, 32)).all()

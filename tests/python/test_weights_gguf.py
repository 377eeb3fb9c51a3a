"""The GGUF reader, judged by the `gguf` package; hostile headers give a sentence at once."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from buddy_gen.errors import BuddyError
from buddy_gen.weights.gguf_file import read_gguf
from buddy_gen.weights.gguf_reader import GgufSource, huggingface_name, permute_rows, unpermute_rows

QUANTIZED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16"]


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: GGMLQuantizationType, rows: int, columns: int, seed: int) -> np.ndarray:
    """Random bytes as quantised rows, with the float16 scales kept finite."""
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, columns // block * size), dtype=np.uint8)
    raw[raw >= 0x78] &= 0x77  # no exponent of all ones anywhere: no infinities
    return raw


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantised_tensors_equal_the_package(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    raw = random_blocks(kind, 6, 512, 3)
    path = write(tmp_path / "m.gguf", lambda writer: writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind))
    reader = gguf.GGUFReader(path)
    expected = gguf.quants.dequantize(reader.tensors[0].data, kind)
    source = GgufSource(read_gguf(path), 2, 1)
    hf_name = "model.layers.0.mlp.up_proj.weight"
    assert list(source.names()) == [hf_name]
    assert source.shape(hf_name) == (6, 512) and source.dtype(hf_name) == name.lower()
    np.testing.assert_array_equal(source.read(hf_name), expected)
    np.testing.assert_array_equal(source.read_rows(hf_name, 2, 5), expected[2:5])


def test_plain_tensors_and_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    full, half = random.standard_normal((9, 40), dtype=np.float32), random.standard_normal((9, 40)).astype(np.float16)
    quantised = gguf.quants.quantize(random.standard_normal((9, 64), dtype=np.float32), GGMLQuantizationType.Q8_0)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", full)
        writer.add_tensor("output.weight", half)
        writer.add_tensor("blk.7.ffn_down.weight", quantised, raw_dtype=GGMLQuantizationType.Q8_0)
        writer.add_tensor("rope_freqs.weight", np.array([1, 2, 8], np.float32))
        writer.add_tensor("unheard_of", np.zeros(3, np.float32))

    monkeypatch.setattr("buddy_gen.weights.gguf_reader._BLOCK_ELEMENTS", 128)
    monkeypatch.setattr("buddy_gen.weights.raw_floats._BLOCK_ELEMENTS", 100)
    source = GgufSource(read_gguf(write(tmp_path / "m.gguf", fill)), 1, 1)
    assert set(source.names()) == {
        "model.embed_tokens.weight", "lm_head.weight", "model.layers.7.mlp.down_proj.weight", "unheard_of"
    }  # fmt: skip
    np.testing.assert_array_equal(source.read("model.embed_tokens.weight"), full)
    np.testing.assert_array_equal(source.read("lm_head.weight"), half.astype(np.float32))
    np.testing.assert_array_equal(
        source.read("model.layers.7.mlp.down_proj.weight"),
        gguf.quants.dequantize(quantised, GGMLQuantizationType.Q8_0),
    )
    factors = source.rope_factors()
    assert factors is not None
    np.testing.assert_array_equal(factors, [1, 2, 8])


def llama_cpp_permute(weights: np.ndarray, n_head: int) -> np.ndarray:
    """LlamaModel.permute of llama.cpp's converter, in numpy."""
    return (
        weights.reshape(n_head, 2, weights.shape[0] // n_head // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def test_permutation_is_that_of_the_converter() -> None:
    weights = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    for heads in (1, 2, 3, 6):
        np.testing.assert_array_equal(permute_rows(weights, heads), llama_cpp_permute(weights, heads))
        np.testing.assert_array_equal(unpermute_rows(llama_cpp_permute(weights, heads), heads), weights)


def test_q_and_k_rows_are_put_back(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((24, 10), dtype=np.float32), random.standard_normal((12, 10), dtype=np.float32)
    v, bias = random.standard_normal((12, 10), dtype=np.float32), random.standard_normal(24, dtype=np.float32)

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("blk.0.attn_q.weight", llama_cpp_permute(q, 4))
        writer.add_tensor("blk.0.attn_k.weight", llama_cpp_permute(k, 2))
        writer.add_tensor("blk.0.attn_v.weight", v)
        writer.add_tensor("blk.0.attn_q.bias", llama_cpp_permute(bias, 4))

    source = GgufSource(read_gguf(write(tmp_path / "m.gguf", fill)), 4, 2)
    prefix = "model.layers.0.self_attn."
    np.testing.assert_array_equal(source.read(f"{prefix}q_proj.weight"), q)
    np.testing.assert_array_equal(source.read(f"{prefix}k_proj.weight"), k)
    np.testing.assert_array_equal(source.read(f"{prefix}v_proj.weight"), v)
    np.testing.assert_array_equal(source.read(f"{prefix}q_proj.bias"), bias)
    for start, stop in ((0, 1), (5, 7), (6, 12), (1, 23)):
        np.testing.assert_array_equal(source.read_rows(f"{prefix}q_proj.weight", start, stop), q[start:stop])
    with pytest.raises(BuddyError, match="do not divide among 5 heads"):
        GgufSource(read_gguf(tmp_path / "m.gguf"), 5, 2).read(f"{prefix}q_proj.weight")


def test_names() -> None:
    assert huggingface_name("blk.11.attn_norm.weight") == "model.layers.11.input_layernorm.weight"
    assert huggingface_name("blk.0.attn_output.bias") == "model.layers.0.self_attn.o_proj.bias"
    assert huggingface_name("blk.0.ffn_gate_inp.weight") == "blk.0.ffn_gate_inp.weight"


def test_metadata_equal_the_package(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("a", 200)
        writer.add_int64("b", -(1 << 40))
        writer.add_float32("c", 0.1)
        writer.add_bool("d", True)
        writer.add_string("e", "naïve 🙂")
        writer.add_array("f", ["x", "", "é"])
        writer.add_array("g", [1, -2, 3])
        writer.add_array("h", [0.5, 1.5])
        writer.add_tensor("t", np.zeros(3, np.float32))

    path = write(tmp_path / "m.gguf", fill)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key
    for tensor in theirs.tensors:
        assert ours.tensors[tensor.name].offset == tensor.data_offset
        assert ours.tensors[tensor.name].bytes == tensor.n_bytes


def string(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def header(metadata: list[bytes], tensors: list[bytes], counts: tuple[int, int] | None = None) -> bytes:
    n_tensors, n_metadata = (len(tensors), len(metadata)) if counts is None else counts
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_metadata) + b"".join(metadata + tensors)


def tensor_info(name: bytes = b"t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def alignment(value: int) -> bytes:
    return string(b"general.alignment") + struct.pack("<II", 4, value)


HUGE = 1 << 63
HOSTILE: dict[str, tuple[bytes, str]] = {
    "tensor count": (header([], [], (HUGE, 0)), "claims 9223372036854775808 tensors"),
    "metadata count": (header([], [], (0, HUGE)), "metadata entries"),
    "key length": (header([string(b"k", HUGE)], []) + bytes(64), "ends inside a metadata key"),
    "value length": (header([string(b"k") + struct.pack("<I", 8) + string(b"v", HUGE)], []), "ends inside k"),
    "array length": (header([string(b"k") + struct.pack("<IIQ", 9, 8, HUGE)], []), "items in k"),
    "byte array length": (header([string(b"k") + struct.pack("<IIQ", 9, 0, HUGE)], []), "items in k"),
    "nested array": (header([string(b"k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)], []), "array of type 9"),
    "value type": (header([string(b"k") + struct.pack("<I", 77) + bytes(64)], []), "unknown type 77"),
    "duplicate key": (header([string(b"k") + struct.pack("<IB", 0, 1)] * 2, []), "has k twice"),
    "name length": (header([], [string(b"t", HUGE) + bytes(64)]), "ends inside a tensor's name"),
    "dimensions": (header([], [string(b"t") + struct.pack("<I", 1 << 31) + bytes(64)]), "dimensions"),
    "dims overflow": (header([], [tensor_info(dims=(1 << 32, 1 << 32, 1 << 32))]) + bytes(64), "multiply"),
    "dims overflow to zero": (header([], [tensor_info(dims=(HUGE, 2))]) + bytes(64), "multiply"),
    "dims huge": (header([], [tensor_info(dims=(1 << 40,))]) + bytes(64), "cut short"),
    "zero dim": (header([], [tensor_info(dims=(0, 4))]) + bytes(64), "size 0"),
    "tensor type": (header([], [tensor_info(kind=999)]) + bytes(64), "unknown tensor type 999"),
    "no block multiple": (header([], [tensor_info(dims=(33,), kind=8)]) + bytes(128), "block of 32"),
    "offset past the end": (header([], [tensor_info(offset=1 << 62)]) + bytes(64), "cut short"),
    "offset unaligned": (header([], [tensor_info(offset=7)]) + bytes(64), "multiple of the alignment"),
    "overlap": (header([], [tensor_info(dims=(16,)), tensor_info(b"u", (16,), 0, 32)]) + bytes(256), "overlap"),
    "duplicate tensor": (header([], [tensor_info(), tensor_info(offset=32)]) + bytes(256), "tensor t twice"),
    "alignment zero": (header([alignment(0)], [tensor_info()]) + bytes(64), "alignment is 0"),
    "alignment odd": (header([alignment(33)], [tensor_info()]) + bytes(64), "alignment is 33"),
    "alignment huge": (header([alignment(1 << 31)], [tensor_info()]) + bytes(64), "alignment is 2147483648"),
    "version": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version is 9"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "magic alone": (b"GGUF", "ends inside"),
    "another file": (b"<html><body>404", "HTML page"),
    "empty": (b"", "empty file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_header(tmp_path: Path, case: str) -> None:
    content, message = HOSTILE[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    started = time.perf_counter()
    with pytest.raises(BuddyError, match=message) as caught:
        read_gguf(path)
    assert time.perf_counter() - started < 1
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert str(path) in str(caught.value)


def test_hostile_array_in_a_large_sparse_file(tmp_path: Path) -> None:
    """Counts that a 4 GiB file could hold are still not believed."""
    for kind, match in ((8, "items in k"), (0, "items in k")):
        path = tmp_path / f"{kind}.gguf"
        path.write_bytes(header([string(b"k") + struct.pack("<IIQ", 9, kind, 10_000_000)], []))
        with path.open("r+b") as file:
            file.truncate(4 << 30)
        started = time.perf_counter()
        with pytest.raises(BuddyError, match=match):
            read_gguf(path)
        assert time.perf_counter() - started < 1
    arrays = [string(b"k%d" % n) + struct.pack("<IIQ", 9, 0, 1 << 20) + bytes(1 << 20) for n in range(3)]
    path.write_bytes(header(arrays, []))
    with pytest.raises(BuddyError, match="more than 2097152 array items"):
        read_gguf(path)
    path.write_bytes(header([], [], (1 << 20, 0)))
    with path.open("r+b") as file:
        file.truncate(4 << 30)
    with pytest.raises(BuddyError, match="claims 1048576 tensors, more than the 65536"):
        read_gguf(path)
    path.write_bytes(header([string(b"k", 1 << 31)], []))
    with path.open("r+b") as file:
        file.truncate(4 << 30)
    with pytest.raises(BuddyError, match="header is larger"):
        read_gguf(path)


def test_cut_anywhere(tmp_path: Path) -> None:
    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokens", [f"token {number}" for number in range(50)])
        writer.add_tensor("a", np.zeros((40, 32), np.float32))
        writer.add_tensor("b", np.zeros(64, np.float32))

    content = write(tmp_path / "m.gguf", fill).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 1500, 13), *range(1500, len(content), 1024), len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(BuddyError):
            read_gguf(cut)


def test_flipped_bytes_never_crash(tmp_path: Path) -> None:
    """Every byte of a header changed, one at a time: an answer or a BuddyError, nothing else."""

    def fill(writer: gguf.GGUFWriter) -> None:
        writer.add_array("tokens", ["a", "b"])
        writer.add_float32("f", 1.0)
        writer.add_tensor("a", np.zeros((4, 32), np.float32))

    content = write(tmp_path / "m.gguf", fill).read_bytes()
    changed = tmp_path / "changed.gguf"
    for position in range(min(len(content), 320)):
        for value in (0, 255, content[position] ^ 1):
            changed.write_bytes(content[:position] + bytes([value]) + content[position + 1 :])
            try:
                read_gguf(changed)
            except BuddyError:
                continue


def test_types_that_cannot_be_dequantised(tmp_path: Path) -> None:
    raw: Any = np.zeros((2, 292), np.uint8)
    path = write(tmp_path / "m.gguf", lambda w: w.add_tensor("t", raw, raw_dtype=GGMLQuantizationType.Q8_K))
    with pytest.raises(BuddyError, match="as Q8_K, which cannot be dequantised"):
        GgufSource(read_gguf(path), 1, 1).read("t")

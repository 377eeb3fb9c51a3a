"""The safetensors reader, judged by the safetensors library; damaged files give one sentence each."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from buddy_gen.errors import BuddyError
from buddy_gen.weights.safetensors_reader import SafetensorsSource, read_safetensors_header
from buddy_gen.weights.source import SelectedSource, equal_tensors


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    values = {
        "a": torch.randn(5, 7, generator=generator),
        "b": torch.randn(11, generator=generator).half(),
        "c": torch.randn(3, 2, 4, generator=generator).bfloat16(),
        "scalar": torch.tensor(2.5),
    }
    values["b"][0] = float("nan")
    values["c"][0, 0, 0] = float("-inf")
    return values


def raw_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_equals_the_library(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    source = SafetensorsSource(path)
    with safe_open(path, "pt") as library:
        assert sorted(source.names()) == sorted(library.keys())
        for name in source.names():
            expected = library.get_tensor(name)
            got = source.read(name)
            assert source.shape(name) == tuple(expected.shape)
            assert got.dtype == np.float32 and got.flags.c_contiguous
            np.testing.assert_array_equal(got, expected.float().numpy())
    assert [source.dtype(name) for name in ("a", "b", "c")] == ["f32", "f16", "bf16"]
    assert source.files() == [path]


def test_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors(), path)
    source = SafetensorsSource(path)
    np.testing.assert_array_equal(source.read_rows("a", 2, 4), tensors()["a"][2:4].numpy())
    np.testing.assert_array_equal(source.read_rows("c", 1, 3), tensors()["c"][1:3].float().numpy())


def test_shards(tmp_path: Path) -> None:
    values = tensors()
    save_file({"a": values["a"]}, tmp_path / "one.safetensors")
    save_file({"b": values["b"], "c": values["c"]}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    source = SafetensorsSource(index)
    assert sorted(source.names()) == ["a", "b", "c"]
    np.testing.assert_array_equal(source.read("c"), values["c"].float().numpy())
    assert source.files() == [index, tmp_path / "one.safetensors", tmp_path / "two.safetensors"]

    index.write_text(json.dumps({"weight_map": {**weight_map, "d": "two.safetensors"}}))
    with pytest.raises(BuddyError, match=r"no shard has: d \(in two.safetensors\)"):
        SafetensorsSource(index)
    index.write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(BuddyError, match=r"not beside it: two\.safetensors"):
        SafetensorsSource(index)
    index.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(BuddyError, match="outside its folder"):
        SafetensorsSource(index)


@pytest.mark.parametrize("content", ["[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{}", "[" * 100000])
def test_damaged_index(tmp_path: Path, content: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(BuddyError, match="not an index of shards"):
        SafetensorsSource(index)


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "overlaps"),
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12, "hole"),
        ({"a": entry(8, 0, [2])}, 8, "needs 8 bytes"),
        ({"a": entry(0, 8, [3])}, 8, "needs 12 bytes"),
        ({"a": entry(0, 8, [2], "F64")}, 8, "needs 16 bytes"),
        ({"a": entry(0, 8, [2], "F99")}, 8, "unknown dtype"),
        ({"a": entry(0, 8, [-2])}, 8, "no list of sizes"),
        ({"a": entry(0, 8, [True])}, 8, "no list of sizes"),
        ({"a": entry(0, 8, [1 << 62, 1 << 62, 1 << 62])}, 8, "needs"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "lacks"),
        ({"a": entry(0, 8), "__metadata__": {"x": 1}}, 8, "__metadata__"),
        ({"a": entry(0, 8)}, 7, "cut short"),
        ({"a": entry(0, 8)}, 9, "follow its last tensor"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
         8, "names a twice"),
        (b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}', 4, "names shape twice"),
        (b"{" + b"\xff" * 20, 0, "not JSON"),
        (b'{"a":' + b"[" * 200000, 0, "not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", 0, "not JSON"),
    ],
)  # fmt: skip
def test_damaged_header(tmp_path: Path, header: Any, data: int, message: str) -> None:
    path = raw_file(tmp_path / "m.safetensors", header, bytes(data))
    with pytest.raises(BuddyError, match=message) as caught:
        read_safetensors_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_000, 1000])
def test_header_length(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b'{"a":1}')
    with pytest.raises(BuddyError, match="header claims"):
        read_safetensors_header(path)


def test_header_of_100_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000) + b"{")
        file.truncate(200_000_000)
    with pytest.raises(BuddyError, match="header claims 100000000 bytes"):
        read_safetensors_header(path)


def test_any_header_length_is_told_from_text(tmp_path: Path) -> None:
    """A header of 123 bytes begins with a brace, one of 128 with a pickle's first byte."""
    for length in range(70, 330):
        name = "a" * (length - len(json.dumps({"": entry(0, 4)})))
        source = SafetensorsSource(raw_file(tmp_path / "m.safetensors", {name: entry(0, 4)}, bytes(4)))
        assert list(source.names()) == [name]


def test_cut_anywhere(tmp_path: Path) -> None:
    whole = tmp_path / "whole.safetensors"
    save_file({"a": torch.zeros(64, 16), "b": torch.zeros(100)}, whole)
    content = whole.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in [*range(0, 200, 7), *range(200, len(content), 1024), len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(BuddyError, match="cut"):
            SafetensorsSource(cut)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty file"), (b"<!DOCTYPE html><html>", "HTML"), (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
     (b"GGUF\3\0\0\0", "GGUF model")],
)  # fmt: skip
def test_another_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BuddyError, match=message):
        SafetensorsSource(path)


def test_types_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(3, dtype=torch.int64)}, path)
    source = SafetensorsSource(path)
    assert source.dtype("a") == "i64"
    with pytest.raises(BuddyError, match="stores a as I64"):
        source.read("a")
    with pytest.raises(BuddyError, match="no tensor b"):
        source.shape("b")


def test_sparse_tensor_past_4_gib(tmp_path: Path) -> None:
    """A 3 GiB tensor and one behind it: offsets have 64 bits, and rows are read alone."""
    rows, columns = 3 << 18, 1024
    big = rows * columns * 4
    header = {"big": entry(0, big, [rows, columns]), "big2": entry(big, 2 * big, [rows, columns]),
              "last": entry(2 * big, 2 * big + 8)}  # fmt: skip
    path = raw_file(tmp_path / "m.safetensors", header)
    start = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(start + 2 * big - 4096)
        file.write(np.arange(1024, dtype="<f4").tobytes() + np.array([3, 4], "<f4").tobytes())
    source = SafetensorsSource(path)
    np.testing.assert_array_equal(source.read("last"), [3, 4])
    np.testing.assert_array_equal(source.read_rows("big2", rows - 1, rows)[0], np.arange(1024))


def test_comparing_and_renaming(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    one = torch.randn(6, 5)
    other = one.clone()
    other[5, 4] += 1
    save_file({"a": one, "b": one.clone(), "c": other, "d": one.reshape(5, 6).clone()}, path)
    source = SafetensorsSource(path)
    assert equal_tensors(source, "a", "b")
    assert not equal_tensors(source, "a", "c")
    assert not equal_tensors(source, "a", "d")
    chosen = SelectedSource(source, {"x": "c"})
    assert list(chosen.names()) == ["x"]
    np.testing.assert_array_equal(chosen.read("x"), other.numpy())

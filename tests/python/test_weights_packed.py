"""The packed weights file, judged by the safetensors library and numpy."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from buddy_gen.errors import BuddyError
from buddy_gen.weights.packed import (
    PackedTensor,
    WeightsLayout,
    WeightsMetadata,
    pack_panels,
    panel_shape,
    read_header,
    unpack_panels,
    write_weights,
)

METADATA = WeightsMetadata("tiny", "a" * 64, "f32", "host", "0.1.0")


@given(st.integers(1, 40), st.integers(1, 20), st.sampled_from([1, 2, 8, 16]))
@settings(deadline=None, max_examples=60)
def test_panels(rows: int, columns: int, panel: int) -> None:
    weight = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) + 1
    packed = pack_panels(weight, panel)
    assert packed.shape == panel_shape((rows, columns), panel) and packed.flags.c_contiguous
    for n in range(packed.shape[0] * panel):
        expected = weight[n] if n < rows else np.zeros(columns)
        np.testing.assert_array_equal(packed[n // panel, :, n % panel], expected)
    np.testing.assert_array_equal(unpack_panels(packed, rows), weight)


def packed(name: str, data: np.ndarray, dtype: str, layout: dict[str, Any] | None = None) -> PackedTensor:
    return PackedTensor(name, dtype, data.shape, layout, lambda: data)


def sample() -> list[PackedTensor]:
    random = np.random.default_rng(0)
    weight = random.standard_normal((101, 36), dtype=np.float32)
    return [
        packed("model.embed", pack_panels(weight, 16), "F32", {"panel": 16, "shape": [101, 36]}),
        packed("norm", random.standard_normal(36, dtype=np.float32), "F32"),
        packed("half", random.standard_normal((3, 5)).astype(np.float16), "F16"),
        packed("brain", random.integers(0, 1 << 16, 7).astype(np.uint16), "BF16"),
        packed("bytes", np.arange(3, dtype=np.uint8), "U8"),
        packed("scalar", np.array(1.5, np.float32), "F32"),
        packed("naïve", np.arange(-2, 3, dtype=np.int8), "I8"),
    ]


def model_id(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def test_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "m.weights.safetensors"
    layout = WeightsLayout(sample())
    seen: list[tuple[int, int]] = []
    info = write_weights(path, layout, METADATA, model_id, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (layout.total_bytes, layout.total_bytes) and len(seen) == len(sample())
    content = path.read_bytes()
    assert len(content) == info.bytes
    data_start = 8 + int.from_bytes(content[:8], "little")
    assert data_start % 64 == 0
    assert hashlib.sha256(content[data_start:]).hexdigest() == info.content_sha256
    header = json.loads(content[8:data_start])
    for tensor in sample():
        begin, end = header[tensor.name]["data_offsets"]
        assert begin == layout.offset(tensor.name) and begin % 64 == 0
        assert content[data_start + begin : data_start + end] == tensor.produce().tobytes()
    with safe_open(path, "np") as file:
        names = set(file.keys())
        assert names - {tensor.name for tensor in sample()} == {n for n in names if n.startswith("__pad.")}
        for tensor in sample():
            if tensor.dtype != "BF16":
                np.testing.assert_array_equal(file.get_tensor(tensor.name), tensor.produce())
        metadata = file.metadata()
    assert metadata["format"] == "buddy-weights" and metadata["format_version"] == "1"
    assert metadata["content_sha256"] == info.content_sha256
    assert metadata["model_id"] == info.model_id == model_id(info.content_sha256)
    assert (metadata["name"], metadata["abi"], metadata["target"]) == ("tiny", "a" * 64, "host")
    assert json.loads(metadata["layout"]) == {"model.embed": {"panel": 16, "shape": [101, 36]}}
    assert read_header(path).metadata == metadata
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with safe_open(path, "pt") as file:
        brain = file.get_tensor("brain")
    assert str(brain.dtype) == "torch.bfloat16"


def test_writing_twice_gives_equal_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        write_weights(path, WeightsLayout(sample()), METADATA, model_id)
    assert one.read_bytes() == other.read_bytes()


def test_equal_layers_have_one_stride() -> None:
    shapes = {"q": (36, 36), "norm": (36,), "odd": (7, 3)}
    tensors = [
        PackedTensor(f"{layer}.{name}", "F32", shape, None, lambda shape=shape: np.zeros(shape, np.float32))
        for layer in range(4)
        for name, shape in shapes.items()
    ]
    layout = WeightsLayout(tensors)
    for name in shapes:
        strides = {layout.offset(f"{i + 1}.{name}") - layout.offset(f"{i}.{name}") for i in range(3)}
        assert len(strides) == 1


def test_one_tensor_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[int] = []
    peak = 0

    class Counted(np.ndarray):
        def __del__(self) -> None:
            if self.base is None:
                alive.pop()

    def produce() -> np.ndarray:
        nonlocal peak
        alive.append(1)
        peak = max(peak, len(alive))
        return np.ndarray.__new__(Counted, (64, 64), np.float32)

    tensors = [PackedTensor(f"t{i}", "F32", (64, 64), None, produce) for i in range(5)]
    write_weights(tmp_path / "m", WeightsLayout(tensors), METADATA, model_id)
    assert peak <= 2


def test_a_name_comes_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        WeightsLayout([*sample(), sample()[0]])


@pytest.mark.parametrize("given_data", [np.zeros((2, 3), np.float64), np.zeros((3, 2), np.float32)])
def test_broken_producer_leaves_nothing(tmp_path: Path, given_data: np.ndarray) -> None:
    layout = WeightsLayout([PackedTensor("a", "F32", (2, 3), None, lambda: given_data)])
    with pytest.raises(ValueError, match="a should be"):
        write_weights(tmp_path / "m", layout, METADATA, model_id)
    assert list(tmp_path.iterdir()) == []


def test_failing_source_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_weights(path, WeightsLayout(sample()), METADATA, model_id)
    before = path.read_bytes()

    def fail() -> np.ndarray:
        raise BuddyError("cut short.")

    broken = [sample()[0], PackedTensor("z", "F32", (1,), None, fail)]
    with pytest.raises(BuddyError, match="cut short"):
        write_weights(path, WeightsLayout(broken), METADATA, model_id)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
        with pytest.raises(BuddyError, match=r"needs \d+ bytes, but its disk has 10 left"):
            write_weights(tmp_path / "m", WeightsLayout(sample()), METADATA, model_id)

    def full() -> np.ndarray:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BuddyError, match="cannot be written: No space left on device"):
        write_weights(tmp_path / "m", WeightsLayout([PackedTensor("a", "F32", (1,), None, full)]), METADATA, model_id)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BuddyError, match="cannot be written"):
        write_weights(tmp_path / "file" / "m", WeightsLayout(sample()), METADATA, model_id)
    with pytest.raises(BuddyError, match="cannot be written"):
        write_weights(Path("/proc/nowhere/m"), WeightsLayout(sample()), METADATA, model_id)


def test_foreign_and_newer_files_are_told_apart(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": np.zeros(3, np.float32)}, foreign)
    with pytest.raises(BuddyError, match="not one that buddy-gen packed"):
        read_header(foreign)
    save_file({"a": np.zeros(3, np.float32)}, foreign, {"format": "buddy-weights", "format_version": "2"})
    with pytest.raises(BuddyError, match="format version 2; this buddy-gen reads 1"):
        read_header(foreign)

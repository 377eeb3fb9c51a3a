"""Safetensors checkpoints: one file, or shards that an index lists.

The header is read and checked here rather than by the safetensors library, so that every defect becomes one sentence
that names the file, and so that a tensor is read without mapping the whole file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.weights.file_kind import FileKind, identify_file
from buddy_gen.weights.raw_floats import FLOAT_BYTES, read_floats
from buddy_gen.weights.source import FloatArray, WeightSource

__all__ = ["SafetensorsHeader", "SafetensorsSource", "TensorEntry", "read_safetensors_header", "read_shard_index"]

HEADER_LIMIT = 50_000_000
"""Bytes of header that are believed: about 400,000 tensors, far above any model's."""

# Bits per element, as the format's own library has them.
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors file; `begin` and `end` count bytes from the data section's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """A checked header: the ranges tile the data section exactly."""

    metadata: dict[str, str]
    tensors: dict[str, TensorEntry]
    data_start: int


class _DefectError(Exception):
    """What is wrong with a header; becomes a BuddyError with the file's name."""


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """Reads and checks the header of `path`.

    Raises BuddyError for everything that the format forbids: a length past the end or beyond `HEADER_LIMIT`, invalid
    or duplicate JSON keys, ranges that overlap, leave holes, or disagree with dtype and shape, a file that is cut.
    """
    kind = identify_file(path)
    if kind not in (FileKind.SAFETENSORS, FileKind.UNKNOWN):
        raise BuddyError(f"{path} should be a safetensors weights file, but it is {kind.value}.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = _header_length(file.read(8), size)
            raw = file.read(length)
        metadata, tensors = _parse(raw)
        _check_ranges(tensors, size - 8 - length)
    except _DefectError as defect:
        raise BuddyError(f"{path} is not a valid safetensors file: {defect}.") from None
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    return SafetensorsHeader(metadata, tensors, 8 + length)


def _header_length(prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise _DefectError(f"it has {size} bytes, too few for a header")
    length = int(struct.unpack("<Q", prefix)[0])
    if length > HEADER_LIMIT:
        raise _DefectError(f"its header claims {length} bytes, more than the {HEADER_LIMIT} that any model needs")
    if length > size - 8:
        raise _DefectError(f"its header claims {length} bytes, but only {size - 8} follow")
    return length


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _DefectError(f"its header names {name} twice")
            seen.add(name)
    return unique


def _parse(raw: bytes) -> tuple[dict[str, str], dict[str, TensorEntry]]:
    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise _DefectError("its header is not JSON") from None
    if not isinstance(content, dict):
        raise _DefectError("its header is not a JSON object")
    metadata = content.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _DefectError("its __metadata__ is not a map of strings")
    return metadata, {name: _entry(name, value) for name, value in content.items()}


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(name: str, value: Any) -> TensorEntry:
    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise _DefectError(f"the entry of {name} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
        raise _DefectError(f"{name} has the unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(_is_size(dim) for dim in shape):
        raise _DefectError(f"the shape of {name} is no list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise _DefectError(f"the data_offsets of {name} are no pair of offsets")
    entry = TensorEntry(dtype, tuple(shape), offsets[0], offsets[1])
    bits = _DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    if bits != 8 * (entry.end - entry.begin):
        raise _DefectError(
            f"{name} is {dtype} {shape} and needs {bits // 8} bytes, but its range {offsets} has "
            f"{entry.end - entry.begin}"
        )
    return entry


def _check_ranges(tensors: Mapping[str, TensorEntry], data_bytes: int) -> None:
    position = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            what = "overlaps the tensor before it" if entry.begin < position else "leaves a hole before it"
            raise _DefectError(f"the range of {name} {what}")
        position = entry.end
    if position > data_bytes:
        raise _DefectError(f"its tensors need {position} bytes, but {data_bytes} follow the header: it was cut short")
    if position < data_bytes:
        raise _DefectError(f"{data_bytes - position} bytes follow its last tensor")


def read_shard_index(path: Path) -> dict[str, str]:
    """The `weight_map` of an index: tensor name to file name, checked. Raises BuddyError."""
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        valid = all(isinstance(name, str) and isinstance(file, str) for name, file in weight_map.items())
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BuddyError(f"{path} is not an index of shards: it has no weight_map from names to files.") from None
    if not valid or not weight_map:
        raise BuddyError(f"{path} is not an index of shards: its weight_map does not map names to files.")
    outside = sorted({file for file in weight_map.values() if Path(file).name != file})
    if outside:
        raise BuddyError(f"{path} names shards outside its folder: {', '.join(outside)}.")
    missing = sorted({file for file in weight_map.values() if not (path.parent / file).is_file()})
    if missing:
        raise BuddyError(f"{path} needs shards that are not beside it: {', '.join(missing)}; download them too.")
    return dict(weight_map)


class SafetensorsSource(WeightSource):
    """The tensors of one safetensors file, or of all shards that an index names."""

    def __init__(self, path: Path) -> None:
        """`path` is a `.safetensors` file or a `.safetensors.index.json`."""
        self._tensors: dict[str, tuple[Path, int, TensorEntry]] = {}
        self._files: list[Path] = [path]
        if path.suffix == ".json":
            self._open_shards(path, read_shard_index(path))
        else:
            self._add(path, read_safetensors_header(path), None)

    def _open_shards(self, index: Path, weight_map: Mapping[str, str]) -> None:
        absent = []
        for file in sorted(set(weight_map.values())):
            wanted = [name for name, holder in weight_map.items() if holder == file]
            shard = index.parent / file
            header = read_safetensors_header(shard)
            absent += [f"{name} (in {file})" for name in wanted if name not in header.tensors]
            self._add(shard, header, set(wanted))
            self._files.append(shard)
        if absent:
            raise BuddyError(f"{index} names tensors that no shard has: {', '.join(absent)}.")

    def _add(self, path: Path, header: SafetensorsHeader, wanted: set[str] | None) -> None:
        for name, entry in header.tensors.items():
            if wanted is None or name in wanted:
                self._tensors[name] = (path, header.data_start, entry)

    def _find(self, name: str) -> tuple[Path, int, TensorEntry]:
        found = self._tensors.get(name)
        if found is None:
            raise BuddyError(f"{self._files[0]} has no tensor {name}.")
        return found

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name)[2].shape

    def dtype(self, name: str) -> str:
        return self._find(name)[2].dtype.lower()

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        path, data_start, entry = self._find(name)
        dtype = entry.dtype.lower()
        if dtype not in FLOAT_BYTES:
            raise BuddyError(f"{path} stores {name} as {entry.dtype}; F32, F16 and BF16 can be read.")
        shape = (stop - start, *entry.shape[1:])
        row = 1
        for dim in entry.shape[1:]:
            row *= dim
        offset = data_start + entry.begin + start * row * FLOAT_BYTES[dtype]
        return read_floats(path, dtype, offset, (stop - start) * row).reshape(shape)

    def files(self) -> list[Path]:
        return list(self._files)

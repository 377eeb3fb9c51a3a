"""A GGUF file's header, read with every count checked against the file before anything is allocated.

The `gguf` package's reader trusts counts and lengths; this one does not, so a hostile or damaged file gives a sentence
within a second. Source of the format: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from buddy_gen.errors import BuddyError
from buddy_gen.weights.file_kind import FileKind, identify_file

__all__ = ["GgufFile", "GgufTensor", "read_gguf"]

HEADER_LIMIT = 128 << 20
"""Bytes of header that are believed (a vocabulary of 256k tokens with its merges takes about 15 MB)."""

ITEM_LIMIT = 1 << 21
"""Array items in all metadata together that are believed; the largest vocabularies with merges have 0.8 million."""

ENTRY_LIMIT = 1 << 16
"""Metadata entries, and tensors, that are believed; the largest models have some thousand tensors."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9
_DEFAULT_ALIGNMENT = 32
_ALIGNMENT_LIMIT = 1 << 20
_MAX_DIMS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: `shape` in numpy's order ([out, in]), `offset` in bytes from the file's start."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class GgufFile:
    """A checked header. Strings that are not UTF-8 keep their bytes as surrogate escapes."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


class _DefectError(Exception):
    """What is wrong; becomes a BuddyError with the file's name."""


def read_gguf(path: Path) -> GgufFile:
    """Reads the header of `path`: metadata and the list of tensors, no tensor data.

    Raises BuddyError when the file is no GGUF, of another version or byte order, cut short, or inconsistent.
    """
    kind = identify_file(path)
    if kind is not FileKind.GGUF:
        raise BuddyError(f"{path} should be a GGUF model, but it is {kind.value}.")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            version, metadata, tensors = _Cursor(view).header()
    except _DefectError as defect:
        raise BuddyError(f"{path} is not a valid GGUF file: {defect}.") from None
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    return GgufFile(path, version, metadata, tensors)


class _Cursor:
    """Reads forward through the header; every read is checked against the end."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._size = len(view)
        self._end = min(self._size, HEADER_LIMIT)
        self._at = 0
        self._items = 0

    def header(self) -> tuple[int, dict[str, Any], dict[str, GgufTensor]]:
        self._skip(4, "its magic")
        version = self._version()
        tensor_count = self._count("tensors", 24, ENTRY_LIMIT)
        metadata_count = self._count("metadata entries", 13, ENTRY_LIMIT)
        metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self._string("a metadata key")
            if key in metadata:
                raise _DefectError(f"its metadata has {key} twice")
            metadata[key] = self._value(self._scalar("<I", key), key)
        alignment = _alignment(metadata)
        infos = [self._tensor_info() for _ in range(tensor_count)]
        data_start = -(-self._at // alignment) * alignment
        return version, metadata, self._place(infos, data_start, alignment)

    def _version(self) -> int:
        version = self._scalar("<I", "its version")
        if version & 0xFFFF == 0 and version:
            raise _DefectError("it is big-endian, which is not supported; convert it again as little-endian")
        if version not in (2, 3):
            raise _DefectError(f"its version is {version}; 2 and 3 are supported")
        return int(version)

    def _skip(self, count: int, what: str) -> int:
        start = self._at
        if count > self._end - start:
            if self._end < self._size:
                raise _DefectError(f"its header is larger than the {HEADER_LIMIT} bytes that any model needs")
            raise _DefectError(
                f"it ends inside {what} ({count} bytes wanted, {self._end - start} left): it was cut short"
            )
        self._at = start + count
        return start

    def _scalar(self, form: str, what: str) -> Any:
        return struct.unpack_from(form, self._view, self._skip(struct.calcsize(form), what))[0]

    def _count(self, what: str, least_bytes: int, limit: int) -> int:
        count = int(self._scalar("<Q", f"the number of {what}"))
        if count > limit:
            raise _DefectError(f"it claims {count} {what}, more than the {limit} that any model needs")
        if count * least_bytes > self._end - self._at:
            raise _DefectError(f"it claims {count} {what}, more than its {self._size} bytes can hold")
        return count

    def _string(self, what: str) -> str:
        length = int(self._scalar("<Q", what))
        start = self._skip(length, what)
        return self._view[start : start + length].decode("utf-8", "surrogateescape")

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], key)
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key)
        raise _DefectError(f"the metadata entry {key} has the unknown type {kind}")

    def _array(self, key: str) -> list[Any]:
        kind = self._scalar("<I", key)
        if kind not in _SCALARS and kind != _STRING:
            raise _DefectError(f"the metadata entry {key} is an array of type {kind}, which is not supported")
        width = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
        count = self._count(f"items in {key}", width, ITEM_LIMIT)
        self._items += count
        if self._items > ITEM_LIMIT:
            raise _DefectError(f"its metadata claims more than {ITEM_LIMIT} array items (at {key})")
        if kind == _STRING:
            return [self._string(key) for _ in range(count)]
        start = self._skip(count * width, key)
        return list(struct.unpack_from(f"<{count}{_SCALARS[kind][1]}", self._view, start))

    def _tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string("a tensor's name")
        dims = self._scalar("<I", name)
        if dims > _MAX_DIMS:
            raise _DefectError(f"{name} has {dims} dimensions; at most {_MAX_DIMS} are allowed")
        shape = tuple(int(self._scalar("<Q", name)) for _ in range(dims))
        kind = self._scalar("<I", name)
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError:
            raise _DefectError(f"{name} has the unknown tensor type {kind}") from None
        return name, shape[::-1], quantization, int(self._scalar("<Q", name))

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]], data_start: int, alignment: int
    ) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise _DefectError(f"it has the tensor {name} twice")
            if offset % alignment:
                raise _DefectError(f"the offset of {name}, {offset}, is not a multiple of the alignment, {alignment}")
            tensors[name] = GgufTensor(name, kind, shape, data_start + offset, _tensor_bytes(name, shape, kind))
        end, before = data_start, "the header"
        for tensor in sorted(tensors.values(), key=lambda one: one.offset):
            if tensor.offset < end:
                raise _DefectError(f"the data of {tensor.name} overlap those of {before}")
            end, before = tensor.offset + tensor.bytes, tensor.name
            if end > self._size:
                raise _DefectError(
                    f"the data of {before} end at byte {end}, but the file has {self._size}: it was cut short"
                )
        return tensors


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= _ALIGNMENT_LIMIT or alignment & (alignment - 1):
        raise _DefectError(f"its alignment is {alignment}; it must be a power of two up to {_ALIGNMENT_LIMIT}")
    return alignment


def _tensor_bytes(name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    elements = 1
    for dim in shape:
        elements *= dim
    if elements == 0:
        raise _DefectError(f"{name} has a dimension of size 0")
    if elements >= 1 << 60:
        raise _DefectError(f"the dimensions {list(shape)} of {name} multiply to more than any file can hold")
    block, size = GGML_QUANT_SIZES[kind]
    row = shape[-1] if shape else 1
    if row % block:
        raise _DefectError(f"the rows of {name} have {row} elements, not a multiple of {kind.name}'s block of {block}")
    return elements // block * size

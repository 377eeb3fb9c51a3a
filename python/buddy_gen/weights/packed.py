"""The packed weights file that a program maps: docs/architecture.md, "Weights file".

Offsets are known before any weight is read (`WeightsLayout`), so that the importer can write them into the code; the
writer then streams one tensor at a time and hashes what it writes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError
from buddy_gen.weights.panels import pack_panels, panel_shape, unpack_panels
from buddy_gen.weights.safetensors_reader import SafetensorsHeader, read_safetensors_header

__all__ = [
    "ALIGNMENT",
    "ContentInfo",
    "PackedTensor",
    "Progress",
    "WeightsLayout",
    "WeightsMetadata",
    "pack_panels",
    "panel_shape",
    "read_header",
    "unpack_panels",
    "write_weights",
]

ALIGNMENT = 64
"""Every tensor starts at a multiple of this, from the data section's start and in the file."""

FORMAT = "buddy-weights"
FORMAT_VERSION = "1"

Progress = Callable[[int, int], None]
"""Called with the bytes written so far and in all."""

_NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # bit patterns: numpy has no bfloat16
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}
_UNKNOWN_HASH = "0" * 64  # stands in the header until the content is known; same length, so nothing moves


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of the file.

    `dtype` is safetensors' name ("F32"), `shape` the shape as stored, `layout` what a reader must know beyond that
    ({"panel": R, "shape": [N, K]}), `produce` gives the data when they are written (BF16 as uint16 bits).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Mapping[str, Any] | None
    produce: Callable[[], npt.NDArray[Any]]

    @property
    def bytes(self) -> int:
        elements = 1
        for dim in self.shape:
            elements *= dim
        return elements * _NUMPY_TYPES[self.dtype].itemsize


@dataclass(frozen=True)
class WeightsMetadata:
    """The part of `__metadata__` that the caller decides; the rest follows from format and content.

    `further` holds entries for people and tools, such as where the model came from.
    """

    name: str
    abi: str
    dtype: str
    target: str
    exporter: str
    further: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContentInfo:
    """What was written: hash of the data section, model id, size of the whole file, time taken."""

    content_sha256: str
    model_id: str
    bytes: int
    seconds: float


class WeightsLayout:
    """Offsets of tensors in the data section, in the given order, each at a multiple of `ALIGNMENT`.

    Equal sequences of shapes give equal strides, so layers that are alike repeat at a constant distance.
    """

    def __init__(self, tensors: Sequence[PackedTensor]) -> None:
        """Raises ValueError for a name that comes twice: tied tensors are stored once, by their caller."""
        self.tensors = tuple(tensors)
        self._offsets: dict[str, int] = {}
        position = 0
        for tensor in tensors:
            if tensor.name in self._offsets:
                raise ValueError(f"{tensor.name} would be stored twice")
            self._offsets[tensor.name] = position
            position = _aligned(position + tensor.bytes)
        self.total_bytes = position
        """Bytes of the data section, the last tensor's padding included."""

    def offset(self, name: str) -> int:
        """Bytes from the data section's start."""
        return self._offsets[name]


def read_header(path: Path) -> SafetensorsHeader:
    """The checked header of a packed file. Raises BuddyError when it is no weights file of ours."""
    header = read_safetensors_header(path)
    if header.metadata.get("format") != FORMAT:
        raise BuddyError(f"{path} is a safetensors file, but not one that buddy-gen packed.")
    version = header.metadata.get("format_version")
    if version != FORMAT_VERSION:
        raise BuddyError(f"{path} has the format version {version}; this buddy-gen reads {FORMAT_VERSION}.")
    return header


def write_weights(
    path: Path,
    layout: WeightsLayout,
    metadata: WeightsMetadata,
    model_id_from: Callable[[str], str],
    progress: Progress | None = None,
) -> ContentInfo:
    """Writes `layout`'s tensors to `path`, one in memory at a time; beside it first, then renamed.

    `model_id_from` gets the data section's SHA-256 (64 hex digits) and gives the model id (64 hex digits). Raises
    BuddyError, leaving nothing behind, when the folder cannot be written or has too little space.
    """
    started = time.monotonic()
    header = _header(layout, metadata, _UNKNOWN_HASH, _UNKNOWN_HASH)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < len(header) + layout.total_bytes:
            raise BuddyError(
                f"{path} needs {len(header) + layout.total_bytes} bytes, but its disk has {free} left; make room "
                "or choose another folder."
            )
    except OSError as error:
        raise _unwritable(path, error) from error
    beside = path.with_name(f".{path.name}.part")  # always the same: what a killed run left is overwritten
    try:
        with beside.open("wb") as file:
            file.write(header)
            content = _write_data(file, layout, progress)
            model_id = model_id_from(content)
            final = _header(layout, metadata, content, model_id)
            if len(final) != len(header):
                raise ValueError(f"a model id has 64 hex digits, not {len(model_id)}")
            file.seek(0)
            file.write(final)
        beside.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        beside.unlink(missing_ok=True)
    return ContentInfo(content, model_id, len(header) + layout.total_bytes, time.monotonic() - started)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _header(layout: WeightsLayout, metadata: WeightsMetadata, content: str, model_id: str) -> bytes:
    """The length and the JSON, padded with spaces so that the data section starts aligned in the file."""
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "abi": metadata.abi,
            "model_id": model_id,
            "content_sha256": content,
            "name": metadata.name,
            "dtype": metadata.dtype,
            "target": metadata.target,
            "layout": json.dumps({one.name: dict(one.layout) for one in layout.tensors if one.layout is not None}),
            "exporter": metadata.exporter,
            **metadata.further,
        }
    }
    pads = 0
    for tensor in layout.tensors:
        begin = layout.offset(tensor.name)
        end = begin + tensor.bytes
        entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        if _aligned(end) != end:
            gap = [end, _aligned(end)]
            entries[f"__pad.{pads}"] = {"dtype": "U8", "shape": [gap[1] - gap[0]], "data_offsets": gap}
            pads += 1
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (_aligned(8 + len(text)) - 8 - len(text))
    return len(text).to_bytes(8, "little") + text


def _write_data(file: BinaryIO, layout: WeightsLayout, progress: Progress | None) -> str:
    """Streams the tensors and their padding; returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    done = 0
    for tensor in layout.tensors:
        data = _produced(tensor)
        padding = bytes(_aligned(tensor.bytes) - tensor.bytes)
        for part in (memoryview(data), padding):  # type: ignore[arg-type]  # numpy arrays are buffers
            file.write(part)
            digest.update(part)
        done += tensor.bytes + len(padding)
        if progress is not None:
            progress(done, layout.total_bytes)
        del data
    return digest.hexdigest()


def _produced(tensor: PackedTensor) -> npt.NDArray[np.uint8]:
    """The tensor's bytes. A producer that breaks its own promise is a bug, so it raises ValueError."""
    array = tensor.produce()
    expected = _NUMPY_TYPES[tensor.dtype]
    if array.shape != tensor.shape or array.dtype != expected:
        raise ValueError(
            f"{tensor.name} should be {expected} {tensor.shape}, but its producer gave {array.dtype} {array.shape}"
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _unwritable(path: Path, error: OSError) -> BuddyError:
    return BuddyError(f"{path} cannot be written: {error.strerror or error}.")

"""Plain floating-point data in a file, widened to float32 block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError
from buddy_gen.weights.source import FloatArray

__all__ = ["FLOAT_BYTES", "bf16_to_f32", "f32_to_bf16", "read_bytes", "read_floats"]

FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
"""Bytes per element of the types that `read_floats` takes."""

_STORED_AS: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}
_BLOCK_ELEMENTS = 1 << 22


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> FloatArray:
    """bfloat16 bit patterns as float32: the upper half of the word."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: FloatArray) -> npt.NDArray[np.uint16]:
    """The bit patterns of finite float32 values rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def read_bytes(path: Path, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """`count` bytes at `offset`. Raises BuddyError when the file ends before them."""
    return _read(path, np.dtype(np.uint8), offset, count)


def read_floats(path: Path, dtype: str, offset: int, count: int) -> FloatArray:
    """`count` elements of type `dtype` (f32, f16 or bf16) at byte `offset`, as flat float32.

    Beside the result only one block of the narrow type is in memory.
    """
    if dtype == "f32":
        return _read(path, _STORED_AS[dtype], offset, count).view(np.float32)
    out = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK_ELEMENTS):
        stop = min(count, start + _BLOCK_ELEMENTS)
        block = _read(path, _STORED_AS[dtype], offset + start * FLOAT_BYTES[dtype], stop - start)
        out[start:stop] = bf16_to_f32(block) if dtype == "bf16" else block
    return out


def _read(path: Path, stored: np.dtype[Any], offset: int, count: int) -> npt.NDArray[Any]:
    try:
        data = np.fromfile(path, dtype=stored, count=count, offset=offset)
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    if data.size != count:
        raise BuddyError(
            f"{path} ends {count * stored.itemsize - data.nbytes} bytes before a tensor does: "
            "it was cut short; copy or download it again."
        )
    return data

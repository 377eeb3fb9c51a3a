"""Integers and scales of a weight, row by row, and the blocks in which the weights file holds them.

A block is R rows times one group (docs/quantization.md): the integers `[quad][row][4]`, then an f16 scale for each row,
then, for q4_1, an f16 minimum for each row. The blocks of a panel follow each other, so a thread reads one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.weights.formats import QUAD, Format
from buddy_gen.weights.source import FloatArray

__all__ = ["Bytes", "Fields", "Halves", "dequantize", "pack_blocks", "unpack_blocks"]

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Fields:
    """The parts of quantised rows.

    Attributes:
        integers: [N, G, bytes]: int8 bits (q8), or nibbles: byte i holds weight i of its group in the low half and
            weight 16 + i in the high half (q4_0, q4_1).
        scales: [N, G].
        minima: [N, G], q4_1 only.
    """

    integers: Bytes
    scales: Halves
    minima: Halves | None = None


def dequantize(fields: Fields, kind: str) -> FloatArray:
    """What the fields stand for: [N, G * g] float32."""
    scale = fields.scales.astype(np.float32)[:, :, None]
    if kind == "q8":
        values = fields.integers.view(np.int8) * scale
    else:
        nibbles = np.concatenate([fields.integers & 15, fields.integers >> 4], axis=2).astype(np.float32)
        if fields.minima is None:
            values = (nibbles - np.float32(8)) * scale
        else:
            values = nibbles * scale + fields.minima.astype(np.float32)[:, :, None]
    return values.reshape(values.shape[0], -1)


def pack_blocks(fields: Fields, panel: int) -> Bytes:
    """Fields of N rows as blocks [ceil(N / R), G, B]; rows past N are zero, their scales too."""
    rows, groups, width = fields.integers.shape
    panels = -(-rows // panel)
    parts = [_interleaved(fields.integers, panel).reshape(panels, groups, width * panel)]
    for halves in (fields.scales, fields.minima):
        if halves is not None:
            by_row = _padded(halves, panel).reshape(panels, panel, groups).transpose(0, 2, 1)
            parts.append(np.ascontiguousarray(by_row, "<f2").view(np.uint8))
    return np.concatenate(parts, axis=2)


def unpack_blocks(blocks: npt.NDArray[Any], form: Format, rows: int) -> Fields:
    """The inverse of `pack_blocks`: the fields of the first `rows` rows."""
    panels, groups, size = blocks.shape
    width = form.integer_bytes
    panel = size // (form.block_bytes(1))
    quads = blocks[:, :, : width * panel].reshape(panels, groups, width // QUAD, panel, QUAD)
    integers = quads.transpose(0, 3, 1, 2, 4).reshape(panels * panel, groups, width)[:rows]
    halves = []
    for part in range(2 if form.has_minimum else 1):
        start = width * panel + part * 2 * panel
        values = np.ascontiguousarray(blocks[:, :, start : start + 2 * panel]).view("<f2")
        halves.append(values.transpose(0, 2, 1).reshape(panels * panel, groups)[:rows])
    return Fields(np.ascontiguousarray(integers), *halves)


def _padded(array: npt.NDArray[Any], panel: int) -> npt.NDArray[Any]:
    missing = -len(array) % panel
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array


def _interleaved(integers: Bytes, panel: int) -> Bytes:
    """[N, G, bytes] -> [P, G, quads, R, 4]."""
    padded = _padded(integers, panel)
    rows, groups, width = padded.shape
    split = padded.reshape(rows // panel, panel, groups, width // QUAD, QUAD)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))

"""Integers and scales of a weight, row by row, and the blocks in which the weights file holds them.

A block is R rows times one or more groups (docs/quantization.md). For each group: the integers `[quad][row][4]` (their
lower 4 bits, if they have 4 to 6), the bits past these `[row][4]`, and, with several groups in a block, a factor for
each row and, with minima, one more. Behind the groups an f16 scale for each row, then, with minima, an f16 minimum for
each row. The blocks of a panel follow each other, so a thread reads one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.weights.formats import QUAD, Encoding, Format
from buddy_gen.weights.source import FloatArray

__all__ = [
    "Bytes",
    "Fields",
    "Halves",
    "dequantize",
    "group_scales",
    "join_integers",
    "pack_blocks",
    "split_integers",
    "unpack_blocks",
]

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]


@dataclass(frozen=True)
class Fields:
    """The parts of quantised rows: N rows of G groups, in blocks of one or more of them.

    Attributes:
        integers: [N, G, bytes]: int8 bits (q8), or nibbles: byte i holds weight i of its group in the low half and
            weight g / 2 + i in the high half.
        scales: [N, blocks].
        minima: [N, blocks], where the format has minima.
        high: [N, G, 4], where integers have more than 4 bits: see `split_integers`.
        factors: [N, G], where a block has several groups: what its scale is multiplied with; bits of int8 in q6_k.
        minimum_factors: [N, G]: what its minimum is multiplied with.
    """

    integers: Bytes
    scales: Halves
    minima: Halves | None = None
    high: Bytes | None = None
    factors: Bytes | None = None
    minimum_factors: Bytes | None = None


def split_integers(values: Bytes, bits: int) -> tuple[Bytes, Bytes | None]:
    """Integers [N, G, g] of 4 to 6 bits as nibbles [N, G, g / 2] and what is past them, [N, G, 4] (4 bits: None).

    Byte r of the latter holds the upper bits of the weights h * g / 2 + 4 * quad + r, those of the first (quad, half)
    lowest: (0, 0), (1, 0), ..., then (0, 1), ... So a shift and a mask of its bytes give what a quad's nibbles lack.
    """
    half = values.shape[2] // 2
    nibbles: Bytes = (values[:, :, :half] & np.uint8(15)) | np.left_shift(values[:, :, half:], np.uint8(4))
    if bits == 4:
        return nibbles, None
    upper = values.reshape(*values.shape[:2], -1, QUAD) >> np.uint8(4)
    shifts = np.arange(upper.shape[2], dtype=np.uint8)[:, None] * np.uint8(bits - 4)
    high: Bytes = np.bitwise_or.reduce(upper << shifts, axis=2)
    return nibbles, high


def join_integers(nibbles: Bytes, high: Bytes | None, bits: int) -> Bytes:
    """The inverse of `split_integers`."""
    values: Bytes = np.concatenate([nibbles & 15, nibbles >> 4], axis=2)
    if high is None:
        return values
    mask = np.uint8((1 << (bits - 4)) - 1)
    shifts = np.arange(values.shape[2] // QUAD, dtype=np.uint8)[:, None] * np.uint8(bits - 4)
    upper = (high[:, :, None, :] >> shifts) & mask
    values |= upper.reshape(values.shape) << np.uint8(4)
    return values


def _encoding(kind: str) -> Encoding:
    return Format(kind).encoding


def group_scales(fields: Fields, kind: str) -> FloatArray:
    """What the integers of each group are multiplied with: [N, G]."""
    scales = fields.scales.astype(np.float32)
    if fields.factors is None:
        return scales
    encoding = _encoding(kind)
    factors = fields.factors.view(np.int8) if encoding.has_signed_factors else fields.factors
    return np.repeat(scales, encoding.groups, axis=1) * factors.astype(np.float32)


def _group_minima(fields: Fields, kind: str) -> FloatArray | None:
    if fields.minima is None:
        return None
    minima = fields.minima.astype(np.float32)
    if fields.minimum_factors is None:
        return minima
    return np.repeat(minima, _encoding(kind).groups, axis=1) * fields.minimum_factors.astype(np.float32)


def dequantize(fields: Fields, kind: str) -> FloatArray:
    """What the fields stand for: [N, G * g] float32."""
    encoding = _encoding(kind)
    if encoding.bits == 8:
        integers: npt.NDArray[Any] = fields.integers.view(np.int8)
    else:
        integers = join_integers(fields.integers, fields.high, encoding.bits)
    values = (integers.astype(np.float32) - np.float32(encoding.zero)) * group_scales(fields, kind)[:, :, None]
    minima = _group_minima(fields, kind)
    if minima is not None:
        values = values + np.float32(encoding.sign) * minima[:, :, None]
    return values.reshape(values.shape[0], -1)


def pack_blocks(fields: Fields, panel: int) -> Bytes:
    """Fields of N rows as blocks [ceil(N / R), blocks, B]; rows past N are zero, their scales too."""
    groups, blocks = fields.integers.shape[1], fields.scales.shape[1]
    panels = -(-len(fields.integers) // panel)
    parts = [_interleaved(one, panel) for one in (fields.integers, fields.high) if one is not None]
    parts += [_by_panel(one, panel) for one in (fields.factors, fields.minimum_factors) if one is not None]
    by_group = np.concatenate([part.reshape(panels, groups, -1) for part in parts], axis=2)
    whole = [by_group.reshape(panels, blocks, -1)]
    for halves in (fields.scales, fields.minima):
        if halves is not None:
            whole.append(np.ascontiguousarray(_by_panel(halves, panel), "<f2").view(np.uint8))
    return np.concatenate(whole, axis=2)


def unpack_blocks(blocks: npt.NDArray[Any], form: Format, rows: int) -> Fields:
    """The inverse of `pack_blocks`: the fields of the first `rows` rows."""
    panels, count, size = blocks.shape
    panel = size // form.block_bytes(1)
    groups = count * form.encoding.groups
    end = form.encoding.groups * form.group_bytes(panel)
    by_group = blocks[:, :, :end].reshape(panels, groups, form.group_bytes(panel))
    taken = 0

    def take(width: int) -> Bytes:
        nonlocal taken
        taken += width * panel
        return by_group[:, :, taken - width * panel : taken]

    def take_quads(width: int) -> Bytes:
        quads = take(width).reshape(panels, groups, width // QUAD, panel, QUAD).transpose(0, 3, 1, 2, 4)
        return np.ascontiguousarray(quads.reshape(panels * panel, groups, width)[:rows])

    def by_row(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(values.transpose(0, 2, 1).reshape(panels * panel, -1)[:rows])

    integers = take_quads(form.integer_bytes)
    high = take_quads(form.high_bytes) if form.high_bytes else None
    factors = by_row(take(1)) if form.has_factors else None
    minimum_factors = by_row(take(1)) if form.has_factors and form.has_minimum else None
    halves = [by_row(np.ascontiguousarray(blocks[:, :, end : end + 2 * panel]).view("<f2"))]
    if form.has_minimum:
        halves.append(by_row(np.ascontiguousarray(blocks[:, :, end + 2 * panel :]).view("<f2")))
    return Fields(integers, halves[0], halves[1] if form.has_minimum else None, high, factors, minimum_factors)


def _padded(array: npt.NDArray[Any], panel: int) -> npt.NDArray[Any]:
    missing = -len(array) % panel
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)]) if missing else array


def _by_panel(values: npt.NDArray[Any], panel: int) -> npt.NDArray[Any]:
    """[N, G] -> [P, G, R]."""
    padded = _padded(values, panel)
    return np.ascontiguousarray(padded.reshape(-1, panel, values.shape[1]).transpose(0, 2, 1))


def _interleaved(integers: Bytes, panel: int) -> Bytes:
    """[N, G, bytes] -> [P, G, quads, R, 4]."""
    padded = _padded(integers, panel)
    rows, groups, width = padded.shape
    split = padded.reshape(rows // panel, panel, groups, width // QUAD, QUAD)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4))

"""The quantised blocks of a GGUF file as fields, bit for bit, and back.

Source of the layouts: ggml-common.h of the ggml project. A block of the plain types is 32 weights of a row: an f16
scale, for Q4_1 and Q5_1 an f16 minimum, for Q5_0 and Q5_1 the fifth bits (bit i that of weight i), then the integers;
nibble byte i holds weight i in its low half and weight 16 + i in its high half. A block of the K types is 256 weights;
the places of its parts are said below.
"""

from __future__ import annotations

import numpy as np

from buddy_gen.weights.blocks import Bytes, Fields, Halves, join_integers, split_integers
from buddy_gen.weights.formats import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Format, q8

__all__ = ["BLOCK_FORMATS", "from_gguf_blocks", "gguf_type", "to_gguf_blocks"]

BLOCK_FORMATS: dict[str, Format] = {
    "q8_0": q8(32),
    "q4_0": Q4_0,
    "q4_1": Q4_1,
    "q5_0": Q5_0,
    "q5_1": Q5_1,
    "q4_k": Q4_K,
    "q5_k": Q5_K,
    "q6_k": Q6_K,
}
"""The tensor types of a GGUF file that can be kept as they are, with the format they have here."""


def gguf_type(kind: str) -> str:
    """The name that a GGUF file has for the kind of a format: q8 -> Q8_0, q4_k -> Q4_K."""
    names = {form.kind: name.upper() for name, form in BLOCK_FORMATS.items()}
    return names.get(kind, kind)


def from_gguf_blocks(raw: Bytes, form: Format) -> Fields:
    """Rows of blocks [N, bytes] as fields; no bit changes."""
    if form == Q6_K:
        return _from_six_bits(raw.reshape(len(raw), -1, 210))
    if form.has_factors:
        return _from_super_blocks(raw, form)
    heads = 2 if form.has_minimum else 1
    blocks = raw.reshape(len(raw), -1, 2 * heads + form.high_bytes + form.integer_bytes)
    minima = _halves(blocks[:, :, 2:]) if form.has_minimum else None
    start = 2 * heads + form.high_bytes
    integers = np.ascontiguousarray(blocks[:, :, start:])
    high = None
    if form.high_bytes:
        fifth = np.unpackbits(blocks[:, :, 2 * heads : start], axis=2, bitorder="little")
        high = split_integers(fifth << np.uint8(4), 5)[1]
    return Fields(integers, _halves(blocks), minima, high)


def to_gguf_blocks(fields: Fields) -> Bytes:
    """The inverse of `from_gguf_blocks`: [N, bytes]."""
    if fields.factors is not None and fields.minima is None:
        parts = _to_six_bits(fields)
    elif fields.factors is not None:
        parts = _to_super_blocks(fields)
    else:
        parts = [_half_bytes(one) for one in (fields.scales, fields.minima) if one is not None]
        if fields.high is not None:
            fifth = join_integers(np.zeros_like(fields.integers), fields.high, 5) >> np.uint8(4)
            parts.append(np.packbits(fifth, axis=2, bitorder="little"))
        parts.append(fields.integers)
    return np.concatenate(parts, axis=2).reshape(len(fields.integers), -1)


# Q4_K, Q5_K: f16 d, f16 dmin; 12 bytes of factors; for Q5_K 32 bytes, bit g of byte i that of weight i of group g; then
# 128 bytes: byte i of 32 ones holds weight i of two groups in turn.


def _from_super_blocks(raw: Bytes, form: Format) -> Fields:
    rows, upper = len(raw), 32 * form.high_bits
    blocks = raw.reshape(rows, -1, 16 + upper + 128)
    count = blocks.shape[1]
    pairs = blocks[:, :, 16 + upper :].reshape(rows, count, 4, 1, 32)
    values = np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(rows, count, 8, 32)
    if upper:
        fifth = blocks[:, :, None, 16 : 16 + upper] >> np.arange(8, dtype=np.uint8)[:, None]
        values |= (fifth & 1) << np.uint8(4)
    integers, high = split_integers(values.reshape(rows, count * 8, 32), form.encoding.bits)
    packed = blocks[:, :, 4:16]
    first, second, third = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    factors = np.concatenate([first & 63, (third & 15) | ((first >> 6) << np.uint8(4))], axis=2)
    minimum_factors = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << np.uint8(4))], axis=2)
    return Fields(
        integers,
        _halves(blocks),
        _halves(blocks[:, :, 2:]),
        high,
        factors.reshape(rows, -1),
        minimum_factors.reshape(rows, -1),
    )


def _to_super_blocks(fields: Fields) -> list[Bytes]:
    assert fields.minima is not None and fields.factors is not None and fields.minimum_factors is not None
    rows, count = fields.scales.shape
    values = join_integers(fields.integers, fields.high, 4 if fields.high is None else 5)
    pairs = values.reshape(rows, count, 4, 2, 32)
    factors, minima = (one.reshape(rows, count, 8) for one in (fields.factors, fields.minimum_factors))
    parts: list[Bytes] = [
        _half_bytes(fields.scales),
        _half_bytes(fields.minima),
        factors[:, :, :4] | np.left_shift(factors[:, :, 4:] >> 4, np.uint8(6)),
        minima[:, :, :4] | np.left_shift(minima[:, :, 4:] >> 4, np.uint8(6)),
        (factors[:, :, 4:] & np.uint8(15)) | np.left_shift(minima[:, :, 4:], np.uint8(4)),
    ]
    if fields.high is not None:
        fifth = values.reshape(rows, count, 8, 32) >> np.uint8(4)
        parts.append(np.bitwise_or.reduce(fifth << np.arange(8, dtype=np.uint8)[:, None], axis=2))
    nibbles = (pairs[:, :, :, 0] & np.uint8(15)) | np.left_shift(pairs[:, :, :, 1], np.uint8(4))
    return [*parts, nibbles.reshape(rows, count, 128)]


# Q6_K: for each half of the block 64 bytes, of which byte i holds the lower bits of weights i and 64 + i; for each half
# 32 bytes, of which byte i holds the upper 2 bits of weights i, 32 + i, 64 + i and 96 + i; 16 int8 factors; f16 d.


def _from_six_bits(blocks: Bytes) -> Fields:
    rows, count = blocks.shape[:2]
    nibbles = blocks[:, :, :128].reshape(rows, count, 2, 1, 64)
    values = np.concatenate([nibbles & 15, nibbles >> 4], axis=3).reshape(rows, count, 2, 4, 32)
    upper = blocks[:, :, 128:192].reshape(rows, count, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    values |= (upper & 3) << np.uint8(4)
    integers, high = split_integers(values.reshape(rows, count * 16, 16), 6)
    factors = np.ascontiguousarray(blocks[:, :, 192:208]).reshape(rows, -1)
    return Fields(integers, _halves(blocks[:, :, 208:]), high=high, factors=factors)


def _to_six_bits(fields: Fields) -> list[Bytes]:
    assert fields.factors is not None
    rows, count = fields.scales.shape
    values = join_integers(fields.integers, fields.high, 6)
    halves = values.reshape(rows, count, 2, 2, 64)
    nibbles = (halves[:, :, :, 0] & 15) | np.left_shift(halves[:, :, :, 1], np.uint8(4))
    quarters = values.reshape(rows, count, 2, 4, 32) >> np.uint8(4)
    upper = np.bitwise_or.reduce(quarters << np.array([[0], [2], [4], [6]], np.uint8), axis=3)
    return [
        nibbles.reshape(rows, count, 128),
        upper.reshape(rows, count, 64),
        fields.factors.reshape(rows, count, 16),
        _half_bytes(fields.scales),
    ]


def _halves(raw: Bytes) -> Halves:
    return np.ascontiguousarray(raw[:, :, :2]).view("<f2")[:, :, 0]


def _half_bytes(halves: Halves) -> Bytes:
    return np.ascontiguousarray(halves, "<f2")[:, :, None].view(np.uint8)

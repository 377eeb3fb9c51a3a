"""The quantised blocks of a GGUF file as fields, bit for bit, and back.

Source of the layouts: ggml-common.h of the ggml project. A block is 32 weights of a row: an f16 scale, for Q4_1 an f16
minimum, then the integers; nibble byte i holds weight i in its low half and weight 16 + i in its high half.
"""

from __future__ import annotations

import numpy as np

from buddy_gen.weights.blocks import Bytes, Fields, Halves
from buddy_gen.weights.formats import Q4_0, Q4_1, Format, q8

__all__ = ["BLOCK_FORMATS", "from_gguf_blocks", "to_gguf_blocks"]

BLOCK_FORMATS: dict[str, Format] = {"q8_0": q8(32), "q4_0": Q4_0, "q4_1": Q4_1}
"""The tensor types of a GGUF file that can be kept as they are, with the format they have here."""


def from_gguf_blocks(raw: Bytes, form: Format) -> Fields:
    """Rows of blocks [N, bytes] as fields; no bit changes."""
    heads = 2 if form.has_minimum else 1
    size = 2 * heads + form.integer_bytes
    blocks = raw.reshape(len(raw), -1, size)
    halves = [_halves(blocks[:, :, 2 * i : 2 * i + 2]) for i in range(heads)]
    return Fields(np.ascontiguousarray(blocks[:, :, 2 * heads :]), *halves)


def to_gguf_blocks(fields: Fields) -> Bytes:
    """The inverse of `from_gguf_blocks`: [N, bytes]."""
    halves = [one for one in (fields.scales, fields.minima) if one is not None]
    parts = [np.ascontiguousarray(one, "<f2")[:, :, None].view(np.uint8) for one in halves]
    return np.concatenate([*parts, fields.integers], axis=2).reshape(len(fields.integers), -1)


def _halves(raw: Bytes) -> Halves:
    return np.ascontiguousarray(raw).view("<f2")[:, :, 0]

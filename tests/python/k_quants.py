"""A plain quantiser for the K types, which the gguf package reads but does not write: no search, so larger errors."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

from buddy_gen.weights.blocks import Bytes, Fields, Halves, split_integers
from buddy_gen.weights.formats import Encoding
from buddy_gen.weights.gguf_blocks import BLOCK_FORMATS, to_gguf_blocks

Floats = npt.NDArray[np.float32]


def quantize(data: Floats, kind: gguf.GGMLQuantizationType) -> Bytes:
    """Rows [N, K] as the blocks of a GGUF type: what `gguf.quants.quantize` gives, and the K types."""
    form = BLOCK_FORMATS.get(kind.name.lower())
    if form is None or not form.has_factors:
        made: Bytes = gguf.quants.quantize(data, kind)
        return made
    encoding = form.encoding
    groups = data.reshape(len(data), -1, encoding.groups, form.group)
    minima = minimum_factors = None
    low = np.zeros(groups.shape[:-1], np.float32)
    if encoding.sign:
        low = np.minimum(groups.min(axis=-1), 0)
        minima, minimum_factors = _factors(-low, 63)
        low = -minima.astype(np.float32)[:, :, None] * minimum_factors
        steps = (groups.max(axis=-1) - low) / ((1 << encoding.bits) - 1)
    else:
        steps = np.abs(groups).max(axis=-1) / encoding.zero
    scales, factors = _factors(steps, 127 if encoding.has_signed_factors else 63)
    nibbles, high = _integers(groups, scales.astype(np.float32)[:, :, None] * factors, low, encoding)
    by_row = [None if one is None else one.reshape(len(data), -1) for one in (factors, minimum_factors)]
    return to_gguf_blocks(Fields(nibbles, scales, minima, high, *by_row))


def _factors(values: Floats, largest: int) -> tuple[Halves, Bytes]:
    """A half for each block, and what it is multiplied with to come close to the values of its groups."""
    scales = (values.max(axis=-1) / largest).astype(np.float16)
    wide = np.where(scales == 0, 1, scales).astype(np.float32)[:, :, None]
    return scales, np.clip(np.rint(values / wide), 0, largest).astype(np.uint8)


def _integers(groups: Floats, steps: Floats, low: Floats, encoding: Encoding) -> tuple[Bytes, Bytes | None]:
    safe = np.where(steps == 0, 1, steps)[..., None]
    rounded = np.rint((groups - low[..., None]) / safe) + encoding.zero
    values = np.clip(rounded, 0, (1 << encoding.bits) - 1).astype(np.uint8)
    return split_integers(values.reshape(len(groups), -1, groups.shape[-1]), encoding.bits)

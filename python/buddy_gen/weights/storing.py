"""A checkpoint's tensor -> the bytes of its stored format, a few rows in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError
from buddy_gen.weights.blocks import Fields, pack_blocks
from buddy_gen.weights.formats import Format
from buddy_gen.weights.gguf_blocks import BLOCK_FORMATS, from_gguf_blocks
from buddy_gen.weights.panels import fill_panels
from buddy_gen.weights.quantizers import quantize_rows
from buddy_gen.weights.raw_floats import f32_to_bf16
from buddy_gen.weights.rotation import rotate_rows
from buddy_gen.weights.source import FloatArray, WeightSource

__all__ = ["FieldsOf", "read_finite", "store_plain", "store_weight", "stored_type"]

_BLOCK_ELEMENTS = 1 << 20  # weights converted at a time; quantising takes some twenty times their size

_TYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "f32": ("F32", np.dtype(np.float32)),
    "f16": ("F16", np.dtype(np.float16)),
    "bf16": ("BF16", np.dtype(np.uint16)),
}

_BF16_EXPONENT = np.uint16(0x7F80)
FieldsOf = Callable[[str, int, int], Fields | None]
"""Rows [start, stop) of a weight that was quantised elsewhere; None for any other."""

_LARGEST = {"f16": "65504", "bf16": "3.39e38"}


def stored_type(form: Format) -> str:
    """Safetensors' name of the elements: F32, F16, BF16, or U8 for blocks."""
    return "U8" if form.in_blocks else _TYPES[form.kind][0]


def store_plain(source: WeightSource, name: str, form: Format) -> npt.NDArray[Any]:
    """A tensor of any rank in a float format and its own shape (bf16 as bits).

    Raises:
        BuddyError: It holds NaN or infinity, or numbers beyond the format; the message names it.
    """
    shape = source.shape(name)
    rows = shape[0] if shape else 1
    out = np.empty((rows, *shape[1:]), _TYPES[form.kind][1])
    for start, stop in _steps(rows, out[0].size if rows else 1, 1):
        out[start:stop] = _narrowed(read_finite(source, name, start, stop), form, name).reshape(out[start:stop].shape)
    return out.reshape(shape)


def store_weight(
    source: WeightSource, name: str, form: Format, panel: int, keep: bool = False, rounded: FieldsOf | None = None
) -> npt.NDArray[Any]:
    """An [N, K] weight as the weights file holds it: panels of floats or blocks, see `Format.stored_shape`.

    Args:
        source: The checkpoint.
        name: The weight.
        form: Its format here.
        panel: R.
        keep: The checkpoint's own blocks are kept bit for bit; it must have them in this format.
        rounded: Gives the weights that were quantised elsewhere.

    Raises:
        BuddyError: It holds NaN or infinity, or numbers beyond the format; the message names it.
    """
    rows, columns = source.shape(name)
    shape = form.stored_shape((rows, columns), panel)
    out = np.zeros(shape, np.uint8 if form.in_blocks else _TYPES[form.kind][1])
    for start, stop in _steps(rows, columns, panel):
        if form.in_blocks:
            fields = rounded(name, start, stop) if rounded is not None else None
            if fields is None:
                fields = _kept(source, name, form, start, stop) if keep else _quantised(source, name, form, start, stop)
            out[start // panel : -(-stop // panel)] = pack_blocks(fields, panel)
        else:
            fill_panels(out, start // panel, _narrowed(read_finite(source, name, start, stop), form, name))
    return out


def _steps(rows: int, columns: int, panel: int) -> list[tuple[int, int]]:
    """Ranges of rows, in whole panels, of about `_BLOCK_ELEMENTS`."""
    step = panel * max(1, _BLOCK_ELEMENTS // max(1, panel * columns))
    return [(start, min(rows, start + step)) for start in range(0, rows, step)]


def read_finite(source: WeightSource, name: str, start: int, stop: int) -> FloatArray:
    """Rows [start, stop) of a tensor.

    Raises:
        BuddyError: They hold NaN or infinity; the message names the tensor.
    """
    rows = source.read_rows(name, start, stop)
    if not np.isfinite(rows).all():
        kind = "NaN" if np.isnan(rows).any() else "infinity"
        raise BuddyError(f"the weight {name} holds {kind}, so that nothing the model says would mean anything")
    return rows


def _narrowed(rows: FloatArray, form: Format, name: str) -> npt.NDArray[Any]:
    if form.kind == "f32":
        return rows
    if form.kind == "bf16":
        bits = f32_to_bf16(rows)
        overflow = bool((bits & _BF16_EXPONENT == _BF16_EXPONENT).any())
    else:
        with np.errstate(over="ignore"):
            bits = rows.astype(np.float16)
        overflow = not np.isfinite(bits).all()
    if overflow:
        advice = "f32" if form.kind == "bf16" else "bf16 or f32"
        raise BuddyError(
            f"the weight {name} holds {float(np.abs(rows).max()):g}, beyond the largest number of {form.kind} "
            f"({_LARGEST[form.kind]}); build this model as {advice}"
        )
    return bits


def _quantised(source: WeightSource, name: str, form: Format, start: int, stop: int) -> Fields:
    rows = read_finite(source, name, start, stop)
    if form.is_rotated:
        missing = form.padded(rows.shape[1]) - rows.shape[1]
        rows = rotate_rows(np.pad(rows, ((0, 0), (0, missing))), form.of_columns(rows.shape[1]).rotation)
    try:
        return quantize_rows(rows, form)
    except BuddyError as error:
        if name in str(error):
            raise
        raise BuddyError(f"the weight {name} does not fit: {error}") from None


def _kept(source: WeightSource, name: str, form: Format, start: int, stop: int) -> Fields:
    kind = source.dtype(name)
    if BLOCK_FORMATS.get(kind) != form:
        raise BuddyError(f"{source.files()[0]} stores {name} as {kind}, not as {form.kind} in groups of {form.group}.")
    fields = from_gguf_blocks(source.read_blocks(name, start, stop), form)
    if not all(np.isfinite(one).all() for one in (fields.scales, fields.minima) if one is not None):
        raise BuddyError(f"the weight {name} holds NaN or infinity in its scales: the file is damaged")
    return fields

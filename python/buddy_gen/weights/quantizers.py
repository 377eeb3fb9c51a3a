"""Float rows -> integers and scales, with as small an error as the format allows.

int8 is symmetric: w = d q, q in [-127, 127], d = max |w| / 127 rounded to half. 4 bits are asymmetric: w = d q + m, q
in 0..15, where d and m minimise the squared error of their group. That is a search: several first guesses (the range of
the group, and narrower ones that clip its outliers) are each improved by turns, q being the best for d and m, then d
and m the best for q (a line fitted by least squares), which never makes the error larger; the best end counts, as it
is after d and m are rounded to half.
"""

from __future__ import annotations

import numpy as np

from buddy_gen.errors import BuddyError
from buddy_gen.weights.blocks import Bytes, Fields, Halves, split_integers
from buddy_gen.weights.formats import Format
from buddy_gen.weights.source import FloatArray

__all__ = ["fit_line", "nearest_nibbles", "nibble_fields", "quantize_rows"]

_LARGEST_INT8 = 127
_LARGEST_NIBBLE = 15
_SHRINKS = (0.0, 0.06, 0.12, 0.18)  # how much of a group's range the first guesses leave out, half at either end
_TURNS = 3


def quantize_rows(rows: FloatArray, form: Format) -> Fields:
    """Rows [N, K] in the format q8 or q4_1; a last group that is not full is padded with zeros after the fit.

    Raises:
        BuddyError: A scale or a minimum is too large for half precision.
    """
    exact = form.of_columns(rows.shape[1])
    count, columns = rows.shape
    group = exact.group
    whole = columns // group
    parts = [rows[:, : whole * group].reshape(count, whole, group)] if whole else []
    if columns % group:
        parts.append(rows[:, None, whole * group :])
    with np.errstate(over="ignore", invalid="ignore"):
        made = [_int8_fields(part, group) if exact.kind == "q8" else _nibble_fields(part, group) for part in parts]
    fields = Fields(
        np.concatenate([one.integers for one in made], axis=1),
        np.concatenate([one.scales for one in made], axis=1),
        np.concatenate([one.minima for one in made], axis=1) if exact.has_minimum else None,
    )
    return _checked(fields)


def nibble_fields(integers: Bytes, scales: Halves, minima: Halves, form: Format) -> Fields:
    """Rows that are rounded to 4 bits already: integers [N, K], scales and minima [N, G].

    Raises:
        BuddyError: A scale or a minimum is too large for half precision.
    """
    count, columns = integers.shape
    padded = np.pad(integers, ((0, 0), (0, form.padded(columns) - columns)))
    return _checked(Fields(split_integers(padded.reshape(count, -1, form.group), 4)[0], scales, minima))


def _checked(fields: Fields) -> Fields:
    if not all(np.isfinite(halves).all() for halves in (fields.scales, fields.minima) if halves is not None):
        raise BuddyError("it has values too large for this format's scales in half precision; build it as f32 or bf16")
    return fields


def _int8_fields(groups: FloatArray, width: int) -> Fields:
    largest = np.abs(groups).max(axis=2)
    scales = (largest / np.float32(_LARGEST_INT8)).astype(np.float16)
    # Among the smallest numbers of half precision, rounding down could leave the largest weight out of reach.
    short = scales.astype(np.float32) * np.float32(_LARGEST_INT8 + 0.5) < largest
    scales = np.where(short, np.nextafter(scales, np.float16(np.inf)), scales)
    inverse = _inverse(scales.astype(np.float32))
    integers = np.clip(np.rint(groups * inverse[:, :, None]), -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8)
    return Fields(_widened(integers.view(np.uint8), width), scales.astype(np.float16))


def _nibble_fields(groups: FloatArray, width: int) -> Fields:
    count, whole, size = groups.shape
    integers, scales, minima = fit_line(groups.reshape(count * whole, size))
    nibbles, _ = split_integers(_widened(integers.reshape(count, whole, size), width), 4)
    return Fields(nibbles, scales.reshape(count, whole), minima.reshape(count, whole))


def fit_line(groups: FloatArray) -> tuple[Bytes, Halves, Halves]:
    """q in 0..15, d and m for each group [n, size], such that d q + m has the smallest squared error found."""
    low = groups.min(axis=1)
    span = groups.max(axis=1) - low
    above = groups - low[:, None]  # the line is fitted to these, where nothing cancels
    best: tuple[FloatArray, Halves, Halves] | None = None
    least: FloatArray | None = None
    for shrink in _SHRINKS:
        m = span * np.float32(shrink / 2)
        d = (span - 2 * m) / np.float32(_LARGEST_NIBBLE)
        for _ in range(_TURNS):
            d, m = _line_through(above, nearest_nibbles(above, d, m), d, m)
        scales, minima = d.astype(np.float16), (low + m).astype(np.float16)
        q = nearest_nibbles(groups, scales.astype(np.float32), minima.astype(np.float32))
        off = q * scales.astype(np.float32)[:, None]
        off += minima.astype(np.float32)[:, None]
        off -= groups
        error = np.einsum("ij,ij->i", off, off)
        if best is None or least is None:
            best, least = (q, scales, minima), error
            continue
        better = error < least
        least = np.where(better, error, least)
        best = (
            np.where(better[:, None], q, best[0]),
            np.where(better, scales, best[1]),
            np.where(better, minima, best[2]),
        )
    assert best is not None
    return best[0].astype(np.uint8), best[1], best[2]


def nearest_nibbles(groups: FloatArray, d: FloatArray, m: FloatArray) -> FloatArray:
    """The best q, as floats, for groups [n, size] with the scales d [n] and the minima m [n]."""
    q = groups - m[:, None]
    q *= _inverse(d)[:, None]
    np.rint(q, out=q)
    return np.clip(q, 0, _LARGEST_NIBBLE, out=q)


def _line_through(groups: FloatArray, q: FloatArray, d: FloatArray, m: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The best d and m for q: a line fitted by least squares; d and m stay where all q are equal."""
    size = np.float32(groups.shape[1])
    mean_q, mean_w = q.sum(axis=1) / size, groups.sum(axis=1) / size
    spread = np.einsum("ij,ij->i", q, q) - size * mean_q * mean_q
    slope = np.einsum("ij,ij->i", q, groups) - size * mean_q * mean_w
    fits = (spread > 0.5) & (slope > 0)
    new_d = np.where(fits, slope / np.where(fits, spread, np.float32(1)), d)
    return new_d, np.where(fits, mean_w - new_d * mean_q, m)


def _inverse(d: FloatArray) -> FloatArray:
    """1 / d, and 0 for 0: the integers of a group without a scale are 0."""
    found: FloatArray = np.divide(np.float32(1), d, out=np.zeros_like(d), where=np.abs(d) > 1e-37)
    return found


def _widened(values: Bytes, width: int) -> Bytes:
    """The last axis padded with zeros to `width`."""
    missing = width - values.shape[2]
    return np.pad(values, ((0, 0), (0, 0), (0, missing))) if missing else values

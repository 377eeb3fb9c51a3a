"""Mixing the columns of a weight, so that what meets it has no outliers.

A product stays what it is when both of its factors are multiplied with the same orthogonal matrix: x Wᵀ = (x R)(W R)ᵀ.
R consists of Hadamard matrices (Sylvester's) along its diagonal, one for each `size` consecutive columns, which spreads
a number that stands out over its neighbours: a group of activations is then rounded in steps that suit all of them.

The matrices used have entries of 1 and -1, which makes R Rᵀ = size. The product is divided by that: by 2^(stages // 2)
in the weight, here, and by the rest in the activations (`buddy_gen.lowering.activations`), where size = 2^stages. Both
are powers of two and change no digit.
"""

from __future__ import annotations

import numpy as np

from buddy_gen.weights.source import FloatArray

__all__ = ["activation_share", "rotate_rows"]


def _stages(size: int) -> int:
    return size.bit_length() - 1


def activation_share(size: int) -> float:
    """What mixed activations are multiplied with."""
    return 2.0 ** -((_stages(size) + 1) // 2)


def rotate_rows(rows: FloatArray, size: int) -> FloatArray:
    """Rows [N, K], K a multiple of `size` (a power of two), as they are stored."""
    return _mixed(rows, size) * np.float32(2.0 ** -(_stages(size) // 2))


def _mixed(rows: FloatArray, size: int) -> FloatArray:
    """Butterflies: sums and differences of columns that are 1, 2, 4, ... apart."""
    mixed = rows.astype(np.float32)
    stride = 1
    while stride < size:
        pairs = mixed.reshape(len(rows), -1, 2, stride)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        mixed = np.stack([low + high, low - high], axis=2).reshape(rows.shape)
        stride *= 2
    return mixed

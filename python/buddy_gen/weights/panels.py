"""The panel layout of linear layers' weights: R rows interleaved, so that a thread reads one contiguous stream.

`w[n, k] = packed[n // R, k, n % R]`; a panel holds R rows, rows past N are zero (docs/architecture.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["fill_panels", "pack_panels", "panel_shape", "unpack_panels"]


def panel_shape(shape: tuple[int, int], panel: int) -> tuple[int, int, int]:
    """The packed shape of an [N, K] weight: (ceil(N / R), K, R)."""
    rows, columns = shape
    return -(-rows // panel), columns, panel


def pack_panels(weight: npt.NDArray[Any], panel: int) -> npt.NDArray[Any]:
    """[N, K] -> [P, K, R], same type, C-contiguous."""
    rows, columns = weight.shape
    packed = np.zeros(panel_shape((rows, columns), panel), weight.dtype)
    fill_panels(packed, 0, weight)
    return packed


def unpack_panels(packed: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """[P, K, R] -> [rows, K]: the inverse of `pack_panels`."""
    panels, columns, panel = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 2, 1).reshape(panels * panel, columns)[:rows])


def fill_panels(packed: npt.NDArray[Any], first: int, weight: npt.NDArray[Any]) -> None:
    """Writes the rows of `weight` into the panels from `first` on."""
    panel = packed.shape[2]
    whole = weight.shape[0] // panel
    body = weight[: whole * panel].reshape(whole, panel, weight.shape[1])
    packed[first : first + whole] = body.transpose(0, 2, 1)
    rest = weight[whole * panel :]
    if len(rest):
        packed[first + whole, :, : len(rest)] = rest.T

"""Rounding a weight column by column, with each column's error made up for by those that are still to be rounded.

The outputs of a linear layer are X Wᵀ. With H = Xᵀ X over the tokens of a text, rounding W to V changes them by
tr((W - V) H (W - V)ᵀ) in all. Once column k has the error e, the columns F behind it lose least when they move by
e H_kF (H_FF)⁻¹. These factors are the rows of -U / diag(U), where H⁻¹ = Uᵀ U and U is upper triangular (E. Frantar et
al., GPTQ, 2022). Rows of W don't know of each other. Scale and minimum of a group of columns are fitted when its first
column's turn has come, to what the columns have become by then.
"""

from __future__ import annotations

import numpy as np
import torch

from buddy_gen.calibration.workers import Workers
from buddy_gen.weights.blocks import Bytes, Halves
from buddy_gen.weights.formats import Format
from buddy_gen.weights.quantizers import fit_line, nearest_nibbles
from buddy_gen.weights.source import FloatArray

__all__ = ["DAMPING", "movements", "round_columns"]

DAMPING = 0.01
"""The share of H's mean diagonal that is added to its diagonal: as if each input had some noise of its own."""

_BLOCK = 128  # columns whose errors reach the columns behind them in one product
_SOLVED = 256  # columns of U that are found at a time


def movements(hessian: torch.Tensor, workers: Workers) -> torch.Tensor:
    """How much each later column moves for an error of 1: [K, K] f32, upper triangular with -1 on the diagonal.

    An input that was never anything but zero (a row and a column of zeros in H) moves nothing and is moved by nothing.

    Args:
        hessian: H, [K, K]; finite.
        workers: Who solves.
    """
    size = len(hessian)
    exact = hessian.flip(0, 1).double()
    mean = float(exact.diagonal().mean())
    exact.diagonal().add_(DAMPING * mean if mean > 0 else 1.0)
    # H = A Aᵀ with A upper triangular: Cholesky's factor of H with its rows and columns in reverse. Then U = A⁻¹.
    upper = torch.linalg.cholesky(exact).flip(0, 1)
    del exact
    moves = torch.zeros(size, size)

    def solve(start: int) -> None:
        stop = min(start + _SOLVED, size)
        units = torch.zeros(stop, stop - start, dtype=torch.float64)
        units[start:].fill_diagonal_(1.0)
        solved = torch.linalg.solve_triangular(upper[:stop, :stop], units, upper=True)
        moves[:stop, start:stop] = solved.mul_(-upper.diagonal()[:stop, None])

    workers.map(solve, range(0, size, _SOLVED))
    return moves


@np.errstate(over="ignore", invalid="ignore")  # a scale past half precision is refused by `nibble_fields`
def round_columns(weight: FloatArray, moves: torch.Tensor, form: Format) -> tuple[Bytes, Halves, Halves]:
    """Rounds rows to 4 bits.

    Args:
        weight: [N, K].
        moves: [K, K], see `movements`.
        form: The format: how many columns share a scale and a minimum.

    Returns:
        The integers [N, K], and the scales and minima [N, G] of the groups, of which the last may be short.
    """
    count, columns = weight.shape
    rest = torch.from_numpy(np.array(weight, np.float32))
    integers = np.empty((count, columns), np.uint8)
    scales, minima = (np.empty((count, form.groups(columns)), np.float16) for _ in range(2))
    d = m = np.empty(0, np.float32)
    for start in range(0, columns, _BLOCK):
        stop = min(start + _BLOCK, columns)
        block = rest[:, start:stop].t().contiguous()  # a column's numbers stand side by side
        errors = torch.empty_like(block)
        for place, k in enumerate(range(start, stop)):
            if k % form.group == 0:
                group = k // form.group
                _, scales[:, group], minima[:, group] = fit_line(block[place : place + form.group].t().numpy().copy())
                d, m = scales[:, group].astype(np.float32), minima[:, group].astype(np.float32)
            column = block[place].numpy()
            q = nearest_nibbles(column[:, None], d, m)[:, 0]
            integers[:, k] = q
            errors[place] = torch.from_numpy(column - (q * d + m))
            block[place + 1 :].addr_(moves[k, k + 1 : stop], errors[place])
        rest[:, stop:].addmm_(errors.t(), moves[start:stop, stop:])
    return integers, scales, minima

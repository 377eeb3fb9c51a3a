"""Perplexity, Kullback-Leibler divergence and top-1 agreement, from rows of logits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError

__all__ = ["Comparison", "Perplexity", "log_softmax"]

Rows = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


def log_softmax(logits: Rows) -> Doubles:
    """Logarithms of the probabilities, row by row, in double precision."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


class Perplexity:
    """exp of the mean negative logarithm of the probability that the model gives to the text's tokens."""

    def __init__(self) -> None:
        self._losses: list[float] = []

    def add(self, log_probabilities: Doubles, tokens: npt.NDArray[np.int64]) -> None:
        """Rows that predict `tokens`.

        Raises:
            BuddyError: Some probability is no number.
        """
        losses = -log_probabilities[np.arange(len(tokens)), tokens]
        if not np.isfinite(losses).all():
            raise BuddyError("the model gives logits that are no numbers (NaN or infinity); the build is broken")
        self._losses += losses.tolist()

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._losses)

    @property
    def nats(self) -> float:
        """Mean loss of a token."""
        return math.fsum(self._losses) / len(self._losses)

    def as_json(self) -> dict[str, float]:
        """Perplexity, the loss, and the standard error of the loss."""
        variance = math.fsum((loss - self.nats) ** 2 for loss in self._losses) / max(1, self.count - 1)
        return {
            "perplexity": math.exp(self.nats),
            "nats_per_token": self.nats,
            "standard_error_nats": math.sqrt(variance / self.count),
        }


class Comparison:
    """How far a model's distributions are from a reference's."""

    def __init__(self) -> None:
        self._divergences: list[float] = []
        self._agreeing = 0

    def add(self, reference: Doubles, own: Doubles) -> None:
        """Logarithms of both models' probabilities for the same positions."""
        terms = np.exp(reference)
        terms *= reference - own
        self._divergences += np.maximum(terms.sum(axis=1), 0).tolist()
        self._agreeing += int((reference.argmax(axis=1) == own.argmax(axis=1)).sum())

    def as_json(self) -> dict[str, float]:
        """Mean, median, 99th percentile and maximum of the divergence in nats; share of equal likeliest tokens."""
        values = np.array(self._divergences)
        return {
            "kl_mean": math.fsum(self._divergences) / len(values),
            "kl_median": float(np.median(values)),
            "kl_99": float(np.quantile(values, 0.99)),
            "kl_max": float(values.max()),
            "top1_agreement": self._agreeing / len(values),
        }

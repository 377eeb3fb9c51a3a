"""What every checkpoint reader offers: float32 tensors by Hugging Face name, one at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError

__all__ = ["FloatArray", "SelectedSource", "WeightSource", "equal_tensors"]

FloatArray = npt.NDArray[np.float32]

_COMPARE_ELEMENTS = 1 << 22  # elements compared at a time: 16 MiB a side


class WeightSource(ABC):
    """The tensors of one checkpoint, whatever its format.

    Names are Hugging Face parameter names (`model.layers.0.self_attn.q_proj.weight`), shapes and rows are in the
    Hugging Face layout ([out, in] for a linear layer). Nothing is kept in memory between two reads.
    """

    @abstractmethod
    def names(self) -> Sequence[str]:
        """All tensor names, in file order."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape. Raises BuddyError for a name that the checkpoint lacks."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """The stored type in lower case: f32, f16, bf16, q4_1, ..."""

    @abstractmethod
    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) of the first dimension as C-contiguous float32; reads no other rows from disk."""

    def read_blocks(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows [start, stop) of a quantised tensor as their bytes in the file: [rows, bytes of a row].

        Raises BuddyError where the checkpoint has no quantised blocks.
        """
        raise BuddyError(f"{self.files()[0]} is no GGUF file, so that {name} has no quantised blocks.")

    @abstractmethod
    def files(self) -> list[Path]:
        """Every file that the tensors depend on (index files included)."""

    def read(self, name: str) -> FloatArray:
        """The whole tensor as C-contiguous float32, at less than twice its size in memory."""
        shape = self.shape(name)
        return self.read_rows(name, 0, shape[0] if shape else 1).reshape(shape)


class SelectedSource(WeightSource):
    """A choice of another source's tensors, under other names where needed.

    It is how a description presents exactly the parameters of its model: a redundant head left out, an embedding
    that was exported under the head's name put back.
    """

    def __init__(self, base: WeightSource, stored_names: Mapping[str, str]) -> None:
        """`stored_names` maps each name offered to the name in `base`."""
        self._base = base
        self._stored = dict(stored_names)

    def names(self) -> Sequence[str]:
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._base.shape(self._stored.get(name, name))

    def dtype(self, name: str) -> str:
        return self._base.dtype(self._stored.get(name, name))

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        return self._base.read_rows(self._stored.get(name, name), start, stop)

    def read_blocks(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        return self._base.read_blocks(self._stored.get(name, name), start, stop)

    def files(self) -> list[Path]:
        return self._base.files()


def equal_tensors(source: WeightSource, first: str, second: str) -> bool:
    """Whether two tensors hold the same float32 bits; reads in blocks and stops at the first difference."""
    shape = source.shape(first)
    if shape != source.shape(second):
        return False
    rows = shape[0] if shape else 1
    step = max(1, _COMPARE_ELEMENTS // max(1, int(np.prod(shape[1:], dtype=np.int64))))
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        one = source.read_rows(first, start, stop)
        other = source.read_rows(second, start, stop)
        if not np.array_equal(one.view(np.uint32), other.view(np.uint32)):
            return False
    return True

"""Rounded weights between calibration and packing: files in a folder that is gone afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType

import numpy as np

from buddy_gen.errors import BuddyError
from buddy_gen.weights.blocks import Fields

__all__ = ["RoundedWeights"]

_PARTS = ("integers", "scales", "minima")


class RoundedWeights:
    """The fields of quantised weights by name, on disk."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made before the first weight is written."""
        self._folder = folder
        self._files: dict[str, Path] = {}

    def __enter__(self) -> RoundedWeights:
        shutil.rmtree(self._folder, ignore_errors=True)  # what a killed run has left
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._files.clear()

    def write(self, name: str, fields: Fields) -> None:
        """Keeps a weight.

        Raises:
            BuddyError: The folder can't be written.
        """
        place = self._folder / str(len(self._files))
        try:
            place.mkdir(parents=True)
            for part in _PARTS:
                np.save(place / f"{part}.npy", getattr(fields, part))
        except OSError as error:
            raise BuddyError(f"cannot write {place}: {error.strerror or error}; choose another folder") from error
        self._files[name] = place

    def rows(self, name: str, start: int, stop: int) -> Fields | None:
        """Rows [start, stop) of a weight; None if it was not rounded here."""
        place = self._files.get(name)
        if place is None:
            return None
        return Fields(*(np.array(np.load(place / f"{part}.npy", mmap_mode="r")[start:stop]) for part in _PARTS))

"""What a long step tells while it runs: what it does, how far it is, which file it wrote, how large, how long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNITS = ("B", "KB", "MB", "GB")


def readable_size(size: float) -> str:
    """A size in bytes as a person reads it."""
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


class Progress:
    """Lines on standard output (or on standard error, where that is taken by a report); none when quiet."""

    def __init__(self, quiet: bool = False, to_stderr: bool = False) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._fifth = 0

    def say(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            print(f"-- buddy: {text}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """One line on standard error, quiet or not: something that the user asked for will be missing."""
        print(f"buddy: warning: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Says what begins, and how long it took when it has ended."""
        self.say(f"{what} ...")
        self._fifth = 0
        started = time.monotonic()
        yield
        self.say(f"{what}: {time.monotonic() - started:.1f} s")

    def bytes(self, done: int, total: int) -> None:
        """How far a step over `total` bytes is; a line for each fifth."""
        self._fifths(done, total, f"{readable_size(done)} of {readable_size(total)}")

    def layers(self, done: int, total: int) -> None:
        """How far a step over `total` layers is; a line for each fifth."""
        self._fifths(done, total, f"{done} of {total} layers")

    def _fifths(self, done: int, total: int, told: str) -> None:
        fifth = done * 5 // max(total, 1)
        if fifth > self._fifth:
            self._fifth = fifth
            self.say(f"  {fifth * 20}% ({told})")

    def wrote(self, path: Path) -> None:
        """Names a file that has been written."""
        self.say(f"  wrote {path} ({readable_size(path.stat().st_size)})")

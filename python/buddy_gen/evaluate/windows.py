"""A text's tokens in windows that fit a context, each token predicted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Window", "count_predictions", "split_windows"]


@dataclass(frozen=True)
class Window:
    """What a model sees at once.

    Attributes:
        ids: The tokens, a prefix (BOS) included.
        first: Index in `ids` of the first token whose prediction counts; the ones before are context.
    """

    ids: tuple[int, ...]
    first: int


def split_windows(ids: Sequence[int], context: int, stride: int, prefix: Sequence[int] = ()) -> Iterator[Window]:
    """Windows of at most `context` tokens; each begins `stride` tokens after the one before.

    A token counts in the first window that predicts it. With a stride of the whole window the windows are disjoint, and
    the first token of each counts only behind a prefix, as nothing else stands before it.

    Args:
        ids: The text.
        context: Tokens in a window, the prefix included.
        stride: At least 1.
        prefix: What stands before every window.
    """
    room = context - len(prefix)
    done = 0 if prefix else 1  # tokens of the text that need no prediction any more
    for start in range(0, len(ids), stride):
        part = ids[start : start + room]
        lead = len(prefix) or 1
        first = max(done - start + len(prefix), lead)
        if first < len(prefix) + len(part):
            yield Window((*prefix, *part), first)
        done = max(done, start + len(part))
        if start + room >= len(ids):
            return


def count_predictions(windows: Sequence[Window]) -> int:
    """How many tokens count in all windows together."""
    return sum(len(window.ids) - window.first for window in windows)

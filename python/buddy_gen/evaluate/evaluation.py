"""A text's perplexity under a build, and how far the build is from a reference."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from buddy_gen.errors import BuddyError
from buddy_gen.evaluate.measures import Comparison, Perplexity, log_softmax
from buddy_gen.evaluate.predictors import Predictor
from buddy_gen.evaluate.windows import Window, count_predictions, split_windows

__all__ = ["Progress", "TextTokens", "evaluate", "read_tokens"]

Progress = Callable[[int, int], None]
"""Called with the tokens done so far and in all."""

_BYTES_PER_TOKEN = 64  # read of a text for each token wanted: more than any text needs
_ROWS = 32  # logits compared at a time: memory does not grow with the window


@dataclass(frozen=True)
class TextTokens:
    """The tokens of a text, what the model wants before any prompt, and a hash of the bytes they came from."""

    ids: list[int]
    prefix: list[int]
    sha256: str


def read_tokens(path: Path, vocabulary: Path, limit: int) -> TextTokens:
    """The first `limit` tokens of a text file (0: all) by a build's vocabulary.

    Raises:
        BuddyError: A file can't be read, or is no UTF-8 text.
    """
    from buddy_gen.tokenizer import load

    wanted = limit * _BYTES_PER_TOKEN if limit else -1
    try:
        with path.open("rb") as file:
            raw = file.read(wanted)
            is_cut = bool(file.read(1))
    except OSError as error:
        raise BuddyError(f"the text {path} cannot be read ({error.strerror or error})") from error
    if not vocabulary.is_file():
        raise BuddyError(f"{vocabulary.parent} has no vocabulary; a model without a tokenizer can't read a text")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(raw) - 3:
            raise BuddyError(f"the text {path} is no UTF-8 text (byte {error.start})") from None
        text = raw[: error.start].decode("utf-8")
    tokenizer = load(vocabulary)
    ids = tokenizer.encode(text)
    return TextTokens(
        ids[:limit] if limit else ids, tokenizer.encode("", add_special=True)[:1], hashlib.sha256(raw).hexdigest()
    )


def evaluate(
    model: Predictor,
    tokens: TextTokens,
    context: int,
    stride: int,
    reference: Predictor | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measures a model on a text.

    Args:
        model: The build.
        tokens: The text.
        context: Tokens in a window.
        stride: Tokens from the beginning of a window to that of the next.
        reference: Whose distributions are taken as right.
        progress: Told after each window.

    Returns:
        A report of plain values: see docs/quantization.md.

    Raises:
        BuddyError: The text has too few tokens, or the models have different vocabularies.
    """
    windows = list(split_windows(tokens.ids, context, stride, tokens.prefix))
    total = count_predictions(windows)
    if total == 0:
        raise BuddyError(f"the text has {len(tokens.ids)} tokens; at least 2 are needed")
    own, other, comparison = Perplexity(), Perplexity(), Comparison()
    seconds = 0.0
    for window in windows:
        started = time.monotonic()
        rows = model.logits(window.ids)
        seconds += time.monotonic() - started
        expected = None if reference is None else reference.logits(window.ids)
        _add(window, rows, expected, own, other, comparison)
        if progress is not None:
            progress(own.count, total)
    report: dict[str, Any] = {
        "tokens": own.count,
        "windows": len(windows),
        "context": context,
        "stride": stride,
        "text_sha256": tokens.sha256,
        "method": model.method,
        "seconds": round(seconds, 3),
        **own.as_json(),
    }
    if reference is not None:
        theirs = other.as_json()
        report["reference"] = {"method": reference.method, **theirs}
        report["perplexity_ratio"] = report["perplexity"] / theirs["perplexity"]
        report |= comparison.as_json()
    return report


def _add(window: Window, rows: Any, expected: Any, own: Perplexity, other: Perplexity, comparison: Comparison) -> None:
    """Adds a window's predictions, some rows at a time."""
    if expected is not None and rows.shape[1] != expected.shape[1]:
        raise BuddyError(
            f"the build has {rows.shape[1]} tokens in its vocabulary and the reference {expected.shape[1]}; "
            "they are different models"
        )
    ids = np.array(window.ids, np.int64)
    _check_ids(window.ids, rows.shape[1])
    for start in range(window.first, len(ids), _ROWS):
        stop = min(start + _ROWS, len(ids))
        mine = log_softmax(rows[start - 1 : stop - 1])
        own.add(mine, ids[start:stop])
        if expected is not None:
            theirs = log_softmax(expected[start - 1 : stop - 1])
            other.add(theirs, ids[start:stop])
            comparison.add(theirs, mine)


def _check_ids(ids: Sequence[int], vocabulary: int) -> None:
    if max(ids) >= vocabulary:
        raise BuddyError(f"the text has the token {max(ids)}, but the model knows {vocabulary} tokens")

"""The text of a calibration: a choice first, and its tokens when the model is known."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buddy_gen.choices import CALIBRATION_TOKENS
from buddy_gen.errors import BuddyError
from buddy_gen.generate.manifest import content_hash

if TYPE_CHECKING:
    from buddy_gen.generate.vocabulary import Vocabulary

__all__ = ["DTYPES", "TextChoice", "read_windows"]

DTYPES = ("w4a32", "w4a8")
"""The dtypes whose weights can be calibrated."""

_WINDOW = 512
_NO_HASH = "0" * 64


@dataclass(frozen=True)
class TextChoice:
    """A text that weights are calibrated on.

    Attributes:
        path: The file.
        sha256: Of its content.
        tokens: How many of its first tokens are read.
    """

    path: Path
    sha256: str
    tokens: int

    @staticmethod
    def of(path: str | None, tokens: int | None, dtype: str) -> TextChoice | None:
        """A choice as a user gives it, with its defaults filled in; None for none.

        Raises:
            BuddyError: The text can't be read, the number makes no sense, or the dtype takes no calibration.
        """
        if not path:
            if tokens is not None:
                raise BuddyError("a number of calibration tokens needs a text, --calibrate TEXT")
            return None
        if dtype not in DTYPES:
            raise BuddyError(f"a calibration is for weights of 4 bits ({', '.join(DTYPES)}), not for {dtype}")
        count = CALIBRATION_TOKENS if tokens is None else tokens
        if count < 1:
            raise BuddyError(f"{count} calibration tokens were asked for; at least 1 is needed")
        file = Path(path).expanduser().absolute()
        try:
            return TextChoice(file, content_hash(file), count)
        except OSError as error:
            raise BuddyError(f"the calibration text {file} cannot be read ({error.strerror or error})") from None

    @property
    def key(self) -> dict[str, Any]:
        """What decides about the weights, and the name that people know the text by."""
        return {"file": self.path.name, "sha256": self.sha256, "tokens": self.tokens}


def read_windows(choice: TextChoice, vocabulary: Vocabulary, context: int) -> list[list[int]]:
    """The text's tokens in windows of equal length, each behind the BOS if the model wants one.

    Args:
        choice: The text; its number of tokens is rounded up to whole windows.
        vocabulary: The model's.
        context: The longest window that the model takes.

    Raises:
        BuddyError: The text can't be read or is too short.
    """
    from buddy_gen.evaluate.evaluation import read_tokens

    length = min(_WINDOW, context)
    # One window more than needed is read at most: the prefix is known only then.
    with tempfile.TemporaryDirectory(prefix="buddy-calibration-") as folder:
        file = Path(folder) / "llama.vocab"
        vocabulary.write(file, abi=_NO_HASH, model_id=_NO_HASH)
        found = read_tokens(choice.path, file, choice.tokens + length)
    step = length - len(found.prefix)
    count = -(-choice.tokens // step)
    if len(found.ids) < count * step:
        raise BuddyError(
            f"the calibration text {choice.path} has {len(found.ids)} tokens, and {count * step} are needed; give a "
            "longer text, or fewer tokens"
        )
    return [found.prefix + found.ids[place * step : (place + 1) * step] for place in range(count)]

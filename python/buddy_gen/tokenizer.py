"""The tokenizer of compiled programs, for Python.

    tokenizer = buddy_gen.tokenizer.load("tokenizer.json")
    ids = tokenizer.encode("Hello", add_special=True)
    text = tokenizer.decode(ids, skip_special=True)

It is the C++ container that the programs use, so it gives what they give.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers import (
    TokenizerSpec,
    read_gguf_tokenizer,
    read_sentencepiece_model,
    read_tekken,
    read_tokenizer_json,
    write_vocab,
)

__all__ = ["StreamDecoder", "Tokenizer", "load"]

_NO_HASH = "0" * 64


class StreamDecoder:
    """Decodes one token at a time and never gives half a character: all that is returned, joined, is decode's text."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def push(self, token: int) -> str:
        """The text that is complete now; empty while a character is under way."""
        return str(self._native.push(_checked([token])[0]))

    def finish(self) -> str:
        """The rest, once the stream has ended. The decoder can then be used for another stream."""
        return str(self._native.finish())


class Tokenizer:
    """A loaded tokenizer; its methods may be called from several threads at once."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """The token ids of `text`.

        `add_special` adds BOS and EOS as the model's own settings ask for. Special tokens that are spelled in the text
        are parsed only if `parse_special`. Raises BuddyError for a text of 2 GiB or more.
        """
        try:
            ids: list[int] = self._native.encode(text.encode("utf-8", "surrogatepass"), add_special, parse_special)
        except _native_module().TextError as error:
            raise BuddyError(str(error)) from None
        return ids

    def encode_segments(self, segments: Iterable[tuple[str, bool]], *, add_special: bool = False) -> list[int]:
        """The ids of the segments' joined text; each comes with whether special tokens are parsed in it."""
        encoded = [(text.encode("utf-8", "surrogatepass"), parse) for text, parse in segments]
        try:
            ids: list[int] = self._native.encode_segments(encoded, add_special)
        except _native_module().TextError as error:
            raise BuddyError(str(error)) from None
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; ids outside the vocabulary have none. Raises BuddyError for what is no id at all."""
        try:
            return str(self._native.decode(ids, skip_special))
        except TypeError:
            return str(self._native.decode(_checked(ids), skip_special))

    def stream_decoder(self, *, skip_special: bool = False) -> StreamDecoder:
        """A decoder that is given one token at a time."""
        return StreamDecoder(self._native.decoder(skip_special))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token decodes to; empty for an id outside the vocabulary."""
        return bytes(self._native.token_bytes(_checked([token])[0]))

    def is_special(self, token: int) -> bool:
        """Whether `skip_special` leaves the token out."""
        return bool(self._native.is_special(_checked([token])[0]))

    @property
    def vocab_size(self) -> int:
        return int(self._native.vocab_size)

    @property
    def bos_id(self) -> int | None:
        token: int | None = self._native.bos_id
        return token

    @property
    def eos_id(self) -> int | None:
        token: int | None = self._native.eos_id
        return token

    @property
    def end_ids(self) -> list[int]:
        """Every id that ends an answer."""
        ids: list[int] = self._native.end_ids
        return ids


def load(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer in a NAME.vocab, a GGUF, a tokenizer.json, a tekken.json or a SentencePiece tokenizer.model.

    Which of them it is, the content says. Beside a tokenizer.json or tokenizer.model, a tokenizer_config.json is read
    too: add_bos_token and add_eos_token stand there. Raises BuddyError when the file is damaged, and
    UnsupportedTokenizerError, a kind of it, when it asks for what can't be done exactly.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            head = opened.read(8)
    except OSError as error:
        raise BuddyError(f"The tokenizer {file} cannot be read: {error.strerror}.") from None
    if head == b"BUDDYVOC":
        return _load_vocab(file)
    spec = _read_spec(file, head)
    with tempfile.TemporaryDirectory(prefix="buddy-tokenizer-") as folder:
        vocab = Path(folder, f"{file.stem}.vocab")
        write_vocab(vocab, spec, abi=_NO_HASH, model_id=_NO_HASH)
        return _load_vocab(vocab)


def _load_vocab(vocab: Path) -> Tokenizer:
    native = _native_module()
    try:
        return Tokenizer(native.Text.load(str(vocab)))
    except native.TextError as error:
        raise BuddyError(str(error)) from None


def _read_spec(file: Path, head: bytes) -> TokenizerSpec:
    if head.startswith(b"GGUF"):
        return read_gguf_tokenizer(file)
    if not head:
        raise BuddyError(f"The tokenizer {file} is empty: fetch it again.")
    text = head.removeprefix(b"\xef\xbb\xbf")  # the JSON readers refuse this mark by its name
    if text.lstrip(b" \t\r").startswith(b"["):  # not b"\n": SentencePiece's models begin with that byte
        raise BuddyError(f"{file} is no tokenizer: it holds a JSON list, where a tokenizer.json holds an object.")
    if not text.lstrip().startswith(b"{"):
        return read_sentencepiece_model(file, settings=_settings(file))
    if _is_tekken(file):
        return read_tekken(file)
    return read_tokenizer_json(file, settings=_settings(file))


def _is_tekken(file: Path) -> bool:
    with file.open("rb") as opened:
        beginning = opened.read(4096)
    return b'"default_num_special_tokens"' in beginning or "tekken" in file.name


def _settings(file: Path) -> dict[str, Any]:
    beside = file.with_name("tokenizer_config.json")
    if not beside.is_file():
        return {}
    try:
        settings = json.loads(beside.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BuddyError(f"{beside} cannot be read: {error}.") from None
    if not isinstance(settings, dict):
        raise BuddyError(f"{beside} holds no object.")
    return settings


def _checked(ids: Iterable[int]) -> list[int]:
    checked = list(ids)
    for token in checked:
        if not isinstance(token, int) or not -(2**31) <= token < 2**31:
            raise BuddyError(f"{token!r} is not a token id.")
    return checked


@cache
def _native_module() -> ModuleType:
    """buddy_gen._text, from the installed package or, in a source tree, from the build in BUDDY_BUILD_DIR."""
    try:
        return importlib.import_module("buddy_gen._text")
    except ModuleNotFoundError:
        pass
    for built in sorted(Path(os.environ.get("BUDDY_BUILD_DIR", "/nonexistent"), "python").glob("_text*.so")):
        spec = importlib.util.spec_from_file_location("buddy_gen._text", built)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules["buddy_gen._text"] = module
        return module
    raise BuddyError("This buddy-gen was installed without its native tokenizer, buddy_gen._text: install the wheel.")

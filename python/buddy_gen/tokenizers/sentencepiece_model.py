"""SentencePiece's tokenizer.model, and the same inside a GGUF."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.spec import (
    AddedToken,
    DecodeStyle,
    SentencePieceRules,
    TokenizerKind,
    TokenizerSpec,
    TokenType,
    UnsupportedTokenizerError,
)

__all__ = ["PieceModel", "check_charsmap", "read_sentencepiece_model", "spec_of_pieces"]

_VISIBLE_SPACE = "\u2581"
_KINDS = {1: TokenizerKind.SENTENCEPIECE_UNIGRAM, 2: TokenizerKind.SENTENCEPIECE_BPE}
_OTHER_KINDS = {3: "word", 4: "char"}
_UNKNOWN_TEXT = " \u2047 "
_MERGEABLE = (TokenType.NORMAL, TokenType.UNUSED)
_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_NAMES = {
    "unk_token": (45, b"<unk>"),
    "bos_token": (46, b"<s>"),
    "eos_token": (47, b"</s>"),
    "pad_token": (48, b"<pad>"),
}
_FOUND = (*_MERGEABLE, TokenType.USER_DEFINED)


@dataclass(frozen=True)
class PieceModel:
    """A SentencePiece model: its pieces with one score and type each, and its settings."""

    kind: TokenizerKind
    pieces: Sequence[str]
    scores: Sequence[float]
    types: Sequence[TokenType]
    byte_fallback: bool
    rules: SentencePieceRules
    unknown_text: str = _UNKNOWN_TEXT


def read_sentencepiece_model(
    path: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    end_ids: Sequence[int] = (),
    bos_id: int | None = None,
) -> TokenizerSpec:
    """The tokenizer in a tokenizer.model.

    The file does not say whether BOS and EOS are added: as in the models that ship one, BOS is (where there is one) and
    EOS is not, unless `settings`, the content of tokenizer_config.json, says otherwise. Raises BuddyError when the file
    is damaged, UnsupportedTokenizerError when it asks for what is not supported.
    """
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BuddyError(f"{source} cannot be read: {error.strerror}.") from None
    model, names = _parse(content, source)
    settings = settings or {}
    named = {name: piece for name, piece in names.items() if piece in model.pieces}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str) and value in model.pieces:
            named[name] = value
    ids = {name: model.pieces.index(piece) for name, piece in named.items()}
    bos = ids.get("bos_token", bos_id)
    eos = ids.get("eos_token")
    return spec_of_pieces(
        model,
        source,
        bos_id=bos,
        eos_id=eos,
        add_bos=settings.get("add_bos_token", True) is not False and bos is not None,
        add_eos=settings.get("add_eos_token", False) is True and eos is not None,
        end_ids=tuple(dict.fromkeys(end_ids)) or ((eos,) if eos is not None else ()),
        special_tokens=named,
    )


def spec_of_pieces(model: PieceModel, source: str, **settings: Any) -> TokenizerSpec:
    """The TokenizerSpec of a SentencePiece model; `settings` are its fields about BOS, EOS and ends."""
    _check(model, source)
    merges: list[tuple[int, int, int]] = []
    ranks: list[int] = []
    if model.kind == TokenizerKind.SENTENCEPIECE_BPE:
        for rank, merge in _merges(model, source):
            merges.append(merge)
            ranks.append(rank)
    unknown = model.types.index(TokenType.UNKNOWN)
    return TokenizerSpec(
        kind=model.kind,
        tokens=[piece.encode("utf-8", "surrogatepass") for piece in model.pieces],
        texts=[_text(model, index, source) for index in range(len(model.pieces))],
        types=model.types,
        in_model=[kind in _FOUND or (kind == TokenType.BYTE and model.byte_fallback) for kind in model.types],
        merges=merges,
        merge_ranks=ranks,
        scores=model.scores if model.kind == TokenizerKind.SENTENCEPIECE_UNIGRAM else (),
        added=[
            AddedToken(index, model.pieces[index], special=True)
            for index, kind in enumerate(model.types)
            if kind in _SPECIAL
        ],
        steps=(),
        rules=model.rules,
        unknown_id=unknown,
        byte_fallback=model.byte_fallback,
        decode_style=DecodeStyle.SENTENCEPIECE,
        decode_argument=2 if model.rules.remove_extra_spaces else int(model.rules.add_dummy_prefix),
        **settings,
    )


def _check(model: PieceModel, source: str) -> None:
    seen: dict[str, int] = {}
    for index, piece in enumerate(model.pieces):
        if not piece or "\0" in piece:
            raise BuddyError(f"{source}: the token {index} is {piece!r}, which can never stand in a text.")
        if seen.setdefault(piece, index) != index:
            raise BuddyError(f"{source}: the token {piece!r} stands there twice, as {seen[piece]} and {index}.")
    unknown = [index for index, kind in enumerate(model.types) if kind == TokenType.UNKNOWN]
    if len(unknown) != 1:
        raise BuddyError(f"{source}: {len(unknown)} tokens are the unknown token, not one.")
    found = {_byte_of(model, index, source) for index, kind in enumerate(model.types) if kind == TokenType.BYTE}
    if model.byte_fallback and len(found) != 256:
        raise BuddyError(f"{source}: of its 256 byte tokens <0x00> to <0xFF> {256 - len(found)} are missing.")
    for index, kind in enumerate(model.types):
        if kind in _SPECIAL and len(model.pieces[index]) == 1:
            raise UnsupportedTokenizerError(
                f"{source}: the control token {model.pieces[index]!r}, a single character, is not supported."
            )


def _byte_of(model: PieceModel, index: int, source: str) -> int:
    piece = model.pieces[index]
    digits = piece[3:-1]
    if not (piece.startswith("<0x") and piece.endswith(">") and len(digits) == 2 and digits.upper() == digits):
        raise BuddyError(f"{source}: the byte token {piece!r} is not spelled like <0x0A>.")
    try:
        return bytes.fromhex(digits)[0]
    except (ValueError, IndexError):
        raise BuddyError(f"{source}: the byte token {piece!r} is not spelled like <0x0A>.") from None


def _text(model: PieceModel, index: int, source: str) -> bytes:
    kind, piece = model.types[index], model.pieces[index]
    if kind == TokenType.BYTE:
        return bytes([_byte_of(model, index, source)])
    if kind == TokenType.UNKNOWN:
        return model.unknown_text.encode()
    if kind != TokenType.CONTROL:
        piece = piece.replace(_VISIBLE_SPACE, " ")
    return piece.encode("utf-8", "surrogatepass")


def _merges(model: PieceModel, source: str) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Every pair of pieces that make a piece, by the result's score: SentencePiece merges what is a piece."""
    ids = {piece: index for index, piece in enumerate(model.pieces) if model.types[index] in _MERGEABLE}
    found = {piece for index, piece in enumerate(model.pieces) if model.types[index] in _FOUND}
    order = sorted(ids.values(), key=lambda index: -model.scores[index])
    rank = -1
    last: float | None = None
    for index in order:
        if model.scores[index] != last:
            rank, last = rank + 1, model.scores[index]
        piece = model.pieces[index]
        if len(piece) > 1 and not all(character in found for character in piece):
            missing = next(character for character in piece if character not in found)
            raise UnsupportedTokenizerError(
                f"{source}: the piece {piece!r} holds the character {missing!r}, which is no piece itself; "
                "that is not supported."
            )
        for cut in range(1, len(piece)):
            left, right = ids.get(piece[:cut]), ids.get(piece[cut:])
            if left is not None and right is not None:
                yield rank, (left, right, index)


# --- The file: a protocol buffer -------------------------------------------------------------------------------------


def _fields(content: bytes, source: str) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an integer, or the bytes of a float, string or message."""
    damaged = BuddyError(f"{source} is not a SentencePiece model, or it is damaged.")

    def varint(at: int) -> tuple[int, int]:
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(content):
                raise damaged
            value |= (content[at] & 0x7F) << shift
            at += 1
            if content[at - 1] < 0x80:
                return value, at
        raise damaged

    at = 0
    while at < len(content):
        key, at = varint(at)
        if key & 7 == 0:
            number, at = varint(at)
            yield key >> 3, number
            continue
        if key & 7 == 2:
            size, at = varint(at)
        elif key & 7 in (1, 5):
            size = 8 if key & 7 == 1 else 4
        else:
            raise damaged
        if at + size > len(content):
            raise damaged
        yield key >> 3, content[at : at + size]
        at += size


def _message(content: int | bytes, source: str) -> dict[int, int | bytes]:
    if not isinstance(content, bytes):
        raise BuddyError(f"{source} is not a SentencePiece model, or it is damaged.")
    return dict(_fields(content, source))


def _string(value: int | bytes, source: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise BuddyError(f"{source}: the string {value!r} is not UTF-8.") from None


def _parse(content: bytes, source: str) -> tuple[PieceModel, dict[str, str]]:
    """The model, and the spellings of BOS, EOS, unknown and padding by their names in a chat template."""
    pieces: list[str] = []
    scores: list[float] = []
    types: list[TokenType] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(content, source):
        if number == 1:
            piece = _message(value, source)
            pieces.append(_string(piece.get(1, b""), source))
            score = piece.get(2, b"\0\0\0\0")
            scores.append(struct.unpack("<f", score)[0] if isinstance(score, bytes) and len(score) == 4 else 0.0)
            types.append(_type(piece.get(3, 1), pieces[-1], source))
        elif number == 2:
            trainer |= _message(value, source)
        elif number == 3:
            normalizer |= _message(value, source)
        elif number == 5 and _message(value, source).get(2):
            raise UnsupportedTokenizerError(f"{source}: a SentencePiece model with a denormaliser is not supported.")
    if not pieces:
        raise BuddyError(f"{source} is not a SentencePiece model, or it is damaged.")
    kind = trainer.get(3, 1)
    if kind not in _KINDS:
        name = _OTHER_KINDS.get(kind if isinstance(kind, int) else 0, repr(kind))
        raise UnsupportedTokenizerError(f"{source}: SentencePiece models of the kind {name} are not supported.")
    charsmap = normalizer.get(2, b"")
    model = PieceModel(
        kind=_KINDS[int(kind)],
        pieces=pieces,
        scores=scores,
        types=types,
        byte_fallback=bool(trainer.get(35, 0)),
        rules=SentencePieceRules(
            add_dummy_prefix=bool(normalizer.get(3, 1)),
            remove_extra_spaces=bool(normalizer.get(4, 1)),
            escape_spaces=bool(normalizer.get(5, 1)),
            space_as_suffix=bool(trainer.get(24, 0)),
            charsmap=check_charsmap(charsmap, source),
        ),
        unknown_text=_string(trainer.get(44, _UNKNOWN_TEXT.encode()), source),
    )
    special = {piece for piece, kind in zip(pieces, types, strict=True) if kind in _SPECIAL}
    named = {name: trainer.get(field) or default for name, (field, default) in _NAMES.items()}
    spelled = {name: _string(value, source) for name, value in named.items()}
    return model, {name: piece for name, piece in spelled.items() if piece in special}


def _type(value: int | bytes, piece: str, source: str) -> TokenType:
    try:
        return TokenType(int(value) if isinstance(value, int) else 0)
    except ValueError:
        raise BuddyError(f"{source}: the token {piece!r} is of the unknown type {value!r}.") from None


def check_charsmap(value: int | bytes, source: str) -> bytes:
    """A charsmap, whose double array and texts are inside it."""
    if not isinstance(value, bytes):
        raise BuddyError(f"{source}: its charsmap is damaged.")
    if not value:
        return b""
    size = int.from_bytes(value[:4], "little")
    if len(value) < 8 or size % 4 or not 4 <= size < len(value) - 4 or value[-1] != 0:
        raise BuddyError(f"{source}: its charsmap is damaged.")
    return value

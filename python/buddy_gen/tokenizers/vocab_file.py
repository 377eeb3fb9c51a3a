"""Writes NAME.vocab, the file that the Text container reads. docs/vocab-format.md describes it."""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.chat import ChatTemplate, ContentRule, DateSlot, Piece
from buddy_gen.tokenizers.spec import AddedToken, SentencePieceRules, TokenizerKind, TokenizerSpec, TokenType

__all__ = ["NO_TEMPLATE", "vocab_digest", "write_vocab"]

NO_TEMPLATE = "The model has no chat template."

_MAGIC = b"BUDDYVOC"
_VERSION = 2
_HEADER_SIZE = 160
_VISIBLE_SPACE = "\u2581".encode()
_SECTION_RECORD = struct.Struct("<8sQQ")
_HASH = re.compile(r"[0-9a-f]{64}")


def write_vocab(
    path: Path,
    spec: TokenizerSpec,
    *,
    abi: str,
    model_id: str,
    chat: ChatTemplate | None = None,
    chat_unavailable: str = NO_TEMPLATE,
) -> int:
    """Writes `spec` and the chat template, or the reason why there is none; gives the file's size in bytes.

    `abi` and `model_id` are 64 hexadecimal digits each, the same as in the weights file. The file is written beside
    `path` and renamed. Raises BuddyError when it can't be written.
    """
    for what, value in (("ABI hash", abi), ("model id", model_id)):
        if not _HASH.fullmatch(value):
            raise ValueError(f"the {what} is not 64 hexadecimal digits: {value!r}")
    content = _file(spec, abi, model_id, chat, chat_unavailable)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BuddyError(f"The vocabulary file {path} cannot be written: {error.strerror}.") from None
    return len(content)


def vocab_digest(spec: TokenizerSpec, chat: ChatTemplate | None, chat_unavailable: str = NO_TEMPLATE) -> str:
    """SHA-256 (64 hexadecimal digits) of what write_vocab writes, without ABI hash and model id."""
    digest = hashlib.sha256(struct.pack("<II", _VERSION, spec.kind))
    for tag, content in _sections(spec, chat, chat_unavailable):
        digest.update(_SECTION_RECORD.pack(tag, 0, len(content)) + content)
    return digest.hexdigest()


def _file(spec: TokenizerSpec, abi: str, model_id: str, chat: ChatTemplate | None, chat_unavailable: str) -> bytes:
    sections = _sections(spec, chat, chat_unavailable)
    offset = _HEADER_SIZE + _SECTION_RECORD.size * len(sections)
    table, body = b"", b""
    for tag, content in sections:
        padding = -(offset + len(body)) % 8
        body += bytes(padding)
        table += _SECTION_RECORD.pack(tag, offset + len(body), len(content))
        body += content
    checked = struct.pack("<QII", offset + len(body), spec.kind, len(sections))
    checked += abi.encode() + model_id.encode() + table + body
    return _MAGIC + struct.pack("<II", _VERSION, zlib.crc32(checked)) + checked


def _sections(spec: TokenizerSpec, chat: ChatTemplate | None, chat_unavailable: str) -> list[tuple[bytes, bytes]]:
    named = {
        "TOKENS": _tokens(spec),
        "TEXTS": _texts(spec.texts),
        "FIRST": _texts(spec.first_texts),
        "SCORES": _records("<f", ((score,) for score in spec.scores)),
        "MERGES": _merges(spec),
        "ADDED": struct.pack("<I", len(spec.added)) + b"".join(map(_added, spec.added)),
        "STEPS": struct.pack("<I", len(spec.steps))
        + b"".join(struct.pack("<II", step.kind, step.argument) + _string(step.text) for step in spec.steps),
        "NORMAL": struct.pack("<I", len(spec.normalizers))
        + b"".join(
            struct.pack("<II", step.kind, step.argument) + _string(step.text) + _string(step.other)
            for step in spec.normalizers
        ),
        "SPRULES": _rules(spec.rules),
        "DECODE": struct.pack("<II", spec.decode_style, spec.decode_argument),
        "SETTINGS": _settings(spec),
        "CHAT": _chat(chat, chat_unavailable),
    }
    return [(name.encode().ljust(8), content) for name, content in named.items()]


def _records(form: str, records: Iterable[tuple[float, ...]]) -> bytes:
    packed = [struct.pack(form, *record) for record in records]
    return struct.pack("<I", len(packed)) + b"".join(packed)


def _merges(spec: TokenizerSpec) -> bytes:
    ranks = range(len(spec.merges)) if spec.merge_ranks is None else spec.merge_ranks
    return _records("<iiiI", ((*merge, rank) for merge, rank in zip(spec.merges, ranks, strict=True)))


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(encoded)) + encoded


def _pool(strings: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Offsets, one more than strings, and the strings joined."""
    offsets = [0]
    for string in strings:
        offsets.append(offsets[-1] + len(string))
    return struct.pack(f"<{len(offsets)}I", *offsets), b"".join(strings)


def _texts(texts: Sequence[bytes] | None) -> bytes:
    if texts is None:
        return struct.pack("<I", 0)
    return struct.pack("<I", len(texts)) + b"".join(_pool(texts))


def _tokens(spec: TokenizerSpec) -> bytes:
    pieces = spec.kind in (TokenizerKind.SENTENCEPIECE_BPE, TokenizerKind.SENTENCEPIECE_UNIGRAM)
    skipped = (TokenType.CONTROL,) if pieces else (TokenType.CONTROL, TokenType.UNKNOWN)
    flags = [16 * produced + 32 * (kind in skipped) for produced, kind in zip(spec.in_model, spec.types, strict=True)]
    special = {added.content for added in spec.added if added.special}
    for added in spec.added:
        flags[added.id] |= _added_flags(added)
        if added.spelling is not None and added.spelling not in special:
            flags[added.id] &= ~32  # the reference knows special tokens by their text, which here is another
    if pieces:
        for index, (token, kind) in enumerate(zip(spec.tokens, spec.types, strict=True)):
            if token.startswith(_VISIBLE_SPACE) and kind not in (TokenType.CONTROL, TokenType.UNKNOWN):
                flags[index] |= 64
    offsets, joined = _pool(spec.tokens)
    return struct.pack("<I", len(spec.tokens)) + offsets + bytes(spec.types) + bytes(flags) + joined


def _added(token: AddedToken) -> bytes:
    return struct.pack("<i", token.id) + _string(token.content if token.spelling is None else token.spelling)


def _rules(rules: SentencePieceRules) -> bytes:
    bits = rules.add_dummy_prefix | rules.remove_extra_spaces << 1 | rules.escape_spaces << 2
    bits |= rules.space_as_suffix << 3
    size = int.from_bytes(rules.charsmap[:4], "little")
    units, texts = rules.charsmap[4 : 4 + size], rules.charsmap[4 + size :]
    return struct.pack("<II", bits, len(units) // 4) + units + struct.pack("<I", len(texts)) + texts


def _added_flags(token: AddedToken) -> int:
    return token.lstrip | token.rstrip << 1 | token.single_word << 2 | token.normalized << 3


def _settings(spec: TokenizerSpec) -> bytes:
    ids = [-1 if token is None else token for token in (spec.bos_id, spec.eos_id, spec.unknown_id)]
    bits = spec.add_bos | spec.add_eos << 1 | spec.ignore_merges << 2 | spec.fuse_unknown << 3
    bits |= spec.byte_fallback << 4
    head = struct.pack("<iiiII", *ids, bits, spec.max_word_chars) + _string(spec.continuing_prefix)
    return head + _records("<i", ((token,) for token in spec.end_ids))


def _chat(chat: ChatTemplate | None, unavailable: str) -> bytes:
    if chat is None:
        return struct.pack("<I", 0) + _string(unavailable)
    pieces = (
        chat.start,
        chat.system_start,
        chat.system_to_user,
        chat.user_to_assistant,
        chat.assistant_to_user,
        chat.generation,
        chat.end_after_user,
        chat.end_after_assistant,
    )
    rules = (chat.system, chat.user_after_system, chat.user, chat.assistant)
    head = struct.pack("<II", 1, chat.system_unsupported is None) + _string(chat.system_unsupported or "")
    return head + b"".join(map(_piece, pieces)) + struct.pack("<4I", *map(_rule, rules))


def _piece(piece: Piece) -> bytes:
    parts = [(isinstance(part, DateSlot), part.format if isinstance(part, DateSlot) else part) for part in piece]
    return struct.pack("<I", len(parts)) + b"".join(struct.pack("<I", date) + _string(text) for date, text in parts)


def _rule(rule: ContentRule) -> int:
    return rule.trim_left | rule.trim_right << 1 | rule.refuse_blank << 2

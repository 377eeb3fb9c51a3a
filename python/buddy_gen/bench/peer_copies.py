"""The model as its peers read it: copies in float32, made once and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, default_cache_dir, fetch_default_model

__all__ = ["reference_folder", "reference_gguf"]

_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


def reference_folder(model: str) -> Path:
    """A Hugging Face folder with `model`'s weights, made once and kept in the cache unless it is one already.

    Raises:
        BuddyError: The model cannot be read or written as one.
    """
    path = Path(model).expanduser() if model != DEFAULT_MODEL_NAME else fetch_default_model()
    if (path / "config.json").is_file():
        return path
    folder = _cached("reference", path)
    if not (folder / "config.json").is_file():
        _make_reference([str(path), "--folder", str(folder)])
    return folder


def reference_gguf(folder: Path) -> Path:
    """A float32 GGUF of a Hugging Face folder, made once and kept in the cache. Raises BuddyError."""
    path = _cached("reference", folder / "config.json").with_suffix(".gguf")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_reference([str(folder), "--gguf", str(path)])
    return path


def _cached(name: str, source: Path) -> Path:
    try:
        status = source.stat()
    except OSError as error:
        raise BuddyError(f"{source} cannot be read ({error.strerror}); name the model with --model.") from error
    key = f"{source.resolve()} {status.st_size} {status.st_mtime_ns}"
    return default_cache_dir() / "benchmarks" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _make_reference(arguments: list[str]) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "buddy_gen.bench.reference", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise BuddyError(f"The peers' copy of the model was not made: {lines[-1] if lines else 'no reason given'}")

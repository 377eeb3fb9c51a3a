"""A weights file's own account of itself: tensors, formats, and how much of it a token needs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from buddy_gen.bench.work import Task, read_model_work
from buddy_gen.errors import BuddyError
from buddy_gen.weights.packed import read_header

__all__ = ["Inspection", "TensorInfo", "find_weights", "inspect_weights"]

_SUFFIX = ".weights.safetensors"
_PAD = "__pad."


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: `shape` as the model sees it, `stored` and `dtype` as the file has it."""

    name: str
    format: str
    shape: list[int]
    stored: list[int]
    dtype: str
    bytes: int
    layout: str


@dataclass(frozen=True)
class Inspection:
    """What `buddy inspect` tells.

    Attributes:
        path: The weights file.
        model: Its name.
        source: The file or folder that it was made from.
        dtype, kv_dtype, target, exporter, entry_points: The choices of the build.
        calibration: The text that its weights were rounded on: file, sha256, tokens. None for none.
        abi, model_id, content_sha256: Its hashes.
        tensors: All but padding.
        weight_bytes_per_token: Weights that decoding a token reads; None for another model than a Llama.
        cache_bytes_per_position: What each token that is in the caches adds to that.
        files: Size of every file of the folder.
    """

    path: str
    model: str
    source: str | None
    dtype: str
    kv_dtype: str
    calibration: dict[str, Any] | None
    target: str
    exporter: str
    entry_points: list[str]
    abi: str
    model_id: str
    content_sha256: str
    tensors: list[TensorInfo]
    weight_bytes_per_token: int | None
    cache_bytes_per_position: int | None
    files: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def find_weights(path: Path) -> Path:
    """The weights file that `path` is, or that the folder `path` holds.

    Raises:
        BuddyError: There is none, or several.
    """
    if not path.exists():
        raise BuddyError(f"{path} does not exist; give a folder made by `buddy build`, or a weights file.")
    if path.is_file():
        return path
    found = sorted(one for one in path.iterdir() if one.name.endswith(_SUFFIX) and not one.name.startswith("."))
    if len(found) == 1:
        return found[0]
    if found:
        raise BuddyError(f"{path} holds several weights files, name one: {', '.join(one.name for one in found)}.")
    raise BuddyError(f"{path} holds no weights file (*{_SUFFIX}); give a folder made by `buddy build`.")


def inspect_weights(path: Path) -> Inspection:
    """Reads the header of a weights file, or of the one in a build's folder.

    Raises:
        BuddyError: It is no weights file of ours, or damaged.
    """
    weights = find_weights(path)
    header = read_header(weights)
    metadata = header.metadata
    try:
        layouts = json.loads(metadata["layout"])
        tensors = [
            _tensor(name, entry.dtype, entry.shape, entry.end - entry.begin, layouts.get(name) or {})
            for name, entry in header.tensors.items()
            if not name.startswith(_PAD)
        ]
        known = {key: metadata[key] for key in ("dtype", "target", "exporter", "abi", "model_id", "content_sha256")}
        name = metadata["name"]
        calibration = _calibration(metadata.get("calibration"))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise BuddyError(f"{weights} has metadata that buddy-gen did not write; build the model again.") from None
    per_token, per_position = _traffic(weights)
    return Inspection(
        path=str(weights),
        model=name,
        source=metadata.get("source"),
        kv_dtype=metadata.get("kv_dtype", "f32"),
        calibration=calibration,
        entry_points=[entry for entry in metadata.get("entry_points", "").split(",") if entry],
        tensors=tensors,
        weight_bytes_per_token=per_token,
        cache_bytes_per_position=per_position,
        files={one.name: one.stat().st_size for one in sorted(weights.parent.iterdir()) if one.is_file()},
        **known,
    )


def _calibration(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    found = json.loads(text)
    return {"file": str(found["file"]), "sha256": str(found["sha256"]), "tokens": int(found["tokens"])}


def _tensor(name: str, dtype: str, stored: tuple[int, ...], size: int, layout: dict[str, Any]) -> TensorInfo:
    form, how = layout.get("format", dtype.lower()), "rows"
    if "format" in layout:
        how = f"blocks of {layout['panel']} rows x {layout.get('block', layout['group'])}"
    elif "panel" in layout:
        how = f"panels of {layout['panel']} rows"
    return TensorInfo(name, form, list(layout.get("shape", stored)), list(stored), dtype, size, how)


def _traffic(weights: Path) -> tuple[int | None, int | None]:
    try:
        work = read_model_work(weights)
    except BuddyError:
        return None, None
    empty = work.bytes_read(Task("decode", 1))
    return work.weight_bytes, round(empty - work.weight_bytes)

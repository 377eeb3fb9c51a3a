"""When a model need not be generated again: the manifest of the last run.

Files are compared by size and time of change first, and by content where these differ, so that a copied or touched
model costs a hash and not an import. The manifest is written last: a run that was killed leaves none that matches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError

_BLOCK = 1 << 22


def write_if_changed(path: Path, text: str) -> bool:
    """Writes `text` beside `path` and renames it, unless the file holds that text already.

    Returns:
        Whether the file was written.

    Raises:
        BuddyError: The folder can't be written.
    """
    try:
        if path.is_file() and path.read_text(encoding="utf-8", errors="surrogateescape") == text:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise BuddyError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error
    return True


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def content_hash(path: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


# What works on programs that are built already, and the command line.
_APART = ("bench", "building.py", "cli.py", "evaluate", "inspect", "serve", "tokenizer.py")


def generator_sources() -> list[Path]:
    """Every file of this package that decides what is generated."""
    package = Path(__file__).resolve().parent.parent
    found = (path for suffix in ("*.py", "*.j2") for path in package.rglob(suffix))
    return sorted(path for path in found if path.relative_to(package).parts[0] not in _APART)


def sources_hash(paths: Iterable[Path]) -> str:
    """One hash over names and contents of small files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def folder_listing(model: Path) -> list[str]:
    """The names in a model's folder: a file that comes or goes can change what a model is."""
    return sorted(entry.name for entry in model.iterdir()) if model.is_dir() else []


class Manifest:
    """What the last run was made from and what it made.

    Fields of the JSON: ``options``, ``generator`` (hash of the sources), ``listing``, ``inputs`` and ``outputs``
    (path -> size, time of change and, for inputs, SHA-256), ``report`` (free).
    """

    def __init__(self, path: Path, data: dict[str, Any] | None = None) -> None:
        self.path = path
        self.data = data if data is not None else {}

    @staticmethod
    def load(path: Path) -> Manifest:
        """The manifest at `path`; an empty one where there is none, or none that can be read."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Manifest(path)
        return Manifest(path, data if isinstance(data, dict) else {})

    def is_current(self, options: dict[str, Any], model: Path) -> bool:
        """Whether a run with these options would give what is there already."""
        same = (
            self.data.get("options") == options
            and self.data.get("generator") == sources_hash(generator_sources())
            and self.data.get("listing") == folder_listing(model)
        )
        return same and self._outputs_present() and self.inputs_unchanged()

    def _outputs_present(self) -> bool:
        outputs = self.data.get("outputs", {})
        return bool(outputs) and all(
            Path(path).is_file() and Path(path).stat().st_size == entry[0] for path, entry in outputs.items()
        )

    def inputs_unchanged(self) -> bool:
        """Whether every input still has its content; refreshes the times of those that were only touched."""
        inputs, touched = self.data.get("inputs", {}), False
        for name, (size, changed, digest) in inputs.items():
            path = Path(name)
            if not path.is_file():
                return False
            if _stat(path) == [size, changed]:
                continue
            if path.stat().st_size != size or content_hash(path) != digest:
                return False
            inputs[name] = [*_stat(path), digest]
            touched = True
        if touched:
            self.save()
        return bool(inputs)

    def record(
        self, options: dict[str, Any], model: Path, inputs: Iterable[Path], outputs: Iterable[Path], report: Any
    ) -> None:
        """Replaces the manifest by one of the run that has just ended."""
        self.data = {
            "options": options,
            "generator": sources_hash(generator_sources()),
            "listing": folder_listing(model),
            "inputs": {str(path): [*_stat(path), content_hash(path)] for path in inputs},
            "outputs": {str(path): _stat(path) for path in outputs},
            "report": report,
        }
        self.save()

    def save(self) -> None:
        """Writes the manifest beside its place and renames it."""
        write_if_changed(self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n")

"""From what a user names to a model description: which file or folder, and of which format."""

from __future__ import annotations

from pathlib import Path

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, Progress, fetch_default_model
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.gguf_model import open_gguf
from buddy_gen.models.huggingface import open_huggingface
from buddy_gen.weights.file_kind import FileKind, identify_file

__all__ = ["open_path"]

_WANTED = "a Hugging Face folder (config.json with safetensors), or a GGUF file, of the Llama architecture"


def open_path(path_or_name: str | Path, cache: Path | None, progress: Progress | None) -> ModelDescription:
    """See `buddy_gen.models.open_model`."""
    if path_or_name == DEFAULT_MODEL_NAME:
        return open_gguf(fetch_default_model(cache, progress))
    path = Path(path_or_name).expanduser()
    if not path.exists():
        raise BuddyError(f"{path} does not exist; a model is {_WANTED}, or the name {DEFAULT_MODEL_NAME}.")
    return _open_folder(path) if path.is_dir() else _open_file(path)


def _open_folder(folder: Path) -> ModelDescription:
    if (folder / "config.json").is_file():
        return open_huggingface(folder)
    models = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf" and path.is_file())
    if len(models) == 1:
        return open_gguf(models[0])
    if models:
        raise BuddyError(f"{folder} holds several GGUF models, name one: {', '.join(path.name for path in models)}.")
    if (folder / "params.json").is_file():
        raise BuddyError(f"{folder} is in Meta's original format; convert it to a Hugging Face folder first.")
    raise BuddyError(f"{folder} is no model: it has neither a config.json nor a GGUF file; a model is {_WANTED}.")


def _open_file(path: Path) -> ModelDescription:
    kind = identify_file(path)
    if kind is FileKind.GGUF:
        return open_gguf(path)
    if kind.is_weights or kind is FileKind.INDEX_JSON:
        if not (path.parent / "config.json").is_file():
            raise BuddyError(f"{path} is {kind.value} and needs its model's config.json beside it.")
        return open_huggingface(path.parent, path)
    if kind is FileKind.CONFIG_JSON:
        return open_huggingface(path.parent)
    if kind.is_tokenizer:
        raise BuddyError(f"{path} is {kind.value} and no model; name the model: {_WANTED}.")
    raise BuddyError(f"{path} is no model, it is {kind.value}; a model is {_WANTED}.")

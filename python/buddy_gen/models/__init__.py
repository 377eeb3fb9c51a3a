"""Opening a model, whatever its format, and describing what the compiler needs of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy_gen.models.description import ModelDescription

__all__ = ["open_model"]


def open_model(
    path_or_name: str | Path, cache: Path | None = None, progress: Callable[[str], None] | None = None
) -> ModelDescription:
    """Opens a model: the name `smollm2`, a Hugging Face folder, a GGUF file or a checkpoint file in such a folder.

    No weights are read but what must be compared (a declared tied head). `cache` is where the default model is kept
    (default: see `default_model.default_cache_dir`), `progress` hears of its download. Raises BuddyError for anything
    that is no usable Llama model.
    """
    from buddy_gen.models.opening import open_path  # imports transformers, which takes a second

    return open_path(path_or_name, cache, progress)

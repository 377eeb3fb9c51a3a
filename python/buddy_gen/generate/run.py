"""One run of the generator: keyed first, so that a run with nothing to do ends before torch is imported."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from buddy_gen.calibration.text import TextChoice
from buddy_gen.choices import DIALECTS
from buddy_gen.errors import BuddyError
from buddy_gen.generate.manifest import Manifest
from buddy_gen.generate.progress import Progress
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, fetch_default_model
from buddy_gen.target import resolve_target
from buddy_gen.transforms.precision import Precision

_ENTRIES = ("prefill", "decode", "score")


def _check(options: argparse.Namespace) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        raise BuddyError(f"'{options.name}' is no name for a model: use a-z, 0-9 and _, a letter first")
    for kind, given, known in (
        ("dialect", options.dialect_priority, DIALECTS),
        ("entry point", options.entry_points, _ENTRIES),
    ):
        unknown = [name for name in given if name not in known]
        if unknown or not given or len(set(given)) != len(given):
            wrong = f"unknown {kind} '{unknown[0]}'" if unknown else f"each {kind} must be named once"
            raise BuddyError(f"{wrong}; choose from {', '.join(known)}")
    if not {"prefill", "decode"} <= set(options.entry_points):
        raise BuddyError("a program needs the entry points prefill and decode")


def generate(options: argparse.Namespace) -> dict[str, Any]:
    """Generates everything that the native build of a model needs.

    Args:
        options: The parsed command line, see `buddy_gen.generate.__main__`.

    Returns:
        A report: paths, sizes, seconds, which dialect served which op.

    Raises:
        BuddyError: The model can't be read or compiled, or a folder can't be written.
    """
    _check(options)
    progress = Progress(options.quiet, to_stderr=options.json)
    model = options.model
    if not model:
        raise BuddyError("the model's name is empty; give a Hugging Face folder, a GGUF file, or smollm2")
    if model == DEFAULT_MODEL_NAME:
        path = fetch_default_model(progress=progress.say)
    else:
        path = Path(model).expanduser().absolute()
        if not path.exists():
            raise BuddyError(f"there is no model at {path}; give a Hugging Face folder or a GGUF file")
    precision = Precision.of(options.dtype, options.group, options.kv_dtype)
    text = TextChoice.of(options.calibrate, options.calibration_tokens, precision.dtype)
    key = {
        "name": options.name,
        "model": str(path),
        "output_dir": str(Path(options.output_dir).absolute()),
        "runtime_dir": str(Path(options.runtime_dir).absolute()),
        "target": resolve_target(options.target).name,
        "dtype": precision.dtype,
        "group": precision.group,
        "kv_dtype": precision.kv_dtype,
        "calibration": None if text is None else text.key,
        "dialect_priority": list(options.dialect_priority),
        "entry_points": list(options.entry_points),
    }
    manifest = Manifest.load(Path(options.output_dir).absolute() / f"{options.name}.manifest.json")
    if manifest.is_current(key, path):
        progress.say(f"{options.name}: nothing has changed since the last import")
        report: dict[str, Any] = manifest.data["report"]
        return report

    from buddy_gen.generate.llama import LlamaGenerator

    return LlamaGenerator(key, path, manifest, progress, text).run()

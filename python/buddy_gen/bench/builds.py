"""What a folder that ``buddy build`` made says about itself: the storage of its weights and caches, and its work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from buddy_gen.bench.work import ModelWork, read_model_work
from buddy_gen.choices import default_kv_dtype
from buddy_gen.errors import BuddyError
from buddy_gen.weights.gguf_blocks import gguf_type
from buddy_gen.weights.safetensors_reader import read_safetensors_header

__all__ = ["PROGRAM", "Build", "name_builds", "read_build", "read_builds"]

PROGRAM = "buddy-llama-run"


@dataclass(frozen=True)
class Build:
    """A built program with its weights."""

    folder: Path
    weights: Path
    dtype: str
    """As ``--dtype`` has it; behind gguf the type of most weights: ``gguf Q4_1``."""
    kv_dtype: str
    source: str
    """The name of the file or folder that it was built from; empty where that is not recorded."""
    work: ModelWork

    @property
    def program(self) -> Path:
        return self.folder / PROGRAM


def read_builds(folders: Sequence[Path]) -> list[Build]:
    """The builds in `folders`. Raises BuddyError when one is none, or they are not of one model or given twice."""
    builds = [read_build(folder.absolute()) for folder in folders]
    first = builds[0]
    for build in builds[1:]:
        if _shape(build.work) != _shape(first.work):
            raise BuddyError(f"{build.folder} is of another model than {first.folder}; name builds of one model.")
    doubled = [folder for folder, count in Counter(build.folder.resolve() for build in builds).items() if count > 1]
    if doubled:
        raise BuddyError(f"{doubled[0]} is named twice.")
    return builds


def _shape(work: ModelWork) -> tuple[int, ...]:
    sizes = (work.layer_weights, work.head_weights, work.query_rows, work.kv_rows)
    return (work.layers, *sizes, work.vocabulary)


def read_build(folder: Path) -> Build:
    """The build in `folder`.

    Raises:
        BuddyError: The program or its weights file is missing, or the file is damaged or not of a Llama model.
    """
    if not (folder / PROGRAM).is_file():
        raise BuddyError(f"{folder} has no {PROGRAM}; name a folder that `buddy build MODEL -o DIR` made.")
    found = sorted(folder.glob("*.weights.safetensors"))
    if len(found) != 1:
        raise BuddyError(f"{folder} has {len(found)} files *.weights.safetensors instead of one; build the model.")
    work = read_model_work(found[0])
    metadata = read_safetensors_header(found[0]).metadata
    dtype = metadata.get("dtype", "f32")
    if dtype == "gguf":
        dtype = f"gguf {_gguf_type(json.loads(metadata['layout']))}"
    return Build(folder, found[0], dtype, metadata.get("kv_dtype", "f32"), metadata.get("source", ""), work)


def _gguf_type(layout: dict[str, dict[str, object]]) -> str:
    """The type that most weights of a file have whose blocks were kept."""
    elements: Counter[str] = Counter()
    for entry in layout.values():
        shape = entry.get("shape")
        if isinstance(shape, list):
            elements[gguf_type(str(entry.get("format", "floats")))] += prod(shape)
    return max(elements, key=lambda kind: elements[kind]) if elements else "floats"


def name_builds(builds: Sequence[Build]) -> list[str]:
    """A name for each: its dtype, the caches' type where it is not the usual one, the folder where two are alike."""
    names = [f"buddy-gen {build.dtype}" for build in builds]
    for number, build in enumerate(builds):
        if build.kv_dtype != default_kv_dtype(build.dtype):
            names[number] += f", KV {build.kv_dtype}"
    alike = Counter(names)
    plain = len({build.folder.name for build in builds}) == len(builds)
    return [
        f"{name} ({build.folder.name if plain else build.folder})" if alike[name] > 1 else name
        for name, build in zip(names, builds, strict=True)
    ]

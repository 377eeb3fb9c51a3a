"""The command ``buddy inspect PATH``."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from buddy_gen.inspect.weights import Inspection, inspect_weights

__all__ = ["inspect_command"]

Place = Annotated[Path, typer.Argument(metavar="PATH", help="A folder made by `buddy build`, or a weights file.")]


def inspect_command(
    path: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="List every tensor; without it, one line for all layers.")
    ] = False,
) -> None:
    """Tell what is in a build: tensors, formats, bytes per token, hashes, source, files."""
    found = inspect_weights(path)
    if as_json:
        print(json.dumps(found.as_json()))
        return
    for label, value in _facts(found):
        print(f"{label:<16} {value}")
    print()
    for line in _table(found, every):
        print(line)


def _facts(found: Inspection) -> list[tuple[str, str]]:
    facts = [
        ("model", found.model),
        ("source", found.source or "not recorded"),
        ("dtype", found.dtype),
        ("KV caches", found.kv_dtype),
        *([("calibrated on", f"{text['file']} ({text['tokens']} tokens)")] if (text := found.calibration) else []),
        ("target", found.target),
        ("entry points", ", ".join(found.entry_points) or "not recorded"),
        ("ABI", found.abi),
        ("model id", found.model_id),
        ("exporter", found.exporter),
    ]
    if found.weight_bytes_per_token is not None and found.cache_bytes_per_position is not None:
        cache = f"{found.cache_bytes_per_position} bytes for each token in the caches"
        facts.append(("read per token", f"{found.weight_bytes_per_token / 1e6:.1f} MB of weights, and {cache}"))
    facts += [("file", f"{name}  {size / 1e6:.1f} MB") for name, size in found.files.items()]
    return facts


_HEADINGS = ("tensor", "format", "shape", "layout", "count", "MB")


def _table(found: Inspection, every: bool) -> list[str]:
    """A heading, and a line for each tensor or for those of all layers that are stored alike."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for one in found.tensors:
        layer = next((part for part in one.name.split(".") if part.isdigit()), None)
        name = one.name if every or layer is None else one.name.replace(f".{layer}.", ".*.", 1)
        groups[name, one.format, "x".join(map(str, one.shape)), one.layout].append(one.bytes)
    rows: list[tuple[str, ...]] = [_HEADINGS]
    rows += [(*key, str(len(sizes)), f"{sum(sizes) / 1e6:.2f}") for key, sizes in groups.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = {_HEADINGS.index("count"), _HEADINGS.index("MB")}
    return [
        "  ".join(
            cell.rjust(w) if i in numbers else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]

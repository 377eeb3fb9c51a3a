"""The options of a build, which the commands build, run, chat and serve share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from buddy_gen.building import Options, resolve_model
from buddy_gen.choices import CALIBRATION_TOKENS, DEFAULT_GROUP, DIALECTS, DTYPES, GROUPS, KV_DTYPES
from buddy_gen.target import TARGETS

__all__ = ["BuildOptions", "with_build_options"]


def _one_of(known: Iterable[str], what: str) -> Callable[[str], str]:
    """A check of an option whose value is one of `known`, or several of them with commas between."""

    def check(value: str) -> str:
        wrong = [part for part in value.split(",") if part not in known]
        if wrong:
            raise typer.BadParameter(f"unknown {what} '{wrong[0]}'; choose from {', '.join(known)}")
        return value

    return check


def _positive(value: str) -> str:
    if not (value.isascii() and value.isdigit() and int(value)):
        raise typer.BadParameter(f"'{value}' is no number of tokens")
    return value


@dataclass(frozen=True)
class BuildOptions:
    """How a model is compiled. The annotations are the options as a command shows them."""

    target: Annotated[
        str,
        typer.Option(
            callback=lambda value: _one_of(("native", *TARGETS), "target")(value),
            help="Machine to generate code for: native, x86-64-v3, x86-64-v4, ...",
        ),
    ] = "native"
    dtype: Annotated[
        str,
        typer.Option(
            callback=lambda value: _one_of(DTYPES, "dtype")(value),
            help=f"How weights are stored and multiplied: {', '.join(DTYPES)}.",
        ),
    ] = "f32"
    group: Annotated[
        str,
        typer.Option(
            callback=lambda value: value and _one_of(GROUPS, "group")(value),
            help=f"How many int8 weights share a scale: {', '.join(GROUPS)} (default: {DEFAULT_GROUP}).",
        ),
    ] = ""
    kv_dtype: Annotated[
        str,
        typer.Option(
            callback=lambda value: value and _one_of(KV_DTYPES, "KV cache type")(value),
            help=f"Type of the KV caches: {', '.join(KV_DTYPES)} (default: a float dtype's own, else f16).",
        ),
    ] = ""
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            callback=lambda value: str(Path(value).expanduser().absolute()) if value else "",
            help="A text file that weights of 4 bits are rounded on.",
        ),
    ] = ""
    calibration_tokens: Annotated[
        str,
        typer.Option(
            metavar="N",
            callback=lambda value: value and _positive(value),
            help=f"How many of its tokens are read (default: {CALIBRATION_TOKENS}).",
        ),
    ] = ""
    dialect_priority: Annotated[
        str,
        typer.Option(
            callback=lambda value: _one_of(DIALECTS, "dialect")(value),
            help="Dialects in order of preference, such as tosa,linalg.",
        ),
    ] = "linalg,tosa"

    def of(self, model: str, entry_points: str = "prefill,decode") -> Options:
        """The build of `model` with these options.

        Raises:
            BuddyError: There is no such model.
        """
        return Options(model=resolve_model(model), entry_points=entry_points, **asdict(self))


def with_build_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of BuildOptions, in the place of its parameter `options`."""
    own = inspect.signature(command, eval_str=True)
    shared = inspect.signature(BuildOptions, eval_str=True).parameters.values()
    names = [field.name for field in fields(BuildOptions)]

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        options = BuildOptions(**{name: values.pop(name) for name in names})
        command(**values, options=options)

    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters += shared if parameter.name == "options" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    setattr(expanded, "__signature__", own.replace(parameters=keywords))  # noqa: B010 (what typer looks at)
    return expanded

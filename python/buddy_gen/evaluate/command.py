"""The command ``buddy eval DIR TEXT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from buddy_gen.errors import BuddyError
from buddy_gen.evaluate.evaluation import evaluate, read_tokens
from buddy_gen.evaluate.predictors import PROGRAM, BuiltModel, EagerModel, Predictor
from buddy_gen.inspect.weights import inspect_weights

__all__ = ["eval_command"]

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder made by `buddy build`, best with --score.")]
Text = Annotated[Path, typer.Argument(metavar="TEXT", help="A text file in UTF-8.")]
Reference = Annotated[
    str | None,
    typer.Option(metavar="DIR|MODEL", help="Another build, or a model for eager PyTorch in f32, taken as right."),
]


def eval_command(
    folder: Folder,
    text: Text,
    tokens: Annotated[int, typer.Option(min=0, help="Tokens of the text that are read; 0: all.")] = 20480,
    context: Annotated[int, typer.Option(min=2, help="Tokens in a window.")] = 512,
    stride: Annotated[int, typer.Option(min=0, help="Tokens from window to window; 0: a window.")] = 0,
    reference: Reference = None,
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="Threads; 0: the CPUs allowed.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how well a build predicts a text: perplexity, and with --reference how close it is to that.

    The text is cut into windows; each token counts once, in the first window that has a token before it.
    """
    build = inspect_weights(folder)
    weights = Path(build.path)
    vocabulary = weights.with_name(weights.name.removesuffix(".weights.safetensors") + ".vocab")
    found = read_tokens(text, vocabulary, tokens)
    step = stride or context - len(found.prefix)
    if step > context - len(found.prefix):
        raise BuddyError(f"a stride of {step} would leave out tokens between windows of {context}; give a smaller one.")
    model = BuiltModel(folder.absolute(), context, threads)
    other = None if reference is None else _reference(reference, context, threads)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(f"{build.model} ({build.dtype})", total=None)
        report = evaluate(
            model,
            found,
            context,
            step,
            other,
            lambda done, total: progress.update(bar, completed=done, total=total),
        )
    report = {"model": build.model, "dtype": build.dtype, "kv_dtype": build.kv_dtype, "text": text.name, **report}
    if as_json:
        print(json.dumps(report))
        return
    for line in _lines(report):
        print(line)


def _reference(name: str, context: int, threads: int) -> Predictor:
    folder = Path(name).expanduser().absolute()
    if (folder / PROGRAM).is_file():
        return BuiltModel(folder, context, threads)
    return EagerModel(name)


def _lines(report: dict[str, Any]) -> list[str]:
    rate = report["tokens"] / report["seconds"] if report["seconds"] else 0.0
    lines = [
        f"model          {report['model']}, {report['dtype']}, KV caches {report['kv_dtype']}",
        f"text           {report['text']}: {report['tokens']} tokens in {report['windows']} windows of "
        f"{report['context']}, {report['stride']} apart",
        f"perplexity     {report['perplexity']:.4f}  ({report['nats_per_token']:.5f} nats per token, standard error "
        f"{report['standard_error_nats']:.5f})",
    ]
    if "reference" in report:
        change = 100 * (report["perplexity_ratio"] - 1)
        lines += [
            f"reference      {report['reference']['perplexity']:.4f}  ({change:+.3f}%)",
            f"KL divergence  {report['kl_mean']:.6f} nats on the mean, {report['kl_99']:.5f} at the 99th percentile, "
            f"{report['kl_max']:.4f} at most",
            f"top-1          {100 * report['top1_agreement']:.2f}% the reference's",
        ]
    return [*lines, f"time           {report['seconds']:.1f} s by {report['method']}, {rate:.0f} tokens/s"]

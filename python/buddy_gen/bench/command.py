"""The command ``buddy bench FOLDER``, also ``python -m buddy_gen.bench FOLDER``."""

from __future__ import annotations

import datetime
import json
import os
import platform
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from buddy_gen.bench.contenders import (
    EAGER_NAME,
    Contender,
    LlamaBench,
    Program,
    Torch,
    allowed_cpus,
    reference_folder,
    reference_gguf,
)
from buddy_gen.bench.limits import find_limits_program, measure_limits
from buddy_gen.bench.report import make_report
from buddy_gen.bench.session import Settings, run_rounds
from buddy_gen.bench.work import ModelWork, read_model_work
from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME

__all__ = ["PEERS", "bench_command"]

PROGRAM = "buddy-llama-run"
PEERS = ("eager", "compile", "llama.cpp")
_BUSY = 0.3  # a load average above this before the run means that the machine was not quiet

Folder = Annotated[Path, typer.Argument(help="A folder with buddy-llama-run and its weights (see `buddy build`).")]
ModelName = Annotated[str, typer.Option("--model", help="The model that FOLDER was built from, for the peers.")]
Peers = Annotated[
    str, typer.Option(help=f"Who else is measured: none, or some of {','.join(PEERS)}; llama.cpp needs --llama-bench.")
]
Bench = Annotated[Path | None, typer.Option("--llama-bench", help="The program llama-bench; adds llama.cpp.")]
Gguf = Annotated[Path | None, typer.Option(help="What llama.cpp loads (default: the model in float32).")]
Threads = Annotated[str, typer.Option(help="Thread counts.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Samples of each figure (default: 5; with --quick 2).")]
Prompts = Annotated[str, typer.Option(help="Prompt lengths for prefill.")]
Tokens = Annotated[int | None, typer.Option(min=2, help="Tokens to decode (default: 128; with --quick 32).")]


def bench_command(
    folder: Folder,
    model: ModelName = DEFAULT_MODEL_NAME,
    peers: Peers = "eager",
    llama_bench: Bench = None,
    gguf: Gguf = None,
    threads: Threads = "1,2",
    rounds: Rounds = None,
    prompts: Prompts = "16,128,512",
    tokens: Tokens = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples: a look, not a measurement.")] = False,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with 1 when a target of the gate is missed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")] = None,
) -> None:
    """Measure decode, prefill, load time and memory of a built program and of its peers, as shares of the roofline.

    The read bandwidth and the multiply-add rate of this machine are measured with each sample. Progress goes to
    stderr.
    """
    if as_json and as_markdown:
        raise BuddyError("Only one of --json and --markdown can be printed; use --save FILE for the JSON.")
    settings = Settings(
        threads=_numbers(threads, "--threads"),
        rounds=rounds or (2 if quick else 5),
        prompts=_numbers(prompts, "--prompts"),
        decode_tokens=tokens or (32 if quick else 128),
    )
    folder = folder.absolute()
    weights = find_weights(folder)
    work = read_model_work(weights)
    limits = find_limits_program(folder)
    errors = Console(stderr=True, highlight=False)
    program = Program(folder / PROGRAM)
    about = _about(folder, work, weights, settings, program)
    contenders: list[Contender] = [program]
    try:
        contenders += _make_peers(peers, model, llama_bench, gguf)
        samples = run_rounds(
            contenders,
            work,
            settings,
            lambda count: measure_limits(limits, weights, count),
            lambda line: errors.print(line, markup=False, soft_wrap=True),
        )
    finally:
        for contender in contenders:
            contender.close()
    report = make_report(samples, about, Program.name, EAGER_NAME)
    if save is not None:
        _write(save, json.dumps(report.to_json(), indent=1) + "\n")
    if as_json:
        print(json.dumps(report.to_json()))
    elif as_markdown:
        print(report.markdown(), end="")
    else:
        report.print(Console(highlight=False))
    if gate and not all(entry.met for entry in report.gate):
        raise typer.Exit(1)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise BuddyError(f"{option} takes numbers from 1 with commas between them, not '{text}'.")
    return tuple(dict.fromkeys(numbers))


def find_weights(folder: Path) -> Path:
    """The weights file beside the program in `folder`. Raises BuddyError when either is missing."""
    if not (folder / PROGRAM).is_file():
        raise BuddyError(f"{folder} has no {PROGRAM}; name a folder that `buddy build MODEL -o DIR` made.")
    found = sorted(folder.glob("*.weights.safetensors"))
    if len(found) != 1:
        raise BuddyError(f"{folder} has {len(found)} files *.weights.safetensors instead of one; build the model.")
    return found[0]


def _make_peers(names: str, model: str, llama_bench: Path | None, gguf: Path | None) -> list[Contender]:
    chosen = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    unknown = [name for name in chosen if name not in PEERS]
    if unknown:
        raise BuddyError(f"The peer '{unknown[0]}' is unknown; choose from {', '.join(PEERS)}, or none.")
    if llama_bench is not None and "llama.cpp" not in chosen:
        chosen.append("llama.cpp")
    if not chosen:
        return []
    if "llama.cpp" in chosen and (llama_bench is None or not os.access(llama_bench, os.X_OK)):
        raise BuddyError("llama.cpp is measured with its program llama-bench; give its path with --llama-bench.")
    peers: list[Contender] = []
    folder = reference_folder(model)
    for name in dict.fromkeys(chosen):
        if name == "llama.cpp":
            assert llama_bench is not None
            kind = "F32" if gguf is None else gguf.stem
            peers.append(LlamaBench(llama_bench.absolute(), gguf or reference_gguf(folder), kind))
        else:
            peers.append(Torch(folder, compiled=name == "compile"))
    return peers


def _about(folder: Path, work: ModelWork, weights: Path, settings: Settings, program: Program) -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    tasks = settings.tasks()
    noise = "" if load < _BUSY else " (not quiet: the figures below are disturbed)"
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{_cpu_name()}, {len(allowed_cpus())} CPUs, {platform.system()} {platform.machine()}",
        "load average before": f"{load:.2f}{noise}",
        "model": f"{weights.name} in {folder.name}, {work.weight_bytes / 1e6:.0f} MB of weights per token",
        "work": "; ".join(_work_line(work, settings, index) for index in range(len(tasks))),
        "samples": f"{settings.rounds} of each figure, interleaved",
        "prefill of buddy-gen": "warm" if program.warms_up else "cold: the first evaluation of a new process",
    }


def _work_line(work: ModelWork, settings: Settings, index: int) -> str:
    task = settings.tasks()[index]
    each = " a token" if task.kind == "decode" else ""
    return f"{task.label}: {work.bytes_read(task) / 1e6:.0f} MB, {work.flops(task) / 1e9:.2f} GFLOP{each}"


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown CPU"


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise BuddyError(f"{path} cannot be written ({error.strerror}).") from error

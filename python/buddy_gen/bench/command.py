"""The command ``buddy bench FOLDER ...``, also ``python -m buddy_gen.bench FOLDER ...``."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from buddy_gen.bench.builds import Build, name_builds, read_builds
from buddy_gen.bench.contenders import Contender, LlamaBench, Program, Torch, allowed_cpus
from buddy_gen.bench.kernels import KernelTable, parse_profile
from buddy_gen.bench.limits import find_limits_program, last_level_cache_bytes, measure_limits
from buddy_gen.bench.peer_copies import reference_folder, reference_gguf
from buddy_gen.bench.report import make_report
from buddy_gen.bench.session import Settings, run_rounds, task_prompt
from buddy_gen.bench.work import Limits, ModelWork, Task
from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME

__all__ = ["PEERS", "bench_command"]

PEERS = ("eager", "compile", "llama.cpp")
_BUSY = 0.3  # a load average above this before the run means that the machine was not quiet

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="FOLDER", help="Folders with buddy-llama-run and its weights (see `buddy build`)."),
]
ModelName = Annotated[str, typer.Option("--model", help="The model that the builds are of, for the peers.")]
Peers = Annotated[
    str, typer.Option(help=f"Who else is measured: none, or some of {','.join(PEERS)}; llama.cpp needs --llama-bench.")
]
Bench = Annotated[Path | None, typer.Option("--llama-bench", help="The program llama-bench; adds llama.cpp.")]
Ggufs = Annotated[
    list[Path] | None, typer.Option("--gguf", help="What llama.cpp loads; may be repeated (default: float32).")
]
Threads = Annotated[str, typer.Option(help="Thread counts.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Samples of each figure (default: 5; with --quick 2).")]
Prompts = Annotated[str, typer.Option(help="Prompt lengths for prefill, or none.")]
DecodeAt = Annotated[str, typer.Option("--decode-at", help="Prompt lengths behind which tokens are decoded.")]
Contexts = Annotated[
    str, typer.Option(help="Contexts (-c) in which decoding behind the longest prompt is measured again.")
]
Tokens = Annotated[int | None, typer.Option(min=2, help="Tokens to decode (default: 128; with --quick 32).")]


def bench_command(
    folders: Folders,
    model: ModelName = DEFAULT_MODEL_NAME,
    peers: Peers = "eager",
    llama_bench: Bench = None,
    gguf: Ggufs = None,
    threads: Threads = "1,2",
    rounds: Rounds = None,
    prompts: Prompts = "16,128,512",
    decode_at: DecodeAt = "16",
    contexts: Contexts = "none",
    tokens: Tokens = None,
    kernels: Annotated[bool, typer.Option("--kernels", help="Also tell the time of each kernel.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples: a look, not a measurement.")] = False,
    gate: Annotated[bool, typer.Option("--gate", help="Exit with 1 when a target of the gate is missed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")] = None,
) -> None:
    """Measure decode, prefill, load time and memory of built programs and their peers, as shares of the roofline.

    The read bandwidth and the multiply-add rate of this machine are measured with each sample. Progress goes to stderr.

    With several folders, ratios are against the first.
    """
    if as_json and as_markdown:
        raise BuddyError("Only one of --json and --markdown can be printed; use --save FILE for the JSON.")
    settings = Settings(
        threads=_numbers(threads, "--threads"),
        rounds=rounds or (2 if quick else 5),
        prompts=_numbers(prompts, "--prompts", may_be_none=True),
        decode_tokens=tokens or (32 if quick else 128),
        decode_prompts=_numbers(decode_at, "--decode-at"),
        contexts=_numbers(contexts, "--contexts", may_be_none=True),
    )
    _check_contexts(settings)
    builds = read_builds(folders)
    work = builds[0].work
    run = _Run(settings, work, find_limits_program(builds[0].folder))
    programs = [Program(build, name) for build, name in zip(builds, name_builds(builds), strict=True)]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    contenders: list[Contender] = [*programs]
    try:
        contenders += _make_peers(peers, model, llama_bench, gguf or [])
        samples = run_rounds(contenders, work, settings, run.measure_limits, run.tell)
        tables = run.profile(programs) if kernels else []
    finally:
        for contender in contenders:
            contender.close()
    about = _about(builds, contenders, settings, load)
    report = make_report(samples, about, [contender.identity for contender in contenders], tables)
    if save is not None:
        _write(save, json.dumps(report.to_json(), indent=1) + "\n")
    if as_json:
        print(json.dumps(report.to_json()))
    elif as_markdown:
        print(report.markdown(), end="")
    else:
        report.print(Console(highlight=False))
    if gate and not report.gate:
        raise BuddyError(
            "The gate has no target for what was measured; it knows 1 and 2 threads (benchmarks/README.md)."
        )
    if gate and any(entry.missed for entry in report.gate):
        raise typer.Exit(1)


class _Run:
    """What the rounds and the profiles of one command share."""

    def __init__(self, settings: Settings, work: ModelWork, limits_program: Path) -> None:
        self._settings = settings
        self._work = work
        self._limits_program = limits_program
        self._errors = Console(stderr=True, highlight=False)

    def tell(self, line: str) -> None:
        self._errors.print(line, markup=False, soft_wrap=True)

    def measure_limits(self, threads: int, contender: Contender, task: Task) -> Limits:
        """Also of anonymous memory, where our decoding is compared at several lengths of the cache."""
        cache = 0
        far = max(self._settings.decode_prompts)
        if isinstance(contender, Program) and task.prompt == far > min(self._settings.decode_prompts):
            cache = int(contender.work(self._work).kv_bytes(task.average_position))
        return measure_limits(self._limits_program, contender.identity.file, threads, anonymous_bytes=cache)

    def profile(self, programs: Sequence[Program]) -> list[KernelTable]:
        """A profile of each task of each program."""
        tables = []
        for program in programs:
            for threads in self._settings.threads:
                for task in self._settings.tasks():
                    if task.context:
                        continue
                    limits = self.measure_limits(threads, program, task)
                    output = program.profile(task, threads, task_prompt(task, self._work.vocabulary))
                    tables.append(parse_profile(output, program.name, threads, task, limits, program.build.work))
                    self.tell(f"profile  {tables[-1].title}")
        return tables


def _numbers(text: str, option: str, may_be_none: bool = False) -> tuple[int, ...]:
    if may_be_none and text == "none":
        return ()
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise BuddyError(f"{option} takes numbers from 1 with commas between them, not '{text}'.")
    return tuple(dict.fromkeys(numbers))


def _check_contexts(settings: Settings) -> None:
    needed = Task("decode", settings.decode_tokens, max(settings.decode_prompts)).positions
    short = [context for context in settings.contexts if context < needed]
    if short:
        raise BuddyError(
            f"--contexts {short[0]} is too short for {settings.decode_tokens} tokens behind "
            f"{max(settings.decode_prompts)}, which need {needed}; lower --tokens or --decode-at."
        )


def _make_peers(names: str, model: str, llama_bench: Path | None, ggufs: Sequence[Path]) -> list[Contender]:
    chosen = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    unknown = [name for name in chosen if name not in PEERS]
    if unknown:
        raise BuddyError(f"The peer '{unknown[0]}' is unknown; choose from {', '.join(PEERS)}, or none.")
    if (llama_bench is not None or ggufs) and "llama.cpp" not in chosen:
        chosen.append("llama.cpp")
    if "llama.cpp" in chosen and (llama_bench is None or not os.access(llama_bench, os.X_OK)):
        raise BuddyError("llama.cpp is measured with its program llama-bench; give its path with --llama-bench.")
    peers: list[Contender] = []
    for name in dict.fromkeys(chosen):
        if name == "llama.cpp":
            assert llama_bench is not None
            peers += _llama_peers(llama_bench.absolute(), ggufs or [reference_gguf(reference_folder(model))])
        else:
            peers.append(Torch(reference_folder(model), compiled=name == "compile"))
    return peers


def _llama_peers(llama_bench: Path, ggufs: Sequence[Path]) -> list[LlamaBench]:
    """llama.cpp with each file; two of one type get the names of their files."""
    peers = [LlamaBench(llama_bench, path.absolute()) for path in dict.fromkeys(ggufs)]
    alike = Counter(peer.name for peer in peers)
    for peer in peers:
        if alike[peer.name] > 1:
            peer.identity = replace(peer.identity, name=f"{peer.name} ({peer.identity.file.stem})")
    return peers


def _about(builds: Sequence[Build], contenders: Sequence[Contender], settings: Settings, load: float) -> dict[str, Any]:
    noise = "" if load < _BUSY else " (not quiet: the figures below are disturbed)"
    work = builds[0].work
    programs = [contender for contender in contenders if isinstance(contender, Program)]
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": f"{_cpu_name()}, {len(allowed_cpus())} CPUs, {platform.system()} {platform.machine()}",
        "load average before": f"{load:.2f}{noise}",
    }
    about |= {contender.name: _contender_line(contender, work) for contender in contenders}
    about |= {
        f"work of {programs[0].name}": "; ".join(_work_line(work, task) for task in settings.tasks()),
        "samples": f"{settings.rounds} of each figure, interleaved",
        "prefill of buddy-gen": _each(
            programs, lambda one: "warm" if one.warms_up else "cold: the first evaluation of a new process"
        ),
    }
    cached = _cached_line(contenders, work)
    return about | ({"cache": cached} if cached else {})


def _contender_line(contender: Contender, work: ModelWork) -> str:
    own = contender.work(work)
    size = f"{own.weight_bytes / 1e6:.0f} MB of weights and {own.kv_bytes(1) / 1e3:.1f} kB of KV cache a position"
    if isinstance(contender, Program):
        return f"folder {contender.build.folder.name}, KV cache {contender.build.kv_dtype}, {size}"
    return size


def _work_line(work: ModelWork, task: Task) -> str:
    each = " a token" if task.kind == "decode" else ""
    return f"{task.label}: {work.bytes_read(task) / 1e6:.0f} MB, {work.flops(task) / 1e9:.2f} GFLOP{each}"


def _each(programs: Sequence[Program], text: Callable[[Program], str]) -> str:
    """What holds of every program, or of each."""
    texts = {program.name: text(program) for program in programs}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {one}" for name, one in texts.items())


def _cached_line(contenders: Sequence[Contender], work: ModelWork) -> str:
    """Whose weights may stay in the last cache between two tokens: their read loop is no measure of the memory."""
    cache = last_level_cache_bytes()
    small = [one.name for one in contenders if cache is not None and one.work(work).weight_bytes <= cache]
    if cache is None or not small:
        return ""
    return (
        f"the last level has {cache / 1e6:.0f} MB: the weights of {', '.join(small)} fit into it, so their read loops "
        "and their decoding may be faster than memory, as far as other users of the machine leave the cache to them"
    )


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

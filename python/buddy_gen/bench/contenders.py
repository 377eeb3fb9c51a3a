"""Who is timed: our programs and their peers. Each runs in processes of its own and gives one measurement a task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from buddy_gen.bench.builds import Build
from buddy_gen.bench.work import ModelWork, Task
from buddy_gen.errors import BuddyError

__all__ = [
    "EAGER_NAME",
    "LLAMA_CPP",
    "OURS",
    "PYTORCH",
    "Contender",
    "Identity",
    "LlamaBench",
    "Measurement",
    "Program",
    "Torch",
    "allowed_cpus",
]

OURS, PYTORCH, LLAMA_CPP = "buddy-gen", "PyTorch", "llama.cpp"
EAGER_NAME = "PyTorch eager f32"
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_USUAL_CONTEXT = 4096  # positions that the program has without -c


@dataclass(frozen=True)
class Identity:
    """What a report has to know of a contender."""

    name: str
    family: str
    """OURS, PYTORCH or LLAMA_CPP."""
    dtype: str
    """Ours: see Build.dtype; PyTorch: f32; llama.cpp: the type of its file, such as Q8_0."""
    file: Path
    """The weights, over which the read loop runs."""
    source: str = ""
    """Ours: the name of the file that it was built from; llama.cpp: that of its own."""


@dataclass(frozen=True)
class Measurement:
    """One run of one task."""

    seconds: float
    ids: tuple[int, ...] = ()
    """The generated ids, where the contender says them."""
    load_seconds: float | None = None
    peak_rss_bytes: int | None = None


def allowed_cpus() -> list[int]:
    """The CPUs that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _binds(threads: int) -> bool:
    """Whether threads are bound: one to each CPU, when there are as many. Two on one CPU would halve a run."""
    return threads > 1 and threads == len(allowed_cpus())


class Contender(ABC):
    """Something that runs the model."""

    identity: Identity

    @abstractmethod
    def run(self, task: Task, threads: int, prompt: list[int]) -> Measurement:
        """Runs a task once. Raises BuddyError when the contender fails."""

    @property
    def name(self) -> str:
        """A name that no other contender of the run has."""
        return self.identity.name

    def takes(self, task: Task) -> bool:
        """Whether the task is one for this contender: only our programs have a context to choose."""
        return not task.context

    def work(self, work: ModelWork) -> ModelWork:
        """The work of the model as this contender stores it, from that of our first build."""
        return work

    def close(self) -> None:
        """Ends the processes that are kept between runs."""
        return


class Program(Contender):
    """Our program, a process for each run. Where it has ``--warm-up``, prefill is timed behind a first evaluation."""

    def __init__(self, build: Build, name: str) -> None:
        self.identity = Identity(name, OURS, build.dtype, build.weights, build.source)
        self.build = build
        self.warms_up = "--warm-up" in _output([str(build.program), "--help"])

    def takes(self, task: Task) -> bool:
        return True

    def work(self, work: ModelWork) -> ModelWork:
        return self.build.work

    def run(self, task: Task, threads: int, prompt: list[int]) -> Measurement:
        return parse_program(_output(self._command(task, threads, prompt)), task)

    def profile(self, task: Task, threads: int, prompt: list[int]) -> str:
        """What the program's ``--json`` says of a run with ``--profile``. Raises BuddyError when it fails."""
        return _output([*self._command(task, threads, prompt), "--profile"])

    def _command(self, task: Task, threads: int, prompt: list[int]) -> list[str]:
        command = [str(self.build.program), "--json", "--ignore-eos", "-t", str(threads)]
        command += ["--ids", ",".join(map(str, prompt))]
        if task.context or task.positions > _USUAL_CONTEXT:
            command += ["-c", str(task.context or task.positions)]
        if task.kind == "decode":
            return [*command, "-n", str(task.tokens + 1)]  # the prompt gives the first token
        command += ["-n", "1", "--ubatch-size", str(max(512, len(prompt)))]
        return [*command, "--warm-up"] if self.warms_up else command


def parse_program(output: str, task: Task) -> Measurement:
    """What the program's ``--json`` says. Raises BuddyError when it is not that, or did not finish the task."""
    try:
        values = json.loads(output)
        ids = tuple(int(one) for one in values["ids"])
        seconds = float(values[f"{task.kind}_seconds"])
        loaded, rss = float(values["load_seconds"]), int(values["peak_rss_bytes"])
    except (ValueError, KeyError, TypeError):
        raise BuddyError(f"The program printed {output.strip()[:80]!r} instead of its JSON; build it again.") from None
    if seconds <= 0 or (task.kind == "decode" and len(ids) != task.tokens + 1):
        raise BuddyError(f"The program ended early ({values.get('stop')}) at {task.label}; is its context too short?")
    return Measurement(seconds, ids, loaded, rss)


class Torch(Contender):
    """PyTorch in float32 with transformers' model: eager, or through torch.compile. One process a thread count."""

    def __init__(self, folder: Path, compiled: bool = False) -> None:
        name = "torch.compile f32" if compiled else EAGER_NAME
        files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
        self.identity = Identity(name, PYTORCH, "f32", files[-1] if files else folder)
        self._folder = folder
        self._compiled = compiled
        self._workers: dict[int, tuple[subprocess.Popen[str], float, IO[str]]] = {}

    def work(self, work: ModelWork) -> ModelWork:
        return work.in_floats()

    def run(self, task: Task, threads: int, prompt: list[int]) -> Measurement:
        if threads not in self._workers:
            self._start(threads)
        process, load_seconds, _ = self._workers[threads]
        assert process.stdin is not None
        request = {"kind": task.kind, "prompt": prompt, "tokens": task.tokens}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError:
            raise self._failure(threads) from None
        values = self._answer(threads, process)
        return Measurement(values["seconds"], tuple(values["ids"]), load_seconds, values["peak_rss_bytes"])

    def _start(self, threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")])
        if _binds(threads):
            environment |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
        command = [sys.executable, "-m", "buddy_gen.bench.torch_worker", str(self._folder), "--threads", str(threads)]
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        process = subprocess.Popen(
            [*command, "--compile"] if self._compiled else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
        self._workers[threads] = (process, 0.0, errors)
        self._workers[threads] = (process, self._answer(threads, process)["load_seconds"], errors)

    def _answer(self, threads: int, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            answer: dict[str, Any] = json.loads(process.stdout.readline())
        except ValueError:
            raise self._failure(threads) from None
        return answer

    def _failure(self, threads: int) -> BuddyError:
        process, _, errors = self._workers.pop(threads)
        process.kill()
        process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
        errors.close()
        return BuddyError(f"{self.name} failed: {lines[-1] if lines else 'it ended without a word'}")

    def close(self) -> None:
        for process, _, errors in self._workers.values():
            process.communicate()
            errors.close()
        self._workers.clear()


class LlamaBench(Contender):
    """llama.cpp, through its own llama-bench; a process for each run, which warms up by itself."""

    def __init__(self, executable: Path, gguf: Path) -> None:
        kind, self._weight_bytes = read_gguf_weights(gguf)
        self.identity = Identity(f"llama.cpp {kind}", LLAMA_CPP, kind, gguf, gguf.name)
        self._executable = executable

    def work(self, work: ModelWork) -> ModelWork:
        return replace(work, weight_bytes=self._weight_bytes, kv_element_bytes=2)  # its cache is f16 by default

    def run(self, task: Task, threads: int, prompt: list[int]) -> Measurement:
        command = [str(self._executable), "-m", str(self.identity.file), "-t", str(threads), "-r", "1", "-o", "json"]
        if task.kind == "prefill":
            command += ["-p", str(task.tokens), "-n", "0", "-ub", str(max(512, task.tokens))]
        else:
            command += ["-p", "0", "-n", str(task.tokens), "-d", str(task.prompt)]
        if _binds(threads):
            command += ["--cpu-strict", "1", "-C", hex(sum(1 << cpu for cpu in allowed_cpus()))]
        output, rss = _output_and_peak(command)
        return Measurement(parse_llama_bench(output, task), peak_rss_bytes=rss)


def read_gguf_weights(path: Path) -> tuple[str, int]:
    """The type of a GGUF file, such as Q8_0, and the bytes of weights that a token needs.

    They are those of all tensors but the embedding of an untied model. A file that does not tell its type has that of
    most of its bytes. Raises BuddyError when it is no GGUF.
    """
    from gguf import LlamaFileType

    from buddy_gen.weights.gguf_file import read_gguf

    file = read_gguf(path)
    sizes = {name: tensor.bytes for name, tensor in file.tensors.items()}
    total = sum(sizes.values()) - (sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0)
    declared = file.metadata.get("general.file_type")
    if declared in list(LlamaFileType):
        return LlamaFileType(declared).name.removeprefix("MOSTLY_").removeprefix("ALL_"), total
    kinds: Counter[str] = Counter()
    for tensor in file.tensors.values():
        kinds[tensor.kind.name] += tensor.bytes
    return (kinds.most_common(1)[0][0] if kinds else "empty"), total


def parse_llama_bench(output: str, task: Task) -> float:
    """Seconds of the task in llama-bench's JSON. Raises BuddyError when they are not there."""
    try:
        entry = next(
            one
            for one in json.loads(output)
            if int(one["n_prompt" if task.kind == "prefill" else "n_gen"]) == task.tokens
        )
        return float(entry["avg_ns"]) / 1e9
    except (ValueError, KeyError, TypeError, StopIteration):
        raise BuddyError(f"llama-bench printed no result for {task.label}; is it a recent one?") from None


def _output(command: list[str]) -> str:
    return _output_and_peak(command)[0]


def _output_and_peak(command: list[str]) -> tuple[str, int]:
    """Standard output of a command and its peak memory in bytes.

    Raises:
        BuddyError: It failed; the message ends with its last line on standard error.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        except OSError as error:
            raise BuddyError(f"{command[0]} cannot be run ({error.strerror}).") from error
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            last = (errors.read().strip().splitlines() or ["no reason given"])[-1]
            raise BuddyError(f"{command[0]} failed ({process.returncode}): {last}")
        return output.read(), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

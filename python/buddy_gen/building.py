"""Builds a model into a folder that runs as it is.

A CMake project of a few lines that does find_package(Buddy) is written and built: the stages of a model are those of
``cmake/BuddyModel.cmake`` and stand nowhere else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, default_cache_dir
from buddy_gen.version import release

PACKAGE = Path(__file__).resolve().parent
PROGRAM = "buddy-llama-run"
LIBRARY = "libllama.so"
_FILES = (PROGRAM, LIBRARY, "llama.weights.safetensors", "llama.vocab")

_PROJECT = """\
# Written by `buddy build`.
cmake_minimum_required(VERSION 3.25)
project(buddy-build LANGUAGES CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
find_package(Buddy REQUIRED CONFIG)
buddy_add_model(
  llama
  MODEL "${MODEL}"
  DTYPE "${DTYPE}"
  GROUP "${GROUP}"
  KV_DTYPE "${KV_DTYPE}"
  CALIBRATION "${CALIBRATION}"
  CALIBRATION_TOKENS "${CALIBRATION_TOKENS}"
  TARGET "${TARGET}"
  DIALECT_PRIORITY ${DIALECT_PRIORITY}
  ENTRY_POINTS ${ENTRY_POINTS}
  RUNTIME_DIR "${RUNTIME_DIR}"
)
buddy_add_llama_app(buddy-llama-run MODEL llama)
buddy_add_llama_library(buddy-llama-library MODEL llama)
"""


@dataclass(frozen=True)
class Options:
    """What decides about the code of a build; the cache is keyed by it. An empty text is the generator's default."""

    model: str
    target: str
    dtype: str
    dialect_priority: str
    group: str = ""
    kv_dtype: str = ""
    calibrate: str = ""
    calibration_tokens: str = ""
    entry_points: str = "prefill,decode"

    def work_dir(self) -> Path:
        """The folder, in the cache, where this model is built with these options."""
        text = json.dumps([release(), str(PACKAGE), asdict(self)], sort_keys=True)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.model).stem) or "model"
        return default_cache_dir() / "builds" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class _Tools:
    """What a build needs on this machine."""

    cmake: str
    ninja: str
    compiler: str
    config: Path


def find_cmake_dir() -> Path:
    """The folder of BuddyConfig.cmake.

    Raises:
        BuddyError: The package runs from its sources, where nothing is installed.
    """
    folder = PACKAGE / "share" / "buddy" / "cmake"
    if not (folder / "BuddyConfig.cmake").exists():
        raise BuddyError(f"{PACKAGE} is not an installed buddy-gen; run `pip install .` in the clone first.")
    return folder


def find_tool(name: str, advice: str) -> str:
    """A program, looked for beside the interpreter (where pip puts it) and in PATH."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join([str(beside), os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise BuddyError(f"{name} was not found; {advice}.")
    return found


def find_compiler() -> str:
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in candidates:
        if found := shutil.which(name):
            return found
    raise BuddyError(f"No C++ compiler was found ({', '.join(candidates)}); install one (Debian: apt install g++).")


def resolve_model(model: str) -> str:
    """A model as the generator takes it: an absolute path, or the name of the default model."""
    if model == DEFAULT_MODEL_NAME:
        return model
    path = Path(model).expanduser()
    if not model or not path.exists():
        raise BuddyError(
            f"The model '{model}' does not exist; give a model folder, a GGUF file, or {DEFAULT_MODEL_NAME}."
        )
    return str(path.resolve())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder of the cache, so that two builds of one model do not write into each other."""
    lock = folder / "lock"
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = lock.open("w")
        except OSError as error:
            raise BuddyError(
                f"The cache folder {folder} cannot be written ({error.strerror}); set BUDDY_CACHE_DIR."
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if lock.exists() and lock.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield
                return
        # A build that failed has taken the folder away in the meantime.


class StepError(BuddyError):
    """A step of a build failed."""


class Steps:
    """Runs the steps of a build. Their output goes to the terminal, to stderr with --json, and to a log if quiet."""

    def __init__(self, log: Path, quiet: bool, to_stderr: bool) -> None:
        self._log = log
        self._console = Console(stderr=to_stderr, highlight=False, quiet=quiet)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def run(self, what: str, command: list[str]) -> None:
        """Runs a command to its end.

        Raises:
            StepError: It failed; the message is the command's own where it has one.
        """
        lines: list[str] = []
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise StepError(f"{what} could not start {command[0]} ({error.strerror}).") from error
        assert process.stdout is not None
        failing = False
        with process, self._log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                lines.append(line)
                failing = failing or line.startswith("CMake Error")
                line = line.rstrip("\n").removeprefix("-- buddy: ")
                if not failing and not line.startswith("-- "):
                    self.say(line)
        if process.returncode != 0:
            raise StepError(_reason("".join(lines)) or f"{what} failed; the log is {self._log}.")


def _reason(output: str) -> str:
    """The sentence of a message(FATAL_ERROR), which CMake indents and wraps; empty if there is none."""
    match = re.search(
        r"^CMake Error[^\n]*\(message\):\n(.*?)(?:\n\S|\nCall Stack|\Z)", output, re.MULTILINE | re.DOTALL
    )
    sentence = " ".join(match[1].split()).removeprefix("buddy: error: ") if match else ""
    return "" if "Traceback (most recent call last)" in sentence else sentence


def build_model(options: Options, output: Path, quiet: bool, to_stderr: bool) -> dict[str, object]:
    """Builds a model into a folder, and says what stands there.

    The weights and the vocabulary are written straight into the folder; library and program are linked in the cache and
    copied there, the program last, so that a folder with a program is complete. A build that fails leaves no folder
    that was not there before, neither in the cache nor at `output`; its log stays where the message says.

    Raises:
        BuddyError: Something that is needed is missing, or a step failed.
    """
    start = time.monotonic()
    tools = _Tools(
        cmake=find_tool("cmake", "install it (pip install cmake)"),
        ninja=find_tool("ninja", "install it (pip install ninja)"),
        compiler=find_compiler(),
        config=find_cmake_dir(),
    )
    is_new = not output.exists()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuddyError(f"The folder {output} cannot be made ({error.strerror}); name another with -o.") from error
    try:
        if not os.access(output, os.W_OK):
            raise BuddyError(f"The folder {output} cannot be written; name another with -o.")
        steps = _build(options, tools, output, quiet, to_stderr)
    except BuddyError:
        if is_new:
            shutil.rmtree(output, ignore_errors=True)
        raise
    sizes = {name: (output / name).stat().st_size for name in _FILES if (output / name).exists()}
    seconds = time.monotonic() - start
    for name, size in sizes.items():
        steps.say(f"{output / name}  {_readable(size)}")
    prompt = '-p "The capital of France is"' if (output / "llama.vocab").exists() else "--ids 1,2,3"
    steps.say(f"Done in {seconds:.1f} s. Run it: {shlex.quote(str(output / PROGRAM))} {prompt}")
    return {"directory": str(output), "executable": str(output / PROGRAM), "files": sizes, "seconds": round(seconds, 3)}


def _build(options: Options, tools: _Tools, output: Path, quiet: bool, to_stderr: bool) -> Steps:
    """Builds in the cache and publishes; gives the steps, for what is left to say."""
    work = options.work_dir()
    build = work / "build"
    with locked(work):
        is_new = not (build / "bin" / PROGRAM).exists()
        log = work / "build.log"
        steps = Steps(log, quiet, to_stderr)
        try:
            (work / "CMakeLists.txt").write_text(_PROJECT, encoding="utf-8")
            log.write_text("", encoding="utf-8")
            definitions: dict[str, str | Path] = {
                "Buddy_DIR": tools.config,
                "Python3_EXECUTABLE": sys.executable,
                "CMAKE_MAKE_PROGRAM": tools.ninja,
                "CMAKE_CXX_COMPILER": tools.compiler,
                "CMAKE_BUILD_TYPE": "Release",
                "MODEL": options.model,
                "DTYPE": options.dtype,
                "GROUP": options.group,
                "KV_DTYPE": options.kv_dtype,
                "CALIBRATION": options.calibrate,
                "CALIBRATION_TOKENS": options.calibration_tokens,
                "ENTRY_POINTS": options.entry_points.replace(",", ";"),
                "TARGET": options.target,
                "DIALECT_PRIORITY": options.dialect_priority.replace(",", ";"),
                "RUNTIME_DIR": output,
            }
            if ccache := shutil.which("ccache"):
                definitions["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
            steps.say(f"Building {options.model} for {options.target}, {options.dtype}, in {work}")
            arguments = [f"-D{name}={value}" for name, value in definitions.items()]
            steps.run("Configuring", [tools.cmake, "-G", "Ninja", "-S", str(work), "-B", str(build), *arguments])
            steps.run("Building", [tools.cmake, "--build", str(build)])
            for name in (LIBRARY, PROGRAM):
                _publish(build / "bin" / name, output / name)
        except OSError as error:
            raise BuddyError(
                f"The cache folder {work} cannot be written ({error.strerror}); set BUDDY_CACHE_DIR."
            ) from error
        except StepError as error:
            raise BuddyError(_without_folder(work, log, str(error)) if is_new else str(error)) from None
    return steps


def _without_folder(work: Path, log: Path, sentence: str) -> str:
    """Takes a failed build's folder away. A log that the sentence names goes beside it, under the name it then says."""
    kept = work.with_name(f"{work.name}.log")
    if str(log) in sentence:
        shutil.copyfile(log, kept)
        sentence = sentence.replace(str(log), str(kept))
    shutil.rmtree(work, ignore_errors=True)
    return sentence


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _publish(program: Path, destination: Path) -> None:
    beside = destination.with_name(destination.name + ".tmp")
    try:
        shutil.copy2(program, beside)
        beside.replace(destination)
    except OSError as error:
        raise BuddyError(f"{destination} cannot be written ({error.strerror}).") from error

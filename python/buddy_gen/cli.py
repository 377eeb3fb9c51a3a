"""The command line: ``buddy build``, ``buddy run``, ``buddy cmake-dir``, ``buddy version``.

``buddy build`` writes a CMake project of a few lines that does find_package(Buddy), and builds it: the stages of a
model are those of ``cmake/BuddyModel.cmake`` and stand nowhere else.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from buddy_gen.bench.command import bench_command
from buddy_gen.choices import DIALECTS, DTYPES
from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, default_cache_dir
from buddy_gen.target import TARGETS

PACKAGE = Path(__file__).resolve().parent
PROGRAM = "buddy-llama-run"
_FILES = (PROGRAM, "llama.weights.safetensors", "llama.vocab")

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
  TARGET "${TARGET}"
  DIALECT_PRIORITY ${DIALECT_PRIORITY}
  RUNTIME_DIR "${RUNTIME_DIR}"
)
buddy_add_llama_app(buddy-llama-run MODEL llama)
"""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compile language models to native programs.",
)

Target = Annotated[
    str,
    typer.Option(
        callback=lambda value: _one_of(("native", *TARGETS), "target")(value),
        help="Machine to generate code for: native, x86-64-v3, x86-64-v4, ...",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        callback=lambda value: _one_of(DTYPES, "dtype")(value),
        help="Element type of the weights and the arithmetic.",
    ),
]
Priority = Annotated[
    str,
    typer.Option(
        callback=lambda value: _one_of(DIALECTS, "dialect")(value),
        help="Dialects in order of preference, such as tosa,linalg.",
    ),
]
Model = Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file, or smollm2 for the default model.")]


def _one_of(known: Iterable[str], what: str) -> Callable[[str], str]:
    """A check of an option whose value is one of `known`, or several of them with commas between."""

    def check(value: str) -> str:
        wrong = [part for part in value.split(",") if part not in known]
        if wrong:
            raise typer.BadParameter(f"unknown {what} '{wrong[0]}'; choose from {', '.join(known)}")
        return value

    return check


@dataclass(frozen=True)
class Options:
    """What decides about the code of a build; the cache is keyed by it."""

    model: str
    target: str
    dtype: str
    dialect_priority: str

    def work_dir(self) -> Path:
        """The folder, in the cache, where this model is built with these options."""
        text = json.dumps([version(), str(PACKAGE), asdict(self)], sort_keys=True)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.model).stem) or "model"
        return default_cache_dir() / "builds" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def version() -> str:
    try:
        return importlib.metadata.version("buddy-gen")
    except importlib.metadata.PackageNotFoundError:
        return "0 (sources)"


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise BuddyError(
            f"The cache folder {folder} cannot be written ({error.strerror}); set BUDDY_CACHE_DIR."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
            BuddyError: It failed; the message is the command's own where it has one.
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
            raise BuddyError(f"{what} could not start {command[0]} ({error.strerror}).") from error
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
            raise BuddyError(_reason("".join(lines)) or f"{what} failed; the log is {self._log}.")


def _reason(output: str) -> str:
    """The sentence of a message(FATAL_ERROR), which CMake indents and wraps; empty if there is none."""
    match = re.search(
        r"^CMake Error[^\n]*\(message\):\n(.*?)(?:\n\S|\nCall Stack|\Z)", output, re.MULTILINE | re.DOTALL
    )
    sentence = " ".join(match[1].split()).removeprefix("buddy: error: ") if match else ""
    return "" if "Traceback (most recent call last)" in sentence else sentence


def build_model(options: Options, output: Path, quiet: bool, to_stderr: bool) -> dict[str, object]:
    """Builds a model into a folder, and says what stands there.

    The weights and the vocabulary are written straight into the folder; the program is linked in the cache and moved
    there last, so that a folder with a program is complete.
    """
    start = time.monotonic()
    cmake = find_tool("cmake", "install it (pip install cmake)")
    ninja = find_tool("ninja", "install it (pip install ninja)")
    compiler = find_compiler()
    config = find_cmake_dir()
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuddyError(f"The folder {output} cannot be made ({error.strerror}); name another with -o.") from error
    if not os.access(output, os.W_OK):
        raise BuddyError(f"The folder {output} cannot be written; name another with -o.")

    work = options.work_dir()
    with locked(work):
        (work / "CMakeLists.txt").write_text(_PROJECT, encoding="utf-8")
        log = work / "build.log"
        log.write_text("", encoding="utf-8")
        steps = Steps(log, quiet, to_stderr)
        definitions: dict[str, str | Path] = {
            "Buddy_DIR": config,
            "Python3_EXECUTABLE": sys.executable,
            "CMAKE_MAKE_PROGRAM": ninja,
            "CMAKE_CXX_COMPILER": compiler,
            "CMAKE_BUILD_TYPE": "Release",
            "MODEL": options.model,
            "DTYPE": options.dtype,
            "TARGET": options.target,
            "DIALECT_PRIORITY": options.dialect_priority.replace(",", ";"),
            "RUNTIME_DIR": output,
        }
        if ccache := shutil.which("ccache"):
            definitions["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
        build = work / "build"
        steps.say(f"Building {options.model} for {options.target}, {options.dtype}, in {work}")
        arguments = [f"-D{name}={value}" for name, value in definitions.items()]
        steps.run("Configuring", [cmake, "-G", "Ninja", "-S", str(work), "-B", str(build), *arguments])
        steps.run("Building", [cmake, "--build", str(build)])
        _publish(build / "bin" / PROGRAM, output / PROGRAM)
    sizes = {name: (output / name).stat().st_size for name in _FILES if (output / name).exists()}
    seconds = time.monotonic() - start
    for name, size in sizes.items():
        steps.say(f"{output / name}  {_readable(size)}")
    prompt = '-p "The capital of France is"' if (output / "llama.vocab").exists() else "--ids 1,2,3"
    steps.say(f"Done in {seconds:.1f} s. Run it: {shlex.quote(str(output / PROGRAM))} {prompt}")
    return {"directory": str(output), "executable": str(output / PROGRAM), "files": sizes, "seconds": round(seconds, 3)}


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _publish(program: Path, destination: Path) -> None:
    beside = destination.with_name(destination.name + ".tmp")
    try:
        shutil.copy2(program, beside)
        beside.replace(destination)
    except OSError as error:
        raise BuddyError(f"{destination} cannot be written ({error.strerror}).") from error


@app.command()
def build(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder that gets the program and its files.")],
    target: Target = "native",
    dtype: Dtype = "f32",
    dialect_priority: Priority = "linalg,tosa",
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to stderr.")] = False,
) -> None:
    """Compile MODEL into a folder that runs as it is."""
    options = Options(resolve_model(model), target, dtype, dialect_priority)
    result = build_model(options, output.absolute(), quiet, to_stderr=as_json)
    if as_json:
        print(json.dumps(result))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A folder made by `buddy build`, or a model (see `buddy build`).")],
    target: Target = "native",
    dtype: Dtype = "f32",
    dialect_priority: Priority = "linalg,tosa",
) -> None:
    """Run MODEL; what follows it goes to the program, such as -p TEXT (see `buddy run MODEL --help`).

    A model is built first, with progress on stderr, unless the cache holds it.
    """
    program = Path(model).absolute() / PROGRAM
    if not program.is_file():
        options = Options(resolve_model(model), target, dtype, dialect_priority)
        folder = options.work_dir() / "run"
        build_model(options, folder, quiet=(folder / PROGRAM).exists(), to_stderr=True)
        program = folder / PROGRAM
    _exec(program, context.args)


app.command("bench")(bench_command)


@app.command("cmake-dir")
def cmake_dir() -> None:
    """Print the folder of BuddyConfig.cmake, for find_package(Buddy) with -DBuddy_DIR."""
    print(find_cmake_dir())


@app.command("version")
def version_command() -> None:
    """Print the version."""
    print(version())


def _exec(program: Path, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execv(program, [str(program), *arguments])
    except OSError as error:
        raise BuddyError(f"{program} cannot be run ({error.strerror}).") from error


def main() -> None:
    """The console script ``buddy``: exit code 0 success, 1 a failure with its sentence, 2 wrong usage."""
    try:
        app()
    except BuddyError as error:
        print(f"buddy: {error}", file=sys.stderr)
        sys.exit(1)


def buddy_opt() -> None:
    """The console script ``buddy-opt``: becomes the program that is installed inside the package."""
    try:
        _exec(PACKAGE / "bin" / "buddy-opt", sys.argv[1:])
    except BuddyError as error:
        print(f"buddy-opt: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()

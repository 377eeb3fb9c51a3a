"""MLIR module -> shared library in this process, for ``torch.compile(backend="buddy")`` and the tests of the rules.

A model's program is built by CMake; here the same stages run on one small module without a build folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import default_cache_dir
from buddy_gen.target import Target

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Tools:
    """The programs of the stages, and where the run time's sources are."""

    buddy_opt: str
    mlir_translate: str
    opt: str
    llc: str
    compiler: str
    runtime: Path


def _program(name: str, package: str, variable: str | None = None) -> str:
    """A tool by environment variable, from the wheel `package`, or from PATH."""
    candidates = [os.environ.get(variable, "")] if variable else []
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidates.append(str(Path(location) / "bin" / name))
    candidates.append(shutil.which(name) or "")
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    hint = f"set {variable} to its path" if variable else f"install the wheel that holds {package}/bin/{name}"
    raise BuddyError(f"{name} is needed to compile and was not found; {hint}")


def find_tools() -> Tools:
    """Finds every tool.

    Raises:
        BuddyError: One is missing; the message names it and says what to do.
    """
    folders = [_PACKAGE / "share/buddy/cpp/runtime", _PACKAGE.parent.parent / "cpp/runtime"]
    runtime = next((folder for folder in folders if folder.is_dir()), None)
    if runtime is None:
        raise BuddyError("the sources of the run time (cpp/runtime) are missing; install buddy-gen again")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise BuddyError("a C++17 compiler is needed and was not found; install g++ or set CXX")
    return Tools(
        _program("buddy-opt", "buddy_gen", "BUDDY_OPT"),
        _program("mlir-translate", "mlir"),
        _program("opt", "llvm"),
        _program("llc", "llvm"),
        compiler,
        runtime,
    )


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuddyError(f"{what} failed: {lines[0].strip() if lines else f'exit code {done.returncode}'}")


def _runtime_library(tools: Tools) -> Path:
    """The run time as a shared library, compiled once for each state of its sources."""
    sources = sorted(tools.runtime.glob("*.cpp"))
    headers = sorted(tools.runtime.rglob("*.h"))
    digest = hashlib.sha256()
    for path in [*sources, *headers]:
        digest.update(path.read_bytes())
    library = default_cache_dir() / "runtime" / f"libbuddy_runtime-{digest.hexdigest()[16:32]}.so"
    if library.is_file():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        include = [f"-I{tools.runtime}", f"-I{tools.runtime.parent / 'containers'}"]
        flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
        _run([tools.compiler, *flags, *include, *map(str, sources), "-o", str(made)], "compiling the run time")
        made.replace(library)
    return library


class NativeModule:
    """A loaded module; `entry` calls its functions through MLIR's C interface."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def entry(self, name: str) -> Callable[..., None]:
        """The function `name`; its arguments are arrays (passed as memref descriptors) and integers (i64)."""
        function = getattr(self._library, f"_mlir_ciface_{name}")
        function.restype = None

        def call(*arguments: npt.NDArray[Any] | int) -> None:
            held = [_descriptor(value) if isinstance(value, np.ndarray) else value for value in arguments]
            function(*[ctypes.c_int64(item) if isinstance(item, int) else ctypes.byref(item) for item in held])

        return call

    def arena_size(self, name: str, tokens: int) -> int:
        """Bytes that the entry point `name` wants as its arena for a number of tokens."""
        function = getattr(self._library, f"_mlir_ciface_{name}_arena_size")
        function.restype = ctypes.c_int64
        return int(function(ctypes.c_int64(tokens)))


def _descriptor(array: npt.NDArray[Any]) -> ctypes.Structure:
    """MLIR's StridedMemRefType for an array (strides in elements)."""
    rank = array.ndim

    class Descriptor(ctypes.Structure):
        _fields_ = (
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            ("sizes", ctypes.c_int64 * rank),
            ("strides", ctypes.c_int64 * rank),
        )

    sizes = (ctypes.c_int64 * rank)(*array.shape)
    strides = (ctypes.c_int64 * rank)(*(stride // array.itemsize for stride in array.strides))
    return Descriptor(array.ctypes.data, array.ctypes.data, 0, sizes, strides)


def compile_module(text: str, target: Target, pipeline: str = "buddy-lower-to-llvm") -> NativeModule:
    """Compiles an MLIR module for `target` and loads it.

    Args:
        text: The module at the frontend's level.
        target: The machine; it must be this one.
        pipeline: The named pipeline of buddy-opt, with its options.

    Raises:
        BuddyError: A tool is missing or refuses the module.
    """
    tools = find_tools()
    runtime = _runtime_library(tools)
    machine = [f"-mcpu={target.cpu}", *([f"-mattr={target.features}"] if target.features else [])]
    with tempfile.TemporaryDirectory(prefix="buddy-") as folder:
        stem = Path(folder) / "module"
        source, lowered, ir, optimised, code = (
            str(stem.with_suffix(suffix)) for suffix in (".mlir", ".llvm.mlir", ".ll", ".opt.bc", ".o")
        )
        Path(source).write_text(text, encoding="utf-8")
        _run([tools.buddy_opt, f"--{pipeline}", source, "-o", lowered], "buddy-opt")
        _run([tools.mlir_translate, "--mlir-to-llvmir", lowered, "-o", ir], "mlir-translate")
        _run([tools.opt, "-O3", *machine, ir, "-o", optimised], "opt")
        _run([tools.llc, "-O3", *machine, "-filetype=obj", "-relocation-model=pic", optimised, "-o", code], "llc")
        library = str(stem.with_suffix(".so"))
        _run([tools.compiler, "-shared", "-o", library, code, str(runtime), "-lm"], "linking")
        # The library stays mapped after its file is gone.
        return NativeModule(Path(library))

"""Compiles a module through a pipeline of buddy-opt to machine code and calls its functions with numpy arrays.

Tools come from the environment that ctest sets (``BUDDY_OPT``, ``BUDDY_MLIR_BIN``, ``BUDDY_LLVM_BIN``,
``BUDDY_BUILD_DIR``); by hand, from the newest build folder and the ``mlir`` and ``llvm`` wheels.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Machine:
    """A target's vector sizes and what LLVM calls it."""

    name: str
    vector_bits: int
    panel: int
    tile_rows: int
    features: str = ""

    @property
    def attribute(self) -> str:
        """The module attribute ``buddy.target``; x86-64-v2 is the one that has no instructions for half precision."""
        return (
            f'buddy.target = {{name = "{self.name}", triple = "x86_64-unknown-linux-gnu", cpu = "{self.name}", '
            f'features = "{self.features}", vector_bits = {self.vector_bits} : i64, registers = 16 : i64, '
            f"panel = {self.panel} : i64, tile_rows = {self.tile_rows} : i64, "
            f"converts_half = {int(self.name != 'x86-64-v2')} : i64}}"
        )


V2 = Machine("x86-64-v2", 128, 8, 6)
V3 = Machine("x86-64-v3", 256, 16, 6)
V4 = Machine("x86-64-v4", 512, 32, 12, "-prefer-256-bit")


def machines() -> list[Machine]:
    """The machines that this one can run as."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    found = [V2] if "sse4_2" in flags else []
    if {"avx2", "fma"} <= flags:
        found.append(V3)
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"} <= flags:
        found.append(V4)
    return found


@cache
def tool(name: str) -> str:
    """The path of a tool of LLVM, MLIR or this project."""
    if name == "buddy-opt":
        if given := os.environ.get("BUDDY_OPT"):
            return given
        built = sorted((ROOT / "build").glob("*/bin/buddy-opt"), key=lambda path: path.stat().st_mtime)
        if not built:
            raise FileNotFoundError("buddy-opt was not found under build/; build it or set BUDDY_OPT.")
        return str(built[-1])
    folders = [folder for folder in (os.environ.get("BUDDY_MLIR_BIN"), os.environ.get("BUDDY_LLVM_BIN")) if folder]
    for package in ("mlir", "llvm"):
        spec = importlib.util.find_spec(package)
        folders += [f"{place}/bin" for place in (spec.submodule_search_locations or [] if spec else [])]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise FileNotFoundError(f"{name} was not found; set BUDDY_MLIR_BIN and BUDDY_LLVM_BIN.")
    return found


def run_tool(name: str, *arguments: str, text: str | None = None) -> str:
    """Runs a tool and returns its output; a failure raises with the tool's message."""
    done = subprocess.run([tool(name), *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {' '.join(arguments)}: {done.stderr[:4000]}")
    return done.stdout


@cache
def runtime_library() -> list[str]:
    """What to link for the OpenMP entry points: the built runtime, or its sources compiled here, once a process."""
    build = os.environ.get("BUDDY_BUILD_DIR")
    if build and (found := sorted(Path(build).rglob("libbuddy_runtime.a"))):
        return [str(found[0])]
    folder = Path(tempfile.mkdtemp(prefix="buddy-runtime-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libruntime.so"
    sources = [str(path) for path in sorted((ROOT / "cpp" / "runtime").glob("*.cpp"))]
    include = f"-I{ROOT / 'cpp' / 'runtime'}"
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", include, *sources, "-pthread", "-o", str(library)]
    subprocess.run(command, check=True)
    return [str(library), f"-Wl,-rpath,{folder}"]


class CompiledModule:
    """A module's machine code."""

    def __init__(self, text: str, folder: Path, machine: Machine = V3, options: str = "") -> None:
        """Compiles.

        Args:
            text: The module, as the importer would write it.
            folder: Where artefacts go.
            machine: The target.
            options: Options of ``--buddy-lower-to-llvm``, such as ``fuse=false attention=false``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        flags = [f"-mcpu={machine.name}", *([f"-mattr={machine.features}"] if machine.features else [])]
        self.lowered = run_tool("buddy-opt", f"--buddy-lower-to-llvm={options}", text=text)
        (folder / "module.llvm.mlir").write_text(self.lowered, encoding="utf-8")
        run_tool(
            "mlir-translate", "--mlir-to-llvmir", str(folder / "module.llvm.mlir"), "-o", str(folder / "module.ll")
        )
        run_tool("opt", "-O3", *flags, str(folder / "module.ll"), "-o", str(folder / "module.bc"))
        run_tool(
            "llc", "-O3", *flags, "-filetype=obj", "-relocation-model=pic", str(folder / "module.bc"),
            "-o", str(folder / "module.o"),
        )  # fmt: skip
        # A name of its own: a library that is loaded already would be returned for its path.
        library = Path(tempfile.mkdtemp(dir=folder)) / "module.so"
        command = ["g++", "-shared", str(folder / "module.o"), *runtime_library(), "-lm", "-pthread"]
        subprocess.run([*command, "-Wl,-z,defs", "-o", str(library)], check=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, function: str, *arguments: Any) -> None:
        """Calls a function through its C interface; arrays are passed as memrefs, integers as i64."""
        passed = [_descriptor(value) if isinstance(value, np.ndarray) else ctypes.c_int64(value) for value in arguments]
        entry = self._library[f"_mlir_ciface_{function}"]
        entry.restype = None
        entry(*[ctypes.byref(value) if isinstance(value, ctypes.Structure) else value for value in passed])

    def arena(self, entry: str, tokens: int, filler: int = 255) -> np.ndarray[Any, Any]:
        """Room for the temporaries of an entry point, just as large as it wants; every byte is `filler`."""
        size = self._library[f"_mlir_ciface_{entry}_arena_size"]
        size.restype = ctypes.c_int64
        bytes_ = aligned(size(ctypes.c_int64(tokens)))
        bytes_[:] = filler
        return bytes_.view(np.int8)


def _descriptor(array: np.ndarray[Any, Any]) -> ctypes.Structure:
    rank = array.ndim

    class Descriptor(ctypes.Structure):
        _fields_ = [
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            ("sizes", ctypes.c_int64 * rank),
            ("strides", ctypes.c_int64 * rank),
        ]

    strides = [stride // array.itemsize for stride in array.strides]
    return Descriptor(
        array.ctypes.data,
        array.ctypes.data,
        0,
        (ctypes.c_int64 * rank)(*array.shape),
        (ctypes.c_int64 * rank)(*strides),
    )


def pack(weight: np.ndarray[Any, Any], panel: int) -> np.ndarray[Any, Any]:
    """Packs a weight (N, K) into panels (P, K, R), rows past N zero."""
    n, k = weight.shape
    panels = -(-n // panel)
    padded = np.zeros((panels * panel, k), weight.dtype)
    padded[:n] = weight
    return np.ascontiguousarray(padded.reshape(panels, panel, k).transpose(0, 2, 1))


def aligned(size: int, alignment: int = 64) -> np.ndarray[Any, Any]:
    """Bytes whose first is aligned."""
    base = np.zeros(size + alignment, np.uint8)
    start = -base.ctypes.data % alignment
    return base[start : start + size]

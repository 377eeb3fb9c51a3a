"""The machine's limits, measured by the program machine-limits (benchmarks/machine-limits.cpp)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from buddy_gen.bench.work import Limits
from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import default_cache_dir

__all__ = ["find_limits_program", "last_level_cache_bytes", "measure_limits"]

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = (
    _PACKAGE / "share/buddy/benchmarks/machine-limits.cpp",
    _PACKAGE.parents[1] / "benchmarks/machine-limits.cpp",
)
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-pthread")


def find_limits_program(beside: Path | None = None) -> Path:
    """The program machine-limits: in the folder `beside` where CMake's target put it, else compiled into the cache.

    Raises:
        BuddyError: There is neither the program nor its source and a compiler, or it does not compile.
    """
    if beside is not None and os.access(beside / "machine-limits", os.X_OK):
        return beside / "machine-limits"
    source = next((path for path in _SOURCES if path.is_file()), None)
    if source is None:
        raise BuddyError("machine-limits.cpp is missing; install buddy-gen again.")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise BuddyError("No C++ compiler was found to compile machine-limits; install one (Debian: apt install g++).")
    # The cache may be shared by machines: what is compiled for one is not run on another.
    key = hashlib.sha256(f"{compiler} {_cpu()} ".encode() + source.read_bytes()).hexdigest()[:16]
    program = default_cache_dir() / "benchmarks" / f"machine-limits-{key}"
    if not os.access(program, os.X_OK):
        _compile(compiler, source, program)
    return program


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return "".join(line for line in lines[:40] if line.startswith(("model name", "flags", "Features", "isa")))


def _compile(compiler: str, source: Path, program: Path) -> None:
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            built = Path(scratch) / program.name
            command = [*compiler.split(), *_FLAGS, str(source), "-o", str(built)]
            done = None
            for machine in (["-march=native"], []):  # some compilers do not know `native`
                done = subprocess.run([*command, *machine], capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    built.replace(program)
                    return
    except OSError as error:
        raise BuddyError(f"machine-limits cannot be compiled into {program.parent} ({error}).") from error
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[0] if done else ""
    raise BuddyError(f"machine-limits does not compile with {compiler}: {reason}")


def measure_limits(program: Path, file: Path, threads: int, seconds: float = 0.3, anonymous_bytes: int = 0) -> Limits:
    """Reads `file` and multiplies on `threads` threads, for about `seconds` each; reads as many bytes of anonymous
    memory too, unless they are 0.

    Raises:
        BuddyError: The program failed; the message is its own.
    """
    command = [str(program), str(file), "--threads", str(threads), "--seconds", str(seconds)]
    command += ["--anonymous", str(anonymous_bytes)] if anonymous_bytes else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuddyError(f"{program} cannot be run ({error.strerror}).") from error
    if done.returncode == 2:  # wrong usage
        raise BuddyError(f"{program} is not of this version of buddy-gen; build it again, or remove it.")
    if done.returncode != 0:
        raise BuddyError(done.stderr.strip() or f"{program} failed ({done.returncode}).")
    return parse_limits(done.stdout)


def parse_limits(output: str) -> Limits:
    """The limits in what machine-limits printed. Raises BuddyError for anything else."""
    try:
        values = json.loads(output)
        anonymous = values.get("anonymous_bytes_per_second")
        limits = Limits(
            float(values["read_bytes_per_second"]),
            float(values["fma_flops_per_second"]),
            None if anonymous is None else float(anonymous),
        )
        if limits.read_bytes_per_second > 0 and limits.fma_flops_per_second > 0 and anonymous != 0:
            return limits
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise BuddyError(f"machine-limits printed {output.strip()[:80]!r}, not its measurements; build it again.")


def last_level_cache_bytes() -> int | None:
    """The size of the largest cache of the first CPU; None where the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(sizes, default=None)

"""Target descriptions: the one place that says what a machine offers.

A description travels with the module as its ``buddy.target`` attribute, so that the packer of the weights (at import)
and the passes that generate the loops (at build) cannot disagree about the layout.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from buddy_gen.errors import BuddyError


@dataclass(frozen=True)
class Target:
    """What generated code may use on a machine.

    Attributes:
        name: The name a user gives, such as ``x86-64-v3``.
        triple: LLVM's target triple.
        cpu: LLVM's ``-mcpu``.
        features: LLVM's ``-mattr`` (may be empty).
        vector_bits: Width of a vector register in bits.
        registers: Number of vector registers.
        panel: Rows of a weight that are stored side by side (f32 elements): the width of a GEMM's register tile.
        tile_rows: Rows of activations in a GEMM's register tile.
        int8_dot: Which integer dot products there are: none, ssse3, avx2, avx512bw, avx512vnni or neon_dotprod.
        cpu_features: CPU features, by the names that the program checks at start.
        converts_half: Whether there are instructions that convert between f16 and f32.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int
    registers: int
    panel: int
    tile_rows: int
    int8_dot: str
    cpu_features: tuple[str, ...]
    converts_half: bool = True

    def summary(self) -> dict[str, str | int]:
        """The fields that generated code depends on, as they stand in the ``buddy.target`` attribute."""
        return {
            "name": self.name,
            "triple": self.triple,
            "cpu": self.cpu,
            "features": self.features,
            "vector_bits": self.vector_bits,
            "registers": self.registers,
            "panel": self.panel,
            "tile_rows": self.tile_rows,
            "int8_dot": self.int8_dot,
            "converts_half": int(self.converts_half),
        }


_X86, _ARM, _RISCV = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "riscv64-unknown-linux-gnu"
_WIDE = "-prefer-256-bit"
# Without fast-dpwssd LLVM may take vpdpwssd apart again, into a product and a sum, which spills what it multiplies.
_DOT = f"{_WIDE},+avx512vnni,+fast-dpwssd"
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_V3 = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = (*_V4, "avx512vnni")

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("x86-64-v2", _X86, "x86-64-v2", "", 128, 16, 8, 6, "ssse3", _V2, converts_half=False),
        Target("x86-64-v3", _X86, "x86-64-v3", "", 256, 16, 16, 6, "avx2", _V3),
        Target("x86-64-v4", _X86, "x86-64-v4", _WIDE, 512, 32, 32, 12, "avx512bw", _V4),
        Target("x86-64-v4-vnni", _X86, "x86-64-v4", _DOT, 512, 32, 32, 12, "avx512vnni", _VNNI),
        Target("aarch64", _ARM, "generic", "+neon", 128, 32, 16, 6, "none", ("asimd",)),
        Target(
            "aarch64-dotprod", _ARM, "generic", "+neon,+dotprod", 128, 32, 16, 6, "neon_dotprod", ("asimd", "dotprod")
        ),
        Target("riscv64", _RISCV, "generic-rv64", "+m,+a,+f,+d,+c", 128, 32, 16, 6, "none", (), converts_half=False),
    )
}

# What /proc/cpuinfo calls the features whose names differ from LLVM's.
_CPUINFO_NAMES = {
    "avx512vnni": "avx512_vnni",
    "bmi": "bmi1",
    "dotprod": "asimddp",
    "lzcnt": "abm",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
}
# What each kind of machine may be, the widest first.
_CANDIDATES = {
    "aarch64": ("aarch64-dotprod", "aarch64"),
    "riscv64": ("riscv64",),
    "x86_64": ("x86-64-v4-vnni", "x86-64-v4", "x86-64-v3", "x86-64-v2"),
}


def _host_cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            return set(line.partition(":")[2].split())
    return set()


def host_target() -> Target:
    """The widest description that this machine can run.

    Raises:
        BuddyError: The machine is of a kind that no description covers.
    """
    machine = platform.machine()
    flags = _host_cpu_flags()
    for name in _CANDIDATES.get(machine, ()):
        if all(_CPUINFO_NAMES.get(feature, feature) in flags for feature in TARGETS[name].cpu_features):
            return TARGETS[name]
    raise BuddyError(
        f"this machine ({machine}) matches no known target; choose one of {', '.join(TARGETS)} by --target"
    )


def resolve_target(name: str) -> Target:
    """The description called `name`; ``native`` is the machine that this runs on.

    Raises:
        BuddyError: No target has that name.
    """
    if name == "native":
        return host_target()
    if name not in TARGETS:
        raise BuddyError(f"unknown target '{name}'; known targets: native, {', '.join(TARGETS)}")
    return TARGETS[name]

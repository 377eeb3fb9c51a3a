"""Where the tests find the build: ctest says it in the environment; by hand, the newest build folder is taken."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def build_dir() -> Path:
    """The build folder that is tested."""
    if given := os.environ.get("BUDDY_BUILD_DIR"):
        return Path(given)
    caches = sorted((ROOT / "build").glob("*/CMakeCache.txt"), key=lambda path: path.stat().st_mtime)
    if not caches:
        pytest.fail("no build folder was found under build/; build the project, or set BUDDY_BUILD_DIR.")
    return caches[-1].parent


@pytest.fixture(scope="session")
def buddy_opt(build_dir: Path) -> Path:
    """The program buddy-opt of this build."""
    return Path(os.environ.get("BUDDY_OPT", build_dir / "bin" / "buddy-opt"))


@pytest.fixture(scope="session")
def llvm_tool(build_dir: Path) -> Callable[[str], Path]:
    """Finds a tool of LLVM or MLIR by name: ``llvm_tool("FileCheck")``."""
    cache = dict(
        line.split("=", 1)
        for line in (build_dir / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith(("BUDDY_LLVM_BIN:", "BUDDY_MLIR_BIN:"))
    )

    def find(name: str) -> Path:
        found = shutil.which(name, path=os.pathsep.join(cache.values()))
        if found is None:
            pytest.fail(f"{name} was not found in {' or '.join(cache.values())}.")
        return Path(found)

    return find

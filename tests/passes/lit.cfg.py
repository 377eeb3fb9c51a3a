# mypy: ignore-errors
"""lit's view of the pass tests.

Tools: ``--param buddy_opt=PATH``, ``--param mlir_bin=DIR``, ``--param llvm_bin=DIR``, or the environment variables
``BUDDY_OPT``, ``BUDDY_MLIR_BIN``, ``BUDDY_LLVM_BIN`` that ctest sets; else the newest build folder and the wheels.
"""

import importlib.util
import os
import tempfile
from pathlib import Path

import lit.formats


def _wheel_bin(package):
    spec = importlib.util.find_spec(package)
    return str(Path(spec.submodule_search_locations[0]) / "bin") if spec else ""


def _built_buddy_opt():
    built = Path(__file__).resolve().parents[2].glob("build/*/bin/buddy-opt")
    return str(max(built, key=lambda path: path.stat().st_mtime, default="buddy-opt"))


def _setting(param, variable, default):
    return lit_config.params.get(param) or os.environ.get(variable) or default  # noqa: F821


config.name = "passes"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = str(Path(__file__).parent)  # noqa: F821
build = os.environ.get("BUDDY_BUILD_DIR")
config.test_exec_root = (  # noqa: F821
    str(Path(build) / "tests" / "passes-lit") if build else tempfile.mkdtemp(prefix="buddy-passes-lit-")
)

buddy_opt = _setting("buddy_opt", "BUDDY_OPT", _built_buddy_opt())
folders = [
    _setting("mlir_bin", "BUDDY_MLIR_BIN", _wheel_bin("mlir")),
    _setting("llvm_bin", "BUDDY_LLVM_BIN", _wheel_bin("llvm")),
]
config.environment["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", "")])  # noqa: F821
config.substitutions.append(("buddy-opt", buddy_opt))  # noqa: F821

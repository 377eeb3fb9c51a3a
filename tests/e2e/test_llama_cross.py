"""Programs for other kinds of machines: cross-compiled, linked with their compiler's libraries, and emulated."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from compiled_program import AppObjects, Platform, Program, build_program, eager_greedy
from narrow_model import NarrowModel, narrow_model

from buddy_gen.models.tiny import write_tiny_llama
from buddy_gen.native import find_tools
from buddy_gen.transforms.precision import Precision

pytestmark = pytest.mark.slow

# Target, dtype, KV caches, and how far a logit may be from eager's (see test_llama_narrow.py).
BUILDS = {
    "riscv64-f16": ("riscv64", "f16", "f16", 2e-2),
    "aarch64-f16": ("aarch64", "f16", "f16", 2e-2),
    "aarch64-dotprod-w8a8": ("aarch64-dotprod", "w8a8", "f32", 0.6),
}


@dataclass
class Build:
    program: Program
    model: NarrowModel
    tolerance: float


def llvm_with(architecture: str) -> Path:
    """The folder of an LLVM that compiles for it; the wheels' has no RISC-V."""
    for llc in (Path(find_tools().llc), Path(os.environ.get("BUDDY_LLVM_ROOT", "/usr/lib/llvm-22")) / "bin" / "llc"):
        if llc.exists():
            told = subprocess.run([llc, "--version"], capture_output=True, text=True, check=True).stdout
            if f" {architecture} " in told:
                return llc.parent
    pytest.skip(f"no LLVM for {architecture} is installed")


@pytest.fixture(scope="module")
def app_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], AppObjects]:
    """Gives the program's common objects for an architecture."""

    @cache
    def compiled(architecture: str) -> AppObjects:
        compiler, emulator = shutil.which(f"{architecture}-linux-gnu-g++"), shutil.which(f"qemu-{architecture}")
        if not compiler or not emulator:
            pytest.skip(f"g++-{architecture}-linux-gnu or qemu-user is not installed")
        folder = llvm_with(architecture)
        link = ("-static", "-pthread")
        platform = Platform(compiler, str(folder / "opt"), str(folder / "llc"), link, (emulator,))
        return AppObjects(tmp_path_factory.mktemp(architecture), platform)

    return compiled


@pytest.fixture(scope="module", params=BUILDS)
def build(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    app_for: Callable[[str], AppObjects],
) -> Build:
    target, dtype, kv_dtype, tolerance = BUILDS[request.param]
    app = app_for(target.partition("-")[0])
    folder = tmp_path_factory.mktemp(request.param)
    model = write_tiny_llama(folder / "model", seed=11, num_hidden_layers=2)
    program = build_program(model, folder, app, "--target", target, "--dtype", dtype, "--kv-dtype", kv_dtype)
    return Build(program, narrow_model(model, Precision.of(dtype, None, kv_dtype)), tolerance)


def test_logits_and_tokens(build: Build) -> None:
    ids = [int(token) for token in np.random.default_rng(3).integers(0, 97, 20)]
    expected = build.model.eager_logits(ids)
    for size, rows in (("1", slice(None)), ("20", slice(-1, None))):
        ours = build.program.logits(ids, "--ubatch-size", size)
        np.testing.assert_allclose(ours, expected[rows], atol=build.tolerance, rtol=0)
    answer = build.program.answer("--ids", ",".join(map(str, ids)), "-n", "8", "--ignore-eos", "-t", "2")
    assert answer["ids"] == eager_greedy(build.model.eager(), ids, 8)

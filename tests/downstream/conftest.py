"""A tiny random LLaMA without a tokenizer, and the installed package, for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from buddy_gen.models.tiny import write_tiny_llama

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def stage(build_dir: Path) -> Path:
    """Where the ctest test downstream/install has put what `cmake --install` installs."""
    folder = build_dir / "stage"
    if not (folder / "buddy_gen" / "share" / "buddy" / "cmake" / "BuddyConfig.cmake").exists():
        pytest.fail(f"{folder} is not there; run `cmake --install {build_dir} --prefix {folder}`.")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Hugging Face saves it, in a path with a space and a letter beyond ASCII."""
    folder = tmp_path_factory.mktemp("a b") / "é" / "tiny"
    return write_tiny_llama(
        folder,
        hidden_size=36,
        num_attention_heads=3,
        num_key_value_heads=1,
        num_hidden_layers=2,
        vocab_size=101,
        tie_word_embeddings=False,
    )


@pytest.fixture
def run(stage: Path, tmp_path: Path) -> Command:
    """Runs a command that sees the installed package instead of the sources; its output is text."""
    environment = os.environ | {"PYTHONPATH": str(stage), "BUDDY_CACHE_DIR": str(tmp_path / "cache é")}
    if ccache := shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache

    def run_command(
        *command: object, code: int = 0, variables: Mapping[str, str] = environment
    ) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, env=dict(variables), cwd="/", check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run_command


@pytest.fixture
def buddy(run: Command) -> Command:
    """Runs the command line of the installed package: ``buddy("build", model, "-o", folder)``."""

    def run_buddy(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-m", "buddy_gen.cli", *arguments, code=code)

    return run_buddy

"""What pip installs: the tokenizer's native module and the version, without the sources beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USE = """
import sys, buddy_gen
from buddy_gen.tokenizer import load
from buddy_gen.version import version
assert buddy_gen.__file__.startswith(sys.argv[1]), buddy_gen.__file__
tokenizer = load(sys.argv[2])
assert tokenizer.decode(tokenizer.encode("naïve 🙂")) == "naïve 🙂"
print(version())
"""


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = {letter: index for index, letter in enumerate(sorted(byte_level.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer, made.decoder = byte_level, decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def used(installed: Path, tokenizer_json: Path) -> str:
    """Loads a tokenizer with the package in `installed`; its version."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    environment.pop("BUDDY_BUILD_DIR", None)
    command = [sys.executable, "-c", USE, str(installed), str(tokenizer_json)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def told_by_the_clone() -> str:
    script = ROOT / "python" / "buddy_gen" / "version.py"
    return subprocess.check_output([sys.executable, script], text=True).strip()


def test_the_installed_folder_has_the_tokenizer(stage: Path, tokenizer_json: Path) -> None:
    assert used(stage, tokenizer_json).partition("+")[0] == told_by_the_clone().partition("+")[0]


def test_the_wheel_has_the_tokenizer(tokenizer_json: Path, tmp_path: Path) -> None:
    """Built as pip builds it, but for buddy-opt, which takes minutes and which the other tests here install."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["scikit-build"]["build"]["targets"]
    assert {"buddy_text", "buddy-opt"} <= set(targets)
    environment = dict(os.environ)
    if ccache := shutil.which("ccache"):
        environment["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    options = ["-C", "build.targets=buddy_text", "-C", "install.components=python", "-C", f"build-dir={tmp_path}/build"]
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", tmp_path / "wheel"]
    done = subprocess.run([*pip, *options, ROOT], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheel").glob("buddy_gen-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert used(tmp_path / "installed", tokenizer_json) == told_by_the_clone()

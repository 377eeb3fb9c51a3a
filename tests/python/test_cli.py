"""The command line without a build: what it refuses, and how it passes things on."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from buddy_gen import cli
from buddy_gen.errors import BuddyError


def buddy(*arguments: object, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "buddy_gen.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def program(folder: Path, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / cli.PROGRAM
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_run_passes_arguments_on_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "é"
    program(folder, 'printf "%s\\n" "$@"; exit 7')
    words = ["-p", "two words", "-n", "3", "--help", "--target", "-", "", "😀"]
    assert buddy("run", folder, *words, code=7).stdout.split("\n")[:-1] == words


def test_run_says_why_a_program_cannot_start(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    path.chmod(0o644)
    failed = buddy("run", tmp_path, code=1)
    assert failed.stderr.startswith("buddy: ") and str(path) in failed.stderr


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    for command in (["build", tmp_path / "none", "-o", tmp_path / "out"], ["run", tmp_path / "none"]):
        failed = buddy(*command, code=1)
        assert failed.stderr.count("\n") == 1
        assert str(tmp_path / "none") in failed.stderr
    assert not (tmp_path / "out").exists()


def test_wrong_usage_is_code_2(tmp_path: Path) -> None:
    for command in (["build"], ["build", "smollm2"], ["dance"], ["build", "smollm2", "-o", tmp_path, "--speed", "1"]):
        buddy(*command, code=2)


def test_sources_are_not_an_installation(tmp_path: Path) -> None:
    if (cli.PACKAGE / "share").exists():
        pytest.skip("the package under test is installed")
    assert "pip install" in buddy("cmake-dir", code=1).stderr
    assert "pip install" in buddy("build", "smollm2", "-o", tmp_path / "out", code=1).stderr


def test_version_is_one_line() -> None:
    assert buddy("version").stdout.count("\n") == 1


@pytest.mark.parametrize(("variable", "value"), [("CXX", "no-such-compiler"), ("PATH", "/nowhere")])
def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BuddyError, match=r"C\+\+ compiler"):
        cli.find_compiler()


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuddyError, match="no-such-tool was not found; install it"):
        cli.find_tool("no-such-tool", "install it")


def test_cache_key_follows_model_and_options() -> None:
    options = [
        cli.Options("/models/x.gguf", "native", "f32", "linalg,tosa"),
        cli.Options("/other/x.gguf", "native", "f32", "linalg,tosa"),
        cli.Options("/models/x.gguf", "x86-64-v3", "f32", "linalg,tosa"),
        cli.Options("/models/x.gguf", "native", "f16", "linalg,tosa"),
        cli.Options("/models/x.gguf", "native", "f32", "tosa,linalg"),
    ]
    assert len({option.work_dir() for option in options}) == len(options)
    assert options[0].work_dir() == cli.Options(*vars(options[0]).values()).work_dir()


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BuddyError, match="BUDDY_CACHE_DIR"), cli.locked(tmp_path / "file" / "cache"):
        pass


def test_a_step_ends_with_the_sentence_of_cmake(tmp_path: Path) -> None:
    script = tmp_path / "fail.cmake"
    sentence = "The model " + "/a/long/path" * 20 + " has no config.json; name a folder that has one, or a GGUF file."
    script.write_text(f'message(STATUS "before")\nmessage(FATAL_ERROR "{sentence}")\n', encoding="utf-8")
    steps = cli.Steps(tmp_path / "log", quiet=True, to_stderr=True)
    with pytest.raises(BuddyError) as caught:
        steps.run("configuring", ["cmake", "-P", str(script)])
    assert str(caught.value) == sentence
    assert "before" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_step_without_a_sentence_names_its_log(tmp_path: Path) -> None:
    steps = cli.Steps(tmp_path / "log", quiet=True, to_stderr=True)
    with pytest.raises(BuddyError, match=f"Building failed; the log is {tmp_path}/log"):
        steps.run("Building", ["sh", "-c", "echo boom; exit 3"])

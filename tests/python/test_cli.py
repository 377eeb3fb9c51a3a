"""The command line without a build: what it refuses, and how it passes things on."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from buddy_gen import building, cli, version
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


def test_chat_is_the_program_with_its_chat_option(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "é"
    program(folder, 'printf "%s\\n" "$@"; exit 7')
    assert buddy("chat", folder, code=7).stdout == "-cnv\n"
    assert buddy("chat", folder, "-sys", "Be brief.", "--help", code=7).stdout.split("\n")[:4] == [
        "-cnv",
        "-sys",
        "Be brief.",
        "--help",
    ]


def test_run_says_why_a_program_cannot_start(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    path.chmod(0o644)
    failed = buddy("run", tmp_path, code=1)
    assert failed.stderr.startswith("buddy: ") and str(path) in failed.stderr


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    for command in (
        ["build", missing, "-o", tmp_path / "out"],
        ["run", missing],
        ["chat", missing],
        ["serve", missing],
    ):
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


def test_version_is_release_and_commit() -> None:
    told = buddy("version").stdout
    assert told.count("\n") == 1 and told == buddy("--version").stdout
    assert told.strip() == version.version() and told.startswith(version.release())
    root = Path(__file__).resolve().parents[2]
    assert version.release() == tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    if (root / ".git").exists() and shutil.which("git"):
        commit = subprocess.check_output(["git", "-C", root, "rev-parse", "HEAD"], text=True).strip()
        assert re.fullmatch(r"[0-9.]+\+g([0-9a-f]{9,})(\.dirty)?\n", told)
        assert commit.startswith(told.partition("+g")[2].partition(".")[0].strip())


def test_version_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n', "utf-8")
    package = tmp_path / "python" / "buddy_gen"
    package.mkdir(parents=True)
    monkeypatch.setattr(version, "_PACKAGE", package)
    for text, right in (("", "1.2"), ("3.4+gabc\n", "3.4+gabc")):
        if text:
            (package / "version.txt").write_text(text, "utf-8")
        assert version.version.__wrapped__() == right


@pytest.mark.parametrize("command", ["build", "run", "chat", "serve", "bench", "cmake-dir", "version"])
def test_every_command_has_help_with_examples(command: str) -> None:
    told = buddy(command, "--help").stdout
    assert "Examples:\n" in told and f"buddy {command}" in told
    assert command in buddy("--help").stdout
    buddy(command, "--no-such-option", code=1 if command in ("run", "chat") else 2)


@pytest.mark.parametrize("command", ["build", "run", "chat", "serve"])
def test_every_option_is_documented(command: str) -> None:
    documented = (
        (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8").partition("\n## buddy\n")[2]
    )
    options = set(re.findall(r"(?m)^ +(?:-\w, )?(--[\w-]+)", buddy(command, "--help").stdout)) - {"--help"}
    assert "--target" in options
    assert not {option for option in options if f"`{option}" not in documented}


@pytest.mark.parametrize(("variable", "value"), [("CXX", "no-such-compiler"), ("PATH", "/nowhere")])
def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BuddyError, match=r"C\+\+ compiler"):
        building.find_compiler()


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuddyError, match="no-such-tool was not found; install it"):
        building.find_tool("no-such-tool", "install it")


def test_cache_key_follows_model_and_options() -> None:
    options = [
        building.Options("/models/x.gguf", "native", "f32", "linalg,tosa"),
        building.Options("/other/x.gguf", "native", "f32", "linalg,tosa"),
        building.Options("/models/x.gguf", "x86-64-v3", "f32", "linalg,tosa"),
        building.Options("/models/x.gguf", "native", "f16", "linalg,tosa"),
        building.Options("/models/x.gguf", "native", "f32", "tosa,linalg"),
    ]
    assert len({option.work_dir() for option in options}) == len(options)
    assert options[0].work_dir() == building.Options(*vars(options[0]).values()).work_dir()


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BuddyError, match="BUDDY_CACHE_DIR"), building.locked(tmp_path / "file" / "cache"):
        pass


def test_a_step_ends_with_the_sentence_of_cmake(tmp_path: Path) -> None:
    script = tmp_path / "fail.cmake"
    sentence = "The model " + "/a/long/path" * 20 + " has no config.json; name a folder that has one, or a GGUF file."
    script.write_text(f'message(STATUS "before")\nmessage(FATAL_ERROR "{sentence}")\n', encoding="utf-8")
    steps = building.Steps(tmp_path / "log", quiet=True, to_stderr=True)
    with pytest.raises(BuddyError) as caught:
        steps.run("configuring", ["cmake", "-P", str(script)])
    assert str(caught.value) == sentence
    assert "before" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_step_without_a_sentence_names_its_log(tmp_path: Path) -> None:
    steps = building.Steps(tmp_path / "log", quiet=True, to_stderr=True)
    with pytest.raises(BuddyError, match=f"Building failed; the log is {tmp_path}/log"):
        steps.run("Building", ["sh", "-c", "echo boom; exit 3"])


def failing_tools(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> building.Options:
    """An installation whose CMake is a shell script."""
    folder.mkdir()
    for name in ("cmake", "ninja", "c++"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (folder / name).chmod(0o755)
    config = folder / "share" / "buddy" / "cmake"
    config.mkdir(parents=True)
    (config / "BuddyConfig.cmake").touch()
    monkeypatch.setattr(building, "PACKAGE", folder)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("BUDDY_CACHE_DIR", str(folder / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return building.Options("/models/x-1.5.gguf", "native", "f32", "linalg,tosa")


def test_a_failed_build_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "echo 'CMake Error at x (message):'; echo '  The model is broken; take another.'; exit 1"
    options = failing_tools(tmp_path / "tools", monkeypatch, sentence)
    with pytest.raises(BuddyError, match=r"^The model is broken; take another\.$"):
        building.build_model(options, tmp_path / "out", quiet=True, to_stderr=True)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "tools" / "cache" / "builds").iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BuddyError):
        building.build_model(options, tmp_path / "out", quiet=True, to_stderr=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_failed_build_without_a_sentence_leaves_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = failing_tools(tmp_path / "tools", monkeypatch, "echo boom; exit 1")
    with pytest.raises(BuddyError) as caught:
        building.build_model(options, options.work_dir() / "run", quiet=True, to_stderr=True)
    (log,) = (tmp_path / "tools" / "cache" / "builds").iterdir()
    assert log.is_file() and str(log) in str(caught.value) and "boom" in log.read_text("utf-8")

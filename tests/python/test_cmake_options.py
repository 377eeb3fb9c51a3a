"""What the CMake build of a model takes, and how it says no before it does any work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from buddy_gen import choices

ROOT = Path(__file__).resolve().parents[2]


def cmake(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    words = ["cmake", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | variables)


def sentence(errors: str) -> str:
    """CMake's message without its line breaks, and without where it came from."""
    return " ".join(errors.partition(":\n")[2].partition("\nCall Stack")[0].split())


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    file = folder / "script.cmake"
    file.write_text(
        f'cmake_minimum_required(VERSION 3.25)\ninclude("{ROOT}/cmake/BuddyChoices.cmake")\n{text}\n', "utf-8"
    )
    return cmake("-P", file)


def test_choices_are_those_of_the_generator(tmp_path: Path) -> None:
    told = script(tmp_path, 'message("${BUDDY_DTYPES}|${BUDDY_GROUPS}|${BUDDY_KV_DTYPES}")').stderr.strip()
    expected = (choices.DTYPES, choices.GROUPS, choices.KV_DTYPES)
    assert [tuple(part.split(";")) for part in told.split("|")] == list(expected)


def test_a_choice_is_checked(tmp_path: Path) -> None:
    for good in ("", "32", "channel"):
        assert script(tmp_path, f'buddy_check_choice(X "{good}" ${{BUDDY_GROUPS}})').returncode == 0
    for bad in ("33", "3", "channel ", "32;64", "chan"):
        failed = script(tmp_path, f'buddy_check_choice(X "{bad}" ${{BUDDY_GROUPS}})')
        assert failed.returncode != 0
        assert sentence(failed.stderr) == " ".join(f"X is '{bad}'; choose from 32, 64, 128, channel.".split())


@pytest.mark.parametrize("given", ["-D", "environment"])
def test_a_wrong_option_ends_the_configuration_at_once(tmp_path: Path, given: str) -> None:
    for name, value, part in (
        ("BUDDY_LLAMA_DTYPE", "w3a8", "f32, f16,"),
        ("BUDDY_LLAMA_GROUP", "48", "32, 64,"),
        ("BUDDY_LLAMA_KV_DTYPE", "f64", "f32, f16, bf16, i8."),
    ):
        arguments = [f"-D{name}={value}"] if given == "-D" else []
        variables = {} if arguments else {name: value}
        failed = cmake("-G", "Ninja", "-S", ROOT, "-B", tmp_path / "build", *arguments, **variables)
        assert failed.returncode != 0
        assert sentence(failed.stderr).startswith(f"{name} is '{value}'; choose from {part}")
        assert not (tmp_path / "build" / "venv").exists()
        (tmp_path / "build" / "CMakeCache.txt").unlink()


def test_every_option_is_documented() -> None:
    options = set(re.findall(r"buddy_option\(\s*(BUDDY_LLAMA_\w+)", (ROOT / "CMakeLists.txt").read_text("utf-8")))
    documents = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs" / "quantization.md").read_text("utf-8")
    assert {"BUDDY_LLAMA_GROUP", "BUDDY_LLAMA_KV_DTYPE"} <= options
    assert not {option for option in options if option not in documents}

"""A CMake project that is not ours builds a model and a program through find_package(Buddy)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROJECT = Path(__file__).parent / "project"
IDS = ["--ids", "1,2,3", "-n", "4", "--ignore-eos", "--json"]


def test_foreign_project(stage, tiny_model, run, tmp_path):
    build = tmp_path / "c d" / "ü"
    options = [f"-DPython3_EXECUTABLE={sys.executable}", f"-DTINY_MODEL={tiny_model}", "-DTINY_TARGET=native"]
    options.append(f"-DBuddy_DIR={stage / 'buddy_gen' / 'share' / 'buddy' / 'cmake'}")
    run("cmake", "-G", "Ninja", "-S", PROJECT, "-B", build, *options)
    run("cmake", "--build", build)
    first = json.loads(run(build / "bin" / "talk", *IDS).stdout)
    assert len(first["ids"]) == 4
    assert "no work to do" in run("cmake", "--build", build).stdout

    # What was deleted comes back by building again, the same byte for byte.
    weights = build / "bin" / "tiny.weights.safetensors"
    content = weights.read_bytes()
    for deleted in (weights, build / "tiny" / "tiny_decode.o", build / "tiny" / "tiny_prefill.mlir"):
        deleted.unlink()
    run("cmake", "--build", build)
    assert weights.read_bytes() == content
    assert json.loads(run(build / "bin" / "talk", *IDS).stdout)["ids"] == first["ids"]


def test_errors_are_one_sentence(stage, run, tmp_path):
    options = [f"-DPython3_EXECUTABLE={sys.executable}", "-DTINY_MODEL=/nowhere/at/all", "-DTINY_TARGET=native"]
    options.append(f"-DBuddy_DIR={stage / 'buddy_gen' / 'share' / 'buddy' / 'cmake'}")
    failed = run("cmake", "-G", "Ninja", "-S", PROJECT, "-B", tmp_path / "build", *options, code=1)
    assert "/nowhere/at/all" in failed.stderr
    assert "Traceback" not in failed.stderr

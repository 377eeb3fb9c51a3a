"""--profile and --warm-up: with a toy whose regions take known times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from toy_model import Program, programs, random_table, write_model

pytestmark = pytest.mark.slow

TABLE = random_table(3)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-profiled", write_model(tmp_path_factory.mktemp("model"), TABLE, delay_ms=2))


def test_json(profiled: Program) -> None:
    run = profiled.run("-p", "abc", "-n", "5", "--ignore-eos", "--json", "--profile").json
    prefill, decode = run["profile"]
    assert (prefill["entry"], prefill["calls"], decode["entry"], decode["calls"]) == ("prefill", 1, "decode", 4)
    slow, fast = decode["regions"]  # what took longest comes first; what was never entered is left out
    assert (slow["name"], slow["calls"], slow["bytes_per_call"]) == ("layers.*.mlp/linear", 4, 2_000_000)
    assert (fast["name"], fast["calls"], fast["bytes_per_call"]) == ("embed/embedding", 8, 1000)
    assert slow["flops_per_token"] == 8000 and "flops_per_token" not in fast
    assert slow["seconds"] >= 0.040 and fast["seconds"] >= 0.008
    assert 0.056 <= decode["seconds"] <= run["decode_seconds"]
    assert slow["share"] == pytest.approx(slow["seconds"] / decode["seconds"], abs=1e-4)  # both are in microseconds
    assert slow["gigabytes_per_second"] == pytest.approx(2e6 * 4 / slow["seconds"] / 1e9, rel=0.01)
    assert [region["name"] for region in prefill["regions"]] == ["layers.*.mlp/linear", "embed/embedding"]
    assert "bytes_per_call" not in prefill["regions"][0]
    alone = profiled.run("-p", "abc", "-n", "1", "--json", "--profile").json["profile"]
    assert [entry["entry"] for entry in alone] == ["prefill"]  # what was not called is left out
    assert "profile" not in profiled.run("-p", "abc", "-n", "1", "--json").json


def test_table(profiled: Program) -> None:
    run = profiled.run("-p", "abc", "-n", "3", "--ignore-eos", "--profile")
    prefill, decode = run.stderr.split("profile of ")[1:]
    assert re.search(r"^prefill: 1 calls, ", prefill) and "GB/s" not in prefill
    assert re.search(r"^decode: 2 calls, ", decode) and "GB/s" in decode
    row = r"^ +2 +(\d+\.\d\d) +(\d+\.\d)% +(\d+\.\d)  layers\.\*\.mlp/linear$"
    found = re.search(row, decode, re.MULTILINE)
    assert found and float(found[1]) >= 20 and 50 < float(found[2]) < 100
    assert "(between regions)" in decode and "never" not in decode
    quiet = profiled.run("-p", "abc", "-n", "3", "-q", "--profile").stderr
    assert quiet.startswith("profile of prefill") and "tokens/s" not in quiet


def test_chat(profiled: Program) -> None:
    run = profiled.run("-cnv", "-n", "2", "--ignore-eos", "--profile", stdin=b"a\nb\n")
    assert run.stderr.count("profile of decode: 2 calls") == 1  # of both turns


def test_programs_without_profiling_say_so(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE))
    toy.run("-p", "a", "--profile").fails(1, "without profiling", "profile=false")


@pytest.mark.parametrize("prompt", ["a", "abcdefgh"])
def test_warm_up(profiled: Program, tmp_path: Path, prompt: str) -> None:
    """The same output; its time and its calls do not count, and its logits are not written."""
    common = ["-p", prompt, "-n", "3", "--ignore-eos", "--json", "--profile", "-ub", "4"]
    cold = profiled.run(*common, "--dump-logits", tmp_path / "cold.npy").json
    warm = profiled.run(*common, "--dump-logits", tmp_path / "warm.npy", "--warm-up").json
    assert cold["ids"] == warm["ids"]
    assert [entry["calls"] for entry in cold["profile"]] == [entry["calls"] for entry in warm["profile"]]
    assert (tmp_path / "cold.npy").read_bytes() == (tmp_path / "warm.npy").read_bytes()
    assert "warm_up_seconds" not in cold and warm["warm_up_seconds"] > 0.02
    assert warm["load_seconds"] < 0.02
    chat = profiled.run("-cnv", "--json", "-n", "1", "--warm-up", stdin=b"x").json
    assert chat["warm_up_seconds"] > 0.02
    assert "--warm-up" in profiled.run("--help").text  # buddy bench looks for it

"""benchmarks/ablation.py: its table, and its refusals."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ablation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "benchmarks/ablation.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(variant: str, decode: float, prefill: float, arena: int) -> dict[str, object]:
    found = {"variant": variant, "options": "", "decode_ms": decode, "prefill_ms": prefill}
    return {**found, "arena_bytes": arena, "peak_rss_bytes": 550_400_000}


def test_table(ablation: ModuleType) -> None:
    results = [
        result("everything on", 20.0, 200.0, 4_560_000),
        result("without fusion", 25.0, 300.0, 5_000_000),
        result("without the memory plan", 20.4, 202.0, 0),
    ]
    lines = ablation.table(results, 128).splitlines()
    assert lines[0] == "| | ms a token | ms a prompt of 128 | arena, MB | peak memory, MB |"
    assert lines[2] == "| everything on | 20.0 (1.00x) | 200.0 (1.00x) | 4.6 | 550 |"
    assert lines[3] == "| without fusion | 25.0 (1.25x) | 300.0 (1.50x) | 5.0 | 550 |"
    assert lines[4] == "| without the memory plan | 20.4 (1.02x) | 202.0 (1.01x) | heap | 550 |"
    assert len({line.count("|") for line in lines}) == 1


def test_variants_switch_one_thing_off(ablation: ModuleType) -> None:
    everything, *single, nothing = ablation.VARIANTS.values()
    assert everything == ""
    assert all(options.count("=false") == 1 for options in single)
    assert sorted(nothing.split()) == sorted(single)


@pytest.mark.parametrize("prompt", ["0", "500"])
def test_refusal(ablation: ModuleType, prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ablation.main(["--prompt", prompt])
    assert stopped.value.code == 2 and f"--prompt takes 1 to 472 tokens, not {prompt}" in capsys.readouterr().err


def test_unknown_model_is_a_sentence(ablation: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablation.main(["--model", "/missing/model"]) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("ablation: ")

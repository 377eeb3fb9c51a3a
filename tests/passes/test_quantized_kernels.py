"""Runs contractions with quantised weights: exact integers in every form of dot product, any shape, any switch off."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_module import CompiledModule, run_tool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantized_module import (
    FORMS,
    DotMachine,
    Linear,
    Quantized,
    forms_of_this_machine,
    linear_module,
    linear_reference,
    linear_shape,
)

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
HERE = forms_of_this_machine()
GROUPS = [("q8", 32), ("q8", 64), ("q8", 128), ("q4_0", 32), ("q4_1", 32)]
MORE_BITS = [("q5_0", 32), ("q5_1", 32)]
FACTORS = [("q4_k", 32), ("q5_k", 32), ("q6_k", 16)]  # several groups in a block


def whole_activations(linear: Linear, rows: int, rng: np.random.Generator) -> Array:
    """Integers of the whole range as f32 (M, K), with 127 in every group, so that quantising keeps them."""
    x = rng.integers(-127, 128, (rows, linear.depth))
    x[:, :: linear.group] = 127
    return x.astype(np.float32)


def run(module: CompiledModule, function: str, machine: DotMachine, weight: Quantized, x: Array) -> Array:
    out = np.full((len(x), weight.linear.columns), np.nan, np.float32)
    module(function, weight.packed(machine.panel).view(np.int8), x, out)
    return out


@pytest.mark.parametrize("form", HERE)
def test_integers_are_exact(form: str, tmp_path: Path) -> None:
    machine, rng = FORMS[form], np.random.default_rng(5)
    linears = [
        Linear("q8", 64, "a8", "?", 100, 40),
        Linear("q8", 32, "a8", "1", 64, 70),
        Linear("q4_0", 32, "a8", "?", 90, 40),
        Linear("q4_1", 32, "a8", "1", 70, 33),
        Linear("q4_1", 32, "a8", "5", 32, 64),
        Linear("q8", 92, "a8", "3", 90, 50),  # one group for the whole row, K padded to quads
        Linear("q5_0", 32, "a8", "?", 90, 40),
        Linear("q5_1", 32, "a8", "1", 64, 33),
        Linear("q4_k", 32, "a8", "?", 500, 40),
        Linear("q5_k", 32, "a8", "1", 256, 33),
        Linear("q6_k", 16, "a8", "?", 512, 40),
        Linear("q6_k", 16, "a8", "1", 512, 40),
    ]
    module = CompiledModule(linear_module(machine, linears), tmp_path / "m", machine)
    for number, linear in enumerate(linears):
        weight = Quantized.random(linear, rng, exact=True)
        for rows in (1, 2, 7, 13, 29, 61) if linear.rows == "?" else (int(linear.rows),):
            x = whole_activations(linear, rows, rng)
            expected = x.astype(np.float64) @ weight.values().T
            np.testing.assert_array_equal(run(module, f"f{number}", machine, weight, x), expected, err_msg=str(linear))


@pytest.mark.parametrize("form", HERE)
def test_extreme_integers_do_not_saturate(form: str, tmp_path: Path) -> None:
    """Weights of -128, as foreign files may hold, and the largest nibbles, against activations of 127 and -127."""
    machine = FORMS[form]
    kinds = [("q8", 64), ("q4_1", 32), ("q5_1", 32), ("q6_k", 16)]
    linears = [Linear(kind, group, "a8", "2", 256, 32) for kind, group in kinds]
    module = CompiledModule(linear_module(machine, linears), tmp_path / "m", machine)
    for number, linear in enumerate(linears):
        shape, extremes = linear_shape(linear), linear.what.range
        for weights in (np.full(shape, extremes[0]), np.full(shape, extremes[1]), np.resize(extremes, shape)):
            ones = np.ones((shape[0], linear.blocks), np.float16)
            factors = (np.full(shape[:2], linear.what.lowest or 1), np.ones(shape[:2]))
            weight = Quantized(linear, weights, ones, ones, factors)
            x = np.full((2, linear.depth), 127, np.float32)
            x[1] = np.where(weights.reshape(shape[0], -1)[0] < 0, -127, 127)
            expected = x.astype(np.float64) @ weight.values().T
            np.testing.assert_array_equal(run(module, f"f{number}", machine, weight, x), expected)


@pytest.mark.parametrize("form", HERE)
def test_wide_activations(form: str, tmp_path: Path) -> None:
    """Activations of 16 bits: with one group and scales of 1 the result is the sum of integers, rounded once."""
    machine, rng = FORMS[form], np.random.default_rng(8)
    linears = [
        Linear("q8", 128, "a16", "?", 120, 40),
        Linear("q8", 32, "a16", "1", 32, 40),
        Linear("q4_0", 32, "a16", "?", 32, 40),
        Linear("q4_1", 32, "a16", "1", 30, 40),
        Linear("q5_0", 32, "a16", "?", 32, 40),
        Linear("q5_1", 32, "a16", "1", 30, 40),
    ]
    module = CompiledModule(linear_module(machine, linears), tmp_path / "m", machine)
    for number, linear in enumerate(linears):
        shape, (low, high) = linear_shape(linear), linear.what.range
        ones, zeros = np.ones(shape[:2], np.float16), np.zeros(shape[:2], np.float16)
        rows = 1 if linear.rows == "1" else 53
        for integers in (np.full(shape, low), np.full(shape, high), rng.integers(low, high + 1, shape)):
            weight = Quantized(linear, integers, ones, zeros)
            x = rng.integers(-32767, 32768, (rows, linear.depth)).astype(np.float32)
            x[:, 0], x[0] = 32767, 32767
            expected = (x.astype(np.float64) @ weight.values().T).astype(np.float32)
            np.testing.assert_array_equal(run(module, f"f{number}", machine, weight, x), expected, err_msg=str(linear))


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    form=st.sampled_from(HERE),
    group=st.sampled_from(GROUPS + MORE_BITS + FACTORS),
    rows=st.sampled_from(["?", "1", "6"]),
    depth=st.integers(1, 300),
    columns=st.integers(1, 70),
    count=st.integers(1, 80),
    seed=st.integers(0, 99),
)
def test_random_shapes(
    form: str, group: tuple[str, int], rows: str, depth: int, columns: int, count: int, seed: int
) -> None:
    machine, rng = FORMS[form], np.random.default_rng(seed)
    linears = [Linear(*group, activation, rows, depth, columns) for activation in ("a8", "a16", "a32")]
    with tempfile.TemporaryDirectory() as folder:
        module = CompiledModule(linear_module(machine, linears), Path(folder) / "m", machine)
        for number, linear in enumerate(linears):
            size = count if rows == "?" else int(rows)
            if linear.activation != "a16":
                exact = Quantized.random(linear, rng, exact=True)
                x = whole_activations(linear, size, rng)
                expected = x.astype(np.float64) @ exact.values().T
                np.testing.assert_array_equal(run(module, f"f{number}", machine, exact, x), expected)
            weight = Quantized.random(linear, rng)
            x = rng.standard_normal((size, depth), dtype=np.float32)
            x[0] = 0
            result = run(module, f"f{number}", machine, weight, x)
            np.testing.assert_allclose(result, linear_reference(x, weight), atol=1e-4, err_msg=str(linear))


@pytest.mark.parametrize("options", ["pack=false", "vectorize=false", "fuse=false", "pack=false vectorize=false"])
def test_switches(options: str, tmp_path: Path) -> None:
    machine, rng = FORMS["avx2" if "avx2" in HERE else HERE[0]], np.random.default_rng(6)
    linears = [
        Linear("q8", 64, "a8", "?", 100, 40),
        Linear("q4_0", 32, "a8", "1", 64, 40),
        Linear("q4_1", 32, "a32", "3", 50, 40),
        Linear("q5_k", 32, "a8", "?", 300, 40),
        Linear("q6_k", 16, "a32", "1", 256, 40),
    ]
    text = linear_module(machine, linears)
    plain = CompiledModule(text, tmp_path / "off", machine, options)
    optimised = CompiledModule(text, tmp_path / "on", machine)
    for number, linear in enumerate(linears):
        weight = Quantized.random(linear, rng)
        x = rng.standard_normal((9 if linear.rows == "?" else int(linear.rows), linear.depth), dtype=np.float32)
        results = [run(module, f"f{number}", machine, weight, x) for module in (optimised, plain)]
        np.testing.assert_allclose(results[0], results[1], atol=2e-5, err_msg=str(linear))


def test_every_form_gives_the_same_bits(tmp_path: Path) -> None:
    """Same panels, same multiply-add for the scales: only the way in which integers are summed differs."""
    forms = [name for name in ("none-256", "avx2", "avx512vnni-256") if name in HERE]
    if len(forms) < 2:
        pytest.skip("this machine has one form only")
    linears = [Linear(*group, "a8", "?", 96, 40) for group in GROUPS + MORE_BITS]
    linears += [Linear(*group, "a8", "?", 512, 40) for group in FACTORS]
    results = []
    for form in forms:
        machine, rng = FORMS[form], np.random.default_rng(7)
        module = CompiledModule(linear_module(machine, linears), tmp_path / form, machine)
        outputs = []
        for number, linear in enumerate(linears):
            weight = Quantized.random(linear, rng)
            x = rng.standard_normal((11, linear.depth), dtype=np.float32)
            outputs.append(run(module, f"f{number}", machine, weight, x))
        results.append(np.concatenate(outputs))
    for form, result in zip(forms[1:], results[1:], strict=True):
        np.testing.assert_array_equal(result, results[0], err_msg=form)


INSTRUCTIONS = {
    "ssse3": {"q8": "pmaddwd", "q4_0": "pmaddubsw"},
    "avx2": {"q8": "vpmaddwd", "q4_0": "vpmaddubsw"},
    "avx512bw": {"q8": "vpmaddwd", "q4_0": "vpmaddubsw"},
    "avx512vnni": {"q8": "vpdpbusd", "q4_0": "vpdpbusd"},
}


@pytest.mark.parametrize("form", INSTRUCTIONS)
def test_object_code_has_integer_dot_products(form: str, tmp_path: Path) -> None:
    """In a loop over groups of 32: 2 vectors x 8 products of quads, and conversions to f32 of the two sums alone."""
    machine = FORMS[form]
    for kind, group in (("q8", 32), ("q4_0", 32)):
        text = linear_module(machine, [Linear(kind, group, "a8", "1", 512, 512)])
        assembly = assemble(text, tmp_path, machine)
        products = assembly.count(f"{INSTRUCTIONS[form][kind]}\t")
        conversions = assembly.count("cvtdq2ps\t")
        assert products >= (32 if INSTRUCTIONS[form][kind].endswith("wd") else 16), kind
        assert conversions <= 8, kind
        assert "cvtsi2ss" not in assembly, kind


def test_products_and_sums_stay_one_instruction(tmp_path: Path) -> None:
    """LLVM may take vpdpwssd apart, and then has too few registers for a tile: the code was half as fast."""
    machine = FORMS["avx512vnni"]
    assembly = assemble(linear_module(machine, [Linear("q4_0", 32, "a16", "?", 576, 64)]), tmp_path, machine)
    assert assembly.count("vpdpwssd\t") >= 12 * 2 * 4 and "vpmaddwd\t" not in assembly


def test_arm_code_has_sdot(tmp_path: Path) -> None:
    arm = DotMachine("generic", 128, 16, 6, "+neon,+dotprod", "neon_dotprod", 32)
    for kind, group in (("q8", 64), ("q4_1", 32), ("q6_k", 16)):
        text = linear_module(arm, [Linear(kind, group, "a8", "?", 256, 64)]).replace("x86_64", "aarch64")
        assembly = assemble(text, tmp_path, arm, "-mtriple=aarch64-unknown-linux-gnu")
        assert assembly.count("\tsdot\t") >= 64, kind


def assemble(text: str, folder: Path, machine: DotMachine, *flags: str) -> str:
    """The assembly of a module."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu = [*flags, f"-mcpu={machine.name}", *([f"-mattr={machine.features}"] if machine.features else [])]
    (folder / "m.mlir").write_text(run_tool("buddy-opt", "--buddy-lower-to-llvm", text=text), encoding="utf-8")
    run_tool("mlir-translate", "--mlir-to-llvmir", str(folder / "m.mlir"), "-o", str(folder / "m.ll"))
    run_tool("opt", "-O3", *cpu, str(folder / "m.ll"), "-o", str(folder / "m.bc"))
    return run_tool("llc", "-O3", *cpu, str(folder / "m.bc"), "-o", "-")

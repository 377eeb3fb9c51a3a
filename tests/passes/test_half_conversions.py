"""f16 from and to f32 by integers: what NumPy has for every half and around every border of rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compiled_module import V2, CompiledModule

COUNT = 4096
MODULE = """
module attributes {{{attribute}}} {{
  func.func @widen(%x: memref<{count}xf16>, %y: memref<{count}xf32>) attributes {{llvm.emit_c_interface}} {{
    %zero = arith.constant 0 : index
    %step = arith.constant {step} : index
    %end = arith.constant {count} : index
    scf.for %i = %zero to %end step %step {{
      %a = {load} %x[%i] : memref<{count}xf16>{of_half}
      %b = arith.extf %a : {half} to {real}
      {store} %b, %y[%i] : memref<{count}xf32>{of_real}
    }}
    return
  }}
  func.func @narrow(%x: memref<{count}xf32>, %y: memref<{count}xf16>) attributes {{llvm.emit_c_interface}} {{
    %zero = arith.constant 0 : index
    %step = arith.constant {step} : index
    %end = arith.constant {count} : index
    scf.for %i = %zero to %end step %step {{
      %a = {load} %x[%i] : memref<{count}xf32>{of_real}
      %b = arith.truncf %a : {real} to {half}
      {store} %b, %y[%i] : memref<{count}xf16>{of_half}
    }}
    return
  }}
}}
"""


@pytest.fixture(scope="module", params=["scalars", "vectors"])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledModule:
    if request.param == "scalars":
        forms = {"step": 1, "load": "memref.load", "store": "memref.store", "half": "f16", "real": "f32"}
        forms |= {"of_half": "", "of_real": ""}
    else:
        half, real = "vector<8xf16>", "vector<8xf32>"
        forms = {"step": 8, "load": "vector.load", "store": "vector.store", "half": half, "real": real}
        forms |= {"of_half": f", {half}", "of_real": f", {real}"}
    text = MODULE.format(attribute=V2.attribute, count=COUNT, **forms)
    made = CompiledModule(text, Path(tmp_path_factory.mktemp(request.param)), V2, "profile=false")
    assert "fpext" not in made.lowered and "fptrunc" not in made.lowered
    return made


def test_every_half_is_widened(module: CompiledModule) -> None:
    for part in np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(-1, COUNT):
        result = np.zeros(COUNT, np.float32)
        module("widen", part.copy(), result)
        same(result, part.astype(np.float32))


def test_numbers_are_rounded_to_nearest_even(module: CompiledModule) -> None:
    """Each half, the middle between it and the next, and what stands on both sides of these; and numbers at random."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    upper = np.append(halves[1:], np.float32(65536))
    borders = np.concatenate([halves, (halves + upper) / 2]).view(np.uint32)
    around = np.concatenate([borders, borders + 1, np.maximum(borders, 1) - 1])
    chance = np.random.default_rng(0).integers(0, 2**32, 20 * COUNT, dtype=np.uint32)
    special = np.array([0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x477FF000, 0x33000000, 1], np.uint32)
    numbers = np.concatenate([around, around | 2**31, chance, special, special | 2**31])
    numbers = np.resize(numbers, -(-len(numbers) // COUNT) * COUNT).view(np.float32)
    for part in numbers.reshape(-1, COUNT):
        result = np.zeros(COUNT, np.float16)
        module("narrow", part.copy(), result)
        with np.errstate(over="ignore"):
            same(result, part.astype(np.float16))


def same(ours: np.ndarray, expected: np.ndarray) -> None:
    """The same bits, but for those of a NaN."""
    bits = f"u{ours.itemsize}"
    equal = (ours.view(bits) == expected.view(bits)) | (np.isnan(ours) & np.isnan(expected))
    assert equal.all(), (ours[~equal][:4], expected[~equal][:4])

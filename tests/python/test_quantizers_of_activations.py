"""The functions that round activations, as reference and in registers, against NumPy."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mlir import ir
from mlir.dialects import func

from buddy_gen.lowering.activations import define_quantizer
from buddy_gen.native import NativeModule, compile_module
from buddy_gen.target import TARGETS, Target, host_target
from buddy_gen.weights.rotation import rotate_rows

Array = npt.NDArray[Any]
PLAIN = "buddy-lower-to-llvm=vectorize=false attention=false"
# Bits, group, rotation, columns.
SHAPES = [
    (8, 64, 64, 192),
    (8, 32, 32, 96),
    (8, 128, 64, 256),
    (8, 4, 4, 12),
    (8, 8, 2, 24),
    (8, 576, 64, 576),
    (8, 36, 4, 36),
    (8, 32, 1, 64),
    (8, 100, 1, 100),
    (16, 16, 1, 48),
    (16, 64, 1, 64),
]


def _targets() -> list[Target]:
    if platform.machine() != "x86_64":
        return [host_target()]
    order = ["x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni"]
    names = order[: order.index(host_target().name) + 1]
    return [TARGETS[name] for name in names]


def _attribute(target: Target) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    fields = target.summary().items()
    return ir.DictAttr.get(
        {key: ir.StringAttr.get(one) if isinstance(one, str) else ir.IntegerAttr.get(i64, one) for key, one in fields}
    )


def _compiled(target: Target, pipeline: str, rows: int | None) -> NativeModule:
    """Entries ``f0``, ``f1``, ... (x, integers, scales), one for each shape."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["buddy.target"] = _attribute(target)
        f32 = ir.F32Type.get()
        count = ir.ShapedType.get_dynamic_size() if rows is None else rows
        with ir.InsertionPoint(module.body):
            for number, (bits, group, rotation, columns) in enumerate(SHAPES):
                integer = ir.IntegerType.get_signless(bits)
                shape = [count, columns // group, group // 4, 4]
                types = [
                    ir.RankedTensorType.get([count, columns], f32),
                    ir.RankedTensorType.get(shape, integer),
                    ir.RankedTensorType.get(shape[:2], f32),
                ]
                define_quantizer(f"quantize{number}", types, rotation)
                entry = func.FuncOp(f"f{number}", ir.FunctionType.get(types, types[1:]))
                entry.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
                writable = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(True)})
                entry.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get({}), writable, writable])
                block = entry.add_entry_block()
                with ir.InsertionPoint(block):
                    call = func.CallOp(types[1:], ir.FlatSymbolRefAttr.get(f"quantize{number}"), list(block.arguments))
                    func.ReturnOp(list(call.results))
        assert module.operation.verify()
        return compile_module(str(module), target, pipeline)


def _expected(x: Array, bits: int, group: int, rotation: int) -> tuple[Array, Array]:
    """docs/quantization.md in NumPy."""
    most = np.float32(2 ** (bits - 1) - 1)
    if rotation > 1:
        x = rotate_rows(x, rotation) * np.float32(0.5 if rotation.bit_length() % 2 == 0 else 1)
    grouped = x.reshape(len(x), -1, group)
    largest = np.abs(grouped).max(axis=2)
    with np.errstate(divide="ignore", over="ignore"):
        factor = np.where(largest < np.float32(2.0**-100), np.float32(0), most / largest)
    return np.rint(grouped * factor[:, :, None]).reshape(x.shape), largest / most


def _activations(rows: int, columns: int, group: int) -> Array:
    rng = np.random.default_rng(rows * columns)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    x *= rng.choice(np.float32([1e-3, 1, 40]), x.shape)  # outliers
    x[0, :group] = 0
    x[-1, -group:] *= np.float32(2.0**-120)
    return x


def _run(native: NativeModule, number: int, x: Array) -> tuple[Array, Array]:
    bits, group, _, columns = SHAPES[number]
    integers = np.full((len(x), columns // group, group // 4, 4), 99, np.dtype(f"i{bits // 8}"))
    scales = np.full((len(x), columns // group), np.nan, np.float32)
    native.entry(f"f{number}")(x, integers, scales)
    return integers.reshape(x.shape), scales


@pytest.mark.slow
@pytest.mark.parametrize("target", _targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("rows", [None, 1])
def test_in_registers_they_are_exact(target: Target, rows: int | None) -> None:
    native = _compiled(target, "buddy-lower-to-llvm", rows)
    for number, (bits, group, rotation, columns) in enumerate(SHAPES):
        for count in (1, 2, 7) if rows is None else (rows,):
            x = _activations(count, columns, group)
            integers, scales = _run(native, number, x)
            expected, expected_scales = _expected(x, bits, group, rotation)
            np.testing.assert_array_equal(scales, expected_scales)
            np.testing.assert_array_equal(integers, expected, err_msg=f"{SHAPES[number]}")


def test_the_reference_says_the_same() -> None:
    """It adds in another order where columns are mixed, which may decide between two neighbours."""
    native = _compiled(host_target(), PLAIN, None)
    for number, (bits, group, rotation, columns) in enumerate(SHAPES):
        x = _activations(5, columns, group)
        integers, scales = _run(native, number, x)
        expected, expected_scales = _expected(x, bits, group, rotation)
        np.testing.assert_allclose(scales, expected_scales, rtol=1e-6)
        off = np.abs(integers - expected)
        assert off.max() <= (1 if rotation > 1 else 0)
        assert np.count_nonzero(off) <= 0.01 * off.size


def test_a_nan_does_not_vanish() -> None:
    native = _compiled(host_target(), "buddy-lower-to-llvm", None)
    for number, (_, group, _, columns) in enumerate(SHAPES):
        x = _activations(3, columns, group)
        x[1, group // 2] = np.nan
        assert np.isnan(_run(native, number, x)[1][1, 0])


def test_mixing_is_a_product_with_an_orthogonal_matrix() -> None:
    """What is left to activations makes it whole: (x R)(W R)ᵀ is x Wᵀ."""
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((2, 6, 192)).astype(np.float32)
    for size in (1, 2, 4, 32, 64):
        hadamard = np.ones((1, 1))
        while len(hadamard) < size:
            hadamard = np.kron([[1, 1], [1, -1]], hadamard)
        whole = np.kron(np.eye(192 // size), hadamard)
        np.testing.assert_allclose(rotate_rows(w, size) @ (whole.T @ x.T) * _share(size), w @ x.T, atol=1e-3)


def _share(size: int) -> float:
    return float(2.0 ** -(size.bit_length() // 2))

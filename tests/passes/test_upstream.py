"""buddy-opt is mlir-opt and more: the same invocations give the same output."""

from __future__ import annotations

import subprocess

import pytest
from compiled_module import run_tool, tool

MATMUL = """
func.func @f(%a: tensor<4x8xf32>, %b: tensor<8x16xf32>, %c: tensor<4x16xf32>) -> tensor<4x16xf32> {
  %r = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x16xf32>) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
  return %r : tensor<4x16xf32>
}
"""
TOSA = """
func.func @f(%x: tensor<4x8xf32>, %y: tensor<1x8xf32>) -> tensor<4x8xf32> {
  %s = tosa.add %x, %y : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>
  %r = tosa.tanh %s : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""
LOOPS = """
func.func @f(%x: memref<64xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<64xf32>
    %e = math.exp %v : f32
    memref.store %e, %x[%i] : memref<64xf32>
  }
  return
}
"""
TRANSFORM = """
module attributes {transform.with_named_sequence} {
  func.func @f(%a: tensor<4x8xf32>, %b: tensor<8x16xf32>, %c: tensor<4x16xf32>) -> tensor<4x16xf32> {
    %r = linalg.matmul ins(%a, %b : tensor<4x8xf32>, tensor<8x16xf32>) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
    return %r : tensor<4x16xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %m = transform.structured.match ops{["linalg.matmul"]} in %module : (!transform.any_op) -> !transform.any_op
    %t, %l:2 = transform.structured.tile_using_for %m tile_sizes [2, 4]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
}
"""
INVOCATIONS = [
    (MATMUL, ["--canonicalize", "--cse"]),
    (MATMUL, ["--mlir-print-op-generic"]),
    (
        MATMUL,
        ["--one-shot-bufferize=bufferize-function-boundaries", "--convert-linalg-to-loops", "--convert-scf-to-cf"],
    ),
    (MATMUL, ["--linalg-generalize-named-ops", "--mlir-print-ir-after-all"]),
    (TOSA, ["--pass-pipeline=builtin.module(func.func(tosa-to-linalg-named,tosa-to-linalg))"]),
    (TOSA, ["--tosa-to-linalg-pipeline"]),
    (LOOPS, ["--convert-scf-to-openmp", "--canonicalize"]),
    (LOOPS, ["--convert-scf-to-cf", "--finalize-memref-to-llvm", "--convert-to-llvm"]),
    (LOOPS, ["--convert-math-to-libm", "--convert-vector-to-scf", "--expand-strided-metadata", "--lower-affine"]),
    (LOOPS, ["--gpu-map-parallel-loops", "--convert-parallel-loops-to-gpu"]),
    (TRANSFORM, ["--transform-interpreter"]),
    (TRANSFORM, ["--emit-bytecode", "--no-implicit-module"]),
    ("func.func @broken(", []),
    (MATMUL, ["--no-such-pass"]),
]


@pytest.mark.parametrize(
    ("text", "flags"), INVOCATIONS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_same_as_mlir_opt(text: str, flags: list[str]) -> None:
    theirs, ours = (
        subprocess.run([tool(name), *flags], input=text.encode(), capture_output=True, check=False)
        for name in ("mlir-opt", "buddy-opt")
    )
    assert ours.returncode == theirs.returncode
    assert ours.stdout == theirs.stdout
    assert ours.stderr.replace(b"buddy-opt", b"mlir-opt").splitlines()[:1] == [
        line.replace(tool("mlir-opt").encode(), tool("buddy-opt").encode().replace(b"buddy-opt", b"mlir-opt"))
        for line in theirs.stderr.splitlines()[:1]
    ]


def test_every_upstream_dialect_is_registered() -> None:
    def dialects(name: str) -> list[str]:
        return run_tool(name, "--show-dialects").split()

    # mlir-opt registers dialects of its own tests as well.
    missing = [name for name in dialects("mlir-opt") if name not in dialects("buddy-opt") and "test" not in name]
    assert [name for name in missing if name.strip(",:").isidentifier()] == []


def test_version_and_help_name_the_passes() -> None:
    assert "22.1" in run_tool("buddy-opt", "--version")
    text = run_tool("buddy-opt", "--help")
    for flag in ("--verify-model-contract", "--matmul-vectorize", "--buddy-lower-to-llvm", "--one-shot-bufferize"):
        assert flag in text

"""Modules of linear layers with quantised weights, as the importer writes them, and their numpy references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compiled_module import Machine, aligned

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DotMachine(Machine):
    """A machine with a form of integer dot products."""

    int8_dot: str = "none"
    registers: int = 16
    cpu_flags: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        plain = super().attribute.replace("registers = 16", f"registers = {self.registers}")
        return f'{plain[:-1]}, int8_dot = "{self.int8_dot}"}}'


_V2 = ("ssse3", "sse4_2")
_V3 = ("avx2", "fma", "f16c")
_V4 = (*_V3, "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd")
_WIDE, _VNNI = "-prefer-256-bit", "-prefer-256-bit,+avx512vnni,+fast-dpwssd"
FORMS = {
    "none-128": DotMachine("x86-64-v2", 128, 8, 6, "", "none", 16, _V2),
    "ssse3": DotMachine("x86-64-v2", 128, 8, 6, "", "ssse3", 16, _V2),
    "none-256": DotMachine("x86-64-v3", 256, 16, 6, "", "none", 16, _V3),
    "avx2": DotMachine("x86-64-v3", 256, 16, 6, "", "avx2", 16, _V3),
    "none-512": DotMachine("x86-64-v4", 512, 32, 12, _WIDE, "none", 32, _V4),
    "avx512bw": DotMachine("x86-64-v4", 512, 32, 12, _WIDE, "avx512bw", 32, _V4),
    "avx512vnni": DotMachine("x86-64-v4", 512, 32, 12, _VNNI, "avx512vnni", 32, (*_V4, "avx512_vnni")),
    "avx512vnni-256": DotMachine("x86-64-v4", 256, 16, 6, _VNNI, "avx512vnni", 32, (*_V4, "avx512_vnni")),
}


def forms_of_this_machine() -> list[str]:
    """The names of the forms that this machine can run."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return [name for name, machine in FORMS.items() if set(machine.cpu_flags) <= flags]


@dataclass(frozen=True)
class Linear:
    """A linear layer.

    Attributes:
        kind: q8, q4_0 or q4_1.
        group: Weights that share a scale (32 for q4).
        activation: a8, a16 or a32.
        rows: M, as a type has it: a number or ``?``.
        depth: K.
        columns: N.
    """

    kind: str
    group: int
    activation: str
    rows: str
    depth: int
    columns: int

    @property
    def halves(self) -> int:
        """Weights in one byte."""
        return 1 if self.kind == "q8" else 2

    @property
    def activation_bits(self) -> int:
        """Bits of an activation's integer."""
        return 16 if self.activation == "a16" else 8

    @property
    def largest(self) -> int:
        """The largest integer of an activation."""
        return int(2 ** (self.activation_bits - 1)) - 1

    @property
    def groups(self) -> int:
        """G."""
        return -(-self.depth // self.group)

    @property
    def quads(self) -> int:
        """Quads of bytes in one group of one row."""
        return self.group // self.halves // 4

    @property
    def scales(self) -> int:
        """Halves per row and group: the scale, and a minimum."""
        return 2 if self.kind == "q4_1" else 1

    def block_bytes(self, panel: int) -> int:
        """B."""
        return panel * (4 * self.quads + 2 * self.scales)

    def panels(self, panel: int) -> int:
        """P."""
        return -(-self.columns // panel)

    def stored_bytes(self, panel: int) -> int:
        """Bytes of the packed weight."""
        return self.panels(panel) * self.groups * self.block_bytes(panel)


@dataclass(frozen=True)
class Quantized:
    """A quantised weight.

    Attributes:
        integers: (N, G, g), q4_0 with 8 subtracted.
        scales: (N, G), f16.
        minima: (N, G), f16, q4_1 only.
    """

    linear: Linear
    integers: Array
    scales: Array
    minima: Array

    @staticmethod
    def random(linear: Linear, rng: np.random.Generator, exact: bool = False) -> Quantized:
        """Random integers of the whole range; `exact`: scales are powers of two, so that f32 sums are exact."""
        shape = (linear.columns, linear.groups, linear.group)
        low, high = {"q8": (-127, 128), "q4_0": (-8, 8), "q4_1": (0, 16)}[linear.kind]
        integers = rng.integers(low, high, shape)
        # K is padded with weights that mean nothing: the activations there are zero.
        if exact:
            scales = 2.0 ** rng.integers(-3, 1, shape[:2])
            minima = rng.integers(-4, 5, shape[:2]) / 4
        else:
            scales, minima = rng.uniform(-0.02, 0.02, shape[:2]), rng.uniform(-0.1, 0.1, shape[:2])
        return Quantized(linear, integers, scales.astype(np.float16), minima.astype(np.float16))

    def values(self) -> Array:
        """The weight (N, K) in f64."""
        values = self.integers * self.scales.astype(np.float64)[:, :, None]
        if self.linear.kind == "q4_1":
            values = values + self.minima.astype(np.float64)[:, :, None]
        return values.reshape(self.linear.columns, -1)[:, : self.linear.depth]

    def packed(self, panel: int) -> Array:
        """The bytes of the weights file, aligned."""
        linear, rows = self.linear, self.linear.panels(panel) * panel

        def padded(array: Array) -> Array:
            return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)])

        if linear.kind == "q8":
            stored: Array = self.integers.astype(np.int8).view(np.uint8)
        else:
            nibbles = (self.integers + (8 if linear.kind == "q4_0" else 0)).astype(np.uint8)
            stored = nibbles[..., :16] | (nibbles[..., 16:] << 4)
        split = padded(stored).reshape(-1, panel, linear.groups, linear.quads, 4).transpose(0, 2, 3, 1, 4)
        blocks = [split.reshape(-1, linear.groups, 4 * linear.quads * panel)]
        for halves in (self.scales, self.minima)[: linear.scales]:
            by_row = padded(halves).reshape(-1, panel, linear.groups).transpose(0, 2, 1)
            blocks.append(np.ascontiguousarray(by_row).view(np.uint8))
        data = aligned(linear.stored_bytes(panel))
        data[:] = np.concatenate(blocks, axis=2).reshape(-1)
        return data


def quantize_activations(x: Array, linear: Linear) -> tuple[Array, Array]:
    """Integers (M, G, g) and f32 scales (M, G), computed as the module does."""
    padded = np.zeros((len(x), linear.groups * linear.group), np.float32)
    padded[:, : linear.depth] = x
    grouped = padded.reshape(len(x), linear.groups, linear.group)
    amax = np.abs(grouped).max(-1)
    inverse = np.where(amax == 0, 0, np.float32(linear.largest) / np.where(amax == 0, 1, amax)).astype(np.float32)
    return np.rint(grouped * inverse[:, :, None]).astype(np.int64), amax / np.float32(linear.largest)


def linear_reference(x: Array, weight: Quantized) -> Array:
    """What the layer computes, in f64."""
    if weight.linear.activation == "a32":
        return x.astype(np.float64) @ weight.values().T
    integers, scales = quantize_activations(x, weight.linear)
    values = (integers * scales.astype(np.float64)[:, :, None]).reshape(len(x), -1)[:, : weight.linear.depth]
    return np.asarray(values @ weight.values().T)


def _maps(loops: str, *results: str) -> str:
    return ", ".join(f"affine_map<({loops}) -> ({result})>" for result in results)


def _iterators(parallel: int, reductions: int = 0) -> str:
    return ", ".join(['"parallel"'] * parallel + ['"reduction"'] * reductions)


def _dequantized_weight(linear: Linear, machine: Machine, offset: int) -> str:
    """%w: the weight (P, K, R) in f32."""
    r, p, g, q = machine.panel, linear.panels(machine.panel), linear.groups, linear.quads
    size, total = linear.block_bytes(r), linear.stored_bytes(r)
    h = "" if linear.kind == "q8" else "2x"
    half_loop = "" if linear.kind == "q8" else "h, "
    integers, scales = f"{p}x{g}x{q}x{r}x4xi8", f"{p}x{g}x{r}xf16"
    value = f"tensor<{p}x{g}x{h}{q}x4x{r}xf32>"
    lines = [
        f"%offset = arith.constant {offset} : index",
        f"%bytes = memref.view %weights[%offset][] : memref<?xi8> to memref<{total}xi8>",
        f"%q_m = memref.reinterpret_cast %bytes to offset: [0], sizes: [{p}, {g}, {q}, {r}, 4], "
        f"strides: [{g * size}, {size}, {4 * r}, 4, 1] : memref<{total}xi8> to "
        f"memref<{integers}, strided<[{g * size}, {size}, {4 * r}, 4, 1]>>",
        f"%q = bufferization.to_tensor %q_m restrict : memref<{integers}, "
        f"strided<[{g * size}, {size}, {4 * r}, 4, 1]>> to tensor<{integers}>",
    ]
    for part in range(linear.scales):
        start = 4 * q * r + 2 * r * part
        count = (total - start) // 2
        kind = f"memref<{scales}, strided<[{g * size // 2}, {size // 2}, 1]>>"
        lines += [
            f"%offset{part} = arith.constant {offset + start} : index",
            f"%half{part} = memref.view %weights[%offset{part}][] : memref<?xi8> to memref<{count}xf16>",
            f"%s_m{part} = memref.reinterpret_cast %half{part} to offset: [0], sizes: [{p}, {g}, {r}], "
            f"strides: [{g * size // 2}, {size // 2}, 1] : memref<{count}xf16> to {kind}",
            f"%s{part} = bufferization.to_tensor %s_m{part} restrict : {kind} to tensor<{scales}>",
        ]
    operands = ["%q", *(f"%s{part}" for part in range(linear.scales))]
    kinds = [f"tensor<{integers}>"] + [f"tensor<{scales}>"] * linear.scales
    loops = f"p, g, {half_loop}q, r, j"
    maps = _maps(loops, "p, g, q, j, r", *(["p, g, j"] * linear.scales), loops)
    arguments = ", ".join(["%byte: i8", *(f"%t{part}: f16" for part in range(linear.scales)), "%o: f32"])
    if linear.kind == "q8":
        body = ["%v = arith.sitofp %byte : i8 to f32"]
    else:
        body = [
            "%h = linalg.index 2 : index",
            "%h8 = arith.index_cast %h : index to i8",
            "%c4 = arith.constant 4 : i8",
            "%c15 = arith.constant 15 : i8",
            "%shift = arith.muli %h8, %c4 : i8",
            "%shifted = arith.shrui %byte, %shift : i8",
            "%nibble = arith.andi %shifted, %c15 : i8",
            "%u = arith.uitofp %nibble : i8 to f32",
            "%c8 = arith.constant 8.0 : f32",
            "%v = arith.subf %u, %c8 : f32",
        ]
        if linear.kind == "q4_1":
            body[-3:] = ["%v = arith.uitofp %nibble : i8 to f32"]
    body += ["%d = arith.extf %t0 : f16 to f32", "%dv = arith.mulf %v, %d : f32"]
    if linear.kind == "q4_1":
        body += ["%mn = arith.extf %t1 : f16 to f32", "%dm = arith.addf %dv, %mn : f32"]
    result = "%dm" if linear.kind == "q4_1" else "%dv"
    collapse = "[[0], [1, 2, 3], [4]]" if linear.kind == "q8" else "[[0], [1, 2, 3, 4], [5]]"
    lines += [
        f"%we = tensor.empty() : {value}",
        f"%wv = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{_iterators(5 if not h else 6)}]}} "
        f"ins({', '.join(operands)} : {', '.join(kinds)}) outs(%we : {value}) {{\n  ^bb0({arguments}):",
        *(f"  {line}" for line in body),
        f"  linalg.yield {result} : f32\n  }} -> {value}",
        f"%w = tensor.collapse_shape %wv {collapse} : {value} into tensor<{p}x{g * linear.group}x{r}xf32>",
    ]
    return "\n  ".join(lines)


def _quantized_input(linear: Linear) -> str:
    """%xq: x (M, K) padded to (M, G * g), and through int8 for a8."""
    m, g, depth = linear.rows, linear.groups, linear.groups * linear.group
    size = "%m" if m == "?" else ""
    x, padded = f"tensor<{m}x{linear.depth}xf32>", f"tensor<{m}x{depth}xf32>"
    lines = []
    name = "%x"
    if depth != linear.depth:
        lines.append(
            f"%padded = tensor.pad %x low[0, 0] high[0, {depth - linear.depth}] {{\n  ^bb0(%i: index, %j: index):\n"
            f"    tensor.yield %zero : f32\n  }} : {x} to {padded}"
        )
        name = "%padded"
    if linear.activation == "a32":
        return "\n  ".join([*lines, f"%xq = tensor.cast {name} : {padded} to {padded}"])
    i = f"i{linear.activation_bits}"
    h = "" if linear.kind == "q8" else "2x"
    shape = f"{m}x{g}x{h}{linear.quads}x4"
    loops = "m, g, q, r" if not h else "m, g, h, q, r"
    rank = 4 if not h else 5
    groups = "[[0], [1, 2, 3]]" if not h else "[[0], [1, 2, 3, 4]]"
    sizes = f"[{'%m' if m == '?' else m}, {g}, {'' if not h else '2, '}{linear.quads}, 4]"
    scale = f"tensor<{m}x{g}xf32>"
    elementwise = f"indexing_maps = [{_maps('m, g', 'm, g', 'm, g')}], iterator_types = [{_iterators(2)}]"
    quantize = f"indexing_maps = [{_maps(loops, loops, 'm, g', loops)}], iterator_types = [{_iterators(rank)}]"
    lines += [
        f"%xg = tensor.expand_shape {name} {groups} output_shape {sizes} : {padded} into tensor<{shape}xf32>",
        f"%se = tensor.empty({size}) : {scale}",
        f"%sz = linalg.fill ins(%zero : f32) outs(%se : {scale}) -> {scale}",
        f"%amax = linalg.generic {{indexing_maps = [{_maps(loops, loops, 'm, g')}], "
        f"iterator_types = [{_iterators(2, rank - 2)}]}} ins(%xg : tensor<{shape}xf32>) outs(%sz : {scale}) {{\n"
        "  ^bb0(%v: f32, %o: f32):\n    %a = math.absf %v : f32\n    %r = arith.maximumf %o, %a : f32\n"
        f"    linalg.yield %r : f32\n  }} -> {scale}",
        f"%inverse = linalg.generic {{{elementwise}}} ins(%amax : {scale}) outs(%se : {scale}) {{\n"
        f"  ^bb0(%v: f32, %o: f32):\n    %c = arith.constant {linear.largest}.0 : f32\n"
        "    %d = arith.divf %c, %v : f32\n"
        "    %none = arith.cmpf oeq, %v, %zero : f32\n    %r = arith.select %none, %zero, %d : f32\n"
        f"    linalg.yield %r : f32\n  }} -> {scale}",
        f"%xscale = linalg.generic {{{elementwise}}} ins(%amax : {scale}) outs(%se : {scale}) {{\n"
        f"  ^bb0(%v: f32, %o: f32):\n    %c = arith.constant {linear.largest}.0 : f32\n"
        "    %d = arith.divf %v, %c : f32\n"
        f"    linalg.yield %d : f32\n  }} -> {scale}",
        f"%be = tensor.empty({size}) : tensor<{shape}x{i}>",
        f"%aq = linalg.generic {{{quantize}}} ins(%xg, %inverse : tensor<{shape}xf32>, {scale}) "
        f"outs(%be : tensor<{shape}x{i}>) {{\n  ^bb0(%v: f32, %i: f32, %o: {i}):\n    %s = arith.mulf %v, %i : f32\n"
        f"    %e = math.roundeven %s : f32\n    %b = arith.fptosi %e : f32 to {i}\n"
        f"    linalg.yield %b : {i}\n  }} -> tensor<{shape}x{i}>",
        f"%fe = tensor.empty({size}) : tensor<{shape}xf32>",
        f"%ad = linalg.generic {{{quantize}}} ins(%aq, %xscale : tensor<{shape}x{i}>, {scale}) "
        f"outs(%fe : tensor<{shape}xf32>) {{\n  ^bb0(%v: {i}, %s: f32, %o: f32):\n"
        f"    %f = arith.sitofp %v : {i} to f32\n    %r = arith.mulf %f, %s : f32\n    linalg.yield %r : f32\n"
        f"  }} -> tensor<{shape}xf32>",
        f"%xq = tensor.collapse_shape %ad {groups} : tensor<{shape}xf32> into {padded}",
    ]
    return "\n  ".join(lines)


def linear_function(linear: Linear, machine: Machine, name: str) -> str:
    """``@name(weights, x (M, K), out (M, N))``."""
    m, depth, n, r = linear.rows, linear.groups * linear.group, linear.columns, machine.panel
    p = linear.panels(r)
    x, out, size = f"tensor<{m}x{linear.depth}xf32>", f"tensor<{m}x{n}xf32>", "%m" if m == "?" else ""
    return f"""
func.func @{name}(%weights: memref<?xi8>, %x: {x}, %out: {out} {{bufferization.writable = true}}) -> {out}
    attributes {{llvm.emit_c_interface}} {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %m = tensor.dim %x, %c0 : {x}
  {_dequantized_weight(linear, machine, 0)}
  {_quantized_input(linear)}
  %e = tensor.empty() : tensor<{n}x{depth}xf32>
  %logical = linalg.unpack %w inner_dims_pos = [0] inner_tiles = [{r}] into %e : tensor<{p}x{depth}x{r}xf32>
      -> tensor<{n}x{depth}xf32>
  %oe = tensor.empty({size}) : {out}
  %z = linalg.fill ins(%zero : f32) outs(%oe : {out}) -> {out}
  %y = linalg.matmul indexing_maps = [{_maps("m, n, k", "m, k", "n, k", "m, n")}]
      ins(%xq, %logical : tensor<{m}x{depth}xf32>, tensor<{n}x{depth}xf32>) outs(%z : {out}) -> {out}
  %result = bufferization.materialize_in_destination %y in %out : ({out}, {out}) -> {out}
  return %result : {out}
}}"""


def linear_module(machine: Machine, linears: list[Linear]) -> str:
    """Functions ``@f0``, ``@f1``, ... of the layers."""
    functions = [linear_function(linear, machine, f"f{number}") for number, linear in enumerate(linears)]
    return f"module attributes {{{machine.attribute}}} {{{''.join(functions)}\n}}"

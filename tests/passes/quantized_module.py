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
class Kind:
    """What the integers of a kind of weights stand for.

    Attributes:
        bits: Of an integer; 8: signed.
        zero: What is subtracted.
        sign: Of the minimum; 0: none.
        several: Groups of a block, each with factors of the block's scale and minimum.
        lowest: Of the factors of scales; -128 where they are signed.
    """

    bits: int
    zero: int = 0
    sign: int = 0
    several: int = 1
    lowest: int = 0

    @property
    def range(self) -> tuple[int, int]:
        """The smallest integer less zero, and the largest."""
        return (-128, 127) if self.bits == 8 else (-self.zero, 2**self.bits - 1 - self.zero)


KINDS = {
    "q8": Kind(8),
    "q4_0": Kind(4, zero=8),
    "q4_1": Kind(4, sign=1),
    "q5_0": Kind(5, zero=16),
    "q5_1": Kind(5, sign=1),
    "q4_k": Kind(4, sign=-1, several=8),
    "q5_k": Kind(5, sign=-1, several=8),
    "q6_k": Kind(6, zero=32, several=16, lowest=-128),
}


@dataclass(frozen=True)
class Linear:
    """A linear layer.

    Attributes:
        kind: One of KINDS.
        group: Weights that share a scale (q8: any; q6_k: 16; else 32).
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
    def what(self) -> Kind:
        """What its integers stand for."""
        return KINDS[self.kind]

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
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.depth // (self.group * self.what.several))

    @property
    def groups(self) -> int:
        """G."""
        return self.blocks * self.what.several

    @property
    def quads(self) -> int:
        """Quads of bytes in one group of one row."""
        return self.group // self.halves // 4

    @property
    def upper(self) -> int:
        """Bits of an integer past the lower 4, if it has fewer than 8."""
        return self.what.bits - 4 if self.halves == 2 else 0

    @property
    def scales(self) -> int:
        """Halves per row and block, and factors per row and group: of the scale, and of a minimum."""
        return 2 if self.what.sign else 1

    @property
    def factors(self) -> int:
        """Factors per row and group."""
        return self.scales if self.what.several > 1 else 0

    def group_bytes(self, panel: int) -> int:
        """Bytes of a group, without the halves of its block."""
        return panel * (4 * self.quads + (4 if self.upper else 0) + self.factors)

    def block_bytes(self, panel: int) -> int:
        """B."""
        return self.what.several * self.group_bytes(panel) + 2 * panel * self.scales

    def panels(self, panel: int) -> int:
        """P."""
        return -(-self.columns // panel)

    def stored_bytes(self, panel: int) -> int:
        """Bytes of the packed weight."""
        return self.panels(panel) * self.blocks * self.block_bytes(panel)


@dataclass(frozen=True)
class Quantized:
    """A quantised weight.

    Attributes:
        integers: (N, G, g), less the kind's zero.
        scales: (N, blocks), f16.
        minima: (N, blocks), f16; means something with minima only.
        factors: (N, G), what scales and minima are multiplied with; both only with several groups in a block.
    """

    linear: Linear
    integers: Array
    scales: Array
    minima: Array
    factors: tuple[Array, Array] | None = None

    @staticmethod
    def random(linear: Linear, rng: np.random.Generator, exact: bool = False) -> Quantized:
        """Random integers of the whole range; `exact`: scales are powers of two, so that f32 sums are exact."""
        low, high = linear.what.range
        integers = rng.integers(-127 if linear.kind == "q8" else low, high + 1, linear_shape(linear))
        # K is padded with weights that mean nothing: the activations there are zero.
        shape, by_group = (linear.columns, linear.blocks), (linear.columns, linear.groups)
        lowest, factors = linear.what.lowest, None
        if exact:
            scales = 2.0 ** rng.integers(-3, 1, shape)
            minima = rng.integers(-4, 5, shape) / 4
            if linear.factors:
                signs = np.sign(rng.integers(lowest, 128, by_group) + 0.5).astype(int)
                factors = (signs * 2 ** rng.integers(0, 3, by_group), rng.integers(0, 4, by_group))
        else:
            scales, minima = rng.uniform(-0.02, 0.02, shape), rng.uniform(-0.1, 0.1, shape)
            if linear.factors:
                scales, minima = scales / 64, minima / 64
                factors = (rng.integers(lowest, 128 if lowest else 64, by_group), rng.integers(0, 64, by_group))
        return Quantized(linear, integers, scales.astype(np.float16), minima.astype(np.float16), factors)

    def values(self) -> Array:
        """The weight (N, K) in f64."""
        scales, minima = (
            np.repeat(halves.astype(np.float64), self.linear.what.several, axis=1)
            for halves in (self.scales, self.minima)
        )
        if self.factors:
            scales, minima = scales * self.factors[0], minima * self.factors[1]
        values = self.integers * scales[:, :, None] + self.linear.what.sign * minima[:, :, None]
        return values.reshape(self.linear.columns, -1)[:, : self.linear.depth]

    def packed(self, panel: int) -> Array:
        """The bytes of the weights file, aligned."""
        linear, rows = self.linear, self.linear.panels(panel) * panel

        def by_panel(array: Array) -> Array:
            """(N, x, ...) as (P, x, R, ...), zeros below."""
            whole = np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)])
            return np.ascontiguousarray(np.moveaxis(whole.reshape(-1, panel, *array.shape[1:]), 1, 2))

        def quads(array: Array) -> Array:
            """(N, G, bytes) as (P, G, bytes of R rows)."""
            split = by_panel(array.reshape(*array.shape[:2], -1, 4)).swapaxes(2, 3)
            return split.reshape(*split.shape[:2], -1)

        if linear.kind == "q8":
            groups = [quads(self.integers.astype(np.int8).view(np.uint8))]
        else:
            whole = (self.integers + linear.what.zero).astype(np.uint8)
            middle, low = linear.group // 2, whole & 15
            groups = [quads(low[..., :middle] | (low[..., middle:] << 4))]
            if linear.upper:
                above = np.zeros((*whole.shape[:2], 4), np.uint8)
                for k in range(linear.group):
                    above[:, :, k % 4] |= (whole[:, :, k] >> 4) << (linear.upper * (k // 4))
                groups.append(quads(above))
        for factors in (self.factors or ())[: linear.factors]:
            groups.append(by_panel(factors.astype(np.int8).view(np.uint8)))
        joined = np.concatenate(groups, axis=2).reshape(rows // panel, linear.blocks, -1)
        halves = [by_panel(one).view(np.uint8) for one in (self.scales, self.minima)[: linear.scales]]
        data = aligned(linear.stored_bytes(panel))
        data[:] = np.concatenate([joined, *halves], axis=2).reshape(-1)
        return data


def linear_shape(linear: Linear) -> tuple[int, int, int]:
    """(N, G, g)."""
    return linear.columns, linear.groups, linear.group


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
    r, p, q, what = machine.panel, linear.panels(machine.panel), linear.quads, linear.what
    size, group = linear.block_bytes(r), linear.group_bytes(r)
    outer, strides = [p, linear.blocks], [linear.blocks * size, size]
    of_group = "p, b, s" if what.several > 1 else "p, b"
    group_outer = [*outer, what.several] if what.several > 1 else outer
    group_strides = [*strides, group] if what.several > 1 else strides
    lines: list[str] = []
    fields: list[tuple[str, str, str]] = []  # value, type, map

    def field(name: str, start: int, element: str, sizes: list[int], steps: list[int], results: str) -> None:
        if element == "f16":
            steps = [step // 2 if number < 2 else step for number, step in enumerate(steps)]
        count = sum((one - 1) * step for one, step in zip(sizes, steps, strict=True)) + 1
        shape = "x".join(map(str, sizes)) + f"x{element}"
        view = f"memref<{shape}, strided<{steps}>>"
        lines.extend(
            [
                f"%{name}_offset = arith.constant {offset + start} : index",
                f"%{name}_flat = memref.view %weights[%{name}_offset][] : memref<?xi8> to memref<{count}x{element}>",
                f"%{name}_m = memref.reinterpret_cast %{name}_flat to offset: [0], sizes: {sizes}, strides: {steps} : "
                f"memref<{count}x{element}> to {view}",
                f"%{name}_t = bufferization.to_tensor %{name}_m restrict : {view} to tensor<{shape}>",
            ]
        )
        fields.append((f"%{name}: {element}", f"tensor<{shape}>", results))

    field("low", 0, "i8", [*group_outer, q, r, 4], [*group_strides, 4 * r, 4, 1], f"{of_group}, q, j, r")
    start = 4 * q * r
    if linear.upper:
        field("high", start, "i8", [*group_outer, r, 4], [*group_strides, 4, 1], f"{of_group}, j, r")
        start += 4 * r
    for number in range(linear.factors):
        field(f"f{number}", start + number * r, "i8", [*group_outer, r], [*group_strides, 1], f"{of_group}, j")
    for number in range(linear.scales):
        skip = what.several * group + 2 * r * number
        field(f"d{number}", skip, "f16", [*outer, r], [*strides, 1], "p, b, j")

    sizes = [*group_outer, *([2] if linear.halves == 2 else []), q, 4, r]
    loops = f"{of_group}, {'h, ' if linear.halves == 2 else ''}q, r, j"
    value = "tensor<" + "x".join(map(str, sizes)) + "xf32>"
    body = _weight_body(linear, half=len(group_outer))
    operands = [text.split(":")[0] + "_t" for text, _, _ in fields]
    lines += [
        f"%we = tensor.empty() : {value}",
        f"%wv = linalg.generic {{indexing_maps = [{_maps(loops, *(results for _, _, results in fields), loops)}], "
        f"iterator_types = [{_iterators(len(sizes))}]}} "
        f"ins({', '.join(operands)} : {', '.join(kind for _, kind, _ in fields)}) outs(%we : {value}) {{\n"
        f"  ^bb0({', '.join(text for text, _, _ in fields)}, %o: f32):",
        *(f"  {line}" for line in body),
        f"  linalg.yield %value : f32\n  }} -> {value}",
        f"%w = tensor.collapse_shape %wv [[0], {list(range(1, len(sizes) - 1))}, [{len(sizes) - 1}]] : {value} into "
        f"tensor<{p}x{linear.groups * linear.group}x{r}xf32>",
    ]
    return "\n  ".join(lines)


def _weight_body(linear: Linear, half: int) -> list[str]:
    """%value: an element of the weight, of the elements of its fields."""
    what, lines = linear.what, []

    def part(byte: str, name: str, place: str, bits: int) -> None:
        """`bits` bits of `byte` from bits * place on."""
        lines.extend(
            [
                f"%{name}_bits = arith.constant {bits} : i8",
                f"%{name}_shift = arith.muli {place}, %{name}_bits : i8",
                f"%{name}_moved = arith.shrui {byte}, %{name}_shift : i8",
                f"%{name}_mask = arith.constant {2**bits - 1} : i8",
                f"%{name}_part = arith.andi %{name}_moved, %{name}_mask : i8",
            ]
        )

    def product(number: int, is_signed: bool) -> str:
        """The half, times its factor."""
        lines.append(f"%wide{number} = arith.extf %d{number} : f16 to f32")
        if not linear.factors:
            return f"%wide{number}"
        kind = "sitofp" if is_signed else "uitofp"
        lines.append(f"%factor{number} = arith.{kind} %f{number} : i8 to f32")
        lines.append(f"%product{number} = arith.mulf %wide{number}, %factor{number} : f32")
        return f"%product{number}"

    if linear.halves == 1:
        lines.append("%number = arith.sitofp %low : i8 to f32")
    else:
        lines += [f"%h = linalg.index {half} : index", "%h8 = arith.index_cast %h : index to i8"]
        part("%low", "low", "%h8", 4)
        integer = "%low_part"
        if linear.upper:
            lines += [
                f"%q = linalg.index {half + 1} : index",
                "%q8 = arith.index_cast %q : index to i8",
                f"%quads = arith.constant {linear.quads} : i8",
                "%first = arith.muli %h8, %quads : i8",
                "%place = arith.addi %first, %q8 : i8",
            ]
            part("%high", "high", "%place", linear.upper)
            lines += ["%four = arith.constant 4 : i8", "%above = arith.shli %high_part, %four : i8"]
            lines.append("%joined = arith.ori %low_part, %above : i8")
            integer = "%joined"
        lines.append(f"%number = arith.uitofp {integer} : i8 to f32")
    number = "%number"
    if what.zero:
        lines += [f"%zero_point = arith.constant {what.zero}.0 : f32", "%less = arith.subf %number, %zero_point : f32"]
        number = "%less"
    result = "%scaled" if what.sign else "%value"
    lines.append(f"{result} = arith.mulf {number}, {product(0, what.lowest < 0)} : f32")
    if what.sign:
        lines.append(f"%value = arith.{'addf' if what.sign > 0 else 'subf'} %scaled, {product(1, False)} : f32")
    return lines


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
    ]
    integers, scales = "%aq", "%xscale"
    if linear.what.several > 1:
        # The product has blocks and their groups in place of groups.
        split = f"{m}x{linear.blocks}x{linear.what.several}"
        integer_shape = f"{split}x{h}{linear.quads}x4"
        sizes = f"[{'%m' if m == '?' else m}, {linear.blocks}, {linear.what.several}"
        lines += [
            f"%aqb = tensor.expand_shape %aq [[0], [1, 2], [3], [4], [5]] output_shape {sizes}, 2, {linear.quads}, 4] "
            f": tensor<{shape}x{i}> into tensor<{integer_shape}x{i}>",
            f"%xsb = tensor.expand_shape %xscale [[0], [1, 2]] output_shape {sizes}] "
            f": {scale} into tensor<{split}xf32>",
        ]
        integers, scales, scale, rank = "%aqb", "%xsb", f"tensor<{split}xf32>", rank + 1
        shape, loops, groups = integer_shape, "m, b, s, h, q, r", "[[0], [1, 2, 3, 4, 5]]"
        quantize = f"indexing_maps = [{_maps(loops, loops, 'm, b, s', loops)}], iterator_types = [{_iterators(rank)}]"
    lines += [
        f"%fe = tensor.empty({size}) : tensor<{shape}xf32>",
        f"%ad = linalg.generic {{{quantize}}} ins({integers}, {scales} : tensor<{shape}x{i}>, {scale}) "
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

"""Hand-written modules that follow the contract between the importer and the passes, and their numpy references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from compiled_module import Machine, aligned, pack

Array = np.ndarray[Any, Any]


def attention_function(layers: int, heads: int, kv_heads: int, head_dim: int, queries: str, scale: float) -> str:
    """The private function ``@attention`` of the contract; ``queries`` is ``1`` or ``?``."""
    group = heads // kv_heads
    q = f"tensor<1x{heads}x{queries}x{head_dim}xf32>"
    cache = f"tensor<{layers}x{kv_heads}x?x{head_dim}xf32>"
    out = f"tensor<1x{queries}x{heads}x{head_dim}xf32>"
    grouped = f"tensor<{kv_heads}x{group}x{queries}x{head_dim}xf32>"
    scores = f"tensor<{kv_heads}x{group}x{queries}x?xf32>"
    filled = f"tensor<{kv_heads}x?x{head_dim}xf32>"
    size = "" if queries == "1" else "%s"
    sizes = f"{size}, %n" if size else "%n"
    shape = size or "1"
    parallel = '"parallel", "parallel", "parallel", "parallel"'
    return f"""
func.func private @attention(%q: {q}, %k_cache: {cache}, %v_cache: {cache}, %layer: index, %position: index,
    %out: {out}) -> {out} attributes {{buddy.attention = {{scale = {scale:.9e} : f32}}}} {{
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  %scale = arith.constant {scale:.9e} : f32
  %low = arith.constant 0xFF800000 : f32
  %s = tensor.dim %q, %c2 : {q}
  %n = arith.addi %position, %s : index
  %k = tensor.extract_slice %k_cache[%layer, 0, 0, 0] [1, {kv_heads}, %n, {head_dim}] [1, 1, 1, 1] : {cache} to {filled}
  %v = tensor.extract_slice %v_cache[%layer, 0, 0, 0] [1, {kv_heads}, %n, {head_dim}] [1, 1, 1, 1] : {cache} to {filled}
  %flat = tensor.collapse_shape %q [[0, 1], [2], [3]] : {q} into tensor<{heads}x{queries}x{head_dim}xf32>
  %qg = tensor.expand_shape %flat [[0, 1], [2], [3]] output_shape [{kv_heads}, {group}, {shape}, {head_dim}]
      : tensor<{heads}x{queries}x{head_dim}xf32> into {grouped}
  %e = tensor.empty({sizes}) : {scores}
  %f = linalg.fill ins(%zero : f32) outs(%e : {scores}) -> {scores}
  %qk = linalg.generic {{
      indexing_maps = [affine_map<(g, h, s, n, d) -> (g, h, s, d)>, affine_map<(g, h, s, n, d) -> (g, n, d)>,
                       affine_map<(g, h, s, n, d) -> (g, h, s, n)>],
      iterator_types = [{parallel}, "reduction"]}} ins(%qg, %k : {grouped}, {filled}) outs(%f : {scores}) {{
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }} -> {scores}
  %masked = linalg.generic {{
      indexing_maps = [affine_map<(g, h, s, n) -> (g, h, s, n)>, affine_map<(g, h, s, n) -> (g, h, s, n)>],
      iterator_types = [{parallel}]}} ins(%qk : {scores}) outs(%e : {scores}) {{
    ^bb0(%a: f32, %o: f32):
      %i = linalg.index 2 : index
      %j = linalg.index 3 : index
      %limit = arith.addi %position, %i : index
      %seen = arith.cmpi ule, %j, %limit : index
      %scaled = arith.mulf %a, %scale : f32
      %r = arith.select %seen, %scaled, %low : f32
      linalg.yield %r : f32
  }} -> {scores}
  %p = linalg.softmax dimension(3) ins(%masked : {scores}) outs(%e : {scores}) -> {scores}
  %oe = tensor.empty({size}) : {grouped}
  %of = linalg.fill ins(%zero : f32) outs(%oe : {grouped}) -> {grouped}
  %pv = linalg.generic {{
      indexing_maps = [affine_map<(g, h, s, d, n) -> (g, h, s, n)>, affine_map<(g, h, s, d, n) -> (g, n, d)>,
                       affine_map<(g, h, s, d, n) -> (g, h, s, d)>],
      iterator_types = [{parallel}, "reduction"]}} ins(%p, %v : {scores}, {filled}) outs(%of : {grouped}) {{
    ^bb0(%a: f32, %b: f32, %o: f32):
      %m = arith.mulf %a, %b : f32
      %r = arith.addf %o, %m : f32
      linalg.yield %r : f32
  }} -> {grouped}
  %back = tensor.collapse_shape %pv [[0, 1], [2], [3]] : {grouped} into tensor<{heads}x{queries}x{head_dim}xf32>
  %heads = tensor.expand_shape %back [[0, 1], [2], [3]] output_shape [1, {heads}, {shape}, {head_dim}]
      : tensor<{heads}x{queries}x{head_dim}xf32> into {q}
  %te = tensor.empty({size}) : {out}
  %t = linalg.transpose ins(%heads : {q}) outs(%te : {out}) permutation = [0, 2, 1, 3]
  %result = bufferization.materialize_in_destination %t in %out : ({out}, {out}) -> {out}
  return %result : {out}
}}
"""


def attention_reference(q: Array, k: Array, v: Array, position: int, scale: float) -> Array:
    """Causal grouped attention in f64: q (1, H, S, D), k and v (Hkv, C, D) -> (1, S, H, D)."""
    _, heads, queries, head_dim = q.shape
    group = heads // k.shape[0]
    out = np.zeros((1, queries, heads, head_dim))
    for h in range(heads):
        for s in range(queries):
            seen = position + s + 1
            logits = k[h // group, :seen].astype(np.float64) @ q[0, h, s].astype(np.float64) * scale
            weights = np.exp(logits - logits.max())
            out[0, s, h] = weights / weights.sum() @ v[h // group, :seen]
    return out


def attention_module(
    machine: Machine, layers: int, heads: int, kv_heads: int, head_dim: int, queries: str, element: str = "f32"
) -> str:
    """A module whose entry ``@run(q, k, v, layer, position, out)`` calls the attention function.

    Of a function with narrow caches (`element`) the body is no reference: passes replace it.
    """
    q = f"tensor<1x{heads}x{queries}x{head_dim}xf32>"
    cache = f"tensor<{layers}x{kv_heads}x?x{head_dim + 4 if element == 'i8' else head_dim}x{element}>"
    out = f"tensor<1x{queries}x{heads}x{head_dim}xf32>"
    function = attention_function(layers, heads, kv_heads, head_dim, queries, head_dim**-0.5)
    if element != "f32":
        function = f"""func.func private @attention(%q: {q}, %k: {cache}, %v: {cache}, %layer: index,
    %position: index, %out: {out}) -> {out} attributes {{buddy.attention = {{scale = {head_dim**-0.5} : f32}}}} {{
  return %out : {out}
}}"""
    return f"""module attributes {{{machine.attribute}}} {{
{function}
func.func @run(%q: {q}, %k: {cache}, %v: {cache}, %layer: index, %position: index,
    %out: {out} {{bufferization.writable = true}}) -> {out} attributes {{llvm.emit_c_interface}} {{
  %r = func.call @attention(%q, %k, %v, %layer, %position, %out)
      : ({q}, {cache}, {cache}, index, index, {out}) -> {out}
  return %r : {out}
}}
}}"""


@dataclass(frozen=True)
class Shape:
    """Sizes of a toy model."""

    layers: int = 2
    hidden: int = 36
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 12
    ffn: int = 50
    vocab: int = 101
    context: int = 96

    def layer_weights(self) -> dict[str, tuple[int, ...]]:
        """The weights of one layer: (N, K) for linear layers, (N,) for norms."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "norm1": (self.hidden,),
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "norm2": (self.hidden,),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }


@dataclass
class Weights:
    """Random weights, and the bytes that the generated code reads."""

    shape: Shape
    panel: int
    tensors: dict[str, Array] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        named = {f"{layer}.{n}": s for layer in range(self.shape.layers) for n, s in self.shape.layer_weights().items()}
        named |= {
            "embedding": (self.shape.vocab, self.shape.hidden),
            "norm": (self.shape.hidden,),
            "inv_freq": (self.shape.head_dim // 2,),
        }
        for name, size in named.items():
            scale = 1.0 if len(size) == 1 else size[1] ** -0.5
            self.tensors[name] = (rng.standard_normal(size) * scale).astype(np.float32)
            stored = pack(self.tensors[name], self.panel).size if len(size) == 2 else size[0]
            self.offsets[name] = self.size
            self.size += -(-stored * 4 // 64) * 64
        exponents = np.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        self.tensors["inv_freq"] = (100000.0**-exponents).astype(np.float32)

    def data(self) -> Array:
        """The weights file's data section."""
        data = aligned(self.size)
        for name, tensor in self.tensors.items():
            stored = (pack(tensor, self.panel) if tensor.ndim == 2 else tensor).tobytes()
            data[self.offsets[name] : self.offsets[name] + len(stored)] = np.frombuffer(stored, np.uint8)
        return data.view(np.int8)


class Builder:
    """Writes the ops of one function; ``queries`` is ``1`` or ``?``."""

    def __init__(self, shape: Shape, panel: int, queries: str) -> None:
        self.shape, self.panel, self.queries = shape, panel, queries
        self.lines: list[str] = []
        self.count = 0
        self.size = "" if queries == "1" else "%s"

    def emit(self, text: str) -> str:
        """Adds ``%new = text`` and returns the new name."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def rows(self, columns: int) -> str:
        """The type of activations (1, S, columns)."""
        return f"tensor<1x{self.queries}x{columns}xf32>"

    def weight(self, offset: str, size: tuple[int, ...], transposed: bool = False) -> tuple[str, str]:
        """A parameter: its value and type."""
        if len(size) == 1:
            stored = f"{size[0]}xf32"
        else:
            stored = f"{-(-size[0] // self.panel)}x{size[1]}x{self.panel}xf32"
        view = self.emit(f"memref.view %weights[{offset}][] : memref<?xi8> to memref<{stored}>")
        tensor = self.emit(f"bufferization.to_tensor {view} restrict : memref<{stored}> to tensor<{stored}>")
        if len(size) == 1:
            return tensor, f"tensor<{stored}>"
        order = size[::-1] if transposed else size
        kind = f"tensor<{order[0]}x{order[1]}xf32>"
        empty = self.emit(f"tensor.empty() : {kind}")
        perm = "outer_dims_perm = [1, 0] inner_dims_pos = [1]" if transposed else "inner_dims_pos = [0]"
        return self.emit(
            f"linalg.unpack {tensor} {perm} inner_tiles = [{self.panel}] into {empty} : tensor<{stored}> -> {kind}"
        ), kind

    def linear(self, x: str, offset: str, size: tuple[int, int], form: str = "matmul") -> str:
        """x (1, S, K) times a weight (N, K), in one of the forms that an importer may write."""
        n, k = size
        weight, kind = self.weight(offset, size, transposed=form != "matmul")
        if form == "tosa":
            lifted = self.emit(
                f"tensor.expand_shape {weight} [[0, 1], [2]] output_shape [1, {k}, {n}] : "
                f"{kind} into tensor<1x{k}x{n}xf32>"
            )
            zp = self.emit('"tosa.const"() <{values = dense<0.0> : tensor<1xf32>}> : () -> tensor<1xf32>')
            return self.emit(
                f"tosa.matmul {x}, {lifted}, {zp}, {zp} : ({self.rows(k)}, tensor<1x{k}x{n}xf32>, "
                f"tensor<1xf32>, tensor<1xf32>) -> {self.rows(n)}"
            )
        s, flat, out = self.queries, f"tensor<{self.queries}x{k}xf32>", f"tensor<{self.queries}x{n}xf32>"
        x2 = self.emit(f"tensor.collapse_shape {x} [[0, 1], [2]] : {self.rows(k)} into {flat}")
        empty = self.emit(f"tensor.empty({self.size}) : {out}")
        zero = self.emit(f"linalg.fill ins(%zero : f32) outs({empty} : {out}) -> {out}")
        maps = (
            "indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, "
            "affine_map<(m, n, k) -> (m, n)>] "
            if form == "matmul"
            else ""
        )
        y = self.emit(f"linalg.matmul {maps}ins({x2}, {weight} : {flat}, {kind}) outs({zero} : {out}) -> {out}")
        return self.emit(
            f"tensor.expand_shape {y} [[0, 1], [2]] output_shape [1, {self.size or s}, {n}] : {out} into {self.rows(n)}"
        )

    def generic(self, inputs: list[tuple[str, str, str]], out: tuple[str, str], rank: int, body: str) -> str:
        """An elementwise op: inputs are (value, type, map results), the output's map is the identity."""
        dims = ", ".join(f"d{i}" for i in range(rank))
        maps = ", ".join(
            [*(f"affine_map<({dims}) -> ({m})>" for _, _, m in inputs), f"affine_map<({dims}) -> ({dims})>"]
        )
        iterators = ", ".join(['"parallel"'] * rank)
        names = ", ".join(f"%a{i}: f32" for i in range(len(inputs)))
        values, types = ", ".join(v for v, _, _ in inputs), ", ".join(t for _, t, _ in inputs)
        return self.emit(
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}} ins({values} : {types}) "
            f"outs({out[0]} : {out[1]}) {{\n    ^bb0({names}, %o: f32):\n{body}\n  }} -> {out[1]}"
        )

    def norm(self, x: str, offset: str) -> str:
        """RMSNorm of x (1, S, hidden)."""
        n = self.shape.hidden
        weight, kind = self.weight(offset, (n,))
        sums = f"tensor<1x{self.queries}xf32>"
        start = self.emit(f"tensor.empty({self.size}) : {sums}")
        zero = self.emit(f"linalg.fill ins(%zero : f32) outs({start} : {sums}) -> {sums}")
        empty = self.emit(f"tensor.empty({self.size}) : {self.rows(n)}")
        square = self.generic(
            [(x, self.rows(n), "d0, d1, d2")], (empty, self.rows(n)), 3,
            "      %r = arith.mulf %a0, %a0 : f32\n      linalg.yield %r : f32",
        )  # fmt: skip
        total = self.emit(
            f"linalg.reduce {{ arith.addf }} ins({square} : {self.rows(n)}) outs({zero} : {sums}) dimensions = [2]"
        )
        root = self.generic(
            [(total, sums, "d0, d1")], (start, sums), 2,
            f"      %n = arith.constant {float(n):.9e} : f32\n      %eps = arith.constant 1.0e-05 : f32\n"
            "      %m = arith.divf %a0, %n : f32\n      %e = arith.addf %m, %eps : f32\n"
            "      %r = math.rsqrt %e : f32\n      linalg.yield %r : f32",
        )  # fmt: skip
        return self.generic(
            [(x, self.rows(n), "d0, d1, d2"), (root, sums, "d0, d1"), (weight, kind, "d2")], (empty, self.rows(n)), 3,
            "      %m = arith.mulf %a0, %a1 : f32\n      %r = arith.mulf %m, %a2 : f32\n      linalg.yield %r : f32",
        )  # fmt: skip

    def split_heads(self, x: str, heads: int) -> str:
        """(1, S, heads * D) -> (1, heads, S, D)."""
        s, d = self.queries, self.shape.head_dim
        split, turned = f"tensor<1x{s}x{heads}x{d}xf32>", f"tensor<1x{heads}x{s}x{d}xf32>"
        y = self.emit(
            f"tensor.expand_shape {x} [[0], [1], [2, 3]] output_shape [1, {self.size or s}, {heads}, {d}] : "
            f"{self.rows(heads * d)} into {split}"
        )
        empty = self.emit(f"tensor.empty({self.size}) : {turned}")
        return self.emit(f"linalg.transpose ins({y} : {split}) outs({empty} : {turned}) permutation = [0, 2, 1, 3]")

    def rope(self, x: str, heads: int) -> str:
        """x * cos + rotate_half(x) * sin."""
        s, d = self.queries, self.shape.head_dim
        full, half = f"tensor<1x{heads}x{s}x{d}xf32>", f"tensor<1x{heads}x{s}x{d // 2}xf32>"
        sizes = f"[1, {heads}, {self.size or s}, {d // 2}] [1, 1, 1, 1]"
        low = self.emit(f"tensor.extract_slice {x}[0, 0, 0, 0] {sizes} : {full} to {half}")
        high = self.emit(f"tensor.extract_slice {x}[0, 0, 0, {d // 2}] {sizes} : {full} to {half}")
        empty_half = self.emit(f"tensor.empty({self.size}) : {half}")
        negative = self.generic(
            [(high, half, "d0, d1, d2, d3")], (empty_half, half), 4,
            "      %r = arith.negf %a0 : f32\n      linalg.yield %r : f32",
        )  # fmt: skip
        turned = self.emit(f"tensor.concat dim(3) {negative}, {low} : ({half}, {half}) -> {full}")
        empty = self.emit(f"tensor.empty({self.size}) : {full}")
        table = self.rows(d)
        return self.generic(
            [(x, full, "d0, d1, d2, d3"), (turned, full, "d0, d1, d2, d3"), ("%cos", table, "d0, d2, d3"),
             ("%sin", table, "d0, d2, d3")], (empty, full), 4,
            "      %c = arith.mulf %a0, %a2 : f32\n      %t = arith.mulf %a1, %a3 : f32\n"
            "      %r = arith.addf %c, %t : f32\n      linalg.yield %r : f32",
        )  # fmt: skip

    def add(self, x: str, y: str) -> str:
        """x + y, both (1, S, hidden)."""
        kind = self.rows(self.shape.hidden)
        empty = self.emit(f"tensor.empty({self.size}) : {kind}")
        return self.emit(f"linalg.add ins({x}, {y} : {kind}, {kind}) outs({empty} : {kind}) -> {kind}")

    def silu_multiply(self, gate: str, up: str) -> str:
        """silu(gate) * up."""
        kind = self.rows(self.shape.ffn)
        sigmoid = self.emit(f"tosa.sigmoid {gate} : ({kind}) -> {kind}")
        shift = self.emit('"tosa.const"() <{values = dense<0> : tensor<1xi8>}> : () -> tensor<1xi8>')
        silu = self.emit(f"tosa.mul {gate}, {sigmoid}, {shift} : ({kind}, {kind}, tensor<1xi8>) -> {kind}")
        return self.emit(f"tosa.mul {silu}, {up}, {shift} : ({kind}, {kind}, tensor<1xi8>) -> {kind}")


def _layer(shape: Shape, weights: Weights, queries: str, caches: str) -> str:
    b = Builder(shape, weights.panel, queries)
    h = b.rows(shape.hidden)
    stride = weights.offsets["1.q"] - weights.offsets["0.q"] if shape.layers > 1 else 0
    offsets = {}
    for name in shape.layer_weights():
        base = b.emit(f"arith.constant {weights.offsets[f'0.{name}']} : index")
        step = b.emit(f"arith.constant {stride} : index")
        offsets[name] = b.emit(f"arith.addi {base}, {b.emit(f'arith.muli %layer, {step} : index')} : index")
    sizes: dict[str, Any] = shape.layer_weights()
    normed = b.norm("%h", offsets["norm1"])
    q = b.rope(b.split_heads(b.linear(normed, offsets["q"], sizes["q"]), shape.heads), shape.heads)
    k = b.rope(b.split_heads(b.linear(normed, offsets["k"], sizes["k"], "tosa"), shape.kv_heads), shape.kv_heads)
    v = b.split_heads(b.linear(normed, offsets["v"], sizes["v"], "transposed"), shape.kv_heads)
    d, s = shape.head_dim, b.size or queries
    new = f"tensor<1x{shape.kv_heads}x{queries}x{d}xf32>"
    place = f"[%layer, 0, %position, 0] [1, {shape.kv_heads}, {s}, {d}] [1, 1, 1, 1]"
    kc = b.emit(f"tensor.insert_slice {k} into %k_cache{place} : {new} into {caches}")
    vc = b.emit(f"tensor.insert_slice {v} into %v_cache{place} : {new} into {caches}")
    out = f"tensor<1x{queries}x{shape.heads}x{d}xf32>"
    empty = b.emit(f"tensor.empty({b.size}) : {out}")
    attended = b.emit(
        f"func.call @attention({q}, {kc}, {vc}, %layer, %position, {empty}) : "
        f"(tensor<1x{shape.heads}x{queries}x{d}xf32>, {caches}, {caches}, index, index, {out}) -> {out}"
    )
    joined = b.emit(
        f"tensor.collapse_shape {attended} [[0], [1], [2, 3]] : {out} into {b.rows(shape.heads * shape.head_dim)}"
    )
    h1 = b.add("%h", b.linear(joined, offsets["o"], sizes["o"]))
    normed2 = b.norm(h1, offsets["norm2"])
    gate, up = b.linear(normed2, offsets["gate"], sizes["gate"]), b.linear(normed2, offsets["up"], sizes["up"])
    h2 = b.add(h1, b.linear(b.silu_multiply(gate, up), offsets["down"], sizes["down"]))
    result = b.emit(f"bufferization.materialize_in_destination {h2} in %h : ({h}, {h}) -> {h}")
    table = b.rows(d)
    body = "\n".join(b.lines)
    return f"""
func.func private @layer(%weights: memref<?xi8>, %layer: index, %h: {h}, %k_cache: {caches}, %v_cache: {caches},
    %position: index, %cos: {table}, %sin: {table}) -> ({h}, {caches}, {caches}) attributes {{buddy.layer}} {{
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %s = tensor.dim %h, %c1 : {h}
{body}
  return {result}, {kc}, {vc} : {h}, {caches}, {caches}
}}"""


def toy_module(machine: Machine, shape: Shape, entry: str) -> str:
    """The module of a toy LLaMA; ``entry`` is prefill, decode or score."""
    weights = Weights(shape, machine.panel)
    queries = "1" if entry == "decode" else "?"
    b = Builder(shape, machine.panel, queries)
    caches = f"tensor<{shape.layers}x{shape.kv_heads}x?x{shape.head_dim}xf32>"
    h, s, d = b.rows(shape.hidden), b.size or queries, shape.head_dim
    offsets = {
        name: b.emit(f"arith.constant {weights.offsets[name]} : index") for name in ("embedding", "norm", "inv_freq")
    }
    embedding, kind = b.weight(offsets["embedding"], (shape.vocab, shape.hidden))
    empty = b.emit(f"tensor.empty({b.size}) : {h}")
    x = b.emit(
        "linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1)>, "
        'affine_map<(d0, d1, d2) -> (d0, d1, d2)>], iterator_types = ["parallel", "parallel", "parallel"]} '
        f"ins(%ids : tensor<1x{queries}xi64>) outs({empty} : {h}) {{\n    ^bb0(%id: i64, %o: f32):\n"
        "      %n = arith.index_cast %id : i64 to index\n      %k = linalg.index 2 : index\n"
        f"      %r = tensor.extract {embedding}[%n, %k] : {kind}\n      linalg.yield %r : f32\n  }} -> {h}"
    )
    frequencies, frequency_kind = b.weight(offsets["inv_freq"], (d // 2,))
    tables = []
    for function in ("cos", "sin"):
        table = b.emit(f"tensor.empty({b.size}) : {b.rows(d)}")
        body = (
            "      %i = linalg.index 1 : index\n      %j = linalg.index 2 : index\n"
            f"      %half = arith.constant {d // 2} : index\n      %f = arith.remui %j, %half : index\n"
            "      %p = arith.addi %position, %i : index\n      %pi = arith.index_cast %p : index to i64\n"
            "      %pf = arith.sitofp %pi : i64 to f32\n"
            f"      %w = tensor.extract {frequencies}[%f] : {frequency_kind}\n      %a = arith.mulf %pf, %w : f32\n"
            f"      %r = math.{function} %a : f32\n      linalg.yield %r : f32"
        )
        tables.append(
            b.emit(
                "linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>], "
                f'iterator_types = ["parallel", "parallel", "parallel"]}} outs({table} : {b.rows(d)}) {{\n'
                f"    ^bb0(%o: f32):\n{body}\n  }} -> {b.rows(d)}"
            )
        )
    table_kind = b.rows(d)
    layers = b.emit(f"arith.constant {shape.layers} : index")
    b.lines.append(
        f"  %layers:3 = scf.for %layer = %c0 to {layers} step %c1 iter_args(%hi = {x}, %ki = %k_cache, %vi = %v_cache) "
        f"-> ({h}, {caches}, {caches}) {{\n"
        f"    %n:3 = func.call @layer(%weights, %layer, %hi, %ki, %vi, %position, {tables[0]}, {tables[1]}) : "
        f"(memref<?xi8>, index, {h}, {caches}, {caches}, index, {table_kind}, {table_kind}) "
        f"-> ({h}, {caches}, {caches})\n"
        f"    scf.yield %n#0, %n#1, %n#2 : {h}, {caches}, {caches}\n  }}"
    )
    hidden, one = "%layers#0", b
    if entry == "prefill":
        last = b.emit("arith.subi %s, %c1 : index")
        kind1 = f"tensor<1x1x{shape.hidden}xf32>"
        hidden = b.emit(
            f"tensor.extract_slice %layers#0[0, {last}, 0] [1, 1, {shape.hidden}] [1, 1, 1] : {h} to {kind1}"
        )
        one = Builder(shape, machine.panel, "1")
        one.lines, one.count = b.lines, 1000
    normed = one.norm(hidden, offsets["norm"])
    logits = one.linear(normed, offsets["embedding"], (shape.vocab, shape.hidden))
    logits_kind = one.rows(shape.vocab)
    result = one.emit(
        f"bufferization.materialize_in_destination {logits} in %logits : "
        f"({logits_kind}, {logits_kind}) -> {logits_kind}"
    )
    body = "\n".join(b.lines)
    writable = "{bufferization.writable = true}"
    attention = attention_function(shape.layers, shape.heads, shape.kv_heads, d, queries, d**-0.5)
    del s
    return f"""module attributes {{{machine.attribute}, buddy.abi = "toy"}} {{
{attention}
{_layer(shape, weights, queries, caches)}
func.func @{entry}(%weights: memref<?xi8>, %ids: tensor<1x{queries}xi64>, %position64: i64,
    %k_cache: {caches} {writable}, %v_cache: {caches} {writable}, %logits: {logits_kind} {writable})
    -> ({caches}, {caches}, {logits_kind}) attributes {{llvm.emit_c_interface, buddy.entry = "{entry}"}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %position = arith.index_cast %position64 : i64 to index
  %s = tensor.dim %ids, %c1 : tensor<1x{queries}xi64>
{body}
  return %layers#1, %layers#2, {result} : {caches}, {caches}, {logits_kind}
}}
}}"""


def toy_reference(weights: Weights, ids: Array) -> Array:
    """Logits (S, vocab) of a whole text in f64."""
    shape, w = weights.shape, {name: tensor.astype(np.float64) for name, tensor in weights.tensors.items()}
    d, count = shape.head_dim, len(ids)

    def norm(x: Array, weight: Array) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
        return scaled

    def heads(x: Array, number: int) -> Array:
        return x.reshape(count, number, d).transpose(1, 0, 2)

    # The angle is computed in f32, as the model does it; its sine in f64.
    angles = np.arange(count, dtype=np.float32)[:, None] * np.tile(weights.tensors["inv_freq"], 2)
    cos, sin = np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))

    def rope(x: Array) -> Array:
        turned: Array = x * cos + np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1) * sin
        return turned

    x = w["embedding"][ids]
    for layer in range(shape.layers):

        def linear(y: Array, name: str, layer: int = layer) -> Array:
            return y @ w[f"{layer}.{name}"].T

        n = norm(x, w[f"{layer}.norm1"])
        q, k = rope(heads(linear(n, "q"), shape.heads)), rope(heads(linear(n, "k"), shape.kv_heads))
        attended = attention_reference(q[None], k, heads(linear(n, "v"), shape.kv_heads), 0, d**-0.5)
        x = x + linear(attended.reshape(count, -1), "o")
        n = norm(x, w[f"{layer}.norm2"])
        gate = linear(n, "gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(n, "up"), "down")
    return norm(x, w["norm"]) @ w["embedding"].T

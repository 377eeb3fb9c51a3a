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


def attention_module(machine: Machine, layers: int, heads: int, kv_heads: int, head_dim: int, queries: str) -> str:
    """A module whose entry ``@run(q, k, v, layer, position, out)`` calls the attention function."""
    q = f"tensor<1x{heads}x{queries}x{head_dim}xf32>"
    cache = f"tensor<{layers}x{kv_heads}x?x{head_dim}xf32>"
    out = f"tensor<1x{queries}x{heads}x{head_dim}xf32>"
    return f"""module attributes {{{machine.attribute}}} {{
{attention_function(layers, heads, kv_heads, head_dim, queries, head_dim**-0.5)}
func.func @run(%q: {q}, %k: {cache}, %v: {cache}, %layer: index, %position: index,
    %out: {out} {{bufferization.writable = true}}) -> {out} attributes {{llvm.emit_c_interface}} {{
  %r = func.call @attention(%q, %k, %v, %layer, %position, %out)
      : ({q}, {cache}, {cache}, index, index, {out}) -> {out}
  return %r : {out}
}}
}}"""

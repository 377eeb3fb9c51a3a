"""The tensors of a GGUF file under their Hugging Face names and in the Hugging Face layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from buddy_gen.errors import BuddyError
from buddy_gen.weights.gguf_file import GgufFile, GgufTensor
from buddy_gen.weights.raw_floats import FLOAT_BYTES, read_bytes, read_floats
from buddy_gen.weights.source import FloatArray, WeightSource

__all__ = ["ROPE_FACTORS", "GgufSource", "huggingface_name", "permute_rows", "unpermute_rows"]

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that carries llama3 rope scaling: what each base inverse frequency is divided by."""

_BLOCK_ELEMENTS = 1 << 22  # dequantised at a time

_Rows = TypeVar("_Rows", FloatArray, npt.NDArray[np.uint8])

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def huggingface_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name without a counterpart stays."""
    match = _LAYER_NAME.fullmatch(name)
    if match is not None and match[2] in _LAYER:
        return f"model.layers.{int(match[1])}.{_LAYER[match[2]]}.{match[3]}"
    return _TOP.get(name, name)


def permute_rows(rows: _Rows, heads: int) -> _Rows:
    """llama.cpp's order of Q and K rows: within a head, rows i and i + D/2 become neighbours (2i, 2i + 1).

    `rows` is [heads * D, ...]. llama.cpp rotates neighbouring pairs, Hugging Face rotates halves; this is
    LlamaModel.permute of llama.cpp's converter.
    """
    half = rows.shape[0] // heads // 2
    split = rows.reshape(heads, 2, half, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def unpermute_rows(rows: _Rows, heads: int) -> _Rows:
    """The inverse of `permute_rows`."""
    half = rows.shape[0] // heads // 2
    split = rows.reshape(heads, half, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


class GgufSource(WeightSource):
    """The tensors of a GGUF file of the llama architecture, dequantised, Q and K rows put back in order.

    `rope_freqs.weight` is no parameter: it is not among the names, `rope_factors` gives it.
    """

    def __init__(self, file: GgufFile, heads: int, kv_heads: int) -> None:
        """`heads` and `kv_heads` are the numbers of query and of key/value heads."""
        self._path = file.path
        self._tensors = {huggingface_name(name): tensor for name, tensor in file.tensors.items()}
        self._factors = self._tensors.pop(ROPE_FACTORS, None)
        self._heads = {"q_proj": heads, "k_proj": kv_heads}

    def _find(self, name: str) -> GgufTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BuddyError(f"{self._path} has no tensor {name}.")
        return tensor

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        return self._find(name).kind.name.lower()

    def rope_factors(self) -> FloatArray | None:
        """The divisors of the base inverse frequencies, [head_dim / 2], or None."""
        if self._factors is None:
            return None
        return self._dequantised(self._factors, 0, self._factors.shape[0])

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        return self._in_order(name, start, stop, self._dequantised)

    def read_blocks(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        return self._in_order(name, start, stop, self._raw)

    def _in_order(self, name: str, start: int, stop: int, read: Callable[[GgufTensor, int, int], _Rows]) -> _Rows:
        """Rows [start, stop) in Hugging Face's order, by a function that reads them as stored."""
        tensor = self._find(name)
        heads = self._heads.get(name.split(".")[-2]) if "." in name else None
        if heads is None:
            return read(tensor, start, stop)
        size = tensor.shape[0] // heads  # rows of one head
        if size * heads != tensor.shape[0] or size % 2:
            raise BuddyError(f"{self._path}: the {tensor.shape[0]} rows of {name} do not divide among {heads} heads.")
        first = start // size * size
        rows = read(tensor, first, -(-stop // size) * size)
        for head in range(0, rows.shape[0], size):  # a head at a time, so that no second copy of the tensor exists
            rows[head : head + size] = unpermute_rows(rows[head : head + size], 1)
        return np.ascontiguousarray(rows[start - first : stop - first])

    def files(self) -> list[Path]:
        return [self._path]

    def _raw(self, tensor: GgufTensor, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows [start, stop) as their bytes in the file."""
        row_bytes = tensor.bytes // tensor.shape[0]
        raw = read_bytes(self._path, tensor.offset + start * row_bytes, (stop - start) * row_bytes)
        return raw.reshape(stop - start, row_bytes)

    def _dequantised(self, tensor: GgufTensor, start: int, stop: int) -> FloatArray:
        """Rows [start, stop) as stored, in blocks of whole rows."""
        kind = tensor.kind.name.lower()
        total = tensor.shape[0] if tensor.shape else 1
        if len(tensor.shape) == 1 and kind not in FLOAT_BYTES:
            return self._dequantised_row(tensor)[start:stop].copy()
        elements = 1
        for dim in tensor.shape[1:]:
            elements *= dim
        row_bytes = tensor.bytes // total
        shape = (stop - start, *tensor.shape[1:])
        if kind in FLOAT_BYTES:
            return read_floats(self._path, kind, tensor.offset + start * row_bytes, (stop - start) * elements).reshape(
                shape
            )
        out = np.empty((stop - start, elements), np.float32)
        step = max(1, _BLOCK_ELEMENTS // elements)
        for row in range(0, stop - start, step):
            rows = min(step, stop - start - row)
            raw = read_bytes(self._path, tensor.offset + (start + row) * row_bytes, rows * row_bytes)
            out[row : row + rows] = self._blocks(tensor, raw.reshape(rows, row_bytes))
        return out.reshape(shape)

    def _dequantised_row(self, tensor: GgufTensor) -> FloatArray:
        raw = read_bytes(self._path, tensor.offset, tensor.bytes)
        return self._blocks(tensor, raw.reshape(1, tensor.bytes)).reshape(-1)

    def _blocks(self, tensor: GgufTensor, raw: np.ndarray) -> FloatArray:
        try:
            return np.asarray(dequantize(raw, tensor.kind), np.float32)
        except NotImplementedError:
            raise BuddyError(
                f"{self._path} stores {tensor.name} as {tensor.kind.name}, which cannot be dequantised; "
                "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and the K-quants can."
            ) from None

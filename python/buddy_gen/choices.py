"""What a user may choose of the frontend; read before anything slow is imported."""

from __future__ import annotations

DIALECTS = ("linalg", "tosa")
"""The dialects that lowering rules may belong to, in the default order of preference."""

DTYPES = ("f32", "f16", "bf16", "w8a32", "w8a8", "w4a32", "w4a8", "gguf")
"""How weights are stored and, where they are integers, what activations they meet (docs/quantization.md)."""

GROUPS = ("32", "64", "128", "channel")
"""How many weights of a row share a scale where weights are int8; all of them with ``channel``."""

DEFAULT_GROUP = "64"

KV_DTYPES = ("f32", "f16", "bf16", "i8")
"""The element types of the KV caches; i8 has a scale for each row."""


CALIBRATION_TOKENS = 12288
"""How many tokens of a calibration text are read where the user names no number."""


def default_kv_dtype(dtype: str) -> str:
    """The caches' element type where the user names none: that of float weights, f16 beside quantised ones."""
    return dtype if dtype in KV_DTYPES else "f16"

"""Which format each parameter of a model is stored in, and which activations its products take.

The graph itself stays as it was captured, in f32: a narrow weight is read through its dequantiser, and where
activations are quantised the rule of `linear` puts a quantiser and a dequantiser in front of the product. Passes fold
both into the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from buddy_gen.errors import BuddyError
from buddy_gen.models.llama import EMBEDDING, HEAD
from buddy_gen.parameters import Role, StoredParameter
from buddy_gen.transforms.precision import Precision
from buddy_gen.weights.file_kind import FileKind, identify_file
from buddy_gen.weights.formats import F32, FLOATS, Q4_1, Format, q8
from buddy_gen.weights.gguf_blocks import BLOCK_FORMATS
from buddy_gen.weights.source import WeightSource

__all__ = ["assign_formats"]


def assign_formats(
    parameters: Sequence[StoredParameter], precision: Precision, source: WeightSource, tied_head: bool
) -> list[StoredParameter]:
    """The parameters with the format that each is stored in.

    Matrices (weights of linear layers, embeddings) take the narrow format; norms, biases and buffers stay as they are.
    In 4 bits the embedding and the head take 8, as they cost most of the accuracy.

    Args:
        parameters: As `collect_parameters` gives them.
        precision: The choice.
        source: The checkpoint.
        tied_head: Whether the head is the embedding, and stored under either name.

    Raises:
        BuddyError: The dtype is gguf, and the checkpoint is none or has a type that can't be kept; the message names
            the tensors.
    """
    if precision.dtype == "gguf":
        kept = _as_in_gguf(parameters, source, tied_head)
        return [replace(stored, activation_bits=precision.activation_bits) for stored in kept]
    return [
        replace(stored, format=_chosen(stored, precision), activation_bits=_activation_bits(stored, precision))
        for stored in parameters
    ]


def _is_matrix(stored: StoredParameter) -> bool:
    return stored.role is not Role.OTHER and len(stored.shape) == 2 and stored.dtype == torch.float32


def _chosen(stored: StoredParameter, precision: Precision) -> Format:
    if not _is_matrix(stored):
        return F32
    if precision.dtype in FLOATS:
        return FLOATS[precision.dtype]
    if _is_rim(stored) or precision.dtype.startswith("w8"):
        # A rotated table would have to be turned back for its rows to be looked up.
        is_rotated = precision.activation_bits == 8 and not _is_rim(stored)
        return q8(0 if precision.group == "channel" else int(precision.group), is_rotated)
    return Q4_1


def _is_rim(stored: StoredParameter) -> bool:
    """Whether it is an embedding or the head."""
    return stored.role is not Role.LINEAR or stored.name == HEAD


def _activation_bits(stored: StoredParameter, precision: Precision) -> int | None:
    """16 bits for the head, whose product is one of memory anyway: its errors are those of the logits."""
    return 16 if precision.activation_bits == 8 and _is_rim(stored) else precision.activation_bits


def _as_in_gguf(parameters: Sequence[StoredParameter], source: WeightSource, tied_head: bool) -> list[StoredParameter]:
    file = source.files()[0]
    if identify_file(file) is not FileKind.GGUF:
        raise BuddyError(
            f"the dtype gguf keeps the blocks of a GGUF file, but {file} is none; choose another dtype, such as w8a8"
        )
    known = {**FLOATS, **BLOCK_FORMATS}
    formats: dict[str, Format] = {}
    foreign: dict[str, list[str]] = {}
    for stored in parameters:
        name = EMBEDDING if tied_head and stored.name == HEAD else stored.name
        kind = source.dtype(name) if _is_matrix(stored) else "f32"
        if kind in known:
            formats[stored.name] = known[kind]
        else:
            foreign.setdefault(kind.upper(), []).append(name)
    if foreign:
        listed = "; ".join(f"{kind}: {names[0]} and {len(names) - 1} more" for kind, names in sorted(foreign.items()))
        raise BuddyError(
            f"{file} has tensor types that the dtype gguf can't keep as they are ({listed}); it keeps "
            f"{', '.join(kind.upper() for kind in known)}, and w8a8 or w4a8 take any file"
        )
    return [replace(stored, format=formats[stored.name]) for stored in parameters]

"""A parameter of a described model -> a tensor of its weights file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from buddy_gen.models.description import ModelDescription
from buddy_gen.models.llama import EMBEDDING, HEAD
from buddy_gen.parameters import SAFETENSORS_DTYPES, StoredParameter
from buddy_gen.transforms.precision import Precision
from buddy_gen.weights.packed import PackedTensor
from buddy_gen.weights.storing import FieldsOf, store_plain, store_weight, stored_type

__all__ = ["packed_tensor"]


def packed_tensor(
    description: ModelDescription,
    stored: StoredParameter,
    panel: int,
    precision: Precision,
    rounded: FieldsOf | None = None,
) -> PackedTensor:
    """How a parameter stands in the weights file, and the function that makes its data when they are written.

    Args:
        description: The model.
        stored: The parameter, with its format.
        panel: R of the target.
        precision: Decides whether blocks are the checkpoint's own.
        rounded: Gives the weights that a calibration has rounded.
    """
    source, form = description.weights, stored.format
    name = EMBEDDING if description.tied_head and stored.name == HEAD else stored.name

    def produce() -> npt.NDArray[Any]:
        if name.rpartition(".")[2] == "inv_freq":
            return np.ascontiguousarray(description.rotary()[0], dtype=np.float32)
        if stored.panels:
            return store_weight(source, name, form, panel, keep=precision.dtype == "gguf", rounded=rounded)
        return store_plain(source, name, form)

    dtype = stored_type(form) if stored.dtype == torch.float32 else SAFETENSORS_DTYPES[stored.dtype]
    if not stored.panels:
        return PackedTensor(stored.name, dtype, stored.shape, None, produce)
    shape = (stored.shape[0], stored.shape[1])
    return PackedTensor(stored.name, dtype, form.stored_shape(shape, panel), form.describe(shape, panel), produce)

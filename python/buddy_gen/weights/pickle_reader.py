"""PyTorch checkpoints (.bin, .pth, .pt), loaded with `weights_only`: a file that would run code is refused."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from buddy_gen.errors import BuddyError
from buddy_gen.weights.file_kind import FileKind, identify_file
from buddy_gen.weights.safetensors_reader import read_shard_index
from buddy_gen.weights.source import FloatArray, WeightSource

__all__ = ["PickleSource"]

_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_WRAPPERS = ("state_dict", "model_state_dict", "model")


class PickleSource(WeightSource):
    """The tensors of one PyTorch checkpoint, or of all shards that an index names.

    Zip files are mapped, so that only the tensor being read takes memory; the old non-zip format allows no such
    thing and stays in memory as a whole.
    """

    def __init__(self, path: Path) -> None:
        """`path` is a checkpoint or a `pytorch_model.bin.index.json`."""
        self._files = [path]
        self._tensors: dict[str, torch.Tensor] = {}
        if path.suffix != ".json":
            self._tensors.update(_load(path))
            return
        weight_map = read_shard_index(path)
        for file in sorted(set(weight_map.values())):
            tensors = _load(path.parent / file)
            self._files.append(path.parent / file)
            self._tensors.update({name: tensor for name, tensor in tensors.items() if weight_map.get(name) == file})
        absent = [f"{name} (in {file})" for name, file in weight_map.items() if name not in self._tensors]
        if absent:
            raise BuddyError(f"{path} names tensors that no shard has: {', '.join(absent)}.")

    def _find(self, name: str) -> torch.Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BuddyError(f"{self._files[0]} has no tensor {name}.")
        return tensor

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._find(name).shape)

    def dtype(self, name: str) -> str:
        tensor = self._find(name)
        return _DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))

    def read_rows(self, name: str, start: int, stop: int) -> FloatArray:
        tensor = self._find(name)
        if tensor.dtype not in _DTYPES:
            raise BuddyError(f"{self._files[0]} stores {name} as {self.dtype(name)}; f32, f16 and bf16 can be read.")
        rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()[start:stop]
        out = np.empty(tuple(rows.shape), np.float32)
        torch.from_numpy(out).copy_(rows)
        return out

    def files(self) -> list[Path]:
        return list(self._files)


def _load(path: Path) -> dict[str, torch.Tensor]:
    kind = identify_file(path)
    if kind not in (FileKind.TORCH_ZIP, FileKind.TORCH_LEGACY):
        raise BuddyError(f"{path} should be a PyTorch checkpoint, but it is {kind.value}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=kind is FileKind.TORCH_ZIP)
    except pickle.UnpicklingError as error:
        raise _refusal(path, str(error)) from None
    except Exception as error:  # torch raises whatever a damaged archive happens to trigger
        reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        raise BuddyError(f"{path} is not a readable PyTorch checkpoint: {reason or type(error).__name__}.") from None
    return _tensors(path, content)


def _refusal(path: Path, message: str) -> BuddyError:
    """torch's own message advises to load the file all the same; this one does not."""
    found = re.search(r"GLOBAL ([\w.]*\w)", message)
    what = f"unpickling it would call {found[1]}, which makes no tensor" if found else "its pickle is none of tensors"
    return BuddyError(f"{path} is refused: {what}; save the state dict alone, best as safetensors.")


def _tensors(path: Path, content: Any) -> dict[str, torch.Tensor]:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping) or not content:
        raise BuddyError(f"{path} holds no state dict: a map from parameter names to tensors is expected.")
    strange = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise BuddyError(f"{path} holds more than tensors under: {', '.join(strange[:10])}.")
    return {str(name): tensor for name, tensor in content.items()}

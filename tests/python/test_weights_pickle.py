"""PyTorch checkpoints: plain tensors load in either format, code is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy_gen.errors import BuddyError
from buddy_gen.weights.pickle_reader import PickleSource


def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(6, 8, generator=generator)
    return {
        "a": base,
        "transposed": base.t(),
        "sliced": base[1::2, 3:],
        "half": base.half(),
        "brain": base.bfloat16(),
        "scalar": torch.tensor(1.5),
        "parameter": torch.nn.Parameter(base.clone()),
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapper", [None, "state_dict"])
def test_equals_torch(tmp_path: Path, zipped: bool, wrapper: str | None) -> None:
    path = tmp_path / "model.bin"
    content: Any = state() if wrapper is None else {wrapper: state(), "epoch": 3}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    source = PickleSource(path)
    assert sorted(source.names()) == sorted(state())
    for name, expected in state().items():
        got = source.read(name)
        assert got.flags.c_contiguous and source.shape(name) == tuple(expected.shape)
        np.testing.assert_array_equal(got, expected.detach().float().numpy())
    np.testing.assert_array_equal(source.read_rows("transposed", 2, 5), state()["transposed"][2:5].numpy())
    assert (source.dtype("a"), source.dtype("half"), source.dtype("brain")) == ("f32", "f16", "bf16")


class RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran-code",)


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle"])
def test_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.bin"
    content = {"a": torch.zeros(2), "b": RunsCode()}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    with pytest.raises(
        BuddyError,
        match="is refused: " + ("its pickle" if how == "pickle" else "unpickling it would call posix.mkdir,"),
    ) as caught:
        PickleSource(path)
    assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "ran-code").exists()


@pytest.mark.parametrize(
    "content", [torch.zeros(2), {}, {"a": 1}, [torch.zeros(2)], {"a": torch.zeros(2), "config": {"x": 1}}]
)
def test_no_state_dict(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "model.bin"
    torch.save(content, path)
    with pytest.raises(BuddyError, match=r"state dict|more than tensors"):
        PickleSource(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_cut_anywhere(tmp_path: Path, zipped: bool) -> None:
    whole, cut = tmp_path / "whole.bin", tmp_path / "cut.bin"
    torch.save({"a": torch.zeros(40, 40)}, whole, _use_new_zipfile_serialization=zipped)
    content = whole.read_bytes()
    for length in [*range(0, 300, 17), *range(300, len(content), 1024)]:
        cut.write_bytes(content[:length])
        with pytest.raises(BuddyError) as caught:
            PickleSource(cut)
        assert "\n" not in str(caught.value)


def test_shards(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "one.bin")
    torch.save({"b": torch.ones(3)}, tmp_path / "two.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
    source = PickleSource(index)
    assert sorted(source.names()) == ["a", "b"] and source.shape("b") == (3,)
    assert source.files() == [index, tmp_path / "one.bin", tmp_path / "two.bin"]
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "c": "two.bin"}}))
    with pytest.raises(BuddyError, match=r"no shard has: c \(in two.bin\)"):
        PickleSource(index)


def test_other_types(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({"a": torch.zeros(2, dtype=torch.int32)}, path)
    with pytest.raises(BuddyError, match="stores a as int32"):
        PickleSource(path).read("a")

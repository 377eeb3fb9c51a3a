"""What the benchmark reads from built folders: names, types, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from buddy_gen.bench.builds import Build, name_builds, read_build, read_builds
from buddy_gen.bench.contenders import read_gguf_weights
from buddy_gen.errors import BuddyError
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama

SHAPES = {
    "model.embed_tokens.weight": [97, 32],
    "model.layers.0.self_attn.q_proj.weight": [32, 32],
    "model.layers.0.self_attn.k_proj.weight": [16, 32],
}


def write_build(folder: Path, dtype: str = "f32", formats: tuple[str, ...] = (), **metadata: str) -> Path:
    folder.mkdir()
    (folder / "buddy-llama-run").touch()
    layout = {name: {"panel": 8, "shape": shape} for name, shape in SHAPES.items()}
    for name, kind in zip(SHAPES, formats, strict=False):
        layout[name] |= {"format": kind, "group": 32}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    metadata |= {"layout": json.dumps(layout), "dtype": dtype}
    save_file(tensors, folder / "llama.weights.safetensors", metadata=metadata)
    return folder


def test_reads_a_build(tmp_path: Path) -> None:
    folder = write_build(tmp_path / "a", "w8a8", kv_dtype="i8", source="x.gguf", cache_bytes_per_position="40")
    build = read_build(folder)
    assert (build.dtype, build.kv_dtype, build.source, build.program) == (
        "w8a8",
        "i8",
        "x.gguf",
        folder / "buddy-llama-run",
    )
    assert build.work.kv_bytes(1) == 40


@pytest.mark.parametrize(
    ("formats", "kind"), [(("q8", "q4_1", "q4_1"), "Q8_0"), (("q4_0", "q8", "q4_1"), "Q4_0"), ((), "floats")]
)
def test_type_of_a_gguf_build_is_that_of_most_weights(tmp_path: Path, formats: tuple[str, ...], kind: str) -> None:
    assert read_build(write_build(tmp_path / "a", "gguf", formats)).dtype == f"gguf {kind}"


def test_names(tmp_path: Path) -> None:
    def named(*builds: tuple[str, str, str]) -> list[str]:
        work = read_build(folder).work
        return name_builds([Build(tmp_path / path, folder, dtype, kv, "", work) for path, dtype, kv in builds])

    folder = write_build(tmp_path / "a")
    assert named(("a", "f32", "f32"), ("b", "w8a8", "f16")) == ["buddy-gen f32", "buddy-gen w8a8"]
    assert named(("a", "w8a8", "i8"), ("b", "w8a8", "f16")) == ["buddy-gen w8a8, KV i8", "buddy-gen w8a8"]
    assert named(("a", "f32", "f32"), ("b", "f32", "f32")) == ["buddy-gen f32 (a)", "buddy-gen f32 (b)"]
    same = named(("x/a", "f32", "f32"), ("y/a", "f32", "f32"))
    assert same == [f"buddy-gen f32 ({tmp_path / 'x/a'})", f"buddy-gen f32 ({tmp_path / 'y/a'})"]


def test_refusals(tmp_path: Path) -> None:
    first = write_build(tmp_path / "first")
    with pytest.raises(BuddyError, match="first is named twice"):
        read_builds([first, first])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BuddyError, match="empty has no buddy-llama-run; name a folder that `buddy build"):
        read_builds([first, tmp_path / "empty"])
    (tmp_path / "empty/buddy-llama-run").touch()
    with pytest.raises(BuddyError, match=r"empty has 0 files \*\.weights\.safetensors instead of one"):
        read_builds([first, tmp_path / "empty"])
    SHAPES["model.layers.0.self_attn.q_proj.weight"] = [64, 32]
    try:
        other = write_build(tmp_path / "other")
    finally:
        SHAPES["model.layers.0.self_attn.q_proj.weight"] = [32, 32]
    with pytest.raises(BuddyError, match=r"other is of another model than .*first; name builds of one model"):
        read_builds([first, other])


@pytest.mark.parametrize(("dtype", "kind"), [("f32", "F32"), ("f16", "F16"), ("q8_0", "Q8_0")])
def test_type_of_a_gguf_file(tmp_path: Path, dtype: str, kind: str) -> None:
    model = write_tiny_llama(tmp_path / "tiny", hidden_size=64, intermediate_size=64)
    path = write_tiny_gguf(tmp_path / "x.gguf", model, dtype)
    assert read_gguf_weights(path)[0] == kind
    declared = write_tiny_gguf(tmp_path / "y.gguf", model, dtype, extra=lambda writer: writer.add_file_type(15))
    assert read_gguf_weights(declared)[0] == "Q4_K_M"

"""Programs with narrow weights and caches: tokens against eager PyTorch over the very numbers in their weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from compiled_program import AppObjects, Program, build_program, eager_greedy, eager_logits, eager_model
from narrow_model import NarrowModel, narrow_model

from buddy_gen.inspect.weights import inspect_weights
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama
from buddy_gen.transforms.precision import Precision

pytestmark = pytest.mark.slow

# dtype, KV caches, and how far a logit may be from eager's. Where something is rounded on the way, a sum in another
# order sends a number to its neighbour now and then, and what follows is off by as much; most logits are not.
BUILDS = {
    "f16": ("f16", "f16", 2e-2),
    "bf16": ("bf16", "f32", 2e-3),
    "w8a8": ("w8a8", "f32", 0.6),
    "w4a8": ("w4a8", "i8", 0.6),
    "w4a32": ("w4a32", "f32", 2e-3),
    "gguf": ("gguf", "f32", 2e-2),
}


@dataclass
class Build:
    program: Program
    model: NarrowModel
    tolerance: float


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppObjects:
    return AppObjects(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), seed=11, num_hidden_layers=2)


@pytest.fixture(scope="module", params=BUILDS)
def build(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, app: AppObjects, tiny: Path
) -> Build:
    dtype, kv_dtype, tolerance = BUILDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = write_tiny_gguf(folder, tiny, "q4_1") if dtype == "gguf" else tiny
    program = build_program(model, folder, app, "--dtype", dtype, "--kv-dtype", kv_dtype)
    return Build(program, narrow_model(model, Precision.of(dtype, None, kv_dtype)), tolerance)


def _ids(count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(3).integers(0, 97, count)]


@pytest.mark.parametrize("size", ["1", "9", "47"])
def test_logits(build: Build, size: str) -> None:
    ids = _ids(47)
    ours = build.program.logits(ids, "--ubatch-size", size)
    rows = [min(end, len(ids)) - 1 for end in range(int(size), len(ids) + int(size), int(size))]
    expected = build.model.eager_logits(ids)[rows]
    np.testing.assert_allclose(ours, expected, atol=build.tolerance, rtol=0)
    assert np.median(np.abs(ours - expected)) < 2e-3


def test_tokens(build: Build) -> None:
    if build.model.precision.kv_dtype == "i8":
        pytest.skip("eager generation keeps its caches in f32")
    ids = _ids(11)
    answer = build.program.answer("--ids", ",".join(map(str, ids)), "-n", "24", "--ignore-eos")
    expected = eager_greedy(build.model.eager(), ids, 24)
    assert answer["dtype"] == build.model.precision.dtype
    assert answer["ids"] == expected


def test_any_number_of_threads_gives_the_same_logits(build: Build) -> None:
    ids = _ids(33)
    for size in ("1", "33"):
        runs = [build.program.logits(ids, "--ubatch-size", size, "-t", threads) for threads in ("1", "2", "5", "2")]
        assert all(np.array_equal(runs[0], other) for other in runs[1:])


def test_the_file_is_as_small_as_its_formats(build: Build) -> None:
    found = inspect_weights(build.program.folder)
    assert (found.dtype, found.kv_dtype) == (build.model.precision.dtype, build.model.precision.kv_dtype)
    bits = {"f32": 32, "f16": 16, "bf16": 16, "q8": 8 * 34 / 32, "q4_1": 5}
    for one in found.tensors:
        if len(one.shape) == 2:
            padded = -(-one.shape[0] // 32) * 32 * -(-one.shape[1] // 64) * 64
            assert one.bytes * 8 <= bits[one.format] * padded


def test_the_default_model_as_its_file_has_it(app: AppObjects, tmp_path: Path) -> None:
    """SmolLM2's own Q4_1 blocks against eager PyTorch over the dequantised file."""
    model = fetch_default_model()
    program = build_program(model, tmp_path, app, "--dtype", "gguf", "--kv-dtype", "f32")
    eager = eager_model(model)
    ids = [504, 3575, 282, 4649, 314]  # The capital of France is
    np.testing.assert_allclose(program.logits(ids, "--ubatch-size", "1"), eager_logits(eager, ids), atol=2e-2, rtol=0)
    answer = program.answer("--ids", ",".join(map(str, ids)), "-n", "24", "--ignore-eos")
    assert answer["ids"] == eager_greedy(eager, ids, 24)
    assert inspect_weights(tmp_path).weight_bytes_per_token < 1.02 * model.stat().st_size

"""Proofs that the right answers come from the model, and not from somewhere else."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled_program import AppObjects, Program, build_program, eager_logits, eager_model
from safetensors.torch import load_file, save_file

from buddy_gen.models.tiny import write_tiny_llama
from buddy_gen.native import find_tools

pytestmark = pytest.mark.slow

IDS = [5, 9, 41, 3, 77, 60, 2, 2, 18]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> AppObjects:
    return AppObjects(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "plain", seed=11, num_hidden_layers=4)


@pytest.fixture(scope="module")
def program(model: Path, tmp_path_factory: pytest.TempPathFactory, app: AppObjects) -> Program:
    return build_program(model, tmp_path_factory.mktemp("program"), app)


def test_a_changed_weight_changes_the_answer_as_in_eager(
    model: Path, program: Program, tmp_path: Path, app: AppObjects
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(model, changed)
    weights = load_file(changed / "model.safetensors")
    weights["model.layers.2.mlp.down_proj.weight"][3, 5] += 4.0
    save_file(weights, changed / "model.safetensors", metadata={"format": "pt"})
    other = build_program(changed, tmp_path / "program", app)
    before, after = program.logits(IDS), other.logits(IDS)
    assert np.abs(before - after).max() > 1e-2
    np.testing.assert_allclose(after, eager_logits(eager_model(changed), IDS)[-1:], atol=1e-3, rtol=0)
    # The same ABI, so the first program runs the other's weights too.
    swapped = program.logits(IDS, "-m", str(other.folder))
    assert np.array_equal(swapped, after)


def test_another_epsilon_is_another_abi(program: Program, tmp_path: Path, app: AppObjects) -> None:
    model = write_tiny_llama(tmp_path / "model", seed=11, num_hidden_layers=4, rms_norm_eps=1e-2)
    other = build_program(model, tmp_path / "program", app)
    done = program.run("-m", str(other.folder), "--ids", "1,2", "-n", "1")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert other.report["abi"] != program.report["abi"]


def test_tosa_first_gives_the_same_tokens(model: Path, program: Program, tmp_path: Path, app: AppObjects) -> None:
    tosa = build_program(model, tmp_path / "program", app, "--dialect-priority", "tosa,linalg")
    np.testing.assert_allclose(tosa.logits(IDS), program.logits(IDS), atol=1e-4, rtol=0)
    text = ",".join(map(str, IDS))
    first, second = (p.answer("--ids", text, "-n", "40", "--ignore-eos")["ids"] for p in (tosa, program))
    assert first == second
    served = tosa.report["dialects"]
    expressible = ("add.Tensor", "mul.Tensor", "linear.default", "silu.default", "rsqrt.default", "cat.default")
    expressible += ("neg.default", "permute.default", "view.default", "embedding.default", "mean.dim", "cos.default")
    for op in expressible:
        assert set(served[f"aten.{op}"]) == {"tosa"}, op
    assert "tosa" in served["aten.slice.Tensor"]  # where its sizes are static: in decode
    assert set(program.report["dialects"]["aten.add.Tensor"]) == {"linalg"}


def test_modules_keep_the_contract(program: Program) -> None:
    for stem in ("llama_prefill", "llama_decode"):
        path = program.folder / "out" / f"{stem}.mlir"
        done = subprocess.run(
            [find_tools().buddy_opt, "--verify-model-contract", str(path), "-o", "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_second_generation_changes_nothing(model: Path, program: Program, app: AppObjects) -> None:
    files = [*(program.folder / "out").glob("llama*"), *program.folder.glob("llama.*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    from buddy_gen.generate.__main__ import main

    arguments = ["--name", "llama", "--model", str(model), "--output-dir", str(program.folder / "out")]
    assert main([*arguments, "--runtime-dir", str(program.folder), "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_weights_are_a_safetensors_file_that_holds_each_tensor_once(model: Path, program: Program) -> None:
    stored = load_file(program.folder / "llama.weights.safetensors")
    names = [name for name in stored if not name.startswith("__pad")]
    source = load_file(model / "model.safetensors")
    assert set(names) == {*source, "model.rotary_emb.inv_freq"}
    with (program.folder / "llama.weights.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    layout = json.loads(header["__metadata__"]["layout"])
    for name in source:
        tensor = stored[name]
        if name in layout:
            rows = layout[name]["shape"][0]
            tensor = tensor.permute(0, 2, 1).reshape(-1, tensor.shape[1])[:rows]
        assert torch.equal(tensor, source[name]), name

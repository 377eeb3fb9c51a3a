"""Weights rounded on a text: the rule of the columns against plain least squares, and what a build makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models
from tokenizers import pre_tokenizers as pre
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from buddy_gen.calibration.calibrating import round_on_text
from buddy_gen.calibration.compensation import DAMPING, movements, round_columns
from buddy_gen.calibration.rounded_weights import RoundedWeights
from buddy_gen.calibration.workers import Workers
from buddy_gen.cli import app
from buddy_gen.generate.__main__ import main
from buddy_gen.models import open_model
from buddy_gen.models.tiny import write_tiny_llama
from buddy_gen.weights.blocks import dequantize, unpack_blocks
from buddy_gen.weights.formats import Q4_1, Format
from buddy_gen.weights.quantizers import fit_line, nibble_fields, quantize_rows

Floats = npt.NDArray[np.float32]
TEXT = "What comes into a layer is what the layers before it, already rounded, make of the text. " * 40


def _inputs(tokens: int, columns: int, seed: int, dead: tuple[int, ...] = ()) -> Floats:
    """Inputs that hang together, as those of a model do, some of which are never anything but zero."""
    random = np.random.default_rng(seed)
    hidden = random.standard_normal((tokens, max(2, columns // 3)))
    inputs = hidden @ random.standard_normal((hidden.shape[1], columns)) + 0.3 * random.standard_normal(
        (tokens, columns)
    )
    inputs[:, list(dead)] = 0
    return inputs.astype(np.float32)


def _weight(rows: int, columns: int, seed: int) -> Floats:
    return np.random.default_rng(seed + 1000).standard_normal((rows, columns), dtype=np.float32)


def _rounded(weight: Floats, inputs: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """The integers, and what they stand for."""
    hessian = torch.from_numpy(inputs.T @ inputs)
    with Workers(2) as workers:
        integers, scales, minima = round_columns(weight, movements(hessian, workers), Q4_1)
    fields = nibble_fields(integers, scales, minima, Q4_1)
    return integers, dequantize(fields, "q4_1")[:, : weight.shape[1]]


def _by_least_squares(weight: Floats, inputs: Floats) -> npt.NDArray[np.uint8]:
    """Rounds a column, then finds the best values for all columns behind it, from the beginning each time."""
    exact = inputs.astype(np.float64)
    mean = float((exact**2).sum(axis=0).mean())
    noise = np.sqrt(DAMPING * mean if mean > 0 else 1.0) * np.eye(exact.shape[1])
    system = np.linalg.qr(np.concatenate([exact, noise]), mode="r")  # the same lengths, in fewer rows
    wanted = weight.astype(np.float64)
    outputs = system @ wanted.T
    now, integers = wanted.copy(), np.zeros(weight.shape, np.uint8)
    for k in range(weight.shape[1]):
        if k % 32 == 0:
            _, scales, minima = fit_line(now[:, k : k + 32].astype(np.float32))
            d, m = scales.astype(np.float64), minima.astype(np.float64)
        steps = np.divide(now[:, k] - m, d, out=np.zeros_like(m), where=d > 0)
        integers[:, k] = np.clip(np.rint(steps), 0, 15)
        now[:, k] = integers[:, k] * d + m
        left = outputs - system[:, : k + 1] @ now[:, : k + 1].T
        now[:, k + 1 :] = np.linalg.lstsq(system[:, k + 1 :], left, rcond=None)[0].T
    return integers


@pytest.mark.parametrize(
    ("rows", "columns", "tokens", "dead"),
    [
        (3, 1, 5, ()),
        (5, 31, 90, ()),
        (4, 32, 20, (0, 7)),
        (6, 70, 200, (31, 32, 33, 69)),
        (3, 150, 400, ()),  # past a block, and a short last group
        (2, 140, 60, tuple(range(100, 140))),
        (3, 40, 8, tuple(range(40))),  # a layer that the text never reaches
    ],
)
def test_columns_move_as_least_squares_says(rows: int, columns: int, tokens: int, dead: tuple[int, ...]) -> None:
    for seed in range(3 if columns < 100 else 1):
        weight, inputs = _weight(rows, columns, seed), _inputs(tokens, columns, seed, dead)
        np.testing.assert_array_equal(_rounded(weight, inputs)[0], _by_least_squares(weight, inputs))


def test_equal_weights_and_no_weights_are_rounded() -> None:
    inputs = _inputs(60, 45, 0)
    for value in (0.0, 0.25):
        np.testing.assert_array_equal(_rounded(np.full((3, 45), value, np.float32), inputs)[1], np.float32(value))


def test_dead_inputs_alone_are_rounded_as_without_a_text() -> None:
    weight = _weight(4, 77, 0)
    plain = dequantize(quantize_rows(weight, Q4_1), "q4_1")[:, :77]
    np.testing.assert_array_equal(_rounded(weight, np.zeros((9, 77), np.float32))[1], plain)


@pytest.mark.parametrize("columns", [64, 160, 200])
def test_outputs_lose_less_than_by_rounding_alone(columns: int) -> None:
    weight, inputs = _weight(32, columns, 5), _inputs(600, columns, 5)
    plain = dequantize(quantize_rows(weight, Q4_1), "q4_1")[:, :columns]
    errors = [np.square(inputs @ (weight - got).T).mean() for got in (_rounded(weight, inputs)[1], plain)]
    assert errors[0] < 0.6 * errors[1]


# A model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokens are bytes; its inner sizes are no multiples of a group."""
    alphabet = sorted(pre.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    sizes = {"hidden_size": 48, "head_dim": 8, "num_attention_heads": 6, "intermediate_size": 72, "vocab_size": 256}
    folder = write_tiny_llama(tmp_path_factory.mktemp("calibration") / "model", seed=8, **sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def _windows(count: int = 4, length: int = 64) -> list[list[int]]:
    return np.random.default_rng(3).integers(0, 256, (count, length)).tolist()


def _formats(model: Path) -> dict[str, Format]:
    return {name: Q4_1 for name in open_model(model).weights.names() if "proj" in name}


def _round(model: Path, folder: Path, windows: list[list[int]], threads: int = 0) -> dict[str, Floats]:
    """What the rounded weights stand for."""
    description = open_model(model)
    with RoundedWeights(folder) as rounded:
        round_on_text(description, _formats(model), windows, rounded, threads=threads)
        found = {}
        for name in _formats(model):
            rows, columns = description.weights.shape(name)
            fields = rounded.rows(name, 0, rows)
            assert fields is not None
            found[name] = dequantize(fields, "q4_1")[:, :columns]
        assert rounded.rows("model.norm.weight", 0, 1) is None
    assert not folder.exists()
    return found


def _logits(model: Path, windows: list[list[int]], weights: dict[str, Floats]) -> torch.Tensor:
    eager: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    parameters = dict(eager.named_parameters())
    with torch.no_grad():
        for name, values in weights.items():
            parameters[name].copy_(torch.from_numpy(values))
        logits: torch.Tensor = eager(torch.tensor(windows)).logits
    return logits


@pytest.mark.slow
def test_a_model_loses_less_on_its_text(model: Path, tmp_path: Path) -> None:
    windows = [list(TEXT.encode())[start : start + 64] for start in range(0, 1024, 64)]
    right = _logits(model, windows, {})
    plain = {
        name: dequantize(quantize_rows(values, Q4_1), "q4_1")[:, : values.shape[1]]
        for name, values in load_file(model / "model.safetensors").items()
        if name in _formats(model)
    }
    errors = [
        float((_logits(model, windows, weights) - right).square().mean())
        for weights in (_round(model, tmp_path / "rounded", windows), plain)
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.slow
def test_each_layer_meets_what_the_rounded_ones_before_it_give(model: Path, tmp_path: Path) -> None:
    """The rule by hand for the last layer's gate, on what eager PyTorch feeds it."""
    windows = _windows()
    found = _round(model, tmp_path / "rounded", windows)
    eager: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    parameters = dict(eager.named_parameters())
    name = "model.layers.2.mlp.gate_proj"
    heard: list[torch.Tensor] = []
    eager.get_submodule(name).register_forward_pre_hook(lambda module, given: heard.append(given[0]))
    with torch.no_grad():
        for one, values in found.items():
            if not one.startswith("model.layers.2."):
                parameters[one].copy_(torch.from_numpy(values))
        eager(torch.tensor(windows))
    weight = load_file(model / "model.safetensors")[f"{name}.weight"]
    _, right = _rounded(weight, heard[0].reshape(-1, heard[0].shape[-1]).numpy())
    assert np.mean(right != found[f"{name}.weight"]) < 0.01  # sums are in another order here


@pytest.mark.slow
def test_threads_change_no_bit(model: Path, tmp_path: Path) -> None:
    windows = _windows(5)
    runs = [_round(model, tmp_path / "rounded", windows, threads) for threads in (1, 3, 3)]
    for other in runs[1:]:
        for name, values in runs[0].items():
            np.testing.assert_array_equal(other[name].view(np.uint32), values.view(np.uint32))


# A build


def _arguments(model: Path, folder: Path, *options: object) -> list[str]:
    places = ["--output-dir", str(folder / "out"), "--runtime-dir", str(folder / "bin")]
    return ["--name", "llama", "--model", str(model), *places, *map(str, options)]


@pytest.mark.slow
def test_a_build_holds_the_rounded_weights(
    model: Path, text: Path, tmp_path: Path, build_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUDDY_BUILD_DIR", str(build_dir))
    file = tmp_path / "bin" / "llama.weights.safetensors"
    calibrated = ["--quiet", "--dtype", "w4a8", "--calibrate", text, "--calibration-tokens", "500"]
    contents = []
    for options in (calibrated, ["--quiet", "--dtype", "w4a8"], calibrated):
        assert main(_arguments(model, tmp_path, *options)) == 0
        contents.append(file.read_bytes())
        written = file.stat().st_mtime_ns
        assert main(_arguments(model, tmp_path, *options)) == 0
        assert file.stat().st_mtime_ns == written, "nothing had changed"
    assert contents[0] == contents[2] != contents[1]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []

    told = json.loads(CliRunner().invoke(app, ["inspect", str(file), "--json"]).stdout)
    assert told["calibration"]["file"] == "text.txt" and told["calibration"]["tokens"] == 500
    assert "calibrated on    text.txt (500 tokens)" in CliRunner().invoke(app, ["inspect", str(file)]).stdout

    ids = list(Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT).ids)
    context = open_model(model).context_length
    windows = [ids[start : start + context] for start in range(0, 500, context)]
    right = _round(model, tmp_path / "rounded", windows)
    with safe_open(file, "numpy") as weights:
        for name, values in right.items():
            stored = dequantize(unpack_blocks(weights.get_tensor(name), Q4_1, len(values)), "q4_1")
            np.testing.assert_array_equal(stored[:, : values.shape[1]], values)

    other = tmp_path / text.name
    other.write_text(TEXT.upper(), encoding="utf-8")
    assert main(_arguments(model, tmp_path, *calibrated[:-3], other, *calibrated[-2:])) == 0
    assert file.read_bytes() != contents[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--dtype", "w8a8", "--calibrate", "TEXT"], "for weights of 4 bits (w4a32, w4a8), not for w8a8"),
        (["--calibrate", "TEXT"], "not for f32"),
        (["--dtype", "w4a8", "--calibrate", "nowhere.txt"], "nowhere.txt cannot be read (No such file"),
        (["--dtype", "w4a8", "--calibrate", "TEXT"], "has 3560 tokens, and 12288 are needed; give a longer text"),
        (["--dtype", "w4a8", "--calibrate", "TEXT", "--calibration-tokens", "0"], "at least 1 is needed"),
        (["--dtype", "w4a8", "--calibration-tokens", "512"], "needs a text"),
        (["--dtype", "w4a8", "--calibrate", "BYTES", "--calibration-tokens", "10"], "is no UTF-8 text (byte 1)"),
    ],
)
def test_wrong_options_are_one_sentence(
    options: list[str],
    part: str,
    model: Path,
    text: Path,
    tmp_path: Path,
    build_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BUDDY_BUILD_DIR", str(build_dir))
    (tmp_path / "bytes").write_bytes(b"a\xff" * 4000)
    places = {"TEXT": str(text), "BYTES": str(tmp_path / "bytes")}
    arguments = [places.get(option, option) for option in options]
    assert main(_arguments(model, tmp_path, "--quiet", *arguments)) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("buddy: error:")]
    assert len(lines) == 1 and part in lines[0]


@pytest.mark.slow
def test_a_model_without_a_tokenizer_is_refused(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = write_tiny_llama(tmp_path / "bare", seed=1)
    assert main(_arguments(bare, tmp_path, "--dtype", "w4a8", "--calibrate", text)) == 1
    assert "a calibration on a text needs a tokenizer: the model bare has no tokenizer" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("value", "part"), [("nan", "holds NaN"), ("1e9", "does not fit")])
def test_weights_that_can_not_be_stored_are_named(value: str, part: str, tmp_path: Path) -> None:
    bare = write_tiny_llama(tmp_path / "bare", seed=1)
    tensors = load_file(bare / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][7, 3] = float(value)
    save_file(tensors, bare / "model.safetensors", metadata={"format": "pt"})
    windows = np.random.default_rng(3).integers(0, 97, (2, 16)).tolist()
    with pytest.raises(Exception, match=f"{name}.*{part}") as raised:
        _round(bare, tmp_path / "rounded", windows)
    assert type(raised.value).__name__ == "BuddyError"
    assert not (tmp_path / "rounded").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_layers(tmp_path: Path) -> None:
    """A layer has 29 MB in f32; eight more of them cost less than half of theirs."""
    script = (
        "import sys; from pathlib import Path; from buddy_gen.models import open_model;"
        "from buddy_gen.calibration.calibrating import round_on_text;"
        "from buddy_gen.calibration.rounded_weights import RoundedWeights;"
        "from buddy_gen.weights.formats import Q4_1; model = open_model(Path(sys.argv[1]));"
        "formats = {name: Q4_1 for name in model.weights.names() if 'proj' in name}\n"
        "with RoundedWeights(Path(sys.argv[2])) as rounded:\n"
        "    round_on_text(model, formats, [list(range(64))], rounded)"
    )
    # A process of its own in between: a child's peak begins with that of its parent.
    around = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    peaks = []
    for layers in (2, 10):
        sizes = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": layers, "vocab_size": 97}
        folder = write_tiny_llama(tmp_path / str(layers), dtype="f16", num_key_value_heads=8, **sizes)
        command = [sys.executable, "-c", around, sys.executable, "-c", script, str(folder), str(tmp_path / "rounded")]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024)
    assert peaks[1] - peaks[0] < 4 * 29e6

"""buddy eval against NumPy and PyTorch, with a program whose logits a formula gives."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_model import VOCAB, toy_spec
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from buddy_gen.cli import app
from buddy_gen.errors import BuddyError
from buddy_gen.evaluate.evaluation import TextTokens, evaluate
from buddy_gen.evaluate.measures import log_softmax
from buddy_gen.evaluate.predictors import BuiltModel, EagerModel
from buddy_gen.evaluate.windows import split_windows
from buddy_gen.models.tiny import write_tiny_llama
from buddy_gen.tokenizers import write_vocab
from buddy_gen.weights.packed import PackedTensor, WeightsLayout, WeightsMetadata, write_weights

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune… \n" * 4

# Stands in the place of a compiled program. Logits of a row depend on all tokens of the window up to it.
_PROGRAM = """\
#!{python}
import json, sys
import numpy as np
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
settings = json.load(open(__file__ + ".json"))
if settings["fails"]:
    sys.exit(settings["fails"])
ids = np.array([int(part) for part in given["--ids"].split(",")])
table = np.random.default_rng(settings["seed"]).normal(0, 2, (64, {vocab})).astype(np.float32)
sums = np.cumsum(ids * (1 + np.arange(len(ids)))) % 64
rows = table[sums] * np.float32(settings["factor"])
size = int(given["--ubatch-size"])
assert len(ids) <= int(given["-c"])
if not settings["score"]:
    rows = rows[min(size, len(ids)) - 1 :: size] if size < len(ids) else rows[-1:]
np.save(given["--dump-logits"], rows.astype(np.float32))
"""


def _folder(
    path: Path, *, score: bool = True, seed: int = 0, factor: float = 1.0, fails: str = "", **spec: Any
) -> Path:
    path.mkdir(parents=True)
    program = path / "buddy-llama-run"
    program.write_text(_PROGRAM.format(python=sys.executable, vocab=VOCAB))
    program.chmod(0o755)
    settings_ = {"score": score, "seed": seed, "factor": factor, "fails": fails}
    Path(f"{program}.json").write_text(json.dumps(settings_))
    metadata = WeightsMetadata("toy", "ab" * 32, "w8a8", "host", "0.1.0", {"kv_dtype": "f16"})
    tensors = [PackedTensor("table", "F32", (2,), None, lambda: np.zeros(2, np.float32))]
    write_weights(path / "llama.weights.safetensors", WeightsLayout(tensors), metadata, lambda _: "12" * 32)
    write_vocab(path / "llama.vocab", toy_spec(**spec), abi="ab" * 32, model_id="12" * 32)
    return path


def _run(*arguments: Any) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["eval", *map(str, arguments), "--json"], catch_exceptions=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


# Windows


@given(st.integers(0, 60), st.integers(2, 20), st.integers(1, 20), st.booleans())
@settings(deadline=None, max_examples=300)
def test_each_token_counts_once(count: int, context: int, stride: int, with_bos: bool) -> None:
    prefix = [999] if with_bos else []
    stride = min(stride, context - len(prefix))
    windows = list(split_windows(range(count), context, stride, prefix))
    counted = [token for window in windows for token in window.ids[window.first :]]
    assert len(set(counted)) == len(counted)
    assert all(len(window.ids) <= context and window.first >= 1 for window in windows)
    missing = set(range(count)) - set(counted)
    if with_bos:
        assert not missing
    elif stride < context:
        assert missing <= {0}
    else:
        assert missing == set(range(0, count, stride))
    for window in windows:
        body = window.ids[len(prefix) :]
        assert all(after == before + 1 for before, after in pairwise(body))


# Measures


class _Given:
    method = "given"

    def __init__(self, seed: int, scale: float = 3.0) -> None:
        self._table = (np.random.default_rng(seed).normal(0, scale, (40, 40))).astype(np.float32)

    def logits(self, ids: Any) -> Any:
        return self._table[np.array(ids)]


def test_measures_equal_pytorch() -> None:
    ids = [int(token) for token in np.random.default_rng(2).integers(0, 40, 90)]
    report = evaluate(_Given(0), TextTokens(ids, [], ""), 100, 100, _Given(1))
    own, other = (torch.from_numpy(model.logits(ids[:-1])).double() for model in (_Given(0), _Given(1)))
    target = torch.tensor(ids[1:])
    assert report["tokens"] == 89
    assert report["nats_per_token"] == pytest.approx(float(torch.nn.functional.cross_entropy(own, target)), rel=1e-12)
    assert report["reference"]["perplexity"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(other, target).exp()), rel=1e-12
    )
    divergence = torch.nn.functional.kl_div(
        own.log_softmax(1), other.log_softmax(1), log_target=True, reduction="none"
    ).sum(1)
    assert report["kl_mean"] == pytest.approx(float(divergence.mean()), rel=1e-10)
    assert report["kl_max"] == pytest.approx(float(divergence.max()), rel=1e-10)
    assert report["top1_agreement"] == float((own.argmax(1) == other.argmax(1)).double().mean())


def test_a_model_does_not_diverge_from_itself() -> None:
    report = evaluate(_Given(0), TextTokens(list(range(40)), [], ""), 16, 8, _Given(0))
    assert (report["kl_max"], report["top1_agreement"], report["perplexity_ratio"]) == (0, 1, 1)


def test_large_logits_do_not_overflow() -> None:
    rows = log_softmax(np.array([[3e38, 0, -3e38], [1e5, 1e5, -1e5]], np.float32))
    np.testing.assert_allclose(rows[1, :2], -np.log(2))
    assert rows[0, 0] == 0


@pytest.mark.parametrize("tied", [True, False])
def test_the_eager_reference_is_hugging_faces_model(tied: bool, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    folder = write_tiny_llama(
        tmp_path, rope_scaling={**rope, "original_max_position_embeddings": 16}, tie_word_embeddings=tied
    )
    expected = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [3, 14, 15, 92, 6, 5, 35]
    with torch.no_grad():
        rows = expected(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(EagerModel(str(folder)).logits(ids), rows, rtol=0, atol=1e-5)


# The command


@pytest.mark.parametrize("add_bos", [False, True])
def test_both_ways_to_the_logits_agree(add_bos: bool, text: Path, tmp_path: Path) -> None:
    fast = _folder(tmp_path / "fast", add_bos=add_bos)
    slow = _folder(tmp_path / "slow", add_bos=add_bos, score=False)
    reports = [_run(folder, text, "--context", 50, "--stride", 20) for folder in (fast, slow)]
    assert [report.pop("method") for report in reports] == ["score", "decode"]
    assert all(report.pop("seconds") >= 0 for report in reports)
    assert reports[0] == reports[1]
    assert reports[0]["tokens"] == len(TEXT.encode()) - (0 if add_bos else 1)
    assert (reports[0]["dtype"], reports[0]["kv_dtype"]) == ("w8a8", "f16")


def test_a_run_is_the_same_again_and_a_reference_is_compared(text: Path, tmp_path: Path) -> None:
    one, other = _folder(tmp_path / "one"), _folder(tmp_path / "other", factor=1.01)
    first, second = (_run(one, text, "--context", 64, "--reference", other) for _ in range(2))
    first.pop("seconds"), second.pop("seconds")
    assert first == second
    assert 0 < first["kl_mean"] < 1e-2
    assert first["top1_agreement"] == 1
    assert first["perplexity_ratio"] != 1


def test_tokens_are_limited(text: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    assert _run(folder, text, "--tokens", 100)["tokens"] == 99
    assert _run(folder, text, "--tokens", 0, "--context", 100)["tokens"] == len(TEXT.encode()) - 4


def test_people_get_lines(text: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    done = CliRunner().invoke(app, ["eval", str(folder), str(text), "--reference", str(folder)])
    assert done.exit_code == 0
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        "model", "text", "perplexity", "reference", "KL divergence", "top-1", "time",
    ]  # fmt: skip


# Bad input


def _refused(*arguments: Any) -> str:
    with pytest.raises(BuddyError) as caught:
        CliRunner().invoke(app, ["eval", *map(str, arguments)], catch_exceptions=False)
    return str(caught.value)


def test_bad_input_is_one_sentence(text: Path, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "one")
    binary, empty, cut = tmp_path / "binary", tmp_path / "empty", tmp_path / "cut"
    binary.write_bytes(b"abc\xff\xfe" * 9)
    empty.write_bytes(b"")
    cut.write_bytes("…".encode() * 50 + b"\xe2")
    assert "is no UTF-8 text (byte 3)" in _refused(folder, binary)
    assert "is no UTF-8 text" in _refused(folder, cut)
    assert "at least 2" in _refused(folder, empty)
    assert "cannot be read" in _refused(folder, tmp_path / "nowhere")
    assert "does not exist" in _refused(tmp_path / "nothing", text)
    assert "no weights file" in _refused(tmp_path, text)
    assert "would leave out tokens" in _refused(folder, text, "--context", 8, "--stride", 9)
    assert "failed: something broke" in _refused(_folder(tmp_path / "broken", fails="something broke"), text)
    (folder / "llama.vocab").unlink()
    assert "without a tokenizer" in _refused(folder, text)
    (folder / "buddy-llama-run").unlink()
    with pytest.raises(BuddyError, match="has no program"):
        BuiltModel(folder, 8)


def test_models_with_other_vocabularies_are_refused() -> None:
    class Narrow(_Given):
        def logits(self, ids: Any) -> Any:
            return super().logits(ids)[:, :30]

    with pytest.raises(BuddyError, match="40 tokens in its vocabulary and the reference 30"):
        evaluate(_Given(0), TextTokens([1, 2, 3], [], ""), 8, 8, Narrow(1))


def test_logits_that_are_no_numbers_are_refused() -> None:
    class Broken(_Given):
        def logits(self, ids: Any) -> Any:
            return super().logits(ids) * np.float32(np.nan)

    with pytest.raises(BuddyError, match="no numbers"):
        evaluate(Broken(0), TextTokens([1, 2, 3], [], ""), 8, 8)

"""The Text container gives the ids of the `tokenizers` library, for every pre-tokenizer that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizer_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tool import ABI, MODEL_ID, TextTool
from tokenizers import Tokenizer

from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizers import read_gguf_tokenizer, read_tokenizer_json, write_vocab
from buddy_gen.weights.gguf_file import read_gguf

pytestmark = pytest.mark.slow

Pair = tuple[Tokenizer, TextTool]
KINDS = [*reference.PRE_TOKENIZERS, "gpt2-trained", "llama3-trained-ignoring-merges"]
RANDOM_STRINGS = 300  # per kind; 5,000 for the default model


def _make(kind: str, folder: Path) -> Pair:
    name, trained, ignoring = kind.partition("-trained")
    if trained:
        tokenizer = reference.train(name, ignore_merges=bool(ignoring))
    else:
        tokenizer = reference.of_all_pairs(name, bos=name == "llama3")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocab(folder / "tiny.vocab", read_tokenizer_json(folder / "tokenizer.json"), abi=ABI, model_id=MODEL_ID)
    return tokenizer, TextTool(folder / "tiny.vocab")


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = _make(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    assert made[1].close() == 0


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    gguf = fetch_default_model()
    path = tmp_path_factory.mktemp("smollm2") / "smollm2.vocab"
    write_vocab(path, read_gguf_tokenizer(gguf), abi=ABI, model_id=MODEL_ID)
    tool = TextTool(path)
    yield reference.from_gguf(read_gguf(gguf).metadata), tool
    assert tool.close() == 0


def _check(pair: Pair, text: str) -> None:
    tokenizer, tool = pair
    for parse_special in (False, True):
        right = reference.encode(tokenizer, text, parse_special)
        assert tool.encode(text, parse_special=parse_special) == right, text
        assert tool.decode(right) == tokenizer.decode(right, skip_special_tokens=False), text
        assert tool.decode(right, skip_special=True) == tokenizer.decode(right, skip_special_tokens=True), text


@pytest.mark.parametrize("text", reference.TEXTS)
def test_texts(pair: Pair, text: str) -> None:
    _check(pair, text)


@pytest.mark.parametrize("text", reference.TEXTS)
def test_texts_of_the_default_model(smollm2: Pair, text: str) -> None:
    _check(smollm2, text)


def test_known_ids(smollm2: Pair) -> None:
    assert smollm2[1].encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert len(smollm2[1].encode("12345")) == 5


def test_random_strings(pair: Pair) -> None:
    for text in reference.random_texts(seed=1, count=RANDOM_STRINGS):
        _check(pair, text)


def test_random_strings_of_the_default_model(smollm2: Pair) -> None:
    for text in reference.random_texts(seed=2, count=5000):
        _check(smollm2, text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text())
def test_any_text(pair: Pair, text: str) -> None:
    _check(pair, text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text())
def test_any_text_of_the_default_model(smollm2: Pair, text: str) -> None:
    _check(smollm2, text)


@pytest.fixture(scope="module")
def class_borders() -> str:
    return reference.every_class_border()


def test_every_class_of_characters(pair: Pair, class_borders: str) -> None:
    _check(pair, class_borders)


def test_this_repository(smollm2: Pair) -> None:
    root = Path(__file__).parents[2]
    for path in [*root.glob("docs/*.md"), *root.glob("cpp/containers/*.cpp"), *root.glob("python/**/*.py")]:
        _check(smollm2, path.read_text("utf-8"))


def test_bos_by_the_models_own_setting(pair: Pair, smollm2: Pair) -> None:
    for tokenizer, tool in (pair, smollm2):
        for text in ("", "Hello"):
            right = reference.encode(tokenizer, text, parse_special=True, add_special=True)
            assert tool.encode(text, add_special=True, parse_special=True) == right


@pytest.mark.parametrize("unit", ["A", " ", "\n", "é", "🙂", "1", "\u0301", "aA ", "\x00", "<|im_end|>", "</s> "])
@pytest.mark.parametrize("size", [9_400, 1_000_000])
def test_long_repetitions_are_quick(pair: Pair, unit: str, size: int) -> None:
    tokenizer, tool = pair
    text = unit * (size // len(unit.encode()))
    before = tool.cpu_seconds()
    ids = tool.encode(text, parse_special=True)
    assert tool.cpu_seconds() - before < tool.patience
    right = reference.encode(tokenizer, text[: 9_400 // len(unit.encode()) * len(unit)], parse_special=True)
    assert (ids == right) if size < 10_000 else (ids[:100] == right[:100])


def test_random_bytes_are_kept(smollm2: Pair) -> None:
    """Bytes that are not UTF-8 are encoded as bytes, where the vocabulary has tokens for them."""
    tool = smollm2[1]
    assert tool.decode(tool.encode(b"a\xe4\xb8b")) == "a\ufffdb"
    assert tool.decode(tool.encode(b"\x80\x80 caf\xc3")) == "\ufffd\ufffd caf\ufffd"
    noise = bytes(range(256)) * 4000
    before = tool.cpu_seconds()
    tool.encode(noise, parse_special=True)
    assert tool.cpu_seconds() - before < tool.patience


def test_several_threads_use_one_tokenizer(smollm2: Pair) -> None:
    assert smollm2[1].ask(b"p" + "\n".join(reference.TEXTS).encode()) == b"same"

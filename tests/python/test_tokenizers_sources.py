"""What a tokenizer's file may say: what is not supported or is broken is named, never approximated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buddy_gen.errors import BuddyError
from buddy_gen.models import open_model
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizer import load
from buddy_gen.tokenizers import (
    UnsupportedTokenizerError,
    load_chat_template,
    load_tokenizer_spec,
    read_tokenizer_json,
    vocab_digest,
    write_vocab,
)
from buddy_gen.tokenizers.gguf_tokenizer import tokenizer_from_gguf_metadata
from buddy_gen.tokenizers.spec import SplitPattern, Step, StepKind, byte_level_bytes

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID

Json = dict[str, Any]


@pytest.fixture(scope="module")
def plain() -> str:
    tokenizer = reference.train("llama3", size=300, bos=True)
    text: str = tokenizer.to_str()
    return text


def _read(folder: Path, content: Any, **options: Any) -> Any:
    path = folder / "tokenizer.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return read_tokenizer_json(path, **options)


def _set(*keys: Any) -> Callable[[Json], None]:
    *path, last, value = keys

    def change(content: Json) -> None:
        for key in path:
            content = content[key]
        content[last] = value

    return change


_OTHER_REGEX = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,4}"}, "behavior": "Isolated", "invert": False}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_ROBERTA = {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}


def _template(ids: list[Any]) -> Json:
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": special}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_set("normalizer", {"type": "Nmt"}), "normaliser 'Nmt' is not supported"),
        (_set("normalizer", {"type": "Sequence", "normalizers": [{"type": "Precompiled"}]}), "'Precompiled'"),
        (_set("normalizer", {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}), "'Regex': 'x'"),
        (_set("normalizer", {"type": "Prepend"}), "prepend of 'Prepend' is None"),
        (_set("pre_tokenizer", {"type": "Metaspace", "replacement": "_"}), "decoder ByteLevel only"),
        (_set("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "x"}), "scheme 'x'"),
        (_set("pre_tokenizer", {"type": "UnicodeScripts"}), "pre-tokenizer 'UnicodeScripts'"),
        (_set("pre_tokenizer", {"type": "Punctuation", "behavior": "Odd"}), "behaviour 'Odd'"),
        (_set("pre_tokenizer", None), "decoder ByteLevel only"),
        (_set("pre_tokenizer", "pretokenizers", 0, _OTHER_REGEX), r"Split pre-tokenizer with .*1,4"),
        (_set("pre_tokenizer", "pretokenizers", 0, "behavior", "Removed"), "Split"),
        (_set("pre_tokenizer", "pretokenizers", 0, "invert", True), "Split"),
        (_set("pre_tokenizer", "pretokenizers", [_BYTE_LEVEL, _BYTE_LEVEL]), "after ByteLevel"),
        (_set("pre_tokenizer", "pretokenizers", []), "decoder ByteLevel only"),
        (_set("decoder", {"type": "WordPiece"}), "decoder ByteLevel only"),
        (_set("decoder", {"type": "BPEDecoder"}), "decoder 'BPEDecoder'"),
        (_set("decoder", {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace"}]}), "'Fuse', 'Rep"),
        (_set("decoder", {"type": "Strip", "content": " ", "start": 1, "stop": 0}), "decoder 'Strip'"),
        (_set("decoder", None), "decoder None"),
        (_set("model", "type", "Unigram"), "model 'Unigram'"),
        (_set("model", "dropout", 0.1), "dropout = 0.1"),
        (_set("model", "byte_fallback", True), "byte_fallback"),
        (_set("model", "continuing_subword_prefix", "##"), "continuing_subword_prefix"),
        (_set("model", "unk_token", "<none>"), "'<none>'"),
        (_set("model", "vocab", []), "vocabulary is missing or damaged"),
        (_set("model", "vocab", "a", -3), "'a' has the id -3"),
        (_set("model", "vocab", "a", 5), "the same id 5"),
        (_set("model", "vocab", "a", 4_000_000_000), "'a' has the id 4000000000"),
        (_set("model", "vocab", "a", 2**70), f"'a' has the id {2**70}"),
        (_set("model", "unk_token", []), r"unknown token \[\]"),
        (_set("model", "unk_token", {}), r"unknown token \{\}"),
        (_set("added_tokens", 5), "added_tokens are 5, not a list"),
        (_set("added_tokens", 0, "id", 2**40), f"has the id {2**40}"),
        (_set("added_tokens", 0, "content", "\ud800"), "half a character"),
        (_set("normalizer", {"type": "Sequence"}), "normalizers of a 'Sequence' are None"),
        (_set("normalizer", {"type": "Sequence", "normalizers": 5}), "normalizers of a 'Sequence' are 5"),
        (_set("pre_tokenizer", {"type": "Metaspace", "prepend_scheme": []}), "its pre_tokenizer is damaged"),
        (_set("post_processor", _template([[1, 2]])), "template is damaged"),
        (_set("model", "merges", None), "merges are missing"),
        (_set("model", "merges", 0, ["a", "zzz"]), "'zzz'"),
        (_set("model", "merges", 0, "abc"), "'abc' is not a pair"),
        (_set("added_tokens", 0, "id", "x"), "no id"),
        (_set("added_tokens", 0, "content", ""), "same id|is empty"),
        (_set("added_tokens", 2, "content", "<s>"), "'<s>' stands there twice"),
        (_set("added_tokens", 2, "content", "b"), "'b' stands there twice"),
        (_set("post_processor", _ROBERTA), "RobertaProcessing"),
    ],
)
def test_tokenizer_json(plain: str, tmp_path: Path, change: Callable[[Json], None], named: str) -> None:
    content = json.loads(plain)
    change(content)
    with pytest.raises(BuddyError, match=named) as caught:
        _read(tmp_path, content)
    assert "tokenizer.json" in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, UnsupportedTokenizerError) == ("support" in str(caught.value))


def test_an_end_token_far_away(plain: str, tmp_path: Path) -> None:
    with pytest.raises(BuddyError, match="end token 4000000000 is far beyond"):
        _read(tmp_path, plain, end_ids=[4_000_000_000])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"[1]", "JSON list"),
        (b'\xef\xbb\xbf{"model": {}}', "BOM"),
        (b"hi there", "not a SentencePiece model"),
    ],
)
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(BuddyError, match=said):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 100_000])
def test_a_broken_tokenizer_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(BuddyError, match=r"tokenizer\.json"):
        _read(tmp_path, text)


def test_legacy_merges_are_the_same(plain: str, tmp_path: Path) -> None:
    content = json.loads(plain)
    spec = _read(tmp_path, content)
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    assert _read(tmp_path, content) == spec


def test_bos_and_eos_of_tokenizer_json(plain: str, tmp_path: Path) -> None:
    first = next(token["id"] for token in json.loads(plain)["added_tokens"] if token["content"] == "<s>")
    spec = _read(tmp_path, plain)
    assert (spec.bos_id, spec.add_bos, spec.add_eos) == (first, True, False)
    assert not _read(tmp_path, plain, settings={"add_bos_token": False}).add_bos
    settings = {"add_eos_token": True, "eos_token": {"content": "</s>"}, "bos_token": "<s>", "unk_token": None}
    spec = _read(tmp_path, plain, settings=settings, end_ids=[5, first + 1, 5])
    assert (spec.eos_id, spec.add_eos, spec.end_ids) == (first + 1, True, (5, first + 1))
    assert spec.special_tokens == {"eos_token": "</s>", "bos_token": "<s>"}
    assert len(_read(tmp_path, plain, end_ids=[1000]).tokens) == 1001, "an end id past the vocabulary is unused"


def _gguf(**changes: Any) -> dict[str, Any]:
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": ["<|end|>", "a", "b", "ab", "Ġ", "<tool>"],
        "token_type": [3, 1, 1, 1, 1, 4],
        "merges": ["a b"],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    values |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def test_gguf() -> None:
    spec = tokenizer_from_gguf_metadata(_gguf(eot_token_id=5, eom_token_id=0), "m.gguf")
    assert spec.tokens == [b"<|end|>", b"a", b"b", b"ab", b" ", b"<tool>"]
    assert spec.merges == [(1, 2, 3)]
    assert [(token.content, token.special, token.normalized) for token in spec.added] == [
        ("<|end|>", True, False),
        ("<tool>", False, True),
    ]
    assert spec.steps == (Step(StepKind.DIGITS, 1), Step(StepKind.PATTERN, SplitPattern.GPT2))
    assert (spec.end_ids, spec.add_bos, spec.ignore_merges) == ((0, 5), False, False)
    llama = tokenizer_from_gguf_metadata(_gguf(pre="llama-bpe"), "m.gguf")
    assert (llama.add_bos, llama.ignore_merges) == (True, True)
    assert not tokenizer_from_gguf_metadata(_gguf(pre="llama-bpe", add_bos_token=False), "m.gguf").add_bos


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "bert"}, "kind 'bert'"),
        ({"model": "llama"}, "scores is missing"),
        ({"pre": None}, "no pre-tokenizer is named"),
        ({"pre": "default"}, "'default' is not supported"),
        ({"pre": "deepseek-llm"}, "'deepseek-llm' is not supported"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ["a", "b", "ab", "a"], "token_type": [1] * 4}, "'a' stands there twice, as 0 and 3"),
        ({"token_type": [1]}, "6 tokens but 1 token types"),
        ({"token_type": [3, 1, 1, 1, 1, 9]}, "9 is not a valid TokenType"),
        ({"merges": ["ab"]}, "'ab' is not two tokens"),
        ({"merges": ["a c"]}, "'c', which is missing"),
        ({"eos_token_id": 6}, "eos_token_id is 6"),
        ({"eot_token_id": -1}, "eot_token_id is -1"),
        ({"add_bos_token": 1}, "neither true nor false"),
    ],
)
def test_a_gguf_that_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(BuddyError, match=named) as caught:
        tokenizer_from_gguf_metadata(_gguf(**changes), "m.gguf")
    assert "m.gguf" in str(caught.value)
    unsupported = changes.get("model") == "bert" or "pre" in changes
    assert isinstance(caught.value, UnsupportedTokenizerError) == unsupported


def test_the_byte_alphabet_is_the_libraries() -> None:
    decoder = reference.decoders.ByteLevel()
    alphabet = reference.pre.ByteLevel.alphabet()
    assert sorted(byte_level_bytes(c) or b"" for c in alphabet) == [bytes([b]) for b in range(256)]
    for character in alphabet:
        decoded = byte_level_bytes(character)
        assert decoded is not None and decoded.decode("utf-8", "replace") == decoder.decode([character])
    assert byte_level_bytes("a b") is None


def test_the_default_model_from_its_description() -> None:
    description = open_model(fetch_default_model())
    spec = load_tokenizer_spec(description)
    assert spec.end_ids == (2,) and not spec.add_bos and len(spec.tokens) == 49152
    chat, reason = load_chat_template(description, spec)
    assert chat is not None and reason == "" and chat.system_unsupported is None


def test_descriptions_without_what_is_needed(plain: str, tmp_path: Path) -> None:
    names = ("gguf", "tokenizer_json", "tokenizer_model", "tokenizer_config", "special_tokens_map", "added_tokens")
    files = SimpleNamespace(**dict.fromkeys(names))
    model = SimpleNamespace(
        name="m", tokenizer=None, chat_template=None, eos_token_ids=[], bos_token_id=None, add_bos=None
    )
    with pytest.raises(BuddyError, match="no tokenizer"):
        load_tokenizer_spec(model)
    model.tokenizer = files
    with pytest.raises(BuddyError, match="no tokenizer that is known"):
        load_tokenizer_spec(model)
    files.tokenizer_json = tmp_path / "tokenizer.json"
    files.tokenizer_json.write_text(plain, "utf-8")
    files.tokenizer_config = tmp_path / "tokenizer_config.json"
    files.tokenizer_config.write_text(json.dumps({"bos_token": "<s>", "add_bos_token": None}), "utf-8")
    spec = load_tokenizer_spec(model)
    assert spec.add_bos and spec.special_tokens == {"bos_token": "<s>"}
    assert load_chat_template(model, spec) == (None, "The model has no chat template.")
    model.chat_template = "{{ nothing.x }}"
    chat, reason = load_chat_template(model, spec)
    assert chat is None and "refuses" in reason


def test_digest_and_file(plain: str, tmp_path: Path) -> None:
    spec = _read(tmp_path, plain)
    one, two = tmp_path / "one.vocab", tmp_path / "two.vocab"
    assert write_vocab(one, spec, abi=ABI, model_id=MODEL_ID) == one.stat().st_size
    write_vocab(two, spec, abi=ABI, model_id="f" * 64)
    assert one.read_bytes() != two.read_bytes()
    assert vocab_digest(spec, None) == vocab_digest(_read(tmp_path, plain), None)
    assert vocab_digest(spec, None) != vocab_digest(_read(tmp_path, plain, end_ids=[3]), None)
    assert vocab_digest(spec, None) != vocab_digest(spec, None, "another reason")
    with pytest.raises(BuddyError, match="cannot be written"):
        write_vocab(tmp_path / "missing" / "x.vocab", spec, abi=ABI, model_id=MODEL_ID)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.vocab", "tokenizer.json", "two.vocab"]

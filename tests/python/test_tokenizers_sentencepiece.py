"""SentencePiece models give what the `sentencepiece` library gives: BPE and unigram, every rule of normalisation."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizer_files as files
import tokenizer_reference as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tool import ABI, MODEL_ID, TextTool

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers import TokenizerSpec, UnsupportedTokenizerError, read_sentencepiece_model, write_vocab
from buddy_gen.tokenizers.gguf_tokenizer import tokenizer_from_gguf_metadata

pytestmark = pytest.mark.slow

STRINGS = int(os.environ.get("BUDDY_TOKENIZER_STRINGS", "5000"))
Pair = tuple[sentencepiece.SentencePieceProcessor, TextTool, Path]

_SYMBOLS = {"user_defined_symbols": ["<sep>", "abc", "  ", "a b", "😀", "e", "\n"], "control_symbols": ["<ctl>"]}
_RULES: dict[str, dict[str, Any]] = {
    "nmt-nfkc": {"normalization_rule_name": "nmt_nfkc"},
    "llama": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "split_digits": True},
    "folding-no-prefix": {"normalization_rule_name": "nmt_nfkc_cf", "add_dummy_prefix": False},
    "suffix-symbols": {"normalization_rule_name": "identity", "treat_whitespace_as_suffix": True, **_SYMBOLS},
}
KINDS = [f"{kind}-{rules}" for kind in ("bpe", "unigram", "bpe-bytes", "unigram-bytes") for rules in _RULES]


def _train(kind: str, folder: Path) -> Path:
    corpus = folder / "corpus.txt"
    lines = [line for text in reference.TEXTS for line in text.split("\n")]
    sources = [path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("test_tok*.py"))]
    corpus.write_text("\n".join([*lines, *sources]), "utf-8")
    model, _, rest = kind.partition("-")
    has_bytes = rest.startswith("bytes-")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "model"),
        model_type=model,
        vocab_size=1200,
        byte_fallback=has_bytes,
        hard_vocab_limit=False,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
        **_RULES[rest.removeprefix("bytes-")],
    )
    return folder / "model.model"


def _open(model: Path, folder: Path) -> Pair:
    write_vocab(folder / "t.vocab", read_sentencepiece_model(model), abi=ABI, model_id=MODEL_ID)
    return sentencepiece.SentencePieceProcessor(model_file=str(model)), TextTool(folder / "t.vocab"), model


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp(request.param)
    made = _open(_train(request.param, folder), folder)
    yield made
    assert made[1].close() == 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("llama")
    (folder / "tokenizer.model").write_bytes(files.llama_model())
    made = _open(folder / "tokenizer.model", folder)
    yield made
    assert made[1].close() == 0


def _check(pair: Pair, text: str) -> None:
    library, tool, _ = pair
    right = library.encode(text)
    assert tool.encode(text) == right, text
    assert tool.decode(right, skip_special=True) == library.decode(right), text


def _check_streams(pair: Pair, seed: int, count: int) -> None:
    """Any ids in any order: byte runs that are not UTF-8, control tokens between them, spaces at the beginning."""
    library, tool, _ = pair
    chosen = random.Random(seed)
    size = library.vocab_size()
    for _ in range(count):
        ids = [chosen.randrange(size if chosen.random() < 0.3 else min(size, 300)) for _ in range(chosen.randrange(12))]
        right = library.decode(ids)
        assert tool.decode(ids, skip_special=True) == right, ids
        assert "".join(tool.stream(ids, skip_special=True)) == right, ids


def test_texts_and_random_strings(pair: Pair) -> None:
    for text in [*reference.TEXTS, *reference.random_texts(seed=31, count=400)]:
        _check(pair, text)
    _check_streams(pair, seed=32, count=150)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(text=st.text())
def test_any_text(pair: Pair, text: str) -> None:
    _check(pair, text)


@pytest.mark.parametrize("unit", ["A", " ", "é", "🙂", "Ⅷ", "\u0301", "abc"])
def test_a_megabyte_is_quick(pair: Pair, unit: str) -> None:
    text = unit * (1_000_000 // len(unit.encode()))
    before = pair[1].cpu_seconds()
    ids = pair[1].encode(text)  # on a stack of 256 KiB
    assert pair[1].cpu_seconds() - before < pair[1].patience
    assert pair[1].encode(text[: len(text) // 100])[:50] == ids[:50] or unit == " "


@pytest.mark.slow
def test_the_known_ids_of_llama(llama: Pair) -> None:
    expected = [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]
    assert llama[1].encode("This is 🦙.cpp", add_special=True) == expected
    assert llama[1].decode(expected, skip_special=True) == "This is 🦙.cpp"
    assert llama[1].decode(expected) == "<s>This is 🦙.cpp"
    assert llama[1].encode("") == [] and llama[1].encode("", add_special=True) == [1]


@pytest.mark.slow
def test_llama(llama: Pair) -> None:
    for text in [*reference.TEXTS, *files.translations()[:: 1 if STRINGS > 5000 else 8]]:
        _check(llama, text)
    for text in reference.random_texts(seed=33, count=STRINGS):
        _check(llama, text)
    _check_streams(llama, seed=34, count=STRINGS // 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistral(name: str, tmp_path: Path) -> None:
    made = _open(files.mistral(name), tmp_path)
    for text in [*reference.TEXTS, *files.translations()[::8], *reference.random_texts(seed=35, count=STRINGS)]:
        _check(made, text)
    _check_streams(made, seed=36, count=STRINGS // 5)
    assert made[1].close() == 0


def test_special_tokens_part_the_text(tmp_path: Path) -> None:
    """Each text between special tokens is what the reference gives for it alone."""
    library, tool, _ = _open(_train("bpe-bytes-llama", tmp_path), tmp_path)
    bos, eos = library.bos_id(), library.eos_id()
    parsed = tool.encode("<s>[INST] hi</s>a <s>", parse_special=True)
    assert parsed == [bos, *library.encode("[INST] hi"), eos, *library.encode("a "), bos]
    assert tool.encode_segments([("<s>", True), ("a</s>", False), ("</s>", True)]) == [
        bos,
        *library.encode("a</s>"),
        eos,
    ]
    plain = library.encode("a <s> b")
    assert tool.encode("a <s> b") == plain and bos not in plain
    assert tool.decode([bos, *library.encode("hi"), eos]) == "<s>hi</s>"
    assert tool.decode([bos, *library.encode("hi"), eos], skip_special=True) == "hi"
    assert tool.encode("x", add_special=True) == [bos, *library.encode("x")]
    assert tool.close() == 0


def test_bytes_that_are_not_utf8(pair: Pair) -> None:
    library, tool, _ = pair
    chosen = random.Random(39)
    for _ in range(200):
        text = bytes(chosen.choice(b"a \x80\xbf\xc3\xe4\xed\xa0\xf0\x9f\xff") for _ in range(chosen.randrange(10)))
        assert tool.encode(text) == library.encode(text), text


def test_a_byte_run_is_held_until_it_is_whole(tmp_path: Path) -> None:
    library, tool, _ = _open(_train("bpe-bytes-llama", tmp_path), tmp_path)
    byte = [library.piece_to_id(f"<0x{value:02X}>") for value in range(256)]
    smile = [byte[value] for value in "🙂".encode()]
    assert tool.stream(smile) == ["", "", "", "🙂", ""]
    assert tool.stream(smile[:2]) == ["", "", "\ufffd\ufffd"]
    assert tool.stream([*smile[:2], byte[0x41]]) == ["", "", "\ufffd\ufffdA", ""]
    assert tool.close() == 0


# --- GGUF ------------------------------------------------------------------------------------------------------------


def _metadata(spec: TokenizerSpec, model: str, **more: Any) -> dict[str, Any]:
    values = {
        "model": model,
        "tokens": [token.decode() for token in spec.tokens],
        "scores": [float(score) for score in spec.scores] or [-float(i) for i in range(len(spec.tokens))],
        "token_type": [int(kind) for kind in spec.types],
        "bos_token_id": spec.bos_id,
        "eos_token_id": spec.eos_id,
        "unknown_token_id": spec.unknown_id,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def test_the_same_inside_a_gguf(tmp_path: Path) -> None:
    spec = read_sentencepiece_model(_train("bpe-bytes-llama", tmp_path))
    inside = tokenizer_from_gguf_metadata(_metadata(spec, "llama"), "m.gguf")
    # A trained model's scores are minus the place among its pieces: the order of the merges is the same.
    assert replace(inside, merge_ranks=(), special_tokens={}) == replace(spec, merge_ranks=(), special_tokens={})
    off = tokenizer_from_gguf_metadata(_metadata(spec, "llama", add_bos_token=False, add_space_prefix=False), "m.gguf")
    assert not off.add_bos and not off.rules.add_dummy_prefix
    unigram = read_sentencepiece_model(_train("unigram-nmt-nfkc", tmp_path))
    charsmap = list(unigram.rules.charsmap)
    inside = tokenizer_from_gguf_metadata(_metadata(unigram, "t5", precompiled_charsmap=charsmap), "m.gguf")
    assert inside.rules == unigram.rules and inside.scores == unigram.scores and inside.add_eos and not inside.add_bos


# --- What is refused -------------------------------------------------------------------------------------------------

_GOOD = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256))]
_LETTERS = [("a", -1.0, 1), ("b", -2.0, 1), ("ab", -3.0, 1)]


@pytest.mark.parametrize(
    ("pieces", "trainer", "named"),
    [
        ([*_GOOD[:-1], ("<0x-1>", 0.0, 6)], files.BPE_WITH_BYTES, "'<0x-1>' is not spelled like"),
        ([*_GOOD[:-1], ("<0x1G>", 0.0, 6)], files.BPE_WITH_BYTES, "'<0x1G>' is not spelled like"),
        (_GOOD[:-1], files.BPE_WITH_BYTES, "1 are missing"),
        ([*_GOOD, ("a", 0.0, 1), ("a", 0.0, 1)], files.BPE_WITH_BYTES, "'a' stands there twice, as 259 and 260"),
        ([*_GOOD, ("", 0.0, 1)], files.BPE_WITH_BYTES, "token 259 is ''"),
        ([*_GOOD, ("a", 0.0, 9)], files.BPE_WITH_BYTES, "'a' is of the unknown type 9"),
        (_GOOD[1:], files.BPE_WITH_BYTES, "0 tokens are the unknown token"),
        ([*_GOOD, ("a", 0.0, 1), ("ab", 0.0, 1)], files.BPE_WITH_BYTES, "'ab' holds the character 'b'"),
        ([*_GOOD, ("x", 0.0, 3)], files.BPE_WITH_BYTES, "control token 'x'"),
        ([*_GOOD, *_LETTERS], b"\x18\x03", "of the kind word are not supported"),
        ([*_GOOD, *_LETTERS], b"\x18\x04", "of the kind char are not supported"),
    ],
)
def test_refused_models(tmp_path: Path, pieces: list[tuple[str, float, int]], trainer: bytes, named: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(files.model_file(pieces, trainer=trainer))
    with pytest.raises(BuddyError, match=named) as caught:
        read_sentencepiece_model(tmp_path / "tokenizer.model")
    assert isinstance(caught.value, UnsupportedTokenizerError) == ("support" in str(caught.value))


def test_damaged_models(tmp_path: Path) -> None:
    content = files.model_file([*_GOOD, *_LETTERS], trainer=files.BPE_WITH_BYTES)
    path = tmp_path / "tokenizer.model"
    chosen = random.Random(37)
    for _ in range(400):
        changed = bytearray(content[: chosen.randrange(len(content))] if chosen.random() < 0.5 else content)
        for _ in range(chosen.randrange(4)):
            if changed:
                changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        path.write_bytes(changed)
        try:
            read_sentencepiece_model(path)
        except BuddyError as error:
            assert "\n" not in str(error) and "tokenizer.model" in str(error)


def test_unused_pieces_come_apart_again(tmp_path: Path) -> None:
    """A merge may go through an unused piece, which is then told by its parts."""
    pieces = [*_GOOD, *((c, -9.0, 1) for c in "abcd▁"), ("ab", -1.0, 5), ("abc", -2.0, 5), ("cd", -3.0, 1)]
    pieces += [("abcd", -0.5, 1), ("bc", -0.7, 5)]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(files.model_file(pieces, trainer=files.BPE_WITH_BYTES, normalizer=files.LLAMA_RULES))
    made = _open(path, tmp_path)
    chosen = random.Random(38)
    for _ in range(600):
        _check(made, "".join(chosen.choice("abcd ") for _ in range(chosen.randrange(12))))
    assert made[1].close() == 0

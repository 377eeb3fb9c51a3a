"""Streaming: never half a character, and in the end what decoding the whole gives."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from buddy_gen.tokenizers import read_tokenizer_json, write_vocab

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextTool


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, TextTool]]:
    folder = tmp_path_factory.mktemp("decode")
    tokenizer = reference.train("gpt2", size=300)  # hardly any merges: characters span tokens
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocab(folder / "t.vocab", read_tokenizer_json(folder / "tokenizer.json"), abi=ABI, model_id=MODEL_ID)
    with TextTool(folder / "t.vocab") as tool:
        yield tokenizer, tool


@pytest.mark.parametrize("text", ["🙂", "你好", "ü", "a🙂b你好 c", "👩‍👩‍👧‍👦"])
def test_nothing_before_a_character_is_whole(pair: tuple[Tokenizer, TextTool], text: str) -> None:
    tokenizer, tool = pair
    pieces = tool.stream(tokenizer.encode(text).ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == "", "nothing was held back at the end"


def test_every_random_stream_equals_the_whole(pair: tuple[Tokenizer, TextTool]) -> None:
    """Any ids in any order: mostly ill-formed UTF-8, special tokens in between, ids that do not exist."""
    tokenizer, tool = pair
    chosen = random.Random(3)
    size = tokenizer.get_vocab_size()
    high_bytes = [tokenizer.token_to_id(c) for c in "ðŁĻĤäéÃÂíłÙôıĪ" if tokenizer.token_to_id(c) is not None]
    for _ in range(1500):
        ids = [
            chosen.choice(high_bytes) if chosen.random() < 0.7 else chosen.randrange(size)
            for _ in range(chosen.randrange(12))
        ]
        for skip in (False, True):
            whole = tokenizer.decode(ids, skip_special_tokens=skip)
            assert tool.decode(ids, skip) == whole
            assert "".join(tool.stream(ids, skip)) == whole
    assert tool.decode([-1, size, 2**31 - 1, -(2**31)]) == ""


def test_an_unfinished_character_is_replaced_at_the_end_only(pair: tuple[Tokenizer, TextTool]) -> None:
    tokenizer, tool = pair
    ids = tokenizer.encode("🙂").ids[:-1]
    assert tool.stream(ids) == [""] * len(ids) + ["\ufffd"]
    other = tokenizer.encode("x").ids
    assert "".join(tool.stream(ids + other)) == "\ufffdx"
    assert tool.stream(ids + other)[len(ids)] == "\ufffdx"


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (b"", None),
        ("naïve 你好 🙂 \U0010ffff \x00".encode(), None),
        (b"abc\xff", 3),
        (b"\xc3", 0),
        ("é".encode() + b"\xe4\xb8", 2),
        (b"a\xc0\xaf", 1),  # overlong
        (b"\xed\xa0\x80", 0),  # a surrogate
        (b"\xf4\x90\x80\x80", 0),  # past U+10FFFF
    ],
)
def test_where_utf8_ends(pair: tuple[Tokenizer, TextTool], text: bytes, position: int | None) -> None:
    assert pair[1].invalid_at(text) == position


def test_utf8_check_agrees_with_python(pair: tuple[Tokenizer, TextTool]) -> None:
    chosen = random.Random(4)
    for _ in range(2000):
        text = bytes(chosen.choice(b"\x00a\x7f\x80\x90\x9f\xa0\xbf\xc2\xe0\xe4\xed\xf0\xf4\xf5") for _ in range(5))
        try:
            text.decode()
            expected = None
        except UnicodeDecodeError as error:
            expected = error.start
        assert pair[1].invalid_at(text) == expected, text

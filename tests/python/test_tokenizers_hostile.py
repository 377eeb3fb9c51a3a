"""A damaged or hostile NAME.vocab is refused with one sentence; it never crashes the program (ASan and UBSan watch)."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sentencepiece
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextError, TextTool, compile_tool
from tokenizers import Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre

from buddy_gen.tokenizers import read_sentencepiece_model, read_tokenizer_json, reduce_chat_template, write_vocab

pytestmark = pytest.mark.slow

_TEMPLATE = (
    "{{ bos_token + strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.role + ': ' + m.content|trim + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_DAY = datetime(2026, 1, 2)
_PROMPT = "Hello <s> word  é <mask> 12345 你好 </s>"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("good")
    reference.train("llama3", size=300, bos=True, ignore_merges=True).save(str(folder / "tokenizer.json"))
    chat = reduce_chat_template(_TEMPLATE, {"bos_token": "<s>"})
    spec = read_tokenizer_json(folder / "tokenizer.json", end_ids=[1, 2])
    write_vocab(folder / "t.vocab", spec, abi=ABI, model_id=MODEL_ID, chat=chat)
    return (folder / "t.vocab").read_bytes()


@pytest.fixture(scope="module")
def tool() -> Iterator[TextTool]:
    flags = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS")
    with TextTool(executable=compile_tool(*flags)) as running:
        yield running


def _with_checksum(content: bytes) -> bytes:
    return content[:12] + struct.pack("<I", zlib.crc32(content[16:])) + content[16:]


def _load(tool: TextTool, path: Path, content: bytes) -> str | None:
    """The sentence that refuses `content`, or None when it was loaded; then it is used."""
    path.write_bytes(content)
    try:
        tool.load(path)
    except TextError as error:
        message = str(error)
        assert message.endswith(".") and "\n" not in message and str(path) in message, message
        return message
    try:
        tool.stream(tool.encode(_PROMPT, True, True))
        tool.info()
        tool.first_turn("a", " b ", _DAY)
        tool.next_turn("c", "x", _DAY)
        tool.keeps_answer("d")
    except TextError:
        pass  # such as: no chat
    return None


def test_the_undamaged_file_is_loaded(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    assert _load(tool, tmp_path / "t.vocab", good) is None
    assert _with_checksum(good) == good


def test_cut_anywhere(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    cuts = {*range(400), *range(400, len(good), 61), len(good) - 1}
    for cut in sorted(cuts):
        message = _load(tool, tmp_path / "t.vocab", good[:cut])
        assert message is not None and "t.vocab" in message
        if cut >= 24:  # with a size and a checksum that fit
            resized = good[:16] + struct.pack("<Q", cut) + good[24:cut]
            assert _load(tool, tmp_path / "t.vocab", _with_checksum(resized)) is not None


def test_any_changed_byte_is_noticed(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    chosen = random.Random(7)
    for position in [*range(200), *(chosen.randrange(len(good)) for _ in range(300))]:
        changed = bytearray(good)
        changed[position] ^= 1 << chosen.randrange(8)
        assert _load(tool, tmp_path / "t.vocab", bytes(changed)) is not None


def test_changed_bytes_with_a_right_checksum_do_no_harm(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    chosen = random.Random(8)
    refused = 0
    for number in range(1500):
        changed = bytearray(good)
        for _ in range(chosen.choice((1, 1, 2, 8))):
            position = chosen.randrange(16, 400) if number % 3 == 0 else chosen.randrange(16, len(good))
            if chosen.random() < 0.5:
                changed[position] = chosen.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            else:
                position = min(position & ~3, len(good) - 4)
                value = chosen.choice((0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(good), 300))
                changed[position : position + 4] = struct.pack("<I", value)
        refused += _load(tool, tmp_path / "t.vocab", _with_checksum(bytes(changed))) is not None
    assert 300 < refused < 1500


def _section(content: bytes, tag: bytes) -> tuple[int, int]:
    count = struct.unpack_from("<I", content, 28)[0]
    for index in range(count):
        name, offset, size = struct.unpack_from("<8sQQ", content, 160 + 24 * index)
        if name.rstrip() == tag:
            return offset, size
    raise KeyError(tag)


@pytest.mark.parametrize(
    ("tag", "position", "value", "expected"),
    [
        (b"TOKENS", 0, 0, "number of tokens"),
        (b"TOKENS", 0, 0xFFFFFFFF, "do not fit"),
        (b"TOKENS", 8, 0xFFFFFFFF, "not in order"),
        (b"MERGES", 0, 0x10000000, "do not fit"),
        (b"MERGES", 4, 0x7FFFFFFF, "is not in its vocabulary"),
        (b"MERGES", 4, 0xFFFFFFFF, "is not in its vocabulary"),
        (b"MERGES", 12, 0, "merge 0 joins"),
        (b"ADDED", 4, 5000, "is not in its vocabulary"),
        (b"ADDED", 8, 0, "has no spelling"),
        (b"ADDED", 8, 0xFFFFFFF0, "ends too early"),
        (b"STEPS", 4, 9, "pre-tokenizer step (9, 2) is unknown"),
        (b"NORMAL", 0, 1, "do not fit"),
        (b"SPRULES", 0, 16, "SentencePiece rules"),
        (b"DECODE", 0, 5, "way of decoding (5, 0)"),
        (b"DECODE", 0, 4, "FIRST is empty"),
        (b"TEXTS", 0, 1, "do not fit"),
        (b"SCORES", 0, 1, "do not fit"),
        (b"SETTINGS", 0, 5000, "special token 5000 is not"),
        (b"SETTINGS", 0, 0xFFFFFFFF, "BOS or EOS"),
        (b"SETTINGS", 12, 32, "settings are unknown"),
        (b"SETTINGS", 28, 5000, "end token 5000 is not"),
        (b"CHAT", 0, 7, "CHAT has the flag 7"),
    ],
)
def test_each_rule_names_what_is_wrong(
    tool: TextTool, good: bytes, tmp_path: Path, tag: bytes, position: int, value: int, expected: str
) -> None:
    changed = bytearray(good)
    struct.pack_into("<I", changed, _section(good, tag)[0] + position, value)
    message = _load(tool, tmp_path / "t.vocab", _with_checksum(bytes(changed)))
    assert message is not None and expected in message


def test_header_rules(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.vocab"
    newer = good[:8] + struct.pack("<I", 3) + good[12:]
    assert "format version 3, this program reads version 2" in (_load(tool, path, newer) or "")
    kind = good[:24] + struct.pack("<I", 9) + good[28:]
    assert "kind 9" in (_load(tool, path, _with_checksum(kind)) or "")
    hashes = good[:32] + b"X" + good[33:]
    assert "hexadecimal" in (_load(tool, path, _with_checksum(hashes)) or "")
    assert "not a vocabulary file" in (_load(tool, path, b"GGUF" + good) or "")
    assert "not a vocabulary file" in (_load(tool, path, b"") or "")
    with pytest.raises(TextError, match="No such file"):
        tool.load(tmp_path / "missing.vocab")
    with pytest.raises(TextError, match="not a regular file"):
        tool.load(tmp_path)


def test_equal_tokens_are_named(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    offset, _ = _section(good, b"ADDED")
    first = good.index(b"</s>", offset)
    second = good.index(b"word", offset)
    changed = bytearray(good)
    changed[second : second + 4] = good[first : first + 4]
    # Both sets may hold a spelling once each: the second token must be of the same set to clash.
    ids = struct.unpack_from("<i", good, second - 8)[0]
    tokens, _ = _section(good, b"TOKENS")
    count = struct.unpack_from("<I", good, tokens)[0]
    changed[tokens + 4 + 4 * (count + 1) + count + ids] = 0
    message = _load(tool, tmp_path / "t.vocab", _with_checksum(bytes(changed)))
    assert message is not None and "both spelled '</s>'" in message


def test_the_program_works_under_the_sanitizers(tool: TextTool, good: bytes, tmp_path: Path) -> None:
    assert _load(tool, tmp_path / "t.vocab", good) is None
    chosen = random.Random(9)
    for text in [*reference.TEXTS, *reference.random_texts(seed=10, count=300)]:
        tool.stream(tool.encode(text, True, True))
    for _ in range(300):
        noise = bytes(chosen.randrange(256) for _ in range(chosen.randrange(60)))
        tool.stream(tool.encode(noise, False, True))
        tool.invalid_at(noise)
    tool.encode("A" * 300_000)
    tool.encode(" " * 300_000 + "x")


def _other_kind(kind: str, folder: Path) -> bytes:
    """The file of a small tokenizer of another kind: every section is in use in one of them."""
    path = folder / "tokenizer.json"
    if kind in ("bpe", "unigram"):
        (folder / "corpus.txt").write_text(
            "\n".join(" ".join(text.split()) for text in reference.TEXTS) + "\n", "utf-8"
        )
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "corpus.txt"),
            model_prefix=str(folder / "m"),
            model_type=kind,
            vocab_size=800,
            byte_fallback=True,
            hard_vocab_limit=False,
            character_coverage=0.98,
            user_defined_symbols=["<sep>"],
            minloglevel=2,
            normalization_rule_name="nmt_nfkc" if kind == "unigram" else "identity",
        )
        spec = read_sentencepiece_model(folder / "m.model")
    else:
        characters = {chr(code): code - 0x1F for code in range(0x20, 0x7F)}
        pieces = kind == "word-piece"
        model = (
            models.WordPiece(vocab={"##a": 0, **characters}, unk_token="?")
            if pieces
            else models.BPE({"##a": 0, **characters}, [])
        )
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = (
            normalizers.BertNormalizer()
            if pieces
            else normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("a", "bb"), normalizers.Prepend("_")])
        )
        tokenizer.pre_tokenizer = (
            pre.BertPreTokenizer() if pieces else pre.Sequence([pre.Split("l", "contiguous"), pre.Metaspace()])
        )
        tokenizer.decoder = decoders.WordPiece() if pieces else decoders.Metaspace()
        tokenizer.add_special_tokens(["<s>", "</s>"])
        tokenizer.save(str(path))
        spec = read_tokenizer_json(path)
    write_vocab(folder / "t.vocab", spec, abi=ABI, model_id=MODEL_ID)
    return (folder / "t.vocab").read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word-piece", "characters"])
def test_damage_to_other_kinds_does_no_harm(tool: TextTool, tmp_path: Path, kind: str) -> None:
    whole = _other_kind(kind, tmp_path)
    assert _load(tool, tmp_path / "t.vocab", whole) is None
    sections = [_section(whole, tag) for tag in (b"TOKENS", b"NORMAL", b"SPRULES", b"STEPS", b"DECODE", b"SETTINGS")]
    chosen = random.Random(11)
    for number in range(150):
        changed = bytearray(whole)
        offset, size = chosen.choice(sections) if number % 4 else (16, len(whole) - 16)
        for _ in range(chosen.choice((1, 1, 2, 8))):
            position = offset + chosen.randrange(min(size, 4000))
            changed[position] = chosen.choice((0, 1, 2, 5, 0x7F, 0x80, 0xFF))
        _load(tool, tmp_path / "t.vocab", _with_checksum(bytes(changed)))

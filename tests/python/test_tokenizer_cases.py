"""The known hard cases of tokenizers, T1 to T12, each on the vocabulary on which somebody got it wrong.

The judges are `sentencepiece`, `tokenizers` and published ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sentencepiece
import tokenizer_files as files
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextTool
from tokenizers import Tokenizer

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizers import read_gguf_tokenizer, read_sentencepiece_model, read_tokenizer_json, write_vocab
from buddy_gen.weights.gguf_file import read_gguf

pytestmark = pytest.mark.slow
LLAMA, SMOLLM2, LLAMA3 = "llama", "smollm2", "llama3"


@dataclass(frozen=True)
class Vocabularies:
    """Our tokenizers, and what judges them."""

    tools: dict[str, TextTool]
    llama: sentencepiece.SentencePieceProcessor
    json: dict[str, Tokenizer]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabularies]:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "tokenizer.model").write_bytes(files.llama_model())
    gguf = fetch_default_model()
    specs = {
        LLAMA: read_sentencepiece_model(folder / "tokenizer.model"),
        SMOLLM2: read_gguf_tokenizer(gguf),
        LLAMA3: read_tokenizer_json(files.tokenizer_json(LLAMA3)),
    }
    tools = {}
    for name, spec in specs.items():
        write_vocab(folder / f"{name}.vocab", spec, abi=ABI, model_id=MODEL_ID)
        tools[name] = TextTool(folder / f"{name}.vocab")
    judges = {
        SMOLLM2: reference.from_gguf(read_gguf(gguf).metadata),
        LLAMA3: Tokenizer.from_file(str(files.tokenizer_json(LLAMA3))),
    }
    library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    yield Vocabularies(tools, library, judges)
    assert not any(tool.close() for tool in tools.values())


def test_t1_the_first_word_keeps_its_dummy_space_and_emoji_fall_back_to_bytes(known: Vocabularies) -> None:
    ids = known.tools[LLAMA].encode("This is 🦙.cpp", add_special=True)
    assert ids == [1, 910, 338, 29871, 243, 162, 169, 156, 29889, 8223]


def test_t2_text_right_after_a_special_token(known: Vocabularies) -> None:
    llama, smollm2 = known.tools[LLAMA], known.tools[SMOLLM2]
    bos, eos = known.llama.bos_id(), known.llama.eos_id()
    assert llama.encode("<s>[INST] hi", parse_special=True) == [bos, *known.llama.encode("[INST] hi")]
    assert llama.encode("</s>a", parse_special=True) == [eos, *known.llama.encode("a")]
    for text in ("<|im_end|>\n", "<|im_end|>a", "<|im_start|>assistant\n", "<|im_end|> a"):
        right = reference.encode(known.json[SMOLLM2], text, parse_special=True)
        assert smollm2.encode(text, parse_special=True) == right


def test_t3_the_word_after_a_tag_has_no_space(known: Vocabularies) -> None:
    tool = known.tools[SMOLLM2]
    bare, spaced = tool.encode("user"), tool.encode(" user")
    assert len(bare) == len(spaced) == 1 and bare != spaced
    assert tool.encode("<|im_start|>user", parse_special=True) == [1, *bare]


@pytest.mark.parametrize("name", [SMOLLM2, LLAMA3])
@pytest.mark.parametrize(
    "text", ["12345", "3.14159", "They're", "I'LL", "a\n\n\nb", "x\t\ty", "trailing  ", "trailing\n ", "1 234 567"]
)
def test_t4_the_models_own_pre_tokenizer(known: Vocabularies, name: str, text: str) -> None:
    assert known.tools[name].encode(text) == reference.encode(known.json[name], text, parse_special=False)
    digits = known.tools[name].encode("12345")
    assert len(digits) == {SMOLLM2: 5, LLAMA3: 2}[name]


@pytest.mark.parametrize("name", [LLAMA, SMOLLM2, LLAMA3])
@pytest.mark.parametrize("unit", ["A", " ", "\n", "é", "🙂"])
def test_t5_a_megabyte_of_one_thing_takes_less_than_a_second(known: Vocabularies, name: str, unit: str) -> None:
    """On a stack of 256 KiB. It is the processor's time that counts, so that a busy machine does not matter."""
    tool = known.tools[name]
    short = tool.encode(unit * (9_400 // len(unit.encode())))
    before = tool.cpu_seconds()
    long = tool.encode(unit * (1_000_000 // len(unit.encode())))
    assert tool.cpu_seconds() - before < tool.patience
    assert tool.decode(short) == unit * (9_400 // len(unit.encode())) and len(long) >= len(short)
    text = unit * (9_400 // len(unit.encode()))
    right = known.llama.encode(text) if name == LLAMA else reference.encode(known.json[name], text, False)
    assert short == right


@pytest.mark.parametrize("name", [LLAMA, SMOLLM2, LLAMA3])
@pytest.mark.parametrize("text", ["🙂", "你好", "🦙 ü", "👩‍👩‍👧‍👦"])
def test_t6_a_character_that_spans_tokens_comes_as_a_whole(known: Vocabularies, name: str, text: str) -> None:
    ids = known.tools[name].encode(text)
    pieces = known.tools[name].stream(ids)
    assert "".join(pieces) == text and len(pieces) == len(ids) + 1
    assert not any("\ufffd" in piece for piece in pieces)


def test_t7_a_torn_byte_run_at_the_end_of_a_stream(known: Vocabularies) -> None:
    ids = known.tools[LLAMA].encode("🦙")[1:]
    assert len(ids) == 4, "the llama is four bytes"
    for count in (1, 2, 3):
        right = known.llama.decode(ids[:count])
        assert known.tools[LLAMA].stream(ids[:count]) == [""] * count + [right] and "\ufffd" in right
    torn = known.tools[LLAMA3].encode("🦙")[:-1]
    assert "".join(known.tools[LLAMA3].stream(torn)) == known.json[LLAMA3].decode(torn) != ""


@pytest.mark.parametrize("text", ["naïve café 😀", "a  b   c", "  leading", "", " ", "  ", "trailing ", " a "])
def test_t8_round_trips(known: Vocabularies, text: str) -> None:
    assert known.tools[LLAMA].encode(text) == known.llama.encode(text)
    assert known.tools[LLAMA].decode(known.llama.encode(text)) == known.llama.decode(known.llama.encode(text))
    for name, judge in known.json.items():
        right = reference.encode(judge, text, parse_special=False)
        assert known.tools[name].encode(text) == right
        assert known.tools[name].decode(right) == judge.decode(right, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", [LLAMA, SMOLLM2, LLAMA3])
def test_t9_spellings_in_a_persons_text_are_plain(known: Vocabularies, name: str) -> None:
    spelled = {LLAMA: "</s>", SMOLLM2: "<|im_end|>", LLAMA3: "<|eot_id|>"}[name]
    tool, text = known.tools[name], f"say {spelled} now"
    (special,) = tool.encode(spelled, parse_special=True)[-1:]
    assert special not in tool.encode(text) and special in tool.encode(text, parse_special=True)
    assert tool.decode(tool.encode(text), skip_special=True) == text
    if name == LLAMA:
        assert tool.encode(text) == known.llama.encode(text)


@pytest.mark.parametrize(
    ("pieces", "named"),
    [
        ([("<0x-1>", 0.0, 6)], "<0x-1>"),
        ([("<0x1G>", 0.0, 6)], "<0x1G>"),
        ([("same", -1.0, 1), ("same", -2.0, 1)], "same"),
        ([("same", -1.0, 1), ("same", 0.0, 4)], "same"),
    ],
)
def test_t10_tokens_that_cannot_be_are_named(tmp_path: Path, pieces: list[tuple[str, float, int]], named: str) -> None:
    most = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256))]
    content = files.model_file([*most, *pieces], trainer=files.BPE_WITH_BYTES, normalizer=files.LLAMA_RULES)
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(BuddyError) as caught:
        spec = read_sentencepiece_model(tmp_path / "tokenizer.model")
        write_vocab(tmp_path / "t.vocab", spec, abi=ABI, model_id=MODEL_ID)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_t11_the_files_own_bos_setting_wins(known: Vocabularies) -> None:
    metadata = read_gguf(fetch_default_model()).metadata
    assert metadata["tokenizer.ggml.add_bos_token"] is False and "tokenizer.ggml.bos_token_id" in metadata
    ids = known.tools[SMOLLM2].encode("The capital of France is", add_special=True)
    assert ids == [504, 3575, 282, 4649, 314]

"""Special tokens: parsed only where that is asked for, segment by segment; BOS, EOS and end ids by the file."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizers import TokenizerSpec, read_gguf_tokenizer, read_tokenizer_json, write_vocab
from buddy_gen.weights.gguf_file import read_gguf

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextTool


@pytest.fixture(scope="module")
def smollm2_spec() -> TokenizerSpec:
    return read_gguf_tokenizer(fetch_default_model())


@pytest.fixture(scope="module")
def smollm2(smollm2_spec: TokenizerSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextTool]:
    path = tmp_path_factory.mktemp("smollm2") / "smollm2.vocab"
    write_vocab(path, smollm2_spec, abi=ABI, model_id=MODEL_ID)
    with TextTool(path) as tool:
        yield tool


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, TextTool]]:
    folder = tmp_path_factory.mktemp("special")
    tokenizer = reference.train("llama3")
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vocab(folder / "t.vocab", read_tokenizer_json(folder / "tokenizer.json"), abi=ABI, model_id=MODEL_ID)
    with TextTool(folder / "t.vocab") as tool:
        yield tokenizer, tool


def test_text_after_a_special_token_gets_no_space(smollm2: TextTool) -> None:
    parsed = smollm2.encode("<|im_start|>user\nhi<|im_end|>\n", parse_special=True)
    assert parsed == [1, *smollm2.encode("user\nhi"), 2, *smollm2.encode("\n")]
    user, spaced_user = smollm2.encode("user"), smollm2.encode(" user")
    assert len(user) == len(spaced_user) == 1 and user != spaced_user
    assert parsed[1:2] == user


def test_spellings_in_a_persons_text_are_plain(smollm2: TextTool) -> None:
    text = "say </s> or <|im_end|> or <|endoftext|>"
    ids = smollm2.encode(text)
    assert not {0, 1, 2} & set(ids)
    assert smollm2.decode(ids) == smollm2.decode(ids, skip_special=True) == text


def test_skipping_special_tokens(smollm2: TextTool) -> None:
    ids = smollm2.encode("<|im_start|>a<|im_end|>b", parse_special=True)
    assert smollm2.decode(ids) == "<|im_start|>a<|im_end|>b"
    assert smollm2.decode(ids, skip_special=True) == "ab"


def test_the_files_own_bos_setting_wins(smollm2: TextTool, smollm2_spec: TokenizerSpec, tmp_path: Path) -> None:
    """SmolLM2's GGUF says add_bos_token false, though it names a BOS."""
    assert read_gguf(fetch_default_model()).metadata["tokenizer.ggml.add_bos_token"] is False
    assert smollm2.encode("Hi", add_special=True) == smollm2.encode("Hi")
    spec = replace(smollm2_spec, add_bos=True, add_eos=True)
    write_vocab(tmp_path / "t.vocab", spec, abi=ABI, model_id=MODEL_ID)
    with TextTool(tmp_path / "t.vocab") as tool:
        assert tool.encode("Hi", add_special=True) == [1, *tool.encode("Hi"), 2]
        assert tool.encode("", add_special=True) == [1, 2]
        assert tool.encode_segments([("H", True), ("i", False)], add_special=True) == [1, *tool.encode("Hi"), 2]


def test_every_declared_end_id_ends(smollm2_spec: TokenizerSpec, tmp_path: Path) -> None:
    write_vocab(tmp_path / "t.vocab", replace(smollm2_spec, end_ids=(2, 0, 17)), abi=ABI, model_id=MODEL_ID)
    with TextTool(tmp_path / "t.vocab") as tool:
        info = tool.info()
    assert info[:6] == [ABI, MODEL_ID, "49152", "1", "2", "00"]
    assert info[6].split() == ["2", "0", "17"]
    assert info[7:] == ["no chat", "The model has no chat template."]


def test_text_runs_on_across_segments(smollm2: TextTool) -> None:
    chosen = random.Random(5)
    for text in reference.TEXTS:
        cuts = sorted(chosen.randrange(len(text) + 1) for _ in range(3))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        segments = [(part, chosen.random() < 0.5) for part in parts]
        if "<" not in text:
            assert smollm2.encode_segments(segments) == smollm2.encode(text)


def test_segments_are_parsed_each_by_its_own_rule(pair: tuple[Tokenizer, TextTool]) -> None:
    """Special tokens part the text, so between them each segment is what the reference gives for it alone."""
    tokenizer, tool = pair
    for content in reference.random_texts(seed=6, count=800):
        segments = [("<|im_start|>", True), (content, False), ("</s>", True), (content, True), ("<|im_start|>", True)]
        if any(name in content for name in ("<mask>", "<sep>", "é")):
            continue  # these strip what stands beyond their segment
        plain = reference.encode(tokenizer, content, parse_special=False)
        parsed = reference.encode(tokenizer, content, parse_special=True)
        start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("</s>")
        assert tool.encode_segments(segments) == [start, *plain, end, *parsed, start], content


def test_one_side_of_a_border_makes_no_token_with_the_other(smollm2: TextTool) -> None:
    """A person's text that ends as a special token begins neither becomes one nor spoils the template's own."""
    template = "<|im_end|>\n"
    for content in ("<|im", "<", "<|im_end|", "<|im_end|><"):
        ids = smollm2.encode_segments([(content, False), (template, True)])
        assert ids == [*smollm2.encode(content), 2, *smollm2.encode("\n")], content
    ids = smollm2.encode_segments([("<|im_", True), ("end|>", False)])
    assert ids == smollm2.encode("<|im_end|>")
    ids = smollm2.encode_segments([("<|im_", True), ("end|>", True)])
    assert ids == [2]
    assert smollm2.encode_segments([("", False), ("<|im_end|>", True), ("", True), ("", False)]) == [2]
    assert smollm2.encode_segments([]) == []

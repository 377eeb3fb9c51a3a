"""buddy_gen.tokenizer: every kind of file, the same ids as the container's own test program, errors in one sentence."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from buddy_gen import tokenizer
from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizers import read_tokenizer_json, write_vocab

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer_files as files
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID

_BUILT = Path(os.environ.get("BUDDY_BUILD_DIR", "/nonexistent"), "python")
pytestmark = pytest.mark.skipif(not list(_BUILT.glob("_text*.so")), reason="the module is not built")


@pytest.fixture(scope="module")
def json_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("module") / "tokenizer.json"
    reference.train("llama3", size=500, bos=True).save(str(path))
    return path


def test_a_tokenizer_json_and_its_vocab(json_file: Path, tmp_path: Path) -> None:
    library = reference.Tokenizer.from_file(str(json_file))
    write_vocab(tmp_path / "t.vocab", read_tokenizer_json(json_file), abi=ABI, model_id=MODEL_ID)
    for ours in (tokenizer.load(json_file), tokenizer.load(str(tmp_path / "t.vocab"))):
        assert ours.vocab_size == library.get_vocab_size()
        assert (ours.bos_id, ours.eos_id, ours.end_ids) == (library.token_to_id("<s>"), None, [])
        for text in [*reference.TEXTS, *reference.random_texts(seed=71, count=300)]:
            for parse in (False, True):
                right = reference.encode(library, text, parse, add_special=True)
                assert ours.encode(text, add_special=True, parse_special=parse) == right
            assert ours.decode(right, skip_special=True) == library.decode(right)
            stream = ours.stream_decoder()
            assert "".join([*map(stream.push, right), stream.finish()]) == ours.decode(right)


def test_the_config_beside_it_says_whether_bos_is_added(json_file: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(json_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    ours = tokenizer.load(tmp_path / "tokenizer.json")
    assert ours.encode("a", add_special=True) == ours.encode("a")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(BuddyError, match=r"tokenizer_config\.json"):
        tokenizer.load(tmp_path / "tokenizer.json")


def test_a_gguf() -> None:
    ours = tokenizer.load(fetch_default_model())
    assert ours.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert ours.encode_segments([("<|im_start|>", True), ("<|im_start|>", False)])[0] == 1
    assert ours.token_bytes(1) == b"<|im_start|>" and ours.is_special(1) and ours.end_ids == [2]


def test_a_sentencepiece_model(tmp_path: Path) -> None:
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), *((f"<0x{b:02X}>", 0.0, 6) for b in range(256))]
    pieces += [("▁", -1.0, 1), ("a", -2.0, 1), ("▁a", -3.0, 1)]
    content = files.model_file(pieces, trainer=files.BPE_WITH_BYTES, normalizer=files.LLAMA_RULES)
    (tmp_path / "tokenizer.model").write_bytes(content)
    ours = tokenizer.load(tmp_path / "tokenizer.model")
    assert ours.encode("a a", add_special=True) == [1, 261, 261]
    assert ours.decode([1, 261, 261], skip_special=True) == "a a"


def test_what_can_not_be_loaded(json_file: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    for content in (
        b"",
        b"BUDDYVOC",
        b"GGUF",
        b"{",
        b"{}",
        b'{"config": {"default_num_special_tokens": 1}}',
        b"\xff" * 9,
    ):
        damaged.write_bytes(content)
        with pytest.raises(BuddyError) as caught:
            tokenizer.load(damaged)
        assert "damaged" in str(caught.value) and "\n" not in str(caught.value)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(BuddyError, match="cannot be read"):
            tokenizer.load(missing)
    ours = tokenizer.load(json_file)
    for ids in ([2**31], ["a"], [None]):
        with pytest.raises(BuddyError, match="is not a token id"):
            ours.decode(ids)  # type: ignore[arg-type]
    assert ours.decode([-1, 10**9]) == ""
    assert ours.encode("\ud800a") == ours.encode("\ud800a")

"""Real models' tokenizers, on real text in many scripts and random Unicode: the same ids and the same text.

Each is compared on 5,000 random strings and the translated texts; BUDDY_TOKENIZER_STRINGS sets another number (the
nightly run's is 200,000).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers import pre_tokenizers as pre

from buddy_gen.tokenizers import TokenizerSpec, read_tekken, read_tokenizer_json, write_vocab

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer_files as files
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextTool

pytestmark = pytest.mark.slow
STRINGS = int(os.environ.get("BUDDY_TOKENIZER_STRINGS", "5000"))


def _texts(spec: TokenizerSpec, seed: int) -> Iterator[str]:
    yield from reference.TEXTS
    yield from files.translations()[:: 1 if STRINGS > 5000 else 8]
    yield reference.every_class_border()
    chosen = random.Random(seed)
    added = [token.content for token in spec.added]
    for text in reference.random_texts(seed, STRINGS):
        cut = chosen.randrange(len(text) + 1)
        yield text[:cut] + chosen.choice(added) + text[cut:] if added and chosen.random() < 0.3 else text


# Llama 3.1 has the vocabulary of Llama 3: one of the two is enough by day.
_NAMES = [name for name in (*files.JSON_FILES, "minilm") if STRINGS > 5000 or name != "llama3"]


@pytest.mark.parametrize("name", _NAMES)
def test_tokenizer_json(name: str, tmp_path: Path) -> None:
    path = files.minilm_json() if name == "minilm" else files.tokenizer_json(name)
    library = Tokenizer.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    spec = read_tokenizer_json(path)
    write_vocab(tmp_path / "t.vocab", spec, abi=ABI, model_id=MODEL_ID)
    chosen = random.Random(61)
    with TextTool(tmp_path / "t.vocab") as tool:
        for number, text in enumerate(_texts(spec, seed=62)):
            parse_special = number % 2 == 1
            right = reference.encode(library, text, parse_special, add_special=True)
            assert tool.encode(text, add_special=True, parse_special=parse_special) == right, text
            skip = number % 3 == 0
            assert tool.decode(right, skip) == library.decode(right, skip_special_tokens=skip), text
        for _ in range(STRINGS // 5):
            ids = [chosen.randrange(library.get_vocab_size()) for _ in range(chosen.randrange(9))]
            right = library.decode(ids, skip_special_tokens=False)
            assert tool.decode(ids) == "".join(tool.stream(ids)) == right, ids


def _merged(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's algorithm, as slow as it is plain."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not pairs:
            return [ranks[part] for part in parts]
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(name: str, tmp_path: Path) -> None:
    """Against tiktoken's algorithm on the pieces that the pattern cuts in `tokenizers`' regex engine."""
    path = files.mistral(name)
    tokens, pattern = files.tekken_reference(path)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    cutter = pre.Split(Regex(pattern), "isolated")
    spec = read_tekken(path)
    assert (spec.bos_id, spec.eos_id, spec.add_bos, len(spec.tokens)) == (1, 2, True, 131072)
    write_vocab(tmp_path / "t.vocab", spec, abi=ABI, model_id=MODEL_ID)
    with TextTool(tmp_path / "t.vocab") as tool:
        for text in [*reference.TEXTS, *files.translations()[::8], *reference.random_texts(63, STRINGS)]:
            pieces = [piece for piece, _ in cutter.pre_tokenize_str(text)]
            right = [1000 + rank for piece in pieces for rank in _merged(piece.encode(), ranks)]
            assert tool.encode(text) == right, text
            assert tool.decode(right) == text
        assert tool.encode("[INST] hi", parse_special=True)[0] == 3

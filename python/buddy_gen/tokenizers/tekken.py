"""Mistral's tekken.json: byte-level BPE whose tokens' ranks are its merges."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.json_pipeline import PATTERN_TEXTS
from buddy_gen.tokenizers.spec import (
    AddedToken,
    SplitPattern,
    Step,
    StepKind,
    TokenizerKind,
    TokenizerSpec,
    TokenType,
    UnsupportedTokenizerError,
)

__all__ = ["read_tekken"]

# What files without a list of special tokens (versions up to v7) have: those of mistral-common, from id 0.
_DEFAULT_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_tekken(path: Path, *, end_ids: Sequence[int] = ()) -> TokenizerSpec:
    """The tokenizer in a tekken.json. BOS is added, as in Mistral's models, EOS is not.

    Raises UnsupportedTokenizerError for a pattern that is not tekken's, BuddyError when the file is damaged.
    """
    source = str(path)
    try:
        content = json.loads(path.read_text("utf-8"))
        config = content["config"]
        size, special_count = int(config["default_vocab_size"]), int(config["default_num_special_tokens"])
        pattern = config["pattern"]
        if not 0 <= special_count <= size <= 2**24:
            raise BuddyError(f"{source}: {special_count} special tokens of {size} cannot be.")
        ordinary = _ordinary(content["vocab"], size - special_count, source)
        special = _special(content.get("special_tokens"), special_count, source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise BuddyError(f"{source} cannot be read as a tekken.json: {type(error).__name__} {error}.") from None
    if pattern != PATTERN_TEXTS[SplitPattern.TEKKEN]:
        raise UnsupportedTokenizerError(f"{source}: the pattern {pattern!r} is not supported, only tekken's own.")
    merges, ranks = _merges(ordinary, special_count)
    ids = {spelling: index for index, spelling in enumerate(special)}
    bos, eos = ids.get("<s>"), ids.get("</s>")
    return TokenizerSpec(
        kind=TokenizerKind.BYTE_LEVEL_BPE,
        tokens=[*(spelling.encode() for spelling in special), *ordinary],
        types=[TokenType.CONTROL] * special_count + [TokenType.NORMAL] * len(ordinary),
        in_model=[False] * special_count + [True] * len(ordinary),
        merges=merges,
        merge_ranks=ranks,
        added=[AddedToken(index, spelling, special=True) for spelling, index in ids.items()],
        steps=(Step(StepKind.PATTERN, SplitPattern.TEKKEN),),
        bos_id=bos,
        eos_id=eos,
        add_bos=bos is not None,
        ignore_merges=True,  # as tiktoken does: a piece that is a token becomes it
        end_ids=tuple(dict.fromkeys(end_ids)) or ((eos,) if eos is not None else ()),
        special_tokens={name: spelling for name, spelling in _NAMES.items() if spelling in ids},
    )


def _ordinary(vocab: Sequence[Any], count: int, source: str) -> list[bytes]:
    tokens = [base64.b64decode(entry["token_bytes"], validate=True) for entry in vocab[:count]]
    seen: dict[bytes, int] = {}
    for rank, (entry, token) in enumerate(zip(vocab, tokens, strict=False)):
        if entry["rank"] != rank or not token:
            raise BuddyError(f"{source}: the token of rank {entry['rank']!r} stands at {rank}, or is empty.")
        if seen.setdefault(token, rank) != rank:
            raise BuddyError(f"{source}: the token {token!r} stands there twice, as {seen[token]} and {rank}.")
    if len(tokens) != count or not all(bytes([byte]) in seen for byte in range(256)):
        raise BuddyError(f"{source}: it holds {len(tokens)} tokens of {count}, or not all 256 bytes are tokens.")
    return tokens


def _special(entries: Sequence[Any] | None, count: int, source: str) -> list[str]:
    known = dict(enumerate(_DEFAULT_SPECIAL))
    if entries is not None:
        known = {entry["rank"]: entry["token_str"] for entry in entries}
    spelled = [known.get(index, f"<SPECIAL_{index}>") for index in range(count)]
    if len(set(spelled)) != count or not set(known) <= set(range(count)) or "" in spelled:
        raise BuddyError(f"{source}: its special tokens are not {count} different ones.")
    return spelled


def _merges(tokens: Sequence[bytes], offset: int) -> tuple[list[tuple[int, int, int]], list[int]]:
    """All pairs of tokens that make a token; the rank is that of the result."""
    ids = {token: index for index, token in enumerate(tokens)}
    merges, ranks = [], []
    for rank, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges.append((left + offset, right + offset, rank + offset))
                ranks.append(rank)
    return merges, ranks

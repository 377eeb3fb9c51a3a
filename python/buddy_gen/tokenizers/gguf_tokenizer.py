"""The tokenizer inside a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.sentencepiece_model import PieceModel, check_charsmap, spec_of_pieces
from buddy_gen.tokenizers.spec import (
    AddedToken,
    NormalizerKind,
    NormalizerStep,
    SentencePieceRules,
    SplitPattern,
    Step,
    StepKind,
    TokenizerKind,
    TokenizerSpec,
    TokenType,
    UnsupportedTokenizerError,
    byte_level_bpe,
)
from buddy_gen.weights.gguf_file import read_gguf

__all__ = ["read_gguf_tokenizer", "tokenizer_from_gguf_metadata"]

_KEY = "tokenizer.ggml."


@dataclass(frozen=True)
class _PreTokenizer:
    """What a value of tokenizer.ggml.pre stands for."""

    steps: tuple[Step, ...]
    ignore_merges: bool = False
    add_bos: bool = False  # when the file does not say
    normalizers: tuple[NormalizerStep, ...] = ()


_GPT2 = Step(StepKind.PATTERN, SplitPattern.GPT2)
_DIGITS_THEN_GPT2 = _PreTokenizer((Step(StepKind.DIGITS, 1), _GPT2))
_PATTERN_ONLY = {
    pattern: (Step(StepKind.PATTERN, pattern),)
    for pattern in (SplitPattern.QWEN2, SplitPattern.O200K, SplitPattern.TEKKEN)
}
_LLAMA3 = _PreTokenizer((Step(StepKind.PATTERN, SplitPattern.LLAMA3),), ignore_merges=True, add_bos=True)

_DEEPSEEK_V3 = (SplitPattern.NUMBERS_UP_TO_3, SplitPattern.CJK_RUNS, SplitPattern.DEEPSEEK_V3)

# A GGUF holds no normaliser: where the models of a kind have one, it stands here.
_PRE_TOKENIZERS = {
    "gpt-2": _PreTokenizer((_GPT2,)),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _PreTokenizer(_PATTERN_ONLY[SplitPattern.QWEN2], normalizers=(NormalizerStep(NormalizerKind.NFC),)),
    "deepseek-v3": _PreTokenizer(tuple(Step(StepKind.PATTERN, pattern) for pattern in _DEEPSEEK_V3)),
    "tekken": _PreTokenizer(_PATTERN_ONLY[SplitPattern.TEKKEN], ignore_merges=True, add_bos=True),
    "gpt-4o": _PreTokenizer(_PATTERN_ONLY[SplitPattern.O200K], ignore_merges=True),
}
_PIECE_MODELS = {"llama": TokenizerKind.SENTENCEPIECE_BPE, "t5": TokenizerKind.SENTENCEPIECE_UNIGRAM}
_SPECIAL_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_tokenizer(path: Path) -> TokenizerSpec:
    """The tokenizer of a GGUF file.

    Raises UnsupportedTokenizerError when it is not supported, BuddyError when there is none or it is damaged.
    """
    return tokenizer_from_gguf_metadata(read_gguf(path).metadata, str(path))


def tokenizer_from_gguf_metadata(metadata: Mapping[str, Any], source: str) -> TokenizerSpec:
    """The tokenizer that a GGUF's `metadata` holds; `source` names the file in messages."""
    if metadata.get(f"{_KEY}model") in _PIECE_MODELS:
        return _piece_tokenizer(metadata, _PIECE_MODELS[metadata[f"{_KEY}model"]], source)
    pre = _pre_tokenizer(metadata, source)
    contents = _list(metadata, "tokens", str, source)
    kinds = _token_types(metadata, len(contents), source)
    vocabulary: dict[str, int] = {}
    for index, content in enumerate(contents):
        if vocabulary.setdefault(content, index) != index:
            raise BuddyError(
                f"{source}: the token {content!r} stands there twice, as {vocabulary[content]} and {index}."
            )
    added = [
        AddedToken(i, contents[i], special=kind != TokenType.USER_DEFINED, normalized=kind == TokenType.USER_DEFINED)
        for i, kind in enumerate(kinds)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
    merges = [_merge(text, source) for text in _list(metadata, "merges", str, source)]
    ids = {name: _id(metadata, f"{name}_token_id", len(contents), source) for name in _SPECIAL_NAMES}
    ends = (_id(metadata, key, len(contents), source) for key in _END_KEYS)
    fields = byte_level_bpe(vocabulary, merges, added, types=dict(enumerate(kinds)), source=source)
    return TokenizerSpec(
        kind=TokenizerKind.BYTE_LEVEL_BPE,
        steps=pre.steps,
        normalizers=pre.normalizers,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        # Not unknown_token_id: byte-level BPE never uses it, neither in llama.cpp nor in the models' own files.
        unknown_id=None,
        add_bos=_flag(metadata, "add_bos_token", pre.add_bos, source) and ids["bos"] is not None,
        add_eos=_flag(metadata, "add_eos_token", False, source) and ids["eos"] is not None,
        ignore_merges=pre.ignore_merges,
        end_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        special_tokens={_SPECIAL_NAMES[name]: contents[token] for name, token in ids.items() if token is not None},
        **fields,  # type: ignore[arg-type]
    )


def _piece_tokenizer(metadata: Mapping[str, Any], kind: TokenizerKind, source: str) -> TokenizerSpec:
    """A SentencePiece model. Where the file does not say how it normalises, LLaMA's rules hold, or T5's."""
    pieces = _list(metadata, "tokens", str, source)
    types = _token_types(metadata, len(pieces), source)
    scores = _list(metadata, "scores", float, source)
    if len(scores) != len(pieces):
        raise BuddyError(f"{source}: there are {len(pieces)} tokens but {len(scores)} scores.")
    charsmap = metadata.get(f"{_KEY}precompiled_charsmap", b"")
    ids = {name: _id(metadata, f"{name}_token_id", len(pieces), source) for name in _SPECIAL_NAMES}
    ends = (_id(metadata, key, len(pieces), source) for key in _END_KEYS)
    is_bpe = kind == TokenizerKind.SENTENCEPIECE_BPE
    model = PieceModel(
        kind=kind,
        pieces=pieces,
        scores=scores,
        types=types,
        byte_fallback=TokenType.BYTE in types,
        rules=SentencePieceRules(
            add_dummy_prefix=_flag(metadata, "add_space_prefix", True, source),
            remove_extra_spaces=_flag(metadata, "remove_extra_whitespaces", not is_bpe, source),
            escape_spaces=True,
            charsmap=check_charsmap(bytes(charsmap), source),
        ),
    )
    return spec_of_pieces(
        model,
        source,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        add_bos=_flag(metadata, "add_bos_token", is_bpe, source) and ids["bos"] is not None,
        add_eos=_flag(metadata, "add_eos_token", not is_bpe, source) and ids["eos"] is not None,
        end_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        special_tokens={_SPECIAL_NAMES[name]: pieces[token] for name, token in ids.items() if token is not None},
    )


def _pre_tokenizer(metadata: Mapping[str, Any], source: str) -> _PreTokenizer:
    model = metadata.get(f"{_KEY}model")
    if model is None:
        raise BuddyError(f"{source} holds no tokenizer.")
    if model != "gpt2":
        raise UnsupportedTokenizerError(
            f"{source}: tokenizers of the kind {model!r} are not supported, only 'gpt2', 'llama' and 't5'."
        )
    name = metadata.get(f"{_KEY}pre")
    if not isinstance(name, str) or name not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        said = "no pre-tokenizer is named" if name is None else f"the pre-tokenizer {name!r} is not supported"
        raise UnsupportedTokenizerError(
            f"{source}: {said} (tokenizer.ggml.pre), and guessing would give wrong ids; known: {known}."
        )
    return _PRE_TOKENIZERS[name]


def _list(metadata: Mapping[str, Any], key: str, kind: type, source: str) -> Sequence[Any]:
    values = metadata.get(_KEY + key)
    if not isinstance(values, Sequence) or not all(isinstance(value, kind) for value in values):
        raise BuddyError(f"{source}: {_KEY}{key} is missing or damaged.")
    return values


def _token_types(metadata: Mapping[str, Any], count: int, source: str) -> list[TokenType]:
    values = _list(metadata, "token_type", int, source) if f"{_KEY}token_type" in metadata else [1] * count
    if len(values) != count:
        raise BuddyError(f"{source}: there are {count} tokens but {len(values)} token types.")
    try:
        return [TokenType(value) for value in values]
    except ValueError as error:
        raise BuddyError(f"{source}: {error} (tokenizer.ggml.token_type).") from None


def _merge(text: str, source: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        raise BuddyError(f"{source}: the merge {text!r} is not two tokens with a space between them.")
    return left, right


def _id(metadata: Mapping[str, Any], key: str, count: int, source: str) -> int | None:
    value = metadata.get(_KEY + key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < count:
        raise BuddyError(f"{source}: {_KEY}{key} is {value!r}, which is not one of its {count} tokens.")
    return value


def _flag(metadata: Mapping[str, Any], key: str, default: bool, source: str) -> bool:
    value = metadata.get(_KEY + key, default)
    if not isinstance(value, bool):
        raise BuddyError(f"{source}: {_KEY}{key} is {value!r}, neither true nor false.")
    return value

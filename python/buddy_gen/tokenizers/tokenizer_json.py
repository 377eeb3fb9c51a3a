"""The tokenizer in a tokenizer.json, the format of the `tokenizers` library.

Every part is compared with what the container can do exactly; anything else is named and refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.spec import (
    AddedToken,
    SplitPattern,
    Step,
    StepKind,
    TokenizerKind,
    TokenizerSpec,
    UnsupportedTokenizerError,
    byte_level_bpe,
)

__all__ = ["read_tokenizer_json"]

# Compared as strings: a regex that is written otherwise may mean something else.
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+": SplitPattern.GPT2,
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}": SplitPattern.LLAMA3,
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}": SplitPattern.QWEN2,
    r"\p{N}{1,3}": SplitPattern.NUMBERS_UP_TO_3,
}
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer_json(
    path: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    end_ids: Sequence[int] = (),
    bos_id: int | None = None,
) -> TokenizerSpec:
    """The tokenizer in `path`.

    `settings` is the content of tokenizer_config.json, where special tokens have their names and add_bos_token and
    add_eos_token, when they are there, overrule the file's own post-processor, as in transformers. `bos_id` is taken
    when neither names a BOS. Raises BuddyError when the file is damaged, UnsupportedTokenizerError when
    it asks for what is not supported.
    """
    source = str(path)
    content = _read(path)
    _check_normalizer(content.get("normalizer"), source)
    steps = _steps(content.get("pre_tokenizer"), source)
    decoder = content.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        raise UnsupportedTokenizerError(f"{source}: the decoder {_type(decoder)} is not supported yet, only ByteLevel.")
    model = _model(content.get("model"), source)
    vocabulary: dict[str, int] = model["vocab"]
    added = [_added_token(entry, source) for entry in content.get("added_tokens") or []]
    prefix, suffix = _post_processor(content.get("post_processor"), source)

    settings = settings or {}
    named = _special_tokens(settings)
    ids = vocabulary | {token.content: token.id for token in added}
    bos = _first(prefix, ids.get(named.get("bos_token", "")), bos_id)
    eos = _first(suffix, ids.get(named.get("eos_token", "")), end_ids[0] if end_ids else None)
    unknown = model.get("unk_token")
    if unknown is not None and unknown not in vocabulary:
        raise BuddyError(f"{source}: the unknown token {unknown!r} is not in the vocabulary.")
    merges = [_merge(entry, source) for entry in model["merges"]]
    fields = byte_level_bpe(vocabulary, merges, added, size=max(end_ids, default=-1) + 1, source=source)
    return TokenizerSpec(
        kind=TokenizerKind.BYTE_LEVEL_BPE,
        steps=steps,
        bos_id=bos,
        eos_id=eos,
        unknown_id=vocabulary[unknown] if unknown is not None else None,
        add_bos=_overruled(settings.get("add_bos_token"), prefix is not None) and bos is not None,
        add_eos=_overruled(settings.get("add_eos_token"), suffix is not None) and eos is not None,
        ignore_merges=bool(model.get("ignore_merges")),
        fuse_unknown=bool(model.get("fuse_unk")),
        end_ids=tuple(dict.fromkeys(end_ids)) or ((eos,) if eos is not None else ()),
        special_tokens=named,
        **fields,  # type: ignore[arg-type]
    )


def _first(*candidates: int | None) -> int | None:
    return next((token for token in candidates if token is not None), None)


def _overruled(setting: Any, own: bool) -> bool:
    return setting if isinstance(setting, bool) else own


def _type(part: Any) -> str:
    return repr(part.get("type")) if isinstance(part, dict) else repr(part)


def _read(path: Path) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in result if keys.count(key) > 1)
            raise BuddyError(f"{path}: {twice!r} stands there twice.")
        return result

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
    except (OSError, ValueError, RecursionError) as error:
        raise BuddyError(f"{path} cannot be read as a tokenizer.json: {error}.") from None
    if not isinstance(content, dict):
        raise BuddyError(f"{path} is not a tokenizer.json: it holds no object.")
    return content


def _check_normalizer(normalizer: Any, source: str) -> None:
    if normalizer is None or normalizer == {"type": "Sequence", "normalizers": []}:
        return
    raise UnsupportedTokenizerError(f"{source}: the normaliser {_type(normalizer)} is not supported yet.")


def _steps(pre_tokenizer: Any, source: str) -> list[Step]:
    parts = [pre_tokenizer]
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        parts = pre_tokenizer.get("pretokenizers") or []
    steps: list[Step] = []
    for position, part in enumerate(parts):
        if _type(part) == "'ByteLevel'" and position != len(parts) - 1:
            raise UnsupportedTokenizerError(f"{source}: a pre-tokenizer after ByteLevel is not supported.")
        steps += _part_steps(part, source)
    if not parts or _type(parts[-1]) != "'ByteLevel'":
        raise UnsupportedTokenizerError(f"{source}: only pre-tokenizers that end with ByteLevel are supported yet.")
    return steps


def _part_steps(part: Any, source: str) -> list[Step]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "Digits":
        return [Step(StepKind.DIGITS, int(bool(part.get("individual_digits"))))]
    if kind == "ByteLevel":
        prefix = [Step(StepKind.PREFIX_SPACE)] if part.get("add_prefix_space") else []
        return prefix + ([Step(StepKind.PATTERN, SplitPattern.GPT2)] if part.get("use_regex", True) else [])
    if kind != "Split":
        raise UnsupportedTokenizerError(f"{source}: the pre-tokenizer {_type(part)} is not supported yet.")
    regex = part["pattern"].get("Regex") if isinstance(part.get("pattern"), dict) else None
    if regex not in _PATTERNS or part.get("behavior") != "Isolated" or part.get("invert"):
        raise UnsupportedTokenizerError(
            f"{source}: the Split pre-tokenizer with {part.get('pattern')!r} is not supported yet."
        )
    return [Step(StepKind.PATTERN, _PATTERNS[regex])]


def _model(model: Any, source: str) -> dict[str, Any]:
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise UnsupportedTokenizerError(
            f"{source}: the model {_type(model)} is not supported yet, only byte-level BPE."
        )
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise UnsupportedTokenizerError(f"{source}: BPE with {option} = {model[option]!r} is not supported.")
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not all(type(index) is int for index in vocabulary.values()):
        raise BuddyError(f"{source}: the model's vocabulary is missing or damaged.")
    if not isinstance(merges, list):
        raise BuddyError(f"{source}: the model's merges are missing or damaged.")
    return model


def _merge(entry: Any, source: str) -> tuple[str, str]:
    parts = entry.split(" ") if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise BuddyError(f"{source}: the merge {entry!r} is not a pair of tokens.")
    return parts[0], parts[1]


def _added_token(entry: Any, source: str) -> AddedToken:
    if not isinstance(entry, dict) or type(entry.get("id")) is not int or not isinstance(entry.get("content"), str):
        raise BuddyError(f"{source}: the added token {entry!r} has no id or no content.")
    options = {name: bool(entry.get(name)) for name in ("special", "lstrip", "rstrip", "single_word", "normalized")}
    return AddedToken(entry["id"], entry["content"], **options)


def _post_processor(post: Any, source: str) -> tuple[int | None, int | None]:
    """The ids that the post-processor puts before and after a text."""
    if post is None or _type(post) == "'ByteLevel'":  # the latter only trims offsets
        return None, None
    if _type(post) == "'Sequence'":
        ends = [_post_processor(part, source) for part in post.get("processors") or []]
        wrapping = [end for end in ends if end != (None, None)]
        if len(wrapping) > 1:
            raise UnsupportedTokenizerError(f"{source}: a post-processor that adds tokens twice is not supported.")
        return wrapping[0] if wrapping else (None, None)
    if _type(post) != "'TemplateProcessing'":
        raise UnsupportedTokenizerError(f"{source}: the post-processor {_type(post)} is not supported yet.")
    before: list[int] = []
    after: list[int] = []
    side = before
    for item in post.get("single") or []:
        if "Sequence" in item:
            side = after
            continue
        name = item["SpecialToken"]["id"]
        side += post["special_tokens"][name]["ids"]
    if side is before or len(before) > 1 or len(after) > 1:
        raise UnsupportedTokenizerError(
            f"{source}: a post-processor that adds more than one BOS and one EOS is not supported yet."
        )
    return (before[0] if before else None), (after[0] if after else None)


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found

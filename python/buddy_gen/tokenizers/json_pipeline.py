"""What stands around the model in a tokenizer.json: normaliser, pre-tokenizer, decoder and post-processor.

Every part is compared with what the container can do exactly; anything else is named and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.spec import (
    DecodeStyle,
    NormalizerKind,
    NormalizerStep,
    SplitPattern,
    Step,
    StepKind,
    UnsupportedTokenizerError,
)

__all__ = ["Decoding", "pre_tokenizer_steps", "read_decoder", "read_normalizer", "read_post_processor", "type_of"]

# Compared as strings: a regex that is written otherwise may mean something else.
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_BLANKS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _BLANKS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"


def _cased(contractions: str, digits: str) -> str:
    words = f"{_PREFIX}{_UPPER}*{_LOWER}+{contractions}|{_PREFIX}{_UPPER}+{_LOWER}*{contractions}"
    return rf"{words}|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _BLANKS


_DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    + "\r\n"
    + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    + "\r\n"
    + r"]*|\s*["
    + "\r\n"
    + r"]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+": SplitPattern.GPT2,
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}": SplitPattern.LLAMA3,
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}": SplitPattern.QWEN2,
    r"\p{N}{1,3}": SplitPattern.NUMBERS_UP_TO_3,
    _cased(f"(?i:{_CONTRACTIONS})?", "{1,3}"): SplitPattern.O200K,
    _cased("", ""): SplitPattern.TEKKEN,
    "[一-龥\u3040-ゟ゠-ヿ]+": SplitPattern.CJK_RUNS,
    _DEEPSEEK: SplitPattern.DEEPSEEK_V3,
}
PATTERN_TEXTS = {pattern: text for text, pattern in _PATTERNS.items()}
_BEHAVIORS = {"Removed": 0, "Isolated": 1, "MergedWithPrevious": 2, "MergedWithNext": 3, "Contiguous": 4}
_WHITESPACES = {"Whitespace": 0, "WhitespaceSplit": 1, "BertPreTokenizer": 2}
_PREPEND_SCHEMES = {"never": 0, "first": 1, "always": 2}
_SIMPLE_NORMALIZERS = {
    "NFC": NormalizerKind.NFC,
    "NFD": NormalizerKind.NFD,
    "NFKC": NormalizerKind.NFKC,
    "NFKD": NormalizerKind.NFKD,
    "Lowercase": NormalizerKind.LOWERCASE,
    "StripAccents": NormalizerKind.STRIP_ACCENTS,
}


def type_of(part: Any) -> str:
    """The type of a part for a message."""
    return repr(part.get("type")) if isinstance(part, dict) else repr(part)


def _name(part: Any) -> str | None:
    name = part.get("type") if isinstance(part, dict) else None
    return name if isinstance(name, str) else None


def _unrolled(part: Any, key: str, source: str) -> list[Any]:
    """The parts of a Sequence, of Sequences in it too; of None, none."""
    if part is None:
        return []
    if _name(part) != "Sequence":
        return [part]
    parts = part.get(key)
    if not isinstance(parts, list):
        raise BuddyError(f"{source}: the {key} of a 'Sequence' are {parts!r}, not a list.")
    return [inner for entry in parts for inner in _unrolled(entry, key, source)]


def _text(part: Mapping[str, Any], key: str, source: str) -> str:
    value = part.get(key)
    if not isinstance(value, str) or not value:
        raise BuddyError(f"{source}: the {key} of {type_of(part)} is {value!r}, not a text.")
    return value


# --- Normaliser ------------------------------------------------------------------------------------------------------


def read_normalizer(normalizer: Any, source: str) -> list[NormalizerStep]:
    """The steps of a normaliser."""
    return [_normalizer_step(part, source) for part in _unrolled(normalizer, "normalizers", source)]


def _normalizer_step(part: Any, source: str) -> NormalizerStep:
    name = _name(part)
    if name in _SIMPLE_NORMALIZERS:
        return NormalizerStep(_SIMPLE_NORMALIZERS[name])
    if name == "Prepend":
        return NormalizerStep(NormalizerKind.PREPEND, text=_text(part, "prepend", source))
    if name == "Strip":
        sides = bool(part.get("strip_left", True)) | bool(part.get("strip_right", True)) << 1
        return NormalizerStep(NormalizerKind.STRIP, sides)
    if name == "BertNormalizer":
        accents = part.get("strip_accents")
        lower = bool(part.get("lowercase", True))
        flags = bool(part.get("clean_text", True)) | bool(part.get("handle_chinese_chars", True)) << 1
        flags |= (lower if accents is None else bool(accents)) << 2 | lower << 3
        return NormalizerStep(NormalizerKind.BERT, flags)
    if name == "Replace":
        pattern, content = part.get("pattern"), part.get("content")
        if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and isinstance(content, str):
            return NormalizerStep(NormalizerKind.REPLACE, text=_text(pattern, "String", source), other=content)
        raise UnsupportedTokenizerError(
            f"{source}: the normaliser 'Replace' with the pattern {pattern!r} is not supported, only strings."
        )
    raise UnsupportedTokenizerError(f"{source}: the normaliser {type_of(part)} is not supported yet.")


# --- Pre-tokenizer ---------------------------------------------------------------------------------------------------


def pre_tokenizer_steps(pre_tokenizer: Any, source: str) -> tuple[list[Step], bool]:
    """The steps of a pre-tokenizer, and whether it ends by turning text into bytes (ByteLevel)."""
    parts = _unrolled(pre_tokenizer, "pretokenizers", source)
    steps: list[Step] = []
    for position, part in enumerate(parts):
        if _name(part) == "ByteLevel" and position != len(parts) - 1:
            raise UnsupportedTokenizerError(f"{source}: a pre-tokenizer after ByteLevel is not supported.")
        steps += _part_steps(part, source)
    return steps, bool(parts) and _name(parts[-1]) == "ByteLevel"


def _part_steps(part: Any, source: str) -> list[Step]:
    name = _name(part)
    if name == "Digits":
        return [Step(StepKind.DIGITS, int(bool(part.get("individual_digits"))))]
    if name == "ByteLevel":
        prefix = [Step(StepKind.PREFIX_SPACE)] if part.get("add_prefix_space") else []
        return prefix + ([Step(StepKind.PATTERN, SplitPattern.GPT2)] if part.get("use_regex", True) else [])
    if name in _WHITESPACES:
        return [Step(StepKind.WHITESPACE, _WHITESPACES[name])]
    if name == "Punctuation":
        return [Step(StepKind.PUNCTUATION, _behavior(part, source))]
    if name == "CharDelimiterSplit":
        return [Step(StepKind.TEXT, _BEHAVIORS["Removed"], _text(part, "delimiter", source))]
    if name == "Metaspace":
        return [_metaspace(part, source)]
    if name == "Split":
        return [_split(part, source)]
    raise UnsupportedTokenizerError(f"{source}: the pre-tokenizer {type_of(part)} is not supported yet.")


def _behavior(part: Mapping[str, Any], source: str) -> int:
    behavior = part.get("behavior", "Isolated")
    if behavior not in _BEHAVIORS:
        raise UnsupportedTokenizerError(f"{source}: the behaviour {behavior!r} of {type_of(part)} is not supported.")
    return _BEHAVIORS[behavior]


def _metaspace(part: Mapping[str, Any], source: str) -> Step:
    scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
    if scheme not in _PREPEND_SCHEMES:
        raise UnsupportedTokenizerError(f"{source}: the prepend_scheme {scheme!r} of 'Metaspace' is not supported.")
    flags = _PREPEND_SCHEMES[scheme] | bool(part.get("split", True)) << 2
    return Step(StepKind.METASPACE, flags, _text(part, "replacement", source))


def _split(part: Mapping[str, Any], source: str) -> Step:
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and not part.get("invert"):
        if "String" in pattern:
            return Step(StepKind.TEXT, _behavior(part, source), _text(pattern, "String", source))
        if pattern.get("Regex") in _PATTERNS and part.get("behavior") == "Isolated":
            return Step(StepKind.PATTERN, _PATTERNS[pattern["Regex"]])
    raise UnsupportedTokenizerError(
        f"{source}: the Split pre-tokenizer with {pattern!r} (behavior {part.get('behavior')!r}, invert "
        f"{part.get('invert')!r}) is not supported yet."
    )


# --- Decoder ---------------------------------------------------------------------------------------------------------

_CLEANUPS = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


@dataclass(frozen=True)
class Decoding:
    """How a decoder turns a token's spelling into its text, and into that of a first token where it differs."""

    style: DecodeStyle
    argument: int = 0
    text: Callable[[str], str] = str
    first_text: Callable[[str], str] | None = None
    takes_bytes: bool = False
    """Tokens that are spelled like <0x0A> become bytes."""


def read_decoder(decoder: Any, source: str) -> Decoding:
    """What a decoder does. Raises UnsupportedTokenizerError where the container can't do it exactly."""
    name = _name(decoder)
    if name == "ByteLevel":
        return Decoding(DecodeStyle.BYTES)
    if name == "WordPiece":
        return _word_piece_decoding(decoder)
    if name == "Metaspace":
        return _metaspace_decoding(decoder, source)
    if decoder is not None:
        return _fused_decoding(_unrolled(decoder, "decoders", source), source)
    raise UnsupportedTokenizerError(f"{source}: the decoder None is not supported.")


def _word_piece_decoding(decoder: Mapping[str, Any]) -> Decoding:
    prefix, cleans = str(decoder.get("prefix", "##")), bool(decoder.get("cleanup", True))

    def first(token: str) -> str:
        for before, after in _CLEANUPS if cleans else ():
            token = token.replace(before, after)
        return token

    def later(token: str) -> str:
        return first(token.removeprefix(prefix) if token.startswith(prefix) else f" {token}")

    return Decoding(DecodeStyle.FIRST_DIFFERS, text=later, first_text=first)


def _metaspace_decoding(decoder: Mapping[str, Any], source: str) -> Decoding:
    replacement = _text(decoder, "replacement", source)
    keeps = _metaspace(decoder, source).argument & 3 == 0
    return Decoding(
        DecodeStyle.FIRST_DIFFERS,
        text=lambda token: token.replace(replacement, " "),
        first_text=lambda token: token.replace(replacement, " " if keeps else ""),
    )


def _fused_decoding(parts: Sequence[Any], source: str) -> Decoding:
    """Replace*, ByteFallback?, Fuse?, Strip?: what Llama's and Gemma's decoders consist of."""
    replacements: list[tuple[str, str]] = []
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    names = [_name(part) or "" for part in parts]
    places = [order.get(name, -1) for name in names]
    strip = parts[-1] if names and names[-1] == "Strip" else None
    plain = -1 not in places and places == sorted(places) and all(places.count(place) < 2 for place in (1, 2, 3))
    if not plain or (strip is not None and "Fuse" not in names):
        described = names[0] if len(names) == 1 else names
        raise UnsupportedTokenizerError(f"{source}: the decoder {described!r} is not supported.")
    for part in parts:
        if _name(part) == "Replace":
            step = _normalizer_step(part, source)
            replacements.append((step.text, step.other))
    if strip is not None and (strip.get("content"), strip.get("start"), strip.get("stop")) != (" ", 1, 0):
        raise UnsupportedTokenizerError(f"{source}: the decoder {strip!r} is not supported.")

    def text(token: str) -> str:
        for before, after in replacements:
            token = token.replace(before, after)
        return token

    return Decoding(DecodeStyle.WHOLE_BYTE_RUNS, int(strip is not None), text=text, takes_bytes="ByteFallback" in names)


# --- Post-processor --------------------------------------------------------------------------------------------------


def read_post_processor(post: Any, source: str) -> tuple[int | None, int | None]:
    """The ids that the post-processor puts before and after a text."""
    if post is None or _name(post) == "ByteLevel":  # the latter only trims offsets
        return None, None
    if _name(post) == "Sequence":
        ends = [read_post_processor(part, source) for part in post.get("processors") or []]
        wrapping = [end for end in ends if end != (None, None)]
        if len(wrapping) > 1:
            raise UnsupportedTokenizerError(f"{source}: a post-processor that adds tokens twice is not supported.")
        return wrapping[0] if wrapping else (None, None)
    if _name(post) != "TemplateProcessing":
        raise UnsupportedTokenizerError(f"{source}: the post-processor {type_of(post)} is not supported yet.")
    before: list[int] = []
    after: list[int] = []
    side = before
    try:
        for item in post.get("single") or []:
            if "Sequence" in item:
                side = after
                continue
            name = item["SpecialToken"]["id"]
            ids = post["special_tokens"][name]["ids"]
            if not all(type(token) is int for token in ids):
                raise TypeError
            side += ids
    except (KeyError, TypeError):
        raise BuddyError(f"{source}: its post-processor's template is damaged.") from None
    if side is before or len(before) > 1 or len(after) > 1:
        raise UnsupportedTokenizerError(
            f"{source}: a post-processor that adds more than one BOS and one EOS is not supported yet."
        )
    return (before[0] if before else None), (after[0] if after else None)

"""Generates cpp/containers/UnicodeTables.inc: the classes of all code points as the pinned `tokenizers` sees them.

`tokenizers` uses several Unicode tables of different versions: its regex engine's (``\\p{L}``, ``\\p{N}``, ``\\s`` in a
pre-tokenizer), Rust's own (the Digits pre-tokenizer), the regex crate's (words and spaces around added tokens) and
those of BERT's normaliser. So the classes are asked from the library itself, code point by code point, not taken
from `unicodedata`.

Run ``python -m buddy_gen.tokenizers.unicode_tables > cpp/containers/UnicodeTables.inc`` after changing the pin; a test
says when the file is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

__all__ = ["CODE_POINTS", "class_ranges", "lines_of", "mapped", "render"]

(LETTER, NUMBER, SPACE, NUMERIC, WORD, UPPER, LOWER, MARK, PUNCTUATION) = (1 << n for n in range(9))
(SYMBOL, BERT_PUNCTUATION, WHITESPACE, BERT_REMOVED, BERT_SPACE) = (1 << n for n in range(9, 14))
(BERT_ACCENT, ACCENT, CHINESE) = (1 << n for n in range(14, 17))
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
_BATCH = 100_000


def mapped(normalize: Callable[[str], str], before: str = "", separator: str = "\n") -> Iterator[tuple[int, str]]:
    """Each code point but the separator, after the text `before`, with what `normalize` makes of both."""
    others = [c for c in CODE_POINTS if c != ord(separator)]
    results = normalize(separator.join(before + chr(c) for c in others)).split(separator)
    return zip(others, results, strict=True)


def _regex_class(pattern: str) -> set[int]:
    """Code points that `pattern` (one class, repeated) matches in the pre-tokenizers' regex engine."""
    split = pre_tokenizers.Split(Regex(pattern), "removed")
    kept: set[int] = set()
    for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS))):
        kept.update(map(ord, piece))
    return set(CODE_POINTS) - kept


def _isolated(pre_tokenizer: pre_tokenizers.PreTokenizer) -> set[int]:
    """Code points that become pieces of their own; 'a' between them keeps the others in longer pieces."""
    text = "a" + "a".join(chr(c) for c in CODE_POINTS if c != ord("a")) + "a"
    return {ord(piece) for piece, _ in pre_tokenizer.pre_tokenize_str(text) if "a" not in piece}


def _removed(pre_tokenizer: pre_tokenizers.PreTokenizer) -> set[int]:
    """Code points that a pre-tokenizer cuts out."""
    kept: set[int] = set()
    for piece, _ in pre_tokenizer.pre_tokenize_str("".join(map(chr, CODE_POINTS))):
        kept.update(map(ord, piece))
    return set(CODE_POINTS) - kept


def _word() -> set[int]:
    """Code points before which a single_word added token does not match."""
    tokenizer = Tokenizer(models.BPE(vocab={"x": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("X", single_word=True, normalized=False)])
    marker = tokenizer.token_to_id("X")
    word = {ord("X")}
    others = [c for c in CODE_POINTS if c != ord("X")]
    for begin in range(0, len(others), _BATCH):
        batch = others[begin : begin + _BATCH]
        encoding = tokenizer.encode("".join(f"X{chr(c)} " for c in batch))
        found = {start for (start, _), i in zip(encoding.offsets, encoding.ids, strict=True) if i == marker}
        word.update(c for n, c in enumerate(batch) if 3 * n not in found)
    return word


def _bert(**options: bool) -> Callable[[str], str]:
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    normalize: Callable[[str], str] = normalizers.BertNormalizer(**(off | options)).normalize_str
    return normalize


def _dropped(normalize: Callable[[str], str]) -> set[int]:
    return {c for c, result in mapped(normalize) if not result}


def class_ranges() -> Iterator[tuple[int, int]]:
    """Yields (first code point, class bits) for each run of code points of one class, from 0 upwards."""
    classes = [0] * 0x110000
    clean = dict(mapped(_bert(clean_text=True), separator="a"))
    for bit, members in (
        (LETTER, _regex_class(r"\p{L}+")),
        (NUMBER, _regex_class(r"\p{N}+")),
        (SPACE, _regex_class(r"\s+")),
        (NUMERIC, _isolated(pre_tokenizers.Digits(individual_digits=True))),
        (WORD, _word()),
        (UPPER, _regex_class(r"[\p{Lu}\p{Lt}]+")),
        (LOWER, _regex_class(r"\p{Ll}+")),
        (MARK, _regex_class(r"\p{M}+")),
        (PUNCTUATION, _regex_class(r"\p{P}+")),
        (SYMBOL, _regex_class(r"\p{S}+")),
        (BERT_PUNCTUATION, _isolated(pre_tokenizers.Punctuation())),
        (WHITESPACE, _removed(pre_tokenizers.WhitespaceSplit())),
        (BERT_REMOVED, {c for c, result in clean.items() if not result}),
        (BERT_SPACE, {c for c, result in clean.items() if result == " "}),
        (BERT_ACCENT, _dropped(_bert(strip_accents=True))),
        (ACCENT, _dropped(normalizers.StripAccents().normalize_str)),
        (CHINESE, {c for c, result in mapped(_bert(handle_chinese_chars=True)) if result == f" {chr(c)} "}),
    ):
        for code_point in members:
            classes[code_point] |= bit
    previous = -1
    for code_point, bits in enumerate(classes):
        if bits != previous:
            yield code_point, bits
            previous = bits


def lines_of(entries: Iterable[str]) -> str:
    """Entries, one after the other, in lines of at most 120 columns."""
    lines, line = [], ""
    for entry in entries:
        if len(line) + len(entry) + 1 > 120:
            lines.append(line)
            line = ""
        line += (" " if line else "") + entry
    return "\n".join([*lines, line]) + "\n"


def render() -> str:
    """The text of UnicodeTables.inc."""
    runs = list(class_ranges())
    sets = sorted({bits for _, bits in runs})
    number = {bits: n for n, bits in enumerate(sets)}
    return (
        "// Generated by python/buddy_gen/tokenizers/unicode_tables.py from the behaviour of tokenizers "
        f"{version('tokenizers')}; do not edit.\n"
        "// clang-format off\n"
        "// The sets of classes that occur: bits of UnicodeClass.\n"
        "constexpr std::uint32_t classSets[] = {\n" + lines_of(f"0x{bits:x}," for bits in sets) + "};\n"
        "// One entry per run of code points of the same classes: first code point << 8 | number of the set.\n"
        "constexpr std::uint32_t classRuns[] = {\n"
        + lines_of(f"0x{start << 8 | number[bits]:x}," for start, bits in runs)
        + "};\n"
    )


if __name__ == "__main__":
    sys.stdout.write(render())

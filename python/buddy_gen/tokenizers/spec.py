"""What a tokenizer is, whatever file it came from: the content of NAME.vocab."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from buddy_gen.errors import BuddyError

__all__ = [
    "AddedToken",
    "DecodeStyle",
    "NormalizerKind",
    "NormalizerStep",
    "SentencePieceRules",
    "SplitPattern",
    "Step",
    "StepKind",
    "TokenType",
    "TokenizerKind",
    "TokenizerSpec",
    "UnsupportedTokenizerError",
    "byte_level_bpe",
    "byte_level_bytes",
    "contents_of",
    "id_count",
    "resolve_merges",
]


class UnsupportedTokenizerError(BuddyError):
    """A sound tokenizer that the container can't run exactly yet. The model can still be run on token ids."""


class TokenizerKind(IntEnum):
    """Numbers as in the file."""

    BYTE_LEVEL_BPE = 1
    SENTENCEPIECE_BPE = 2
    SENTENCEPIECE_UNIGRAM = 3
    WORDPIECE = 4
    CHARACTER_BPE = 5
    """As in `tokenizers`: what SentencePiece models were converted to."""


class TokenType(IntEnum):
    """Numbers as in SentencePiece and GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class StepKind(IntEnum):
    """A step of the pre-tokenizer; its argument is explained in docs/vocab-format.md."""

    DIGITS = 1
    PATTERN = 2
    PREFIX_SPACE = 3
    TEXT = 4
    PUNCTUATION = 5
    WHITESPACE = 6
    METASPACE = 7


class SplitPattern(IntEnum):
    """Regexes that the container matches by hand."""

    GPT2 = 1
    LLAMA3 = 2
    QWEN2 = 3
    NUMBERS_UP_TO_3 = 4
    O200K = 5
    TEKKEN = 6
    CJK_RUNS = 7
    DEEPSEEK_V3 = 8


class NormalizerKind(IntEnum):
    """A step of the normaliser; its argument is explained in docs/vocab-format.md."""

    NFC = 1
    NFD = 2
    NFKC = 3
    NFKD = 4
    LOWERCASE = 5
    STRIP_ACCENTS = 6
    PREPEND = 7
    REPLACE = 8
    STRIP = 9
    BERT = 10


class DecodeStyle(IntEnum):
    """How tokens become text; see docs/vocab-format.md."""

    BYTES = 1
    WHOLE_BYTE_RUNS = 2
    SENTENCEPIECE = 3
    FIRST_DIFFERS = 4


@dataclass(frozen=True)
class Step:
    kind: StepKind
    argument: int = 0
    text: str = ""


@dataclass(frozen=True)
class NormalizerStep:
    kind: NormalizerKind
    argument: int = 0
    text: str = ""
    other: str = ""


@dataclass(frozen=True)
class SentencePieceRules:
    """SentencePiece's own normaliser. `charsmap` is what the model file carries: a double array and its texts."""

    add_dummy_prefix: bool = False
    remove_extra_spaces: bool = False
    escape_spaces: bool = False
    space_as_suffix: bool = False
    charsmap: bytes = b""


@dataclass(frozen=True)
class AddedToken:
    """A token that is looked for in the text itself, before any pre-tokenizer."""

    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    spelling: str | None = None
    """What is looked for, where the normalisers change `content`."""


@dataclass(frozen=True)
class TokenizerSpec:
    """A checked tokenizer.

    `tokens`, `types` and `in_model` have one entry per id; `tokens` holds the bytes by which the model knows an id,
    `texts` (None: the same) those that it decodes to, `first_texts` those of a first token, where these differ.
    `merges` are (left, right, result), the strongest first; `merge_ranks` are their ranks where several share one.
    `scores` are unigram's. `special_tokens` are the names a chat template uses ("bos_token", ...).
    """

    kind: TokenizerKind
    tokens: Sequence[bytes]
    types: Sequence[TokenType]
    in_model: Sequence[bool]
    merges: Sequence[tuple[int, int, int]]
    added: Sequence[AddedToken]
    steps: Sequence[Step]
    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    """What bytes without a token become; None: they vanish."""
    add_bos: bool = False
    add_eos: bool = False
    ignore_merges: bool = False
    fuse_unknown: bool = False
    end_ids: Sequence[int] = ()
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    texts: Sequence[bytes] | None = None
    first_texts: Sequence[bytes] | None = None
    merge_ranks: Sequence[int] | None = None
    scores: Sequence[float] = ()
    normalizers: Sequence[NormalizerStep] = ()
    rules: SentencePieceRules = SentencePieceRules()
    decode_style: DecodeStyle = DecodeStyle.BYTES
    decode_argument: int = 0
    byte_fallback: bool = False
    max_word_chars: int = 0
    continuing_prefix: str = ""

    def __post_init__(self) -> None:
        for what, token in (("BOS", self.bos_id), ("EOS", self.eos_id), ("unknown", self.unknown_id)):
            self._check_id(what, token)
        for token in self.end_ids:
            self._check_id("end", token)
        if (self.add_bos and self.bos_id is None) or (self.add_eos and self.eos_id is None):
            raise BuddyError("The tokenizer asks for a BOS or EOS but names no such token: correct its settings.")

    def _check_id(self, what: str, token: int | None) -> None:
        if token is not None and not 0 <= token < len(self.tokens):
            raise BuddyError(
                f"The tokenizer's {what} token {token} is not in its vocabulary of {len(self.tokens)} tokens: "
                "correct its settings."
            )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself where it prints, else U+0100 and up in the bytes' order."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def byte_level_bytes(content: str) -> bytes | None:
    """The bytes that a token spelled in GPT-2's byte alphabet stands for; None when it is not spelled in it."""
    try:
        return bytes(_ALPHABET[character] for character in content)
    except KeyError:
        return None


def contents_of(vocabulary: Mapping[str, int], added: Sequence[AddedToken], source: str) -> dict[int, str]:
    """The spelling of each id. Raises BuddyError, naming `source` and the token, when ids or spellings clash."""
    contents: dict[int, str] = {}
    spelled = [(content, index) for content, index in vocabulary.items()] + [(t.content, t.id) for t in added]
    limit = _id_limit(len(spelled))
    for content, index in spelled:
        if not 0 <= index < limit:
            raise BuddyError(f"{source}: the token {content!r} has the id {index}, which cannot be.")
        if contents.setdefault(index, content) != content:
            raise BuddyError(f"{source}: the tokens {contents[index]!r} and {content!r} have the same id {index}.")
    seen: dict[str, int] = {}
    for token in added:
        first = seen.setdefault(token.content, vocabulary.get(token.content, token.id))
        if first != token.id:
            raise BuddyError(f"{source}: the token {token.content!r} stands there twice, as {first} and {token.id}.")
        if not token.content:
            raise BuddyError(f"{source}: the added token {token.id} is empty.")
    return contents


def _id_limit(tokens: int) -> int:
    """What ids must be below: there may be gaps between them, but each id takes memory."""
    return min(2 * tokens + 2**20, 2**31)


def id_count(contents: Mapping[int, str], size: int, source: str) -> int:
    """How many ids there are: up to the last token, and at least `size`, up to the last end token."""
    if size > _id_limit(len(contents)):
        raise BuddyError(f"{source}: the end token {size - 1} is far beyond its {len(contents)} tokens.")
    return max(max(contents, default=-1) + 1, size)


def byte_level_bpe(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    added: Sequence[AddedToken],
    *,
    types: Mapping[int, TokenType] | None = None,
    size: int = 0,
    source: str,
) -> dict[str, object]:
    """The fields tokens, types, in_model, merges and added of a byte-level BPE TokenizerSpec.

    `vocabulary` holds what BPE may give, spelled in the byte alphabet; `types` overrides the types of single ids; ids
    up to `size` without a token are unused. As in the reference, a token outside of the alphabet decodes to its own
    UTF-8, and of two equal merges the later counts. Raises BuddyError, naming `source` and the token, when ids clash
    or a merge needs a token that is not there.
    """
    contents = contents_of(vocabulary, added, source)
    count = id_count(contents, size, source)
    tokens, kinds = [b""] * count, [TokenType.UNUSED] * count
    in_model = [False] * count
    for index, content in contents.items():
        spelled_bytes = byte_level_bytes(content)
        tokens[index] = content.encode("utf-8", "surrogatepass") if spelled_bytes is None else spelled_bytes
        kinds[index] = TokenType.NORMAL
        in_model[index] = spelled_bytes is not None and content in vocabulary
    for token in added:
        kinds[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    for index, kind in (types or {}).items():
        kinds[index] = kind
    return {
        "tokens": tokens,
        "types": kinds,
        "in_model": in_model,
        "merges": resolve_merges(vocabulary, merges, in_model, source),
        "added": list(added),
    }


def resolve_merges(
    vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], in_model: Sequence[bool], source: str
) -> list[tuple[int, int, int]]:
    """Merges of spellings as merges of ids, the strongest first; of two equal ones the later counts."""
    ranked: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (left, right) in enumerate(merges):
        for content in (left, right, left + right):
            if content not in vocabulary:
                raise BuddyError(
                    f"{source}: the merge of {left!r} and {right!r} needs the token {content!r}, which is missing."
                )
        pair = vocabulary[left], vocabulary[right]
        if in_model[pair[0]] and in_model[pair[1]]:  # others can never meet: text comes as bytes
            ranked[pair] = rank, vocabulary[left + right]
    by_rank = sorted((rank, *pair, result) for pair, (rank, result) in ranked.items())
    return [(left, right, result) for _, left, right, result in by_rank]

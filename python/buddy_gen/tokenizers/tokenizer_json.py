"""The tokenizer in a tokenizer.json, the format of the `tokenizers` library.

Every part is compared with what the container can do exactly; anything else is named and refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from buddy_gen.errors import BuddyError
from buddy_gen.tokenizers.json_pipeline import (
    Decoding,
    pre_tokenizer_steps,
    read_decoder,
    read_normalizer,
    read_post_processor,
    type_of,
)
from buddy_gen.tokenizers.spec import (
    AddedToken,
    DecodeStyle,
    TokenizerKind,
    TokenizerSpec,
    TokenType,
    UnsupportedTokenizerError,
    byte_level_bpe,
    byte_level_bytes,
    contents_of,
    id_count,
    resolve_merges,
)

__all__ = ["read_tokenizer_json"]

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
    with _reading("normalizer", source):
        normalizers = read_normalizer(content.get("normalizer"), source)
    with _reading("pre_tokenizer", source):
        steps, byte_level = pre_tokenizer_steps(content.get("pre_tokenizer"), source)
    with _reading("decoder", source):
        decoding = read_decoder(content.get("decoder"), source)
    with _reading("model", source):
        model = _model(content.get("model"), source)
        kind = _kind(model, byte_level, decoding, source)
    vocabulary: dict[str, int] = model["vocab"]
    with _reading("added_tokens", source):
        added = _added_tokens(content, source)
    with _reading("post_processor", source):
        prefix, suffix = read_post_processor(content.get("post_processor"), source)

    settings = settings or {}
    named = _special_tokens(settings)
    ids = vocabulary | {token.content: token.id for token in added}
    bos = _first(prefix, ids.get(named.get("bos_token", "")), bos_id)
    eos = _first(suffix, ids.get(named.get("eos_token", "")), end_ids[0] if end_ids else None)
    unknown = model.get("unk_token")
    if unknown is not None and not (isinstance(unknown, str) and unknown in vocabulary):
        raise BuddyError(f"{source}: the unknown token {unknown!r} is not in the vocabulary.")
    size = max(end_ids, default=-1) + 1
    with _reading("model", source):
        if kind == TokenizerKind.BYTE_LEVEL_BPE:
            merges = [_merge(entry, source) for entry in model["merges"]]
            fields = byte_level_bpe(vocabulary, merges, added, size=size, source=source)
            fields["texts"] = _byte_level_texts(fields["tokens"], added)
        else:
            fields = _spelled_fields(model, added, decoding, size, source)
    return TokenizerSpec(
        kind=kind,
        steps=steps,
        normalizers=normalizers,
        bos_id=bos,
        eos_id=eos,
        unknown_id=vocabulary[unknown] if unknown is not None else None,
        add_bos=_overruled(settings.get("add_bos_token"), prefix is not None) and bos is not None,
        add_eos=_overruled(settings.get("add_eos_token"), suffix is not None) and eos is not None,
        ignore_merges=bool(model.get("ignore_merges")),
        fuse_unknown=bool(model.get("fuse_unk")),
        byte_fallback=bool(model.get("byte_fallback")),
        decode_style=decoding.style,
        decode_argument=decoding.argument,
        end_ids=tuple(dict.fromkeys(end_ids)) or ((eos,) if eos is not None else ()),
        special_tokens=named,
        **fields,  # type: ignore[arg-type]
    )


@contextmanager
def _reading(part: str, source: str) -> Iterator[None]:
    """Damage in a part of the file that no check of its own has named becomes a BuddyError that names the part."""
    try:
        yield
    except BuddyError:
        raise
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        described = f"{type(error).__name__} {error}".splitlines()[0]
        raise BuddyError(f"{source}: its {part} is damaged or of an unknown kind: {described}.") from None


def _kind(model: Mapping[str, Any], byte_level: bool, decoding: Decoding, source: str) -> TokenizerKind:
    if byte_level != (decoding.style == DecodeStyle.BYTES):
        raise UnsupportedTokenizerError(
            f"{source}: a pre-tokenizer that ends with ByteLevel is supported with the decoder ByteLevel only, and "
            "the decoder only with it."
        )
    if model["type"] == "WordPiece":
        if byte_level:
            raise UnsupportedTokenizerError(f"{source}: the model 'WordPiece' on bytes is not supported.")
        return TokenizerKind.WORDPIECE
    if byte_level and model.get("byte_fallback"):
        raise UnsupportedTokenizerError(f"{source}: byte-level BPE with byte_fallback = True is not supported.")
    return TokenizerKind.BYTE_LEVEL_BPE if byte_level else TokenizerKind.CHARACTER_BPE


def _spelled_fields(
    model: Mapping[str, Any], added: Sequence[AddedToken], decoding: Decoding, size: int, source: str
) -> dict[str, object]:
    """The fields of a TokenizerSpec whose model knows tokens by characters: BPE on characters, WordPiece."""
    vocabulary: dict[str, int] = model["vocab"]
    contents = contents_of(vocabulary, added, source)
    count = id_count(contents, size, source)
    spellings = [contents.get(index, "") for index in range(count)]
    types = [TokenType.NORMAL if index in contents else TokenType.UNUSED for index in range(count)]
    for token in added:
        types[token.id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    shown = {token.id: token.spelling for token in added if token.spelling is not None}
    texts = [_encoded(decoding.text(shown.get(index, spelling))) for index, spelling in enumerate(spellings)]
    for index, spelling in enumerate(spellings):
        byte = _byte_spelled(spelling, source)
        if byte is None or not (decoding.takes_bytes or model.get("byte_fallback")):
            continue
        if not decoding.takes_bytes or types[index] == TokenType.CONTROL:
            raise UnsupportedTokenizerError(
                f"{source}: the byte token {spelling!r} that does not decode to a byte is not supported."
            )
        types[index], texts[index] = TokenType.BYTE, bytes([byte])
    first_text = decoding.first_text
    in_model = [index in contents and contents[index] in vocabulary for index in range(count)]
    is_bpe = model["type"] == "BPE"
    merges = [_merge(entry, source) for entry in model["merges"]] if is_bpe else []
    return {
        "tokens": [_encoded(spelling) for spelling in spellings],
        "texts": texts,
        "first_texts": None
        if first_text is None
        else [_encoded(first_text(shown.get(index, spelling))) for index, spelling in enumerate(spellings)],
        "types": types,
        "in_model": in_model,
        "merges": resolve_merges(vocabulary, merges, in_model, source),
        "added": list(added),
        "max_word_chars": 0 if is_bpe else _word_limit(model, source),
        "continuing_prefix": "" if is_bpe else str(model.get("continuing_subword_prefix", "##")),
    }


def _byte_level_texts(tokens: Any, added: Sequence[AddedToken]) -> list[bytes] | None:
    """The tokens' texts where normalised added tokens, which decode as they are looked for, make them differ."""
    texts = list(tokens)
    for token in added:
        if token.spelling is not None and token.spelling != token.content:
            texts[token.id] = byte_level_bytes(token.spelling) or _encoded(token.spelling)
    return texts if texts != tokens else None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _word_limit(model: Mapping[str, Any], source: str) -> int:
    limit = model.get("max_input_chars_per_word", 100)
    if type(limit) is not int or not 0 <= limit < 2**32:
        raise BuddyError(f"{source}: max_input_chars_per_word is {limit!r}.")
    return limit


def _byte_spelled(spelling: str, source: str) -> int | None:
    """The byte that a token like <0x0A> stands for."""
    if len(spelling) != 6 or not spelling.isascii() or not spelling.startswith("<0x") or not spelling.endswith(">"):
        return None
    try:
        return int(spelling[3:5], 16) if spelling[3:5].isalnum() else bytes.fromhex(spelling[3:5])[0]
    except ValueError:
        raise BuddyError(f"{source}: the byte token {spelling!r} is not spelled like <0x0A>.") from None


def _first(*candidates: int | None) -> int | None:
    return next((token for token in candidates if token is not None), None)


def _overruled(setting: Any, own: bool) -> bool:
    return setting if isinstance(setting, bool) else own


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


def _model(model: Any, source: str) -> dict[str, Any]:
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if kind not in ("BPE", "WordPiece"):
        raise UnsupportedTokenizerError(
            f"{source}: the model {type_of(model)} is not supported, only BPE and WordPiece (unigram as a "
            "tokenizer.model)."
        )
    refused = ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if kind == "BPE" else ()
    for option in refused:
        if model.get(option):
            raise UnsupportedTokenizerError(f"{source}: BPE with {option} = {model[option]!r} is not supported.")
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not all(type(index) is int for index in vocabulary.values()):
        raise BuddyError(f"{source}: the model's vocabulary is missing or damaged.")
    if kind == "BPE" and not isinstance(merges, list):
        raise BuddyError(f"{source}: the model's merges are missing or damaged.")
    if kind == "WordPiece" and not isinstance(model.get("unk_token"), str):
        raise BuddyError(f"{source}: the model names no unknown token.")
    checked: dict[str, Any] = {**model, "type": kind}
    return checked


def _merge(entry: Any, source: str) -> tuple[str, str]:
    parts = entry.split(" ") if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise BuddyError(f"{source}: the merge {entry!r} is not a pair of tokens.")
    return parts[0], parts[1]


def _added_token(entry: Any, source: str) -> AddedToken:
    if not isinstance(entry, dict) or type(entry.get("id")) is not int or not isinstance(entry.get("content"), str):
        raise BuddyError(f"{source}: the added token {entry!r} has no id or no content.")
    if not entry["content"].isascii() and any("\ud800" <= character <= "\udfff" for character in entry["content"]):
        raise BuddyError(f"{source}: the added token {entry['content']!r} is half a character.")
    options: dict[str, Any] = {
        name: bool(entry.get(name)) for name in ("special", "lstrip", "rstrip", "single_word", "normalized")
    }
    return AddedToken(entry["id"], entry["content"], **options)


def _added_tokens(content: Mapping[str, Any], source: str) -> list[AddedToken]:
    """The added tokens; those that are looked for in normalised text with their spelling normalised too."""
    entries = content.get("added_tokens") or []
    if not isinstance(entries, list):
        raise BuddyError(f"{source}: its added_tokens are {entries!r}, not a list.")
    added = [_added_token(entry, source) for entry in entries]
    if content.get("normalizer") is None or not any(token.normalized for token in added):
        return added
    normalizer = _reference_normalizer(content["normalizer"], source)
    return [
        replace(token, spelling=_normalized(normalizer, token, source)) if token.normalized else token
        for token in added
    ]


def _reference_normalizer(normalizer: Any, source: str) -> Any:
    model = {"type": "BPE", "vocab": {}, "merges": []}
    parts: dict[str, Any] = {"added_tokens": [], "pre_tokenizer": None, "post_processor": None, "decoder": None}
    whole = {"version": "1.0", "truncation": None, "padding": None, "normalizer": normalizer, "model": model, **parts}
    try:
        return Tokenizer.from_str(json.dumps(whole)).normalizer
    except Exception as error:  # what the library raises has no type of its own
        raise BuddyError(f"{source}: its normalizer is damaged or of an unknown kind: {error}.") from None


def _normalized(normalizer: Any, token: AddedToken, source: str) -> str:
    spelling: str = normalizer.normalize_str(token.content) if normalizer is not None else token.content
    if not spelling:
        raise UnsupportedTokenizerError(
            f"{source}: the added token {token.content!r}, of which the normaliser leaves nothing, is not supported."
        )
    return spelling


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found

"""From a described model to its tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from buddy_gen.models.huggingface import read_json
from buddy_gen.tokenizers.chat import ChatTemplate, ChatTemplateError, reduce_chat_template
from buddy_gen.tokenizers.gguf_tokenizer import read_gguf_tokenizer
from buddy_gen.tokenizers.sentencepiece_model import read_sentencepiece_model
from buddy_gen.tokenizers.spec import TokenizerSpec, UnsupportedTokenizerError
from buddy_gen.tokenizers.tokenizer_json import read_tokenizer_json
from buddy_gen.tokenizers.vocab_file import NO_TEMPLATE

__all__ = ["load_chat_template", "load_tokenizer_spec"]


class _Files(Protocol):
    """The part of models.TokenizerFiles that is used here."""

    @property
    def gguf(self) -> Path | None: ...
    @property
    def tokenizer_json(self) -> Path | None: ...
    @property
    def tokenizer_model(self) -> Path | None: ...
    @property
    def added_tokens(self) -> Path | None: ...
    @property
    def tokenizer_config(self) -> Path | None: ...
    @property
    def special_tokens_map(self) -> Path | None: ...


class _Description(Protocol):
    """The part of models.ModelDescription that is used here."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> _Files | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def eos_token_ids(self) -> Sequence[int]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def add_bos(self) -> bool | None: ...


def load_tokenizer_spec(description: _Description) -> TokenizerSpec:
    """The tokenizer of a described model (buddy_gen.models.open_model).

    Raises UnsupportedTokenizerError when the model has none, or one that the Text container can't run exactly yet;
    BuddyError when its files are damaged.
    """
    files = description.tokenizer
    if files is None:
        raise UnsupportedTokenizerError(
            f"The model {description.name} has no tokenizer: it can be run on token ids only."
        )
    if files.gguf is not None:
        spec = read_gguf_tokenizer(files.gguf)
        return replace(spec, end_ids=_union(description.eos_token_ids, spec.end_ids))
    settings: dict[str, Any] = {}
    for path in (files.special_tokens_map, files.tokenizer_config):
        if path is not None:
            settings |= {key: value for key, value in read_json(path).items() if value is not None}
    if description.add_bos is not None:
        settings["add_bos_token"] = description.add_bos
    known: dict[str, Any] = {
        "settings": settings,
        "end_ids": description.eos_token_ids,
        "bos_id": description.bos_token_id,
    }
    if files.tokenizer_json is not None:
        return read_tokenizer_json(files.tokenizer_json, **known)
    if files.tokenizer_model is None:
        raise UnsupportedTokenizerError(f"The model {description.name} has no tokenizer that is known.")
    spec = read_sentencepiece_model(files.tokenizer_model, **known)
    if files.added_tokens is not None and (added := read_json(files.added_tokens)):
        for content, index in added.items():
            if not (type(index) is int and 0 <= index < len(spec.tokens) and spec.tokens[index] == content.encode()):
                raise UnsupportedTokenizerError(
                    f"{files.added_tokens}: the token {content!r} is not in {files.tokenizer_model.name}; tokens added "
                    "to a SentencePiece model are supported in a tokenizer.json only."
                )
    return spec


def load_chat_template(description: _Description, spec: TokenizerSpec) -> tuple[ChatTemplate | None, str]:
    """The reduced chat template, or None and the reason why there is none."""
    if description.chat_template is None:
        return None, NO_TEMPLATE
    try:
        return reduce_chat_template(description.chat_template, spec.special_tokens), ""
    except ChatTemplateError as error:
        return None, str(error)


def _union(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys([*first, *second]))

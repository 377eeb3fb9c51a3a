"""The vocabulary of a model as the generator handles it: tokenizer and chat template, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from buddy_gen.models.description import ModelDescription
from buddy_gen.tokenizers import (
    ChatTemplate,
    TokenizerSpec,
    UnsupportedTokenizerError,
    load_chat_template,
    load_tokenizer_spec,
    vocab_digest,
    write_vocab,
)


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer with its chat template.

    Attributes:
        spec: The tokenizer.
        chat: The reduced chat template, None where it can't be reduced.
        chat_unavailable_reason: Why `chat` is None; empty otherwise.
    """

    spec: TokenizerSpec
    chat: ChatTemplate | None
    chat_unavailable_reason: str

    @property
    def digest(self) -> str:
        """A hash of the content, part of the model id."""
        return vocab_digest(self.spec, self.chat, self.chat_unavailable_reason)

    def write(self, path: Path, abi: str, model_id: str) -> None:
        """Writes NAME.vocab.

        Raises:
            BuddyError: It can't be written.
        """
        write_vocab(
            path,
            self.spec,
            abi=abi,
            model_id=model_id,
            chat=self.chat,
            chat_unavailable=self.chat_unavailable_reason,
        )


def prepare_vocabulary(description: ModelDescription) -> tuple[Vocabulary | None, str]:
    """The vocabulary of a model, or None and the reason: without one a program takes token ids only.

    Raises:
        BuddyError: The tokenizer's own file is damaged.
    """
    if description.tokenizer is None:
        return None, f"the model {description.name} has no tokenizer"
    try:
        spec = load_tokenizer_spec(description)
    except UnsupportedTokenizerError as error:
        return None, str(error)
    return Vocabulary(spec, *load_chat_template(description, spec)), ""

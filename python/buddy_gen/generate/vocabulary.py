"""The vocabulary of a model as the generator handles it."""

from __future__ import annotations

from typing import Any


class Vocabulary:
    digest: str
    chat: Any
    chat_unavailable_reason: str


def prepare_vocabulary(description: Any) -> Any:
    return None

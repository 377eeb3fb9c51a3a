"""What the server wants of a model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

__all__ = ["CancelFlag", "Engine", "EngineInfo", "Likelihood", "Message", "Outcome", "Sampling", "Stop", "Token"]


@dataclass(frozen=True)
class EngineInfo:
    """A loaded model."""

    model_id: str
    context: int  # positions of a KV cache
    vocab_size: int
    has_text: bool
    threads: int
    sessions: int  # KV caches
    session_bytes: int  # of one that is full
    chat_unavailable: str | None  # why it cannot chat


@dataclass(frozen=True)
class Message:
    """A turn of a conversation; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Sampling:
    """How an answer is made."""

    max_tokens: int
    temperature: float = 1.0  # 0: the likeliest token
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stops: tuple[str, ...] = ()
    likely_count: int = -1  # how many of the likeliest tokens to report with each token; -1: no probabilities at all
    ignore_end: bool = False


@dataclass(frozen=True)
class Likelihood:
    """A token and the natural logarithm of its probability, before any sampling setting."""

    id: int
    log_probability: float


@dataclass(frozen=True)
class Token:
    """A generated token. `text` is what has become certain with it; the last one has the id -1 and the rest."""

    id: int
    text: str
    log_probability: float | None = None
    likely: tuple[Likelihood, ...] = ()


class Stop(Enum):
    """Why an answer ended."""

    END = 0
    LENGTH = 1
    STOP_STRING = 2
    CONTEXT = 3
    CANCELLED = 4


@dataclass(frozen=True)
class Outcome:
    """A finished answer; `cached_tokens` of the prompt were in a KV cache already."""

    stop: Stop
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class CancelFlag:
    """Set by one thread, looked at by another, in C too."""

    def __init__(self) -> None:
        self.value = ctypes.c_int32(0)

    def set(self) -> None:
        self.value.value = 1

    def is_set(self) -> bool:
        return self.value.value != 0


class Engine(Protocol):
    """A model. Only `generate` is for one thread at a time. All raise BuddyError with a sentence."""

    @property
    def info(self) -> EngineInfo: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def detokenize(self, ids: Sequence[int]) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        """The ids of a conversation, up to where the next answer begins."""
        ...

    def generate(
        self, ids: Sequence[int], sampling: Sampling, receiver: Callable[[Token], None], cancelled: CancelFlag
    ) -> Outcome:
        """Generates behind the prompt `ids`. Ends within a token once the flag is set or the receiver has raised."""
        ...

    def close(self) -> None: ...

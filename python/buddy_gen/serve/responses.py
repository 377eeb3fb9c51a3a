"""The answers' JSON: whole objects, and the chunks of a stream."""

from __future__ import annotations

import codecs
import json
import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from buddy_gen.serve.answers import Ended, Piece
from buddy_gen.serve.engine import Engine, Outcome, Stop, Token

__all__ = ["ChatWriter", "CompletionWriter", "Writer", "event"]

_FINISH = {Stop.END: "stop", Stop.STOP_STRING: "stop", Stop.LENGTH: "length", Stop.CONTEXT: "length"}
_IMPOSSIBLE = -9999.0  # for a probability of 0, as OpenAI has it


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class Writer:
    """Turns what is generated into one of the two forms of answers. `choices` counts over all prompts."""

    object_name = ""
    chunk_name = ""
    prefix = ""

    def __init__(
        self, engine: Engine, model: str, choices: int, prompts: Sequence[Sequence[int]], *, with_usage: bool
    ) -> None:
        self._engine = engine
        self._with_usage = with_usage
        self._prompts = prompts
        self._head = {
            "id": f"{self.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"fp_{engine.info.model_id[:12]}",
        }
        self._tokens: list[list[Token]] = [[] for _ in range(choices)]
        self._outcomes: list[Outcome | None] = [None] * choices

    def take(self, item: Piece | Ended) -> list[dict[str, Any]]:
        """Remembers what was generated; gives the chunks that a stream has for it."""
        if isinstance(item, Ended):
            self._outcomes[item.choice] = item.outcome
            return [self._chunk(self._last(item.choice, self._finish(item.choice)))]
        tokens = self._tokens[item.choice]
        chunks = [] if tokens else [self._chunk(first) for first in self._first(item.choice)]
        tokens.append(item.token)
        if item.token.text or item.token.log_probability is not None:
            chunks.append(self._chunk(self._middle(item.choice, item.token)))
        return chunks

    def whole(self) -> dict[str, Any]:
        """The object of an answer that is not streamed."""
        choices = [self._choice(choice) for choice in range(len(self._tokens))]
        return {**self._head, "object": self.object_name, "choices": choices, "usage": self.usage()}

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk of a stream that was asked for its usage."""
        return {**self._head, "object": self.chunk_name, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Tokens; a prompt counts once, however many choices it gives."""
        outcomes = [outcome for outcome in self._outcomes if outcome]
        prompt = sum(len(ids) for ids in self._prompts)
        each = max(1, len(self._outcomes) // max(1, len(self._prompts)))
        completion = sum(outcome.generated_tokens for outcome in outcomes)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(outcome.cached_tokens for outcome in outcomes[::each])},
        }

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._head, "object": self.chunk_name, "choices": [choice]}
        return {**chunk, "usage": None} if self._with_usage else chunk

    def _finish(self, choice: int) -> str | None:
        outcome = self._outcomes[choice]
        return _FINISH.get(outcome.stop) if outcome else None

    def _text(self, choice: int) -> str:
        return "".join(token.text for token in self._tokens[choice])

    def _spelled(self, token: int) -> tuple[str, bytes]:
        content = self._engine.token_bytes(token)
        return content.decode("utf-8", "replace"), content

    def _scored(self, choice: int) -> list[Token]:
        """The tokens with a probability; empty when none was asked for."""
        return [token for token in self._tokens[choice] if token.log_probability is not None]

    def _first(self, choice: int) -> list[dict[str, Any]]:
        raise NotImplementedError

    def _middle(self, choice: int, token: Token) -> dict[str, Any]:
        raise NotImplementedError

    def _last(self, choice: int, finish: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def _choice(self, choice: int) -> dict[str, Any]:
        raise NotImplementedError


class ChatWriter(Writer):
    """/v1/chat/completions."""

    object_name, chunk_name, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def _first(self, choice: int) -> list[dict[str, Any]]:
        return [self._delta(choice, {"role": "assistant", "content": ""})]

    def _middle(self, choice: int, token: Token) -> dict[str, Any]:
        scored = [token] if token.log_probability is not None else []
        return self._delta(choice, {"content": token.text}, logprobs=self._logprobs(scored))

    def _last(self, choice: int, finish: str | None) -> dict[str, Any]:
        return self._delta(choice, {}, finish)

    def _choice(self, choice: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._text(choice), "refusal": None}
        scores = self._logprobs(self._scored(choice))
        return {"index": choice, "message": message, "logprobs": scores, "finish_reason": self._finish(choice)}

    @staticmethod
    def _delta(
        choice: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not tokens:
            return None
        content = []
        for token in tokens:
            likely = [self._score(one.id, one.log_probability) for one in token.likely]
            content.append({**self._score(token.id, token.log_probability), "top_logprobs": likely})
        return {"content": content, "refusal": None}

    def _score(self, token: int, log_probability: float | None) -> dict[str, Any]:
        text, content = self._spelled(token)
        return {"token": text, "logprob": _finite(log_probability), "bytes": list(content)}


class CompletionWriter(Writer):
    """/v1/completions."""

    object_name, chunk_name, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(
        self, engine: Engine, model: str, choices: int, prompts: Sequence[Sequence[int]], *, with_usage: bool
    ) -> None:
        super().__init__(engine, model, choices, prompts, with_usage=with_usage)
        self._offsets = [_Offsets() for _ in range(choices)]

    def _first(self, choice: int) -> list[dict[str, Any]]:
        return []

    def _middle(self, choice: int, token: Token) -> dict[str, Any]:
        scored = [token] if token.log_probability is not None else []
        return self._part(choice, token.text, logprobs=self._logprobs(scored, self._offsets[choice]))

    def _last(self, choice: int, finish: str | None) -> dict[str, Any]:
        return self._part(choice, "", finish)

    def _choice(self, choice: int) -> dict[str, Any]:
        scores = self._logprobs(self._scored(choice), _Offsets())
        return self._part(choice, self._text(choice), self._finish(choice), scores)

    @staticmethod
    def _part(
        choice: int, text: str, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"text": text, "index": choice, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token], offsets: _Offsets) -> dict[str, Any] | None:
        if not tokens:
            return None
        spelled = [self._spelled(token.id) for token in tokens]
        return {
            "tokens": [text for text, _ in spelled],
            "token_logprobs": [_finite(token.log_probability) for token in tokens],
            "top_logprobs": [
                {self._spelled(one.id)[0]: _finite(one.log_probability) for one in token.likely} for token in tokens
            ],
            "text_offset": [offsets.advance(content) for _, content in spelled],
        }


class _Offsets:
    """Where tokens begin in the answer, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def advance(self, content: bytes) -> int:
        begin = self._characters
        self._characters += len(self._decoder.decode(content))
        return begin


def _finite(log_probability: float | None) -> float:
    if log_probability is None or math.isinf(log_probability):
        return _IMPOSSIBLE
    return log_probability

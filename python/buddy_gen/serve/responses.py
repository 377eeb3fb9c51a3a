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
        self,
        engine: Engine,
        model: str,
        choices: int,
        prompts: Sequence[Sequence[int]],
        *,
        with_usage: bool,
        with_scores: bool,
    ) -> None:
        self._engine = engine
        self._with_usage = with_usage
        self._with_scores = with_scores
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
        if item.token.text or item.token.log_probability is not None or self._shows_ids(item.token):
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

    def _shows_ids(self, token: Token) -> bool:
        """Without a tokenizer a token has no text, and its id is the answer."""
        return token.id >= 0 and not self._engine.info.has_text

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
        scores = None if token.log_probability is None else self._logprobs([token])
        return self._delta(choice, {"content": token.text}, logprobs=scores)

    def _last(self, choice: int, finish: str | None) -> dict[str, Any]:
        return self._delta(choice, {}, finish)

    def _choice(self, choice: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._text(choice), "refusal": None}
        scores = self._logprobs(self._scored(choice)) if self._with_scores else None
        return {"index": choice, "message": message, "logprobs": scores, "finish_reason": self._finish(choice)}

    @staticmethod
    def _delta(
        choice: int, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
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
        self, engine: Engine, model: str, choices: int, prompts: Sequence[Sequence[int]], **options: bool
    ) -> None:
        super().__init__(engine, model, choices, prompts, **options)
        self._offsets = [_Offsets() for _ in range(choices)]

    def _first(self, choice: int) -> list[dict[str, Any]]:
        return []

    def _middle(self, choice: int, token: Token) -> dict[str, Any]:
        scores = None if token.log_probability is None else self._logprobs([token], self._offsets[choice])
        return self._part(choice, [token], logprobs=scores)

    def _last(self, choice: int, finish: str | None) -> dict[str, Any]:
        return self._part(choice, [], finish)

    def _choice(self, choice: int) -> dict[str, Any]:
        scores = self._logprobs(self._scored(choice), _Offsets()) if self._with_scores else None
        return self._part(choice, self._tokens[choice], self._finish(choice), scores)

    def _part(
        self, choice: int, tokens: Sequence[Token], finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        text = "".join(token.text for token in tokens)
        part = {"text": text, "index": choice, "logprobs": logprobs, "finish_reason": finish}
        if not self._engine.info.has_text:
            part["token_ids"] = [token.id for token in tokens if token.id >= 0]
        return part

    def _logprobs(self, tokens: Sequence[Token], offsets: _Offsets) -> dict[str, Any]:
        return {
            "tokens": [self._key(token.id) for token in tokens],
            "token_logprobs": [_finite(token.log_probability) for token in tokens],
            "top_logprobs": [self._likely(token) for token in tokens],
            "text_offset": [offsets.advance(self._engine.token_bytes(token.id)) for token in tokens],
        }

    def _likely(self, token: Token) -> dict[str, float]:
        """The likeliest first, none lost: a token that is spelled as a likelier one has its id for a key."""
        found: dict[str, float] = {}
        for one in token.likely:
            key = self._key(one.id)
            found[_id_key(one.id) if key in found else key] = _finite(one.log_probability)
        return found

    def _key(self, token: int) -> str:
        """A token's text; as OpenAI has it, the bytes of a token that is no whole characters."""
        if not self._engine.info.has_text:
            return _id_key(token)
        content = self._engine.token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


class _Offsets:
    """Where tokens begin in the answer, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def advance(self, content: bytes) -> int:
        begin = self._characters
        self._characters += len(self._decoder.decode(content))
        return begin


def _id_key(token: int) -> str:
    return f"token_id:{token}"


def _finite(log_probability: float | None) -> float:
    if log_probability is None or math.isinf(log_probability):
        return _IMPOSSIBLE
    return log_probability

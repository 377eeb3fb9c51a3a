"""The requests: what OpenAI's API allows, checked; what this server does not do is refused by name, never ignored."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from buddy_gen.serve.api_error import ApiError, invalid
from buddy_gen.serve.engine import Message, Sampling
from buddy_gen.serve.fields import Fields, checked_text, parse_object

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "Limits",
    "TextRequest",
    "parse_chat",
    "parse_completion",
    "parse_detokenize",
    "parse_tokenize",
]

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_LIKELY = 20
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Limits:
    """What the server allows a request."""

    model: str  # the one model's name
    max_tokens: int  # of an answer
    vocab_size: int


@dataclass(frozen=True)
class Common:
    """What both kinds of request have."""

    sampling: Sampling
    choices: int
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class ChatRequest:
    common: Common
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class CompletionRequest:
    common: Common
    prompts: tuple[str | tuple[int, ...], ...]


@dataclass(frozen=True)
class TextRequest:
    content: str
    add_special: bool
    parse_special: bool


def parse_chat(body: bytes, limits: Limits) -> ChatRequest:
    """
    Raises:
        ApiError: The body is no request, or one for something that this server does not do.
    """
    fields = Fields(parse_object(body))
    _check_model(fields, limits)
    messages = _messages(fields)
    for name, allowed in (("tools", [[]]), ("functions", [[]]), ("tool_choice", ["none", "auto"])):
        fields.refuse(name, "the model is not asked to call tools", allowed)
    fields.refuse("function_call", "the model is not asked to call functions", ["none", "auto"])
    fields.refuse("response_format", "answers are plain text", [{"type": "text"}])
    fields.refuse("modalities", "answers are text", [["text"]])
    fields.refuse("reasoning_effort", "the model has no such setting")
    fields.refuse("audio", "answers are text")
    fields.refuse("prediction", "no prediction is used")
    fields.refuse("web_search_options", "there is no web search")
    fields.refuse("verbosity", "the model has no such setting")
    fields.ignore("parallel_tool_calls")
    likely = fields.integer("top_logprobs", 0, MOST_LIKELY)
    if not fields.flag("logprobs"):
        if likely is not None:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        likely = -1
    wanted = _max_tokens(fields, limits, ("max_completion_tokens", "max_tokens"), limits.max_tokens)
    return ChatRequest(_common(fields, wanted, 0 if likely is None else likely), messages)


def parse_completion(body: bytes, limits: Limits) -> CompletionRequest:
    """
    Raises:
        ApiError: As above.
    """
    fields = Fields(parse_object(body))
    _check_model(fields, limits)
    prompts = _prompts(fields.require("prompt"), limits)
    fields.refuse("echo", "the answer is given without its prompt", [False])
    fields.refuse("suffix", "the model does not fill in the middle", [""])
    fields.refuse("best_of", "every choice is given back; use n", [1])
    likely = fields.integer("logprobs", 0, MOST_LIKELY)
    wanted = _max_tokens(fields, limits, ("max_tokens",), min(_COMPLETION_TOKENS, limits.max_tokens))
    request = CompletionRequest(_common(fields, wanted, -1 if likely is None else likely), prompts)
    if len(prompts) * request.common.choices > MOST_CHOICES:
        raise invalid(f"A request may ask for {MOST_CHOICES} answers; this one asks for more.", "n")
    return request


def parse_tokenize(body: bytes) -> TextRequest:
    """
    Raises:
        ApiError: As above.
    """
    fields = Fields(parse_object(body))
    fields.ignore("model")
    request = TextRequest(
        fields.text("content"), add_special=fields.flag("add_special"), parse_special=fields.flag("parse_special")
    )
    fields.finish()
    return request


def parse_detokenize(body: bytes, limits: Limits) -> list[int]:
    """
    Raises:
        ApiError: As above.
    """
    fields = Fields(parse_object(body))
    fields.ignore("model")
    ids = _token_ids(fields.require("tokens"), "tokens", limits)
    fields.finish()
    return list(ids)


def _check_model(fields: Fields, limits: Limits) -> None:
    name = fields.text("model")
    if name != limits.model:
        shown = name if len(name) <= 64 else name[:64] + "..."
        raise ApiError(
            404,
            f"There is no model '{shown}' here; this server has '{limits.model}'.",
            param="model",
            code="model_not_found",
        )


def _common(fields: Fields, max_tokens: int, likely: int) -> Common:
    """The rest of a request; everything that is its own must have been taken from `fields`."""
    fields.refuse("logit_bias", "the sampler has none", [{}])
    fields.ignore("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    top_k = fields.integer("top_k", 0, _LARGEST) or 0
    if top_p == 0:  # nothing but the likeliest token
        top_p, top_k = 1.0, 1
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_k=top_k,
        top_p=top_p,
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repeat_penalty=fields.number("repeat_penalty", 1.0, 0.01, 100.0),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        seed=secrets.randbits(63) if seed is None else seed % 2**64,
        stops=_stops(fields),
        likely_count=likely,
    )
    choices = fields.integer("n", 1, MOST_CHOICES) or 1
    stream = fields.flag("stream")
    include_usage = _include_usage(fields, stream)
    fields.finish()
    return Common(sampling, choices, stream, include_usage)


def _include_usage(fields: Fields, stream: bool) -> bool:
    value = fields.take("stream_options")
    if value is None:
        return False
    if not isinstance(value, dict):
        raise Fields.wrong_type("stream_options", "an object", value)
    if not stream:
        raise invalid("stream_options needs stream to be true.", "stream_options")
    options = Fields(value, "stream_options")
    options.ignore("include_obfuscation")
    wanted = options.flag("include_usage")
    options.finish()
    return wanted


def _max_tokens(fields: Fields, limits: Limits, names: tuple[str, ...], default: int) -> int:
    given = {name: value for name in names if (value := fields.integer(name, 1, _LARGEST)) is not None}
    if len(set(given.values())) > 1:
        raise invalid(f"{' and '.join(given)} say different things; give one of them.", names[0])
    for name, value in given.items():
        if value > limits.max_tokens:
            raise invalid(f"{name} is {value}; this server gives at most {limits.max_tokens} tokens.", name)
        return value
    return default


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise Fields.wrong_type("stop", "a string or a list of strings", value)
    if len(stops) > MOST_STOPS:
        raise invalid(f"stop has {len(stops)} strings; at most {MOST_STOPS} are allowed.", "stop")
    for stop in stops:
        if not stop or len(checked_text(stop, "stop")) > 1000:
            raise invalid("A stop string must have 1 to 1000 characters.", "stop")
    return tuple(stops)


def _messages(fields: Fields) -> tuple[Message, ...]:
    value = fields.require("messages")
    if not isinstance(value, list):
        raise Fields.wrong_type("messages", "a list", value)
    if not value:
        raise invalid("messages is empty; give at least a user's message.", "messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(value))


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise Fields.wrong_type(where, "an object", value)
    fields = Fields(value, where)
    role = fields.text("role")
    if role not in _ROLES:
        known = ", ".join(_ROLES)
        raise invalid(f"{where}.role is none that this server knows ({known}).", f"{where}.role")
    for name in ("tool_calls", "function_call", "audio", "refusal"):
        fields.refuse(name, "messages are text", [[]])
    fields.ignore("name", "annotations")
    content = fields.require("content")
    if isinstance(content, list):
        parts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
        content = "".join(parts)
    text = fields.text("content", content)
    fields.finish()
    return Message(_ROLES[role], text)


def _part(value: Any, where: str) -> str:
    """A content part: text is the only kind."""
    if not isinstance(value, dict):
        raise Fields.wrong_type(where, "an object", value)
    fields = Fields(value, where)
    if fields.text("type") != "text":
        raise invalid(f"{where}.type must be text: the model reads nothing else.", f"{where}.type")
    text = fields.text("text")
    fields.finish()
    return text


def _prompts(value: Any, limits: Limits) -> tuple[str | tuple[int, ...], ...]:
    """A string, token ids, or a list of either."""
    if isinstance(value, str):
        return (checked_text(value, "prompt"),)
    if not isinstance(value, list):
        raise Fields.wrong_type("prompt", "a string, a list of token ids, or a list of those", value)
    if not value:
        raise invalid("prompt is empty.", "prompt")
    if len(value) > MOST_CHOICES and not _is_id(value[0]):
        raise invalid(f"prompt has {len(value)} prompts; at most {MOST_CHOICES} are allowed.", "prompt")
    if all(isinstance(prompt, str) for prompt in value):
        return tuple(checked_text(prompt, f"prompt[{index}]") for index, prompt in enumerate(value))
    if all(isinstance(prompt, list) for prompt in value):
        return tuple(_token_ids(prompt, f"prompt[{index}]", limits) for index, prompt in enumerate(value))
    return (_token_ids(value, "prompt", limits),)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _token_ids(value: Any, where: str, limits: Limits) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise Fields.wrong_type(where, "a list of token ids", value)
    for index, token in enumerate(value):
        if not _is_id(token):
            raise Fields.wrong_type(f"{where}[{index}]", "a token id", token)
        if not 0 <= token < limits.vocab_size:
            raise invalid(f"{where}[{index}] is no token of this model, which has {limits.vocab_size}.", where)
    return tuple(value)

"""From a checked request to generated answers: what runs in the scheduler's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from buddy_gen.errors import BuddyError
from buddy_gen.serve.api_error import ApiError, invalid
from buddy_gen.serve.engine import Engine, Outcome, Token
from buddy_gen.serve.parameters import ChatRequest, Common, CompletionRequest
from buddy_gen.serve.scheduler import Job

__all__ = ["Ended", "Piece", "chat_prompt", "completion_prompts", "generate_choices"]


@dataclass(frozen=True)
class Piece:
    """A token of a choice."""

    choice: int
    token: Token


@dataclass(frozen=True)
class Ended:
    """The end of a choice."""

    choice: int
    outcome: Outcome


def chat_prompt(engine: Engine, request: ChatRequest) -> list[int]:
    """The ids of a conversation.

    Raises:
        ApiError: The model cannot show it, or it does not fit.
    """
    if reason := engine.info.chat_unavailable:
        raise invalid(f"This model cannot chat ({reason}); use /v1/completions.", "messages", "chat_unavailable")
    try:
        ids = engine.render_chat(request.messages)
    except BuddyError as error:
        raise invalid(str(error), "messages") from None
    return _fitting(engine, ids, "messages")


def completion_prompts(engine: Engine, request: CompletionRequest) -> list[list[int]]:
    """The ids of each prompt.

    Raises:
        ApiError: As above.
    """
    if not engine.info.has_text and request.common.sampling.stops:
        raise invalid("This model was built without a tokenizer, so it has no stop strings.", "stop")
    return [_fitting(engine, _ids(engine, prompt), "prompt") for prompt in request.prompts]


def _ids(engine: Engine, prompt: str | tuple[int, ...]) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    try:
        return engine.tokenize(prompt, add_special=True, parse_special=True)
    except BuddyError as error:
        raise invalid(str(error), "prompt") from None


def _fitting(engine: Engine, ids: list[int], param: str) -> list[int]:
    context = engine.info.context
    if not ids:
        raise invalid(f"{param} has no tokens; give some text.", param)
    if len(ids) > context:
        raise ApiError(
            400,
            f"This model's context holds {context} tokens, and {param} has {len(ids)}; shorten it.",
            param=param,
            code="context_length_exceeded",
        )
    return ids


def generate_choices(engine: Engine, prompts: Sequence[Sequence[int]], common: Common) -> Callable[[Job], None]:
    """The work of a request: each choice of each prompt in turn, with a seed of its own."""

    def work(job: Job) -> None:
        for choice in range(len(prompts) * common.choices):
            prompt, repeat = prompts[choice // common.choices], choice % common.choices
            sampling = replace(common.sampling, seed=(common.sampling.seed + repeat) % 2**64)

            def receive(token: Token, choice: int = choice) -> None:
                job.emit(Piece(choice, token))

            job.emit(Ended(choice, engine.generate(prompt, sampling, receive, job.cancelled)))
            if job.cancelled.is_set():
                return

    return work

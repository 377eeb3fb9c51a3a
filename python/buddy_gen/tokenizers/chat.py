"""Chat templates, compiled ahead of time.

A model's Jinja template is run over conversations whose contents are marks. What stands between the marks are the
pieces: of a conversation [system] user (assistant user)* [assistant], each piece depends only on what stands to its
left and right. More conversations then prove that joining pieces and contents gives the template's exact output.
A template that is not like that is refused with the reason.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

from buddy_gen.errors import BuddyError

__all__ = ["ChatTemplate", "ChatTemplateError", "ContentRule", "DateSlot", "reduce_chat_template"]

Message = Mapping[str, str]


class ChatTemplateError(BuddyError):
    """Why a chat template can't be reduced. The model is still good for completion."""


@dataclass(frozen=True)
class DateSlot:
    """The current date, in a strftime format."""

    format: str


Piece = tuple[str | DateSlot, ...]


@dataclass(frozen=True)
class ContentRule:
    """How the template treats a content before it shows it: str.strip on a side, or a way of its own when blank."""

    trim_left: bool = False
    trim_right: bool = False
    refuse_blank: bool = False

    def apply(self, content: str) -> str:
        content = content.lstrip() if self.trim_left else content
        return content.rstrip() if self.trim_right else content


@dataclass(frozen=True)
class ChatTemplate:
    """The pieces of a template; each is named by what stands to its left and right."""

    start: Piece
    """Before the first user's message, when no system message is given: BOS, a default system message, ..."""
    user_to_assistant: Piece
    assistant_to_user: Piece
    generation: Piece
    """After a user's message, when an answer is to be generated."""
    end_after_user: Piece
    end_after_assistant: Piece
    user: ContentRule
    assistant: ContentRule
    system_start: Piece = ()
    system_to_user: Piece = ()
    system: ContentRule = ContentRule()
    user_after_system: ContentRule = ContentRule()
    system_unsupported: str | None = None
    """Why no system message can be given; None: one can."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool, today: datetime) -> str:
        """What the template gives for [system] user (assistant user)* [assistant], on this day."""
        has_system = messages[0]["role"] == "system"
        turns = messages[1:] if has_system else messages
        out = _fill(self.system_start if has_system else self.start, today)
        if has_system:
            out += self.system.apply(messages[0]["content"]) + _fill(self.system_to_user, today)
        for index, message in enumerate(turns):
            if index:
                out += _fill(self.user_to_assistant if index % 2 else self.assistant_to_user, today)
            user = self.user_after_system if has_system and index == 0 else self.user
            out += (self.assistant if index % 2 else user).apply(message["content"])
        if add_generation_prompt:
            return out + _fill(self.generation, today)
        return out + _fill(self.end_after_user if len(turns) % 2 else self.end_after_assistant, today)


def reduce_chat_template(template: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Reduces a Jinja chat template; `special_tokens` are the names it may use ("bos_token", ...).

    Raises ChatTemplateError with the reason when the template is broken or does more than join pieces and contents.
    """
    jinja = _Jinja(template, special_tokens)
    try:
        reduced = _derive(jinja)
        _prove(jinja, reduced, with_system=False)
        jinja.check_public_rendering(reduced)
    except _TemplateRefusalError as refusal:
        raise ChatTemplateError(f"The chat template refuses a plain conversation: {refusal}.") from None
    reduced = _with_system(jinja, reduced)
    return _with_blank_rules(jinja, reduced)


# --- Running the template -------------------------------------------------------------------------------------------

_DATE_OPEN, _DATE_CLOSE = "\ue0d0", "\ue0d1"
_DATE_FORMAT = re.compile(r"(?:[^%]|%(?:[aAbBdemYyjHIMSpFT%]|-d))*", re.DOTALL)


class _TemplateRefusalError(Exception):
    """The template raised an exception of its own, or Jinja did."""


class _Jinja:
    """The template in transformers' own sandboxed environment, with a clock that we set."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        self.source = template
        self.names = dict(special_tokens)
        try:
            self.compiled = _compile_jinja_template(template)
        except Exception as error:  # whatever Jinja's compiler raises
            raise ChatTemplateError(f"The chat template is not valid Jinja: {_one_line(error)}.") from None

    def render(self, messages: Sequence[Message], add_generation_prompt: bool, today: datetime | None) -> str:
        """The template's output; without `today`, dates are marks that hold their format."""

        def strftime_now(form: str) -> str:
            return f"{_DATE_OPEN}{form}{_DATE_CLOSE}" if today is None else today.strftime(form)

        names: dict[str, Any] = {**self.names, "strftime_now": strftime_now, "tools": None, "documents": None}
        try:
            return str(
                self.compiled.render(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=add_generation_prompt,
                    **names,
                )
            )
        except Exception as error:  # a template can raise anything
            raise _TemplateRefusalError(_one_line(error)) from None

    def check_public_rendering(self, reduced: ChatTemplate) -> None:
        """transformers' public function, which apply_chat_template calls, must agree with ours."""
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": "Bye"},
        ]
        names: dict[str, Any] = self.names
        before = reduced.render(messages, True, datetime.now())
        result: Any = render_jinja_template([messages], chat_template=self.source, add_generation_prompt=True, **names)
        after = reduced.render(messages, True, datetime.now())
        if result[0][0] not in (before, after):  # two, for a second that passes between
            raise ChatTemplateError("The chat template gives another text when transformers renders it.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _parse_piece(text: str) -> Piece:
    """Splits a piece at its date marks."""
    parts: list[str | DateSlot] = []
    for index, part in enumerate(re.split(f"{_DATE_OPEN}(.*?){_DATE_CLOSE}", text, flags=re.DOTALL)):
        if index % 2:
            if not _DATE_FORMAT.fullmatch(part):
                raise ChatTemplateError(
                    f"The chat template writes dates in the format {part!r}, which is not supported."
                )
            parts.append(DateSlot(part))
        elif part:
            parts.append(part)
    if any(isinstance(part, str) and (_DATE_OPEN in part or _DATE_CLOSE in part) for part in parts):
        raise ChatTemplateError("The chat template changes a date after formatting it.")
    return tuple(parts)


def _fill(piece: Piece, today: datetime) -> str:
    return "".join(today.strftime(part.format) if isinstance(part, DateSlot) else part for part in piece)


# --- Deriving the pieces --------------------------------------------------------------------------------------------

# Whitespace that str.strip takes and that no template writes by itself.
_LEFT_SPACE, _RIGHT_SPACE = "\x0b\u2003\x1c", "\x1c\u2003\x0b"
_CONVERSATION = ("user", "assistant", "user", "assistant", "user")


def _mark(index: int) -> str:
    return f"qZ{index}xKv"  # changes under upper, lower, title, reverse, ...


def _cut(
    jinja: _Jinja, roles: Sequence[str], add_generation_prompt: bool = False
) -> tuple[list[Piece], list[ContentRule]]:
    """Renders marks in these roles: the pieces around them (one more than marks) and the trimming of each."""
    messages = [_message(role, _LEFT_SPACE + _mark(n) + _RIGHT_SPACE) for n, role in enumerate(roles)]
    rest = jinja.render(messages, add_generation_prompt, today=None)
    _check_marks(rest, roles)
    pieces: list[Piece] = []
    rules: list[ContentRule] = []
    for n in range(len(roles)):
        before, _, rest = rest.partition(_mark(n))
        rules.append(ContentRule(not before.endswith(_LEFT_SPACE), not rest.startswith(_RIGHT_SPACE)))
        pieces.append(_parse_piece(before.removesuffix(_LEFT_SPACE)))
        rest = rest.removeprefix(_RIGHT_SPACE)
    return [*pieces, _parse_piece(rest)], rules


def _check_marks(rendered: str, roles: Sequence[str]) -> None:
    """Each content stands there once, and in order."""
    places = [rendered.find(_mark(n)) for n in range(len(roles))]
    for n, role in enumerate(roles):
        if places[n] < 0:
            raise ChatTemplateError(f"The chat template changes or drops what the {role} says.")
        if rendered.count(_mark(n)) > 1:
            raise ChatTemplateError(f"The chat template shows what the {role} says more than once.")
        if n and places[n] < places[n - 1]:
            raise ChatTemplateError(f"The chat template moves what the {roles[n - 1]} says.")


def _derive(jinja: _Jinja) -> ChatTemplate:
    pieces, rules = _cut(jinja, _CONVERSATION)
    if pieces[1] != pieces[3] or pieces[2] != pieces[4] or len(set(rules[::2])) > 1 or len(set(rules[1::2])) > 1:
        raise ChatTemplateError("The chat template treats a later turn unlike an earlier one.")
    generated, _ = _cut(jinja, _CONVERSATION, add_generation_prompt=True)
    answered, _ = _cut(jinja, _CONVERSATION[:2])
    return ChatTemplate(
        start=pieces[0],
        user_to_assistant=pieces[1],
        assistant_to_user=pieces[2],
        generation=generated[-1],
        end_after_user=pieces[-1],
        end_after_assistant=answered[-1],
        user=rules[0],
        assistant=rules[1],
        user_after_system=rules[0],
        system_unsupported="It was not asked for one.",
    )


def _with_system(jinja: _Jinja, reduced: ChatTemplate) -> ChatTemplate:
    """Adds the pieces around a system message, or the reason why there can be none."""
    try:
        pieces, rules = _cut(jinja, ("system", *_CONVERSATION))
        result = replace(
            reduced,
            system_start=pieces[0],
            system_to_user=pieces[1],
            system=rules[0],
            user_after_system=rules[1],
            system_unsupported=None,
        )
        _prove(jinja, result, with_system=True)
    except _TemplateRefusalError as refusal:
        return replace(reduced, system_unsupported=f"the template says: {refusal}.")
    except ChatTemplateError as error:
        return replace(reduced, system_unsupported=str(error))
    return result


def _with_blank_rules(jinja: _Jinja, reduced: ChatTemplate) -> ChatTemplate:
    """Marks the slots where the template treats an empty content in a way of its own."""
    today = _DAYS[0]
    without: list[Message] = [_message("user", "A"), _message("assistant", "B"), _message("user", "C")]
    given: list[Message] = [_message("system", "S"), *without]
    slots = [("user", without, 0), ("user", without, 2), ("assistant", without, 1)]
    if reduced.system_unsupported is None:
        slots += [("system", given, 0), ("user_after_system", given, 1), ("assistant", given, 2), ("user", given, 3)]
    for (slot, base, index), blank in product(slots, ("", " ", "\n \n")):
        messages = [*base]
        messages[index] = _message(base[index]["role"], blank)
        try:
            same = jinja.render(messages, False, today) == reduced.render(messages, False, today)
        except _TemplateRefusalError:
            same = False
        if not same:
            reduced = replace(reduced, **{slot: replace(getattr(reduced, slot), refuse_blank=True)})
    return reduced


# --- The proof ------------------------------------------------------------------------------------------------------

_DAYS = (datetime(2024, 2, 29, 9, 5, 7), datetime(2031, 12, 1, 23, 59, 58), datetime(2026, 7, 26))
_CONTENTS = (
    "Hello",
    "x",
    " a space on each side ",
    "\n\nnewlines around\n",
    "\tlines\r\nand\n\n\nmore lines\n  indented",
    "naïve café 😀 你好 مرحبا \u200d e\u0301",
    "\u2003\x1funusual spaces\x85\xa0",
    "{{ braces }} {% if true %} {# comment #} %} }}",
    "<|im_end|></s><|eot_id|><end_of_turn>[INST] <s> [/INST]<|user|>\n<|assistant|>",
    "<think>why</think>because",
    "an end of thought</think>",
    "'single' \"double\" & <b>not HTML</b> \\n \\ 100%",
    "system",
    "user\nassistant\n",
    "[1, 2] {'a': 1} null None",
    "### Instruction: x ### Response:",
    "long " * 300,
)


def _conversations(with_system: bool) -> Iterator[list[Message]]:
    """Every content in every slot of short conversations, and longer ones of random contents (always the same)."""
    lead = ["system"] if with_system else []
    roles = [*lead, "user", "assistant", "user"]
    for slot, content in product(range(len(roles)), _CONTENTS):
        yield [_message(role, content if n == slot else f"plain {n}") for n, role in enumerate(roles)]
    chosen = random.Random(0)
    for turns in (1, 2, 3, 4, 5, 6, 7, 9, 12):
        for _ in range(3):
            roles = [*lead, *(("user", "assistant") * turns)[:turns]]
            yield [_message(role, chosen.choice(_CONTENTS)) for role in roles]


def _prove(jinja: _Jinja, reduced: ChatTemplate, with_system: bool) -> None:
    """Raises ChatTemplateError when the pieces give another text than the template for any of our conversations."""
    for number, messages in enumerate(_conversations(with_system)):
        today = _DAYS[number % len(_DAYS)]
        for add_generation_prompt in (False, True) if messages[-1]["role"] == "user" else (False,):
            right = jinja.render(messages, add_generation_prompt, today)
            ours = reduced.render(messages, add_generation_prompt, today)
            if ours != right:
                raise ChatTemplateError(_difference(messages, right, ours))


def _difference(messages: Sequence[Message], right: str, ours: str) -> str:
    at = next((n for n, (a, b) in enumerate(zip(right, ours, strict=False)) if a != b), min(len(right), len(ours)))
    last = max(messages, key=lambda message: message["content"] in _CONTENTS)
    said = f"the {last['role']} says {_shortened(last['content'])}"
    return (
        f"The chat template is more than fixed pieces around the contents: when {said}, it gives "
        f"{_shortened(right[max(at - 10, 0) :])} where pieces give {_shortened(ours[max(at - 10, 0) :])}."
    )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")

"""A template that is more than pieces around contents is refused, with the reason."""

from __future__ import annotations

import pytest

from buddy_gen.tokenizers import ChatTemplateError, reduce_chat_template

pytestmark = pytest.mark.slow

_HEAD = "{% for m in messages %}{{ '<' + m.role + '>' "
_TAIL = " }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (_HEAD + "+ m.content | reverse" + _TAIL, "changes or drops what the user says"),
        (_HEAD + "+ m.content | upper" + _TAIL, "changes or drops what the user says"),
        (_HEAD + "+ m.content + m.content" + _TAIL, "more than once"),
        (_HEAD + "+ m.content + (loop.index | string)" + _TAIL, "later turn unlike an earlier"),
        (_HEAD + "+ (m.content if loop.last or m.role == 'user' else '')" + _TAIL, "drops what the assistant says"),
        (_HEAD + "+ m.content | replace('<', '&lt;')" + _TAIL, "when the user says '<|im_end|>"),
        (_HEAD + "+ m.content.split('</think>')[-1]" + _TAIL, "</think>"),
        (_HEAD + "+ m.content.strip('\n')" + _TAIL, "more than fixed pieces"),
        (_HEAD + "+ ('?' if m.content | length > 1000 else m.content)" + _TAIL, "'long long"),
        (_HEAD + "+ ('!' if messages | length > 8 else '') + m.content" + _TAIL, "more than fixed pieces"),
        ("{{ strftime_now('%c') }}" + _HEAD + "+ m.content" + _TAIL, "in the format '%c'"),
        ("{{ strftime_now('%d') | upper | replace('\ue0d0', '') }}" + _HEAD + "+ m.content" + _TAIL, "changes a date"),
        ("{{ raise_exception('No  chats.') }}", "refuses a plain conversation: No chats."),
        ("{{ undefined.x }}", "refuses a plain conversation"),
        ("{% for %}", "not valid Jinja"),
        ("{{ messages[0]", "not valid Jinja"),
    ],
)
def test_the_reason_is_named(template: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        reduce_chat_template(template, {})
    message = str(caught.value)
    assert reason in message and message.endswith(".") and "\n" not in message


def test_a_system_message_that_can_not_be_reduced_costs_only_itself() -> None:
    moved = (
        "{% for m in messages if m.role != 'system' %}{{ '<' + m.role + '>' }}"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\n' }}{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
    )
    chat = reduce_chat_template(moved, {})
    assert chat.system_unsupported is not None and "moves what the system says" in chat.system_unsupported
    dropped = "{% for m in messages if m.role != 'system' %}{{ m.role + m.content }}{% endfor %}"
    assert "drops what the system says" in (reduce_chat_template(dropped, {}).system_unsupported or "")

"""Chat templates reduced to pieces: Python derives and proves them, the container joins them; Jinja is the judge."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pytest
import tokenizer_reference as reference
from text_tool import ABI, MODEL_ID, TextError, TextTool
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template

from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.tokenizers import ChatTemplate, chat, read_tokenizer_json, reduce_chat_template, write_vocab
from buddy_gen.tokenizers.chat import ContentRule, DateSlot
from buddy_gen.weights.gguf_file import read_gguf

pytestmark = pytest.mark.slow

Message = Mapping[str, str]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TODAY = datetime(2026, 11, 3, 4, 5, 6)

ZEPHYR_KIND = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

LLAMA3_KIND = """{{- bos_token }}
{%- for m in messages %}
    {%- set shown = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' %}
    {{- shown }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

DATED_KIND = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{% set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

GEMMA_KIND = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{- raise_exception('A system role is not known here') }}{% endif %}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

GEMMA_MERGING_KIND = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set lead = messages[0]['content'] + '\n\n' -%}{%- set turns = messages[1:] -%}
{%- else -%}
    {%- set lead = '' -%}{%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate') }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}
    {{- (lead if loop.first else '') + message['content'] | trim }}{{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

INST_KIND = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

TOOLS_KIND = """{%- if tools %}{{ 'tools: ' + tools | tojson + '\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
{%- if message.tool_calls is defined %}{{ message.tool_calls | tojson }}{% endif %}
{%- else %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

DEFAULT_SYSTEM_KIND = """{% for message in messages %}{% if loop.first and message.role != 'system' %}
{{- '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

BLANK_SYSTEM_KIND = """{% for message in messages %}{% if message.role != 'system' or message.content %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

ONE_SIDE_KIND = """{% for m in messages %}
{{- m.role + ':' + (m.content.rstrip() if m.role == 'assistant' else m.content.lstrip()) + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""

THINKING_PROMPT_KIND = """{% for m in messages %}{{ '<' + m.role + '>' + m.content + '</s>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant><think>\n' }}{% endif %}"""

TEMPLATES = {
    "chatml-default-system": DEFAULT_SYSTEM_KIND,
    "zephyr": ZEPHYR_KIND,
    "llama3": LLAMA3_KIND,
    "llama3-dated": DATED_KIND,
    "gemma": GEMMA_KIND,
    "gemma-merging": GEMMA_MERGING_KIND,
    "inst": INST_KIND,
    "tools-and-generation": TOOLS_KIND,
    "blank-system-vanishes": BLANK_SYSTEM_KIND,
    "one-side-trimmed": ONE_SIDE_KIND,
    "thinking-prompt": THINKING_PROMPT_KIND,
}
WITHOUT_SYSTEM = {"gemma", "inst"}

CONTENTS = [
    *reference.TEXTS[:14],
    "  spaces  ",
    "\n\nnewlines\n\n",
    "{{ bos_token }} {% endfor %} {# #}",
    "<|im_end|></s><|eot_id|><end_of_turn>",
    "\x1c\u2003odd\x85\u3000\xa0\x1f",
    "'\"&<>\\",
    "x",
]


class _FixedClock(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return TODAY


def _jinja(
    template: str, messages: Sequence[Message], add_generation_prompt: bool, names: Mapping[str, str] = NAMES
) -> str:
    """What transformers' apply_chat_template renders."""
    rendered, _ = render_jinja_template(
        [[dict(m) for m in messages]], chat_template=template, add_generation_prompt=add_generation_prompt, **names
    )
    text: str = rendered[0]
    return text


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", _FixedClock)
    monkeypatch.setattr(chat, "datetime", _FixedClock)


def _conversation(seed: int, with_system: bool, turns: int) -> list[Message]:
    chosen = random.Random(seed)
    roles = ["system"] * with_system + (["user", "assistant"] * turns)[:turns]
    return [{"role": role, "content": chosen.choice(CONTENTS) or "?"} for role in roles]


@pytest.fixture(scope="module")
def tool_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("chat")
    reference.train("gpt2", size=300).save(str(folder / "tokenizer.json"))
    spec = read_tokenizer_json(folder / "tokenizer.json")
    with TextTool() as tool:

        def load(chat: ChatTemplate | None, reason: str = "") -> TextTool:
            write_vocab(folder / "t.vocab", spec, abi=ABI, model_id=MODEL_ID, chat=chat, chat_unavailable=reason)
            tool.load(folder / "t.vocab")
            return tool

        yield load


def _check_everything(template: str, names: Mapping[str, str], reduced: ChatTemplate, tool: TextTool) -> None:
    systems = (False, True) if reduced.system_unsupported is None else (False,)
    for seed, with_system in ((n, s) for n in range(40) for s in systems):
        turns = 1 + seed % 6
        messages = _conversation(seed, with_system, turns)
        for add_generation_prompt in (False, True)[: 1 + turns % 2]:
            right = _jinja(template, messages, add_generation_prompt, names)
            assert reduced.render(messages, add_generation_prompt, TODAY) == right
            segments = tool.render(messages, add_generation_prompt, TODAY)
            assert "".join(text for text, _ in segments) == right
            for message in messages:
                plain = message["content"].strip()
                assert any(plain in text for text, parse in segments if not parse), "contents are never parsed"


@pytest.mark.parametrize("name", TEMPLATES)
def test_pieces_give_what_jinja_gives(name: str, tool_of: object) -> None:
    reduced = reduce_chat_template(TEMPLATES[name], NAMES)
    assert (reduced.system_unsupported is not None) == (name in WITHOUT_SYSTEM)
    _check_everything(TEMPLATES[name], NAMES, reduced, tool_of(reduced))  # type: ignore[operator]


def test_the_default_models_own_template(tool_of: object) -> None:
    template = read_gguf(fetch_default_model()).metadata["tokenizer.chat_template"]
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    reduced = reduce_chat_template(template, names)
    tool: TextTool = tool_of(reduced)  # type: ignore[operator]
    _check_everything(template, names, reduced, tool)
    assert "You are a helpful AI assistant" in tool.first_turn(None, "Hi", TODAY)[0][0]
    assert "You are a helpful AI assistant" not in tool.first_turn("Be brief.", "Hi", TODAY)[0][0]


@pytest.mark.parametrize("name", set(TEMPLATES) - {"thinking-prompt"})
def test_turn_by_turn_equals_the_whole(name: str, tool_of: object) -> None:
    """What a chat with a kept cache writes. One kind shows an answer after a space that it does not prompt with: that
    is known, and such a conversation is rendered anew."""
    template = TEMPLATES[name]
    reduced = reduce_chat_template(template, NAMES)
    tool: TextTool = tool_of(reduced)  # type: ignore[operator]
    systems = (None, "Be brief.") if reduced.system_unsupported is None else (None,)
    for system in systems:
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        written = "".join(t for t, _ in tool.first_turn(system, "Question?", TODAY))
        messages.append({"role": "user", "content": "Question?"})
        for n in range(3):
            assert written == _jinja(template, messages, True)
            answer, question = f"Answer {n}", f" question {n}\n"
            assert tool.keeps_answer(answer) == (name != "inst")
            following = "".join(text for text, _ in tool.next_turn(question, "", TODAY))
            written += (answer if name != "inst" else " " + answer) + following
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        assert written == _jinja(template, messages, True)


def test_what_of_the_answers_end_is_written_already(tool_of: object) -> None:
    tool: TextTool = tool_of(reduce_chat_template(DEFAULT_SYSTEM_KIND, NAMES))  # type: ignore[operator]
    whole = [("<|im_end|>\n<|im_start|>user\n", True), ("Q", False), ("<|im_end|>\n<|im_start|>assistant\n", True)]
    assert tool.next_turn("Q", "", TODAY) == whole
    assert tool.next_turn("Q", "<|im_end|>", TODAY) == [("\n<|im_start|>user\n", True), *whole[1:]]
    assert tool.next_turn("Q", "</s>", TODAY) == whole, "another end token is not the template's"


def test_which_answers_the_history_shows_as_they_are(tool_of: object) -> None:
    tool: TextTool = tool_of(reduce_chat_template(LLAMA3_KIND, NAMES))  # type: ignore[operator]
    assert tool.keeps_answer("Yes.") and tool.keeps_answer("")
    assert not tool.keeps_answer(" Yes.") and not tool.keeps_answer("Yes.\n")
    tool = tool_of(reduce_chat_template(DEFAULT_SYSTEM_KIND, NAMES))  # type: ignore[operator]
    assert tool.keeps_answer(" Yes.\n")
    tool = tool_of(reduce_chat_template(THINKING_PROMPT_KIND, NAMES))  # type: ignore[operator]
    assert not tool.keeps_answer("Yes."), "the history has no <think>"


def test_trimming_and_bos_are_found() -> None:
    reduced = reduce_chat_template(LLAMA3_KIND, NAMES)
    both = ContentRule(trim_left=True, trim_right=True)
    assert reduced.user == reduced.assistant == reduced.system == both
    assert reduced.start == ("<s><|start_header_id|>user<|end_header_id|>\n\n",)
    reduced = reduce_chat_template(ONE_SIDE_KIND, NAMES)
    assert (reduced.user, reduced.assistant) == (ContentRule(trim_left=True), ContentRule(trim_right=True))


def test_dates_are_slots(tool_of: object) -> None:
    reduced = reduce_chat_template(DATED_KIND, NAMES)
    assert DateSlot("%d %b %Y") in reduced.start and DateSlot("%d %b %Y") in reduced.system_start
    tool: TextTool = tool_of(reduced)  # type: ignore[operator]
    for today in (datetime(2024, 2, 29), datetime(1999, 12, 31), datetime(2030, 5, 1)):
        assert f"Today Date: {today:%d %b %Y}\n" in tool.first_turn(None, "Hi", today)[0][0]


@pytest.mark.parametrize("form", ["%A, %-d %B %Y", "%Y-%m-%d %H:%M:%S", "%F %T %I %p %y %j %e %a %%", "day"])
def test_every_date_format_is_pythons(form: str, tool_of: object) -> None:
    template = "{{ strftime_now('" + form + "') }}" + DEFAULT_SYSTEM_KIND
    tool: TextTool = tool_of(reduce_chat_template(template, NAMES))  # type: ignore[operator]
    chosen = random.Random(11)
    for _ in range(60):
        today = datetime.fromtimestamp(chosen.randrange(2**31 - 1))
        assert tool.first_turn(None, "Hi", today)[0][0].startswith(today.strftime(form) + "<|im_start|>")


def test_a_blank_content_that_is_shown_otherwise_is_refused(tool_of: object) -> None:
    reduced = reduce_chat_template(BLANK_SYSTEM_KIND, NAMES)
    assert reduced.system.refuse_blank and not reduced.user.refuse_blank and not reduced.assistant.refuse_blank
    tool: TextTool = tool_of(reduced)  # type: ignore[operator]
    with pytest.raises(TextError, match="empty system message"):
        tool.first_turn("", "Hi", TODAY)
    assert tool.first_turn("Be brief.", "", TODAY)


def test_orders_of_roles_that_have_no_piece(tool_of: object) -> None:
    tool: TextTool = tool_of(reduce_chat_template(GEMMA_KIND, NAMES))  # type: ignore[operator]
    user, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    system = {"role": "system", "content": "c"}
    with pytest.raises(TextError, match="alternate"):
        tool.render([user, user], True, TODAY)
    with pytest.raises(TextError, match="takes no system message: the template says: A system role is not known"):
        tool.render([system, user], True, TODAY)
    with pytest.raises(TextError, match="needs a user"):
        tool.render([], True, TODAY)
    with pytest.raises(TextError, match="alternate"):
        tool.render([answer], False, TODAY)
    with pytest.raises(TextError, match="only after a user"):
        tool.render([user, answer], True, TODAY)


def test_a_disabled_chat_says_why(tool_of: object) -> None:
    tool: TextTool = tool_of(None, "The reason.")  # type: ignore[operator]
    assert tool.info()[7:] == ["no chat", "The reason."]
    assert tool.encode("text still works")

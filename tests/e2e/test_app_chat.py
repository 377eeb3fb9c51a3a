"""Chats of buddy-llama-run, judged by the model's Jinja template and the toy model's known answers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from toy_model import (
    CHAT_TEMPLATE,
    END,
    Program,
    follow,
    greedy,
    programs,
    random_table,
    template_ids,
    toy_logits,
    write_model,
)

pytestmark = pytest.mark.slow

TABLE = random_table(1)
QUESTIONS = ["Hello", "What <|end|> is é?", "ok", "x" * 9, "7", "Why?", "  spaces  ", "!", "more", "bye"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


def turns_of(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


# Tools that no chat here uses, two user turns in a row that are refused, and a block that only training needs.
RICH_TEMPLATE = """{%- if tools %}{{ raise_exception('no tools here') }}{% endif %}
{%- if messages[0].role == 'system' %}{{ '<|start|>s' + messages[0].content + '<|end|>' }}
{%- set messages = messages[1:] %}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- if m.role == 'user' %}{{ '<|start|>u' + m.content + '<|end|>' }}
{%- else %}<|start|>a{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|start|>a{% endif %}"""


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_ten_turns_of_a_template_with_more_than_is_used(tmp_path: Path, system: str | None) -> None:
    """A2, A3: every turn's ids equal the template's own, and the answer is the model's to those."""
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, template=RICH_TEMPLATE))
    arguments = ["-cnv", "--json", "-n", "3", *(["-sys", system] if system else [])]
    turns = turns_of(toy.run(*arguments, stdin="\n".join(QUESTIONS).encode()).stdout)
    assert len(turns) == len(QUESTIONS) == 10
    messages = [("system", system)] if system else []
    for question, turn in zip(QUESTIONS, turns, strict=True):
        messages.append(("user", question))
        assert turn["prompt_ids"] == template_ids(messages, RICH_TEMPLATE)
        assert turn["ids"] == greedy(TABLE, turn["prompt_ids"], 3)
        messages.append(("assistant", turn["text"]))


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_turns_equal_the_template(toy: Program, system: str | None) -> None:
    """Nothing of the history is lost, though only what is new is evaluated."""
    arguments = ["-cnv", "--json", "-n", "4", *(["-sys", system] if system else [])]
    questions = QUESTIONS[:7]  # of this template, more would not fit the toy's context
    run = toy.run(*arguments, stdin="\n".join(questions).encode())
    assert run.code == 0, run.stderr
    turns = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(turns) == len(questions)
    messages = [("system", system)] if system else []
    for question, turn in zip(questions, turns, strict=True):
        messages.append(("user", question))
        assert turn["prompt_ids"] == template_ids(messages)
        assert turn["ids"] == greedy(TABLE, turn["prompt_ids"], 4)
        assert turn["prompt_tokens"] == len(turn["prompt_ids"])
        messages.append(("assistant", turn["text"]))


def test_plain_output_is_the_answers(tmp_path: Path) -> None:
    model = write_model(tmp_path, follow(TABLE.copy(), [*b"\nSure.", END]))
    toy = Program(programs() / "run-toy", model)
    run = toy.run("--cnv", "-q", stdin=b"Hello\n\nAgain\r\n")
    assert (run.code, run.text, run.stderr) == (0, "Sure.\nSure.\n", "")
    # -p is the first turn; standard input at its end is a quiet exit (A5).
    assert toy.run("-cnv", "-q", "-p", "Hi <|end|>").text == "Sure.\n"
    assert toy.run("-cnv", stdin=b"").stderr == ""
    turn = toy.run("-cnv", "--json", "-p", "a<|end|>").json
    assert turn["prompt_ids"] == template_ids([("user", "a<|end|>")]) and turn["stop"] == "eos"


def test_only_new_tokens_are_evaluated(tmp_path: Path) -> None:
    """With 10 ms a call and one token a call, evaluating the history again would show."""
    table = follow(TABLE.copy(), [*b"\nSure.", END])
    toy = Program(programs() / "run-toy", write_model(tmp_path, table, delay_ms=10))
    run = toy.run("-cnv", "--json", "--ubatch-size", "1", stdin=b"a long first turn\nb\n")
    first, second = (json.loads(line) for line in run.stdout.splitlines())
    new = len(second["prompt_ids"]) - len(first["prompt_ids"]) - len(first["ids"])
    assert new < len(first["prompt_ids"])
    assert second["prefill_seconds"] >= new * 0.01
    assert second["prefill_tokens_per_second"] == pytest.approx(new / second["prefill_seconds"], rel=0.01)


def test_an_answer_cut_by_a_stop_string_stays_out_of_the_history(tmp_path: Path) -> None:
    table = follow(TABLE.copy(), [*b"\nabcdef", END])
    toy = Program(programs() / "run-toy", write_model(tmp_path, table))
    run = toy.run("-cnv", "--json", "--stop", "de", stdin=b"x\ny\n")
    first, second = (json.loads(line) for line in run.stdout.splitlines())
    assert first["text"] == "abc" and first["ids"] == list(b"abcde") and first["stop"] == "stop-string"
    assert second["prompt_ids"] == template_ids([("user", "x"), ("assistant", "abc"), ("user", "y")])
    logits = toy_logits(table, second["prompt_ids"])
    assert second["ids"][0] == int(logits.argmax())


@pytest.mark.parametrize(("context", "system"), [(100, None), (120, "Be brief."), (64, None)])
def test_full_context_drops_the_oldest_turns(toy: Program, context: int, system: str | None) -> None:
    """At turn borders: each prompt is the template of the last turns, the system message stays, and it is told."""
    arguments = ["-cnv", "--json", "-c", str(context), "-n", "4", *(["-sys", system] if system else [])]
    run = toy.run(*arguments, stdin="\n".join(QUESTIONS).encode())
    turns = turns_of(run.stdout)
    assert run.code == 0 and len(turns) == len(QUESTIONS)
    head = [("system", system)] if system else []
    history: list[tuple[str, str]] = []
    dropped = 0
    for question, turn in zip(QUESTIONS, turns, strict=True):
        history.append(("user", question))
        whole = len(template_ids(head + history))
        before = len(history)
        while template_ids(head + history) != turn["prompt_ids"]:
            history = history[2:]  # never half a turn
            assert history
        if len(history) < before:
            assert whole + 4 > context  # only because it had to
            assert len(turn["prompt_ids"]) <= context - context // 4 or len(history) == 1
            dropped += (before - len(history)) // 2
        assert len(turn["prompt_ids"]) + 4 <= context
        assert turn["ids"] == greedy(TABLE, turn["prompt_ids"], 4)
        history.append(("assistant", turn["text"]))
    told = [line for line in run.stderr.splitlines() if "the context is full" in line]
    assert run.stderr.splitlines() == told and dropped > 0
    assert dropped == sum(1 if "oldest turn was" in line else int(line.split("oldest ")[1].split()[0]) for line in told)


def test_answer_that_fills_the_context(toy: Program) -> None:
    run = toy.run("-cnv", "--json", "-c", "60", "-n", "-1", "--ignore-eos", stdin=b"hello\nagain\n")
    first, second = turns_of(run.stdout)
    assert first["stop"] == second["stop"] == "context"
    assert len(first["prompt_ids"]) + len(first["ids"]) == 60
    assert second["prompt_ids"] == template_ids([("user", "again")])
    assert run.code == 0 and "the answer ends here" in run.stderr and "the oldest turn was forgotten" in run.stderr


def test_question_that_is_too_long_is_told_and_left_out(toy: Program) -> None:
    run = toy.run("-cnv", "--json", "-c", "60", "-n", "2", stdin=b"a\n" + b"x" * 60 + b"\nb\n")
    first, second = turns_of(run.stdout)
    expected = [("user", "a"), ("assistant", first["text"]), ("user", "b")]
    assert second["prompt_ids"] == template_ids(expected)
    assert run.code == 1 and run.stderr.count("\n") == 1 and "the context holds 60" in run.stderr


def test_models_that_can_not_chat(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, template=None))
    toy.run("-cnv", stdin=b"hi\n").fails(1, "can not chat", "no chat template", "-p")
    assert toy.run("-p", "hi", "-q").code == 0


def test_what_was_said_must_be_utf8(toy: Program) -> None:
    """An invalid line is told and left out; the chat goes on, and the exit code says that something was wrong."""
    run = toy.run("-cnv", "--json", "-n", "1", stdin=b"ab\xff\n\xe4\xb8\n\xe4\xb8\xad\n")
    assert [turn["prompt_ids"] for turn in turns_of(run.stdout)] == [template_ids([("user", "中")])]
    assert run.code == 1 and run.stderr.count("\n") == run.stderr.count("UTF-8") == 2 and "byte 3" in run.stderr


def test_commands(toy: Program) -> None:
    lines = ["a", "/clear", "b", "/system Be brief.", "c", "/system", "d", "//x", "/stats", "/quit", "never"]
    run = toy.run("-cnv", "--json", "-n", "1", stdin="\n".join(lines).encode())
    turns = turns_of(run.stdout)
    answers = [("assistant", turn["text"]) for turn in turns]
    asked: list[tuple[str, str]] = []
    assert turns[0]["prompt_ids"] == template_ids([("user", "a")])
    asked += [("user", "b")]
    assert turns[1]["prompt_ids"] == template_ids(asked)
    asked += [answers[1], ("user", "c")]
    assert turns[2]["prompt_ids"] == template_ids([("system", "Be brief."), *asked])
    asked += [answers[2], ("user", "d")]
    assert turns[3]["prompt_ids"] == template_ids(asked)
    asked += [answers[3], ("user", "/x")]
    assert turns[4]["prompt_ids"] == template_ids(asked) and len(turns) == 5
    assert run.code == 0 and f"of 256 tokens, {4} turns" in run.stderr and run.stderr.count("prefill") == 1


def test_wrong_commands(toy: Program) -> None:
    run = toy.run("-cnv", "--json", "-n", "1", stdin=b"/nonsense\n/clear now\n/help\nx\n")
    assert turns_of(run.stdout)[0]["prompt_ids"] == template_ids([("user", "x")])
    assert run.code == 1 and "'/nonsense' is unknown" in run.stderr and "/clear takes nothing" in run.stderr
    assert all(f"\n/{name}" in run.stderr for name in ("clear", "stats", "system", "quit", "help"))
    # What -p says is no command.
    turn = toy.run("-cnv", "--json", "-n", "1", "-p", "/clear").json
    assert turn["prompt_ids"] == template_ids([("user", "/clear")])


def test_system_message_that_the_template_has_no_place_for(tmp_path: Path) -> None:
    form = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT_TEMPLATE
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, template=form))
    toy.run("-cnv", "-sys", "x", stdin=b"hi\n").fails(1, "takes no system message")
    run = toy.run("-cnv", "--json", "-n", "1", stdin=b"/system x\nhi\n")
    assert run.code == 1 and "takes no system message" in run.stderr
    assert turns_of(run.stdout)[0]["prompt_ids"] == template_ids([("user", "hi")])


def test_interrupted_before_the_first_token_takes_the_question_back(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, delay_ms=20))
    with subprocess.Popen(
        toy.command("-cnv", "--json", "-n", "1", "-ub", "1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"a long question\n")
        process.stdin.flush()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        first = json.loads(process.stdout.readline())
        process.stdin.write(b"b\n")
        process.stdin.close()
        second = json.loads(process.stdout.readline())
    assert first["stop"] == "interrupt" and first["ids"] == []
    assert second["prompt_ids"] == template_ids([("user", "b")])


def test_interrupt_stops_the_answer_and_the_chat_goes_on(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, delay_ms=10))
    with subprocess.Popen(
        toy.command("-cnv", "--json", "-n", "100", "--ignore-eos"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        first = json.loads(process.stdout.readline())
        assert first["stop"] == "interrupt" and 0 < len(first["ids"]) < 100
        process.stdin.write(b"again\n")
        process.stdin.flush()
        second = json.loads(process.stdout.readline())
        assert second["stop"] == "length" and len(second["ids"]) == 100
        expected = [("user", "hello"), ("assistant", first["text"]), ("user", "again")]
        assert second["prompt_ids"] == template_ids(expected)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)  # while it waits for a line
        assert process.wait(timeout=5) == 0


def test_prompts_on_a_terminal(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, follow(TABLE.copy(), [*b"\nSure.", END])))
    terminal, user = pty.openpty()
    with subprocess.Popen(toy.command("-cnv", "-q"), stdin=user, stdout=subprocess.PIPE) as process:
        os.close(user)
        os.write(terminal, b"hello\n\x04")
        out, _ = process.communicate(timeout=10)
        os.close(terminal)
    assert process.returncode == 0 and out == b"> Sure.\n> \n"
    terminal, user = pty.openpty()
    with subprocess.Popen(toy.command(), stdin=user, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(user)
        _, err = process.communicate(timeout=10)
        os.close(terminal)
    assert process.returncode == 2 and b"there is no prompt" in err


def test_statistics_come_once(toy: Program) -> None:
    run = toy.run("-cnv", "-n", "3", "--ignore-eos", stdin=b"a\nb\n")
    assert run.stderr.count("tokens/s") == 2 and "     4 tokens" in run.stderr  # decoded in two turns


def test_a_system_message_that_fills_the_context(toy: Program) -> None:
    long = "x" * 100
    run = toy.run("-cnv", "-c", "100", "-sys", long, stdin=b"a")
    run.fails(1, "the system message has 100 tokens and the context holds 100")
    run = toy.run("-cnv", "-c", "100", "-n", "2", "-q", stdin=f"/system {long}\na".encode())
    assert run.code == 1 and "the system message has 100 tokens" in run.stderr and len(run.text.rstrip()) == 2
    run = toy.run("-cnv", "-c", "100", "-sys", "x" * 90, stdin=b"a")
    assert run.code == 1 and "the system message and this question" in run.stderr


def test_statistics_before_any_answer(toy: Program) -> None:
    run = toy.run("-cnv", "-n", "2", stdin=b"/stats\n/quit")
    assert run.code == 0 and "there is no answer yet" in run.stderr and "0 turns" in run.stderr
    assert "prefill" not in run.stderr

"""Chats of buddy-llama-run, judged by the model's Jinja template and the toy model's known answers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import jinja2
import pytest
from toy_model import (
    CHAT_TEMPLATE,
    END,
    START,
    Program,
    follow,
    greedy,
    programs,
    random_table,
    toy_logits,
    write_model,
)

pytestmark = pytest.mark.slow

TABLE = random_table(1)
QUESTIONS = ["Hello", "What <|end|> is é?", "ok", "x" * 9, "7", "Why?", "  spaces  ", "!", "more", "bye"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


def template_ids(messages: list[tuple[str, str]]) -> list[int]:
    """The template's text; special spellings count in the template only, not in what was said."""
    marks = {"<|start|>": "\ue000", "<|end|>": "\ue001"}
    form = CHAT_TEMPLATE
    for spelling, mark in marks.items():
        form = form.replace(spelling, mark)
    turns = [{"role": role, "content": content} for role, content in messages]
    text = jinja2.Template(form, keep_trailing_newline=True).render(messages=turns, add_generation_prompt=True)
    ids: list[int] = []
    for character in text:
        ids += {"\ue000": [START], "\ue001": [END]}.get(character) or list(character.encode())
    return ids


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_ten_turns_equal_the_template(toy: Program, system: str | None) -> None:
    """A2; nothing of the history is lost, though only what is new is evaluated."""
    arguments = ["-cnv", "--json", "-n", "4", *(["-sys", system] if system else [])]
    questions = QUESTIONS[:7]  # ten turns of this toy need more than its context
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
    # -p is the first turn; standard input at its end is a quiet exit.
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


def test_full_context(toy: Program) -> None:
    run = toy.run("-cnv", "--json", "-c", "40", "-n", "-1", stdin=b"hello\nagain\n")
    first = json.loads(run.stdout)
    assert first["stop"] == "context"
    assert len(first["prompt_ids"]) + len(first["ids"]) == 40
    assert run.code == 1 and run.stderr.count("\n") == 1 and "the context holds 40" in run.stderr


def test_models_that_can_not_chat(tmp_path: Path) -> None:
    toy = Program(programs() / "run-toy", write_model(tmp_path, TABLE, template=None))
    toy.run("-cnv", stdin=b"hi\n").fails(1, "can not chat", "no chat template", "-p")
    assert toy.run("-p", "hi", "-q").code == 0


def test_what_was_said_must_be_utf8(toy: Program) -> None:
    toy.run("-cnv", stdin=b"\xff\n").fails(1, "UTF-8")


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

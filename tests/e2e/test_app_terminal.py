"""The chat on a terminal: its line editor, judged by what reaches the model and by a terminal emulator (pyte)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
from toy_model import Program, greedy, programs, random_table, template_ids, write_model

pyte = pytest.importorskip("pyte")
pytestmark = pytest.mark.slow

TABLE = random_table(1)
TABLE[:, ord("a") : ord("z") + 1] += 20  # answers are letters
ROWS, COLUMNS = 12, 40
LEFT, RIGHT, UP, DOWN, HOME, END_KEY, DELETE = (f"\x1b[{code}" for code in ("D", "C", "A", "B", "H", "F", "3~"))
PASTE = "\x1b[200~{}\x1b[201~"


def control(letter: str) -> str:
    return chr(ord(letter) & 0x1F)


class Terminal:
    """A chat on a terminal of its own, and the screen that a person would see."""

    def __init__(self, program: Program, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.cooked = termios.tcgetattr(side)
        self.raw = b""
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.process = subprocess.Popen(
            program.command("-cnv", "-q", "-n", "4", "--ignore-eos", *arguments),
            stdin=side,
            stdout=side,
            stderr=side,
            env={**os.environ, "TERM": "xterm", **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.side = side

    def __enter__(self) -> Terminal:
        return self.until("> ")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.side)
        os.close(self.main)

    def type(self, keys: str | bytes) -> Terminal:
        os.write(self.main, keys.encode() if isinstance(keys, str) else keys)
        return self

    def display(self) -> list[str]:
        """The rows of the screen; a wide character is one."""
        rows = [self.screen.buffer[y] for y in range(ROWS)]
        return ["".join(row[x].data for x in range(COLUMNS)) for row in rows]

    def lines(self) -> list[str]:
        """The rows of the screen, without what is blank at their ends."""
        return [row.rstrip() for row in "\n".join(self.display()).rstrip().split("\n")]

    def wait(self, condition: Callable[[], bool], what: str) -> Terminal:
        """Reads what the program writes until something is so."""
        deadline = time.monotonic() + 10
        while not condition():
            ready, _, _ = select.select([self.main], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{what} did not come: {self.lines()}"
            part = os.read(self.main, 65536)
            self.raw += part
            self.stream.feed(part)
        return self

    def until(self, last: str) -> Terminal:
        """Waits until the last row of the screen is this."""
        return self.wait(lambda: self.lines()[-1].strip() == last.strip(), repr(last))

    def cursor(self, row: int, column: int) -> Terminal:
        """Waits until the cursor is there."""
        return self.wait(lambda: (self.screen.cursor.y, self.screen.cursor.x) == (row, column), f"{(row, column)}")

    def answer_to(self, *said: str, last: str = ">") -> Terminal:
        """Waits for the answer to the last of what was said, and checks it by the model's rule."""
        messages = []
        for question in said:
            messages.append(("user", question))
            text = bytes(greedy(TABLE, template_ids(messages), 4)).decode()
            messages.append(("assistant", text))
        return self.wait(lambda: self.lines()[-2:] == [text, last], repr(text))

    def ends(self, code: int = 0) -> None:
        assert self.process.wait(timeout=10) == code
        assert termios.tcgetattr(self.side)[:4] == self.cooked[:4]  # the terminal is as it was


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


@pytest.fixture
def terminal(toy: Program) -> Iterator[Terminal]:
    with Terminal(toy) as opened:
        yield opened


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ("hello", "hello"),
        ("ello" + control("A") + "h" + control("E") + "!", "hello!"),
        ("ello" + HOME + "h" + END_KEY + "!", "hello!"),
        ("held" + LEFT + "l" + RIGHT + "!", "helld!"),
        ("abc" + LEFT + LEFT + DELETE, "ac"),
        ("abc" + LEFT + control("D"), "ab"),
        ("abc\x7f\x7fx" + control("H") + "y", "ay"),
        ("one two" + LEFT * 4 + control("K"), "one"),
        ("one two" + LEFT * 3 + control("U"), "two"),
        ("one two  " + control("W") + "x", "one x"),
        ("one two" + "\x1bb" + "\x1bd" + "2", "one 2"),
        ("one two" + "\x1b\x7f" + "x", "one x"),
        ("one two" + "\x1b[1;5D" * 2 + "\x1b[1;5C" + "!", "one! two"),
        (control("B") * 3 + control("F") * 3 + "a" + LEFT * 9 + DELETE + "b", "b"),
        ("é中😀" + LEFT + "x" + LEFT * 2 + "y", "éy中x😀"),
        ("é中😀\x7f\x7f", "é"),
        ("ne\u0301a" + LEFT * 2 + "x", "nxe\u0301a"),  # a letter and its accent are one
        ("ne\u0301" + "\x7f", "n"),
        ("a\x1b[99zb\x1b[5~c\x1bOC", "abc"),  # keys that mean nothing
        ("a\tb", "a\tb"),
        (PASTE.format("two\nlines"), "two\nlines"),
        ("x" + PASTE.format("a\r\nb\rc\n") + "y", "xa\nb\ncy"),
        (PASTE.format("/quit") + control("A") + "/", "/quit"),
        ("one\x1b\rtwo", "one\ntwo"),  # Alt-Enter
        (PASTE.format("first\nsecond") + control("A") + "2 " + control("K"), "first\n2 "),
        ("dropped" + control("C") + "kept", "kept"),
        ("x" * 100 + HOME + "y", "y" + "x" * 100),
        ("中" * 50 + HOME + RIGHT + "y", "中y" + "中" * 49),
    ],
)
def test_keys(terminal: Terminal, keys: str, sent: str) -> None:
    """What is sent after some keys: the model's answer depends on every byte of it."""
    terminal.type(keys + "\r").answer_to(sent)


def apply(key: str, text: list[str], at: int) -> tuple[list[str], int]:
    """A key's effect on a text of single characters, by the description of the keys in docs/cli.md."""
    before, behind = text[:at], text[at:]
    if key == LEFT:
        return text, max(at - 1, 0)
    if key == RIGHT:
        return text, min(at + 1, len(text))
    if key == HOME:
        return text, 0
    if key == END_KEY:
        return text, len(text)
    if key == "\x7f":
        return before[:-1] + behind, max(at - 1, 0)
    if key == DELETE:
        return before + behind[1:], at
    if key == control("K"):
        return before, at
    if key == control("U"):
        return behind, 0
    if key == control("W"):
        kept = list("".join(before).rstrip(" "))
        while kept and kept[-1] != " ":
            kept.pop()
        return kept + behind, len(kept)
    return [*before, key, *behind], at + 1


@pytest.mark.parametrize("seed", range(4))
def test_any_keys(terminal: Terminal, seed: int) -> None:
    """The screen shows the text in rows without a gap, and the cursor before the right character, after any keys."""
    random = np.random.default_rng(seed)
    erasing = [control("K"), control("U")]
    editing = [LEFT, RIGHT, HOME, END_KEY, "\x7f", DELETE, control("W")]
    text: list[str] = []
    at = 0
    for _ in range(40):
        keys = []
        for _ in range(int(random.integers(1, 12))):
            kind = random.integers(0, 100)
            choices = (
                erasing if kind < 2 else editing if kind < 35 else ["中", "é", "한", "ж", "😀"] if kind < 60 else "ab c"
            )
            keys.append(str(random.choice(list(choices))))
        terminal.type("".join(keys))
        for key in keys:
            text, at = apply(key, text, at)
        rows, row, column, cursor = [["> "]], 0, 2, (0, 2)
        for index, character in enumerate([*text, ""]):
            width = 2 if character in ("中", "한", "😀") else 1
            if column + width > COLUMNS:
                rows.append([])
                row, column = row + 1, 0
            if index == at:
                cursor = (row, column)
            rows[-1].append(character)
            column += width
        shown = ["".join(characters).rstrip() for characters in rows]
        terminal.wait(
            lambda cursor=cursor, shown=shown: (  # type: ignore[misc]
                (terminal.screen.cursor.y, terminal.screen.cursor.x) == cursor
                and [line.rstrip() for line in terminal.display()[: len(shown)]] == shown
            ),
            f"{cursor} in {shown}",
        )


def test_history(terminal: Terminal) -> None:
    terminal.type("first\r").answer_to("first")
    terminal.type("second\r").answer_to("first", "second")
    terminal.type("dra" + UP).until("> second").type(UP).until("> first").type(UP + DOWN).until("> second")
    terminal.type(DOWN).until("> dra").type("ft" + DOWN).until("> draft")
    terminal.type(UP + "!\r").answer_to("first", "second", "second!")
    terminal.type(control("P")).until("> second!").type(control("N")).until(">")
    terminal.type(control("D")).ends()


def test_ctrl_d_and_ctrl_c_on_an_empty_line_and_quit(toy: Program) -> None:
    for keys in (control("D"), control("C"), "/quit\r", "abc" + control("C") + control("C")):
        with Terminal(toy) as terminal:
            terminal.type(keys).ends()


def test_rows_and_wide_characters(terminal: Terminal) -> None:
    """Long lines fill the rows; a wide character that does not fit goes to the next one; the cursor is right."""
    terminal.type("a" * 37).until("> " + "a" * 37).cursor(0, 39)
    terminal.type("b").cursor(1, 0)  # the row is full
    terminal.type("c").until("c").cursor(1, 1)
    assert terminal.lines() == ["> " + "a" * 37 + "b", "c"]
    terminal.type(LEFT * 2 + "\x7f").wait(lambda: terminal.lines() == ["> " + "a" * 36 + "bc"], "one row").cursor(0, 38)
    terminal.type(control("E") + control("U") + "中" * 19).cursor(1, 0)
    terminal.type("\x7f" + "a").cursor(0, 39).type("中").cursor(1, 2)
    assert [line.replace(" ", "") for line in terminal.lines()] == [">" + "中" * 18 + "a", "中"]
    terminal.type(HOME).cursor(0, 2).type(RIGHT * 2).cursor(0, 6)
    terminal.type(control("U") + control("K") + "e\u0301x").cursor(0, 4)


def test_long_texts_scroll(terminal: Terminal) -> None:
    """More rows than the screen has: those around the cursor are shown."""
    text = "".join(chr(ord("a") + (i + 2) // COLUMNS) for i in range(COLUMNS * 20 - 2))
    terminal.type(PASTE.format(text)).wait(lambda: "tt" in terminal.lines()[-1], "the end")
    assert len(terminal.lines()) == ROWS - 1  # and an empty one, where the cursor is
    terminal.type(HOME).wait(lambda: terminal.lines()[0].startswith("> aaa"), "the beginning").cursor(0, 2)
    assert "ll" in terminal.lines()[-1]
    terminal.type(control("C")).wait(lambda: terminal.lines()[-1] == ">", "a new line")


def test_pasted_newlines_do_not_send(terminal: Terminal) -> None:
    terminal.type(PASTE.format("one\ntwo\n")).wait(lambda: terminal.lines() == ["> one", "two"], "two rows").cursor(
        1, 3
    )
    assert terminal.process.poll() is None
    terminal.type("\r").answer_to("one\ntwo")
    assert b"\x1b[?2004h" in terminal.raw


def test_bytes_that_are_no_text(terminal: Terminal) -> None:
    """They ring the bell and are left out; a control character that is pasted is shown as such."""
    terminal.type(b"a\xffb\xc3(c\r").answer_to("ab(c")
    assert b"\a" in terminal.raw
    terminal.type(PASTE.format("x\x1b[31my\x07")).until("> x^[[31my^G")


def test_escape_alone_and_redraw(terminal: Terminal) -> None:
    terminal.type("ab\x1b")
    time.sleep(0.2)
    terminal.type("c").until("> abc").type(control("L")).wait(lambda: terminal.lines() == ["> abc"], "a clear screen")
    terminal.type("\r").answer_to("abc")


def test_commands_and_errors_go_on(terminal: Terminal) -> None:
    terminal.type("/help\r").wait(lambda: "/clear" in "".join(terminal.lines()), "help").until(">")
    terminal.type("/nonsense\r").wait(lambda: "is unknown" in "".join(terminal.lines()), "an error").until(">")
    terminal.type(control("D")).ends(0)


def test_interrupt_stops_the_answer(tmp_path: Path) -> None:
    """Ctrl-C as a key: the terminal sends the signal while an answer is made."""
    slow = Program(programs() / "run-toy", write_model(tmp_path, TABLE, delay_ms=20))
    with Terminal(slow, "-n", "200") as terminal:
        terminal.type("x\r")
        time.sleep(0.5)
        terminal.type(control("C")).until(">")
        before = len(terminal.raw)
        terminal.type("/stats\r").wait(lambda: "1 turn" in "".join(terminal.lines()), "statistics")
        assert before < 1000
        terminal.until(">").type(control("D")).ends()


def test_what_is_typed_ahead_is_kept(tmp_path: Path) -> None:
    """While an answer is made; the terminal is then in its own mode."""
    slow = Program(programs() / "run-toy", write_model(tmp_path, TABLE, delay_ms=40))
    with Terminal(slow) as terminal:
        terminal.type("x\r")
        time.sleep(0.1)
        terminal.type("second\rthi").answer_to("x", "second", last="> thi").type("rd\r").answer_to(
            "x", "second", "third"
        )


def test_suspend_and_resume(toy: Program, tmp_path: Path) -> None:
    """Under a shell with job control, which takes the terminal and gives it back."""
    script = tmp_path / "job"
    script.write_text(f'#!/usr/bin/env bash\nset -m\n"{toy.path}" "$@"\nstty -a | grep -o " echo "\nfg\n')
    script.chmod(0o755)
    with Terminal(Program(script, toy.model)) as terminal:
        terminal.type("abc" + control("Z")).wait(lambda: " echo" in terminal.lines(), "the shell").until("> abc")
        terminal.type("d\r").answer_to("abcd")
        terminal.type(control("D")).ends()


@pytest.mark.parametrize(
    ("env", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_color_on_a_terminal_only(toy: Program, env: dict[str, str], colored: bool) -> None:
    with Terminal(toy, env=env) as terminal:
        terminal.type("/help\r").wait(lambda: "/quit" in "".join(terminal.lines()), "help").until(">")
        assert (b"\x1b[1;32m> \x1b[0m" in terminal.raw) == colored
        assert (b"m/" in terminal.raw) == colored
        if env.get("TERM") == "dumb":
            assert b"\x1b" not in terminal.raw
    run = toy.run("-cnv", "-n", "2", stdin=b"/help\nx\n")
    assert b"\x1b" not in run.stdout and "\x1b" not in run.stderr

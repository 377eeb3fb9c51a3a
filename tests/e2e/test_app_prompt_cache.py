"""--prompt-cache: the same output with fewer evaluations, and no file that is not right is ever used."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from toy_model import (
    ABI,
    HEAD_DIM,
    KV_HEADS,
    LAYERS,
    MODEL_ID,
    OTHER_ABI,
    Program,
    greedy,
    programs,
    random_table,
    template_ids,
    write_model,
)

pytestmark = pytest.mark.slow

TABLE = random_table(2)
TEXT = "It was a dark and stormy night"
HEADER = 240


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


@pytest.fixture
def file(toy: Program, tmp_path: Path) -> Path:
    """A cache of TEXT and four tokens behind it; the last one was not evaluated."""
    path = tmp_path / "night.cache"
    assert toy.run("-p", TEXT, "-n", "5", "-q", "--prompt-cache", path).code == 0
    return path


def evaluated(toy: Program, file: Path, prompt: str, *arguments: str) -> int:
    """How many tokens of a prompt a run with the cache evaluates; its output must be that of a run without."""
    common = ["-p", prompt, "-n", "6", "--ignore-eos", "--json", *arguments]
    without, cached = toy.run(*common).json, toy.run(*common, "--prompt-cache", file).json
    assert cached["ids"] == without["ids"] and cached["text"] == without["text"]
    assert cached["prompt_ids"] == without["prompt_ids"]
    return int(cached["prefilled_tokens"])


def test_only_what_is_new_is_evaluated(toy: Program, file: Path) -> None:
    content = file.read_bytes()
    prompt = TEXT + bytes(greedy(TABLE, list(TEXT.encode()), 4)).decode()  # what the file holds
    for text, new in ((TEXT, 1), (prompt, 1), (prompt + "; the rain", 10), (TEXT[:10], 1), (TEXT[:10] + "!?", 2)):
        file.write_bytes(content)
        assert evaluated(toy, file, text, "-ub", "3") == new, text
    file.write_bytes(content)
    assert evaluated(toy, file, "Another story") == len("Another story")
    assert evaluated(toy, file, "Another story") == 1  # it was saved anew


def test_nothing_new_is_not_written_again(toy: Program, file: Path) -> None:
    before = file.stat().st_ino
    assert toy.run("-p", TEXT, "-n", "5", "-q", "--prompt-cache", file).code == 0
    assert file.stat().st_ino == before  # no other file took its name


def test_chunks_sampling_and_log_probabilities_are_the_same(toy: Program, file: Path) -> None:
    arguments = [
        "-p",
        TEXT + "s",
        "--json",
        "--temp",
        "1.5",
        "--seed",
        "3",
        "--repeat-penalty",
        "1.2",
        "--logprobs",
        "2",
    ]
    without, cached = toy.run(*arguments).json, toy.run(*arguments, "--prompt-cache", file, "--warm-up").json
    assert all(cached[key] == without[key] for key in ("ids", "text", "logprobs", "prompt_ids", "stop"))


def test_what_stands_in_the_file(file: Path) -> None:
    content = file.read_bytes()
    magic, version, abi, model, digest, *shape = struct.unpack("<8sQ64s64s64s4q", content[:HEADER])
    ids = [*TEXT.encode(), *greedy(TABLE, list(TEXT.encode()), 4)]
    assert (magic, version) == (b"BUDDYKVC", 1)
    assert (abi.decode(), model.decode()) == (ABI, MODEL_ID)
    assert digest.decode() == sha256(content[208:]).hexdigest()
    assert shape == [LAYERS, KV_HEADS, 4 * HEAD_DIM, len(ids)]
    assert np.frombuffer(content, np.int32, len(ids), HEADER).tolist() == ids
    caches = np.frombuffer(content, np.float32, offset=HEADER + 4 * len(ids))
    keys, values = caches.reshape(2, LAYERS, KV_HEADS, len(ids), HEAD_DIM)  # the filled positions alone
    assert (keys == np.array(ids)[:, None]).all() and (values == np.arange(1, len(ids) + 1)[:, None]).all()
    assert sorted(path.name for path in file.parent.iterdir() if path.is_file()) == ["night.cache"]


def test_another_context(toy: Program, file: Path) -> None:
    """A smaller context takes what it has room for."""
    assert evaluated(toy, file, TEXT[:12], "-c", "20") == 1
    assert evaluated(toy, file, TEXT, "-c", "200") == len(TEXT) - 12  # the run before saved no more of it


def damaged(content: bytes, at: int, new: bytes) -> bytes:
    return content[:at] + new + content[at + len(new) :]


@pytest.mark.parametrize(
    ("at", "new", "parts"),
    [
        (0, b"GGUF", ["is no prompt cache", "overwritten"]),
        (8, b"\x02", ["format version 2", "reads 1"]),
        (16, OTHER_ABI.encode(), ["another program"]),
        (80, b"34" * 32, ["another model"]),
        (144, b"0" * 64, ["damaged", "SHA-256"]),
        (208, b"\x09", ["damaged", "shape"]),
        (232, b"\x00", ["damaged", "0 tokens"]),
        (232, b"\xff" * 8, ["damaged"]),
        (232, b"\x05", ["damaged", "do not fit"]),
        (232, b"\xff" * 7 + b"\x7f", ["damaged", "do not fit"]),
        (HEADER, b"\x01", ["damaged", "SHA-256"]),
        (-1, b"\x01", ["damaged", "SHA-256"]),
    ],
)
def test_files_that_are_not_right(toy: Program, file: Path, at: int, new: bytes, parts: list[str]) -> None:
    content = file.read_bytes()
    file.write_bytes(damaged(content, at % len(content), new))
    before = file.read_bytes()
    toy.run("-p", TEXT, "--prompt-cache", file).fails(1, str(file), *parts)
    assert file.read_bytes() == before  # and it is left alone


def test_files_that_are_cut_or_too_long(toy: Program, file: Path) -> None:
    content = file.read_bytes()
    for size in (0, 1, 8, 100, HEADER - 1, HEADER, HEADER + 7, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        toy.run("-p", TEXT, "--prompt-cache", file).fails(1, str(file), "damaged")
    file.write_bytes(content + b"\0")
    toy.run("-p", TEXT, "--prompt-cache", file).fails(1, "damaged")


def test_places_that_do_not_work(toy: Program, tmp_path: Path) -> None:
    toy.run("-p", "a", "--prompt-cache", tmp_path / "no" / "x").fails(1, "x", "No such file")
    toy.run("-p", "a", "--prompt-cache", tmp_path).fails(1, "no regular file")
    toy.run("-p", "a", "--prompt-cache", "/dev/null").fails(1, "/dev/null")
    toy.run("-p", "a", "--prompt-cache", "").fails(2, "--prompt-cache")
    text = tmp_path / "notes.txt"
    text.write_text("precious")
    toy.run("-p", "a", "--prompt-cache", text).fails(1, "is no prompt cache")
    assert text.read_text() == "precious"


def test_a_pipe_is_refused_at_once(toy: Program, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    toy.run("-p", "a", "--prompt-cache", tmp_path / "pipe").fails(1, "no regular file")


def test_a_link_and_permissions_stay(toy: Program, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "link").symlink_to("../night.cache")
    (folder / "other").symlink_to("../new.cache")
    file.chmod(0o640)
    before = file.read_bytes()
    assert toy.run("-p", TEXT + "!!", "-n", "3", "-q", "--prompt-cache", folder / "link").code == 0
    assert (folder / "link").is_symlink() and file.read_bytes() != before
    assert file.stat().st_mode & 0o777 == 0o640
    assert toy.run("-p", TEXT, "-n", "3", "-q", "--prompt-cache", folder / "other").code == 0
    assert (folder / "other").is_symlink() and (tmp_path / "new.cache").is_file()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "links", "new.cache", "night.cache", "other"]


def test_a_second_interrupt_leaves_no_part_of_a_file(toy: Program, tmp_path: Path) -> None:
    """The second one comes at several times while the file is written."""
    program = Program(toy.path, write_model(tmp_path / "model", TABLE, delay_ms=2))
    folder = tmp_path / "caches"
    folder.mkdir()
    command = program.command("-p", TEXT, "-n", "-1", "--ignore-eos", "-q", "--prompt-cache", folder / "cache")
    for wait in (0.0, 0.0005, 0.001, 0.002, 0.004):
        running = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert running.stdout and running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        while running.poll() is None and not any(".tmp" in path.name for path in folder.iterdir()):
            pass
        time.sleep(wait)
        running.send_signal(signal.SIGINT)
        running.stdout.close()
        assert running.wait(20) in (0, 130)
        assert {path.name for path in folder.iterdir()} <= {"cache"}
        (folder / "cache").unlink(missing_ok=True)


def test_disk_that_is_full(toy: Program, tmp_path: Path) -> None:
    """The answer comes, the cache does not, and nothing is left of it."""
    path = tmp_path / "cache"
    limited = Program(tmp_path / "limited", toy.model)
    limited.path.write_text(f'#!/bin/sh\ntrap "" XFSZ\nulimit -f 1\nexec "{toy.path}" "$@"\n')
    limited.path.chmod(0o755)
    run = limited.run("-p", TEXT, "-q", "--prompt-cache", path)
    assert run.code == 1 and "can not be written" in run.stderr and run.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["limited"]


def test_chats_go_on_from_the_same_beginning(toy: Program, tmp_path: Path) -> None:
    path = tmp_path / "chat.cache"
    system = "A long system message that both chats begin with."
    arguments = ["-cnv", "--json", "-n", "3", "--ignore-eos", "-sys", system]
    for question, new in (("one", None), ("two", len("two") + len(template_ids([("user", "")])) - 6)):
        run = toy.run(*arguments, "--prompt-cache", path, stdin=question.encode())
        assert run.code == 0, run.stderr
        turn = json.loads(run.stdout)
        assert turn["prompt_ids"] == template_ids([("system", system), ("user", question)])
        assert turn["ids"] == greedy(TABLE, turn["prompt_ids"], 3)
        expected = len(turn["prompt_ids"]) if new is None else new
        assert turn["prefilled_tokens"] == expected

"""`buddy serve` as a process: its signals, its sentences, its log."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
import toy_server
from openai import OpenAI
from toy_model import greedy, random_table

from buddy_gen.building import PROGRAM
from buddy_gen.errors import BuddyError
from buddy_gen.serve.library import LibraryEngine, find_library
from buddy_gen.serve.server import listen

pytestmark = pytest.mark.slow  # compiles the toy library

TABLE = random_table(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("a b") / "toy-é"
    toy_server.toy_folder(made, TABLE, delay_ms=30)
    (made / PROGRAM).touch()
    return made


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "buddy_gen.cli", "serve", str(folder), "--port", "0", *arguments]


@contextlib.contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it listens."""
    process = subprocess.Popen(
        command(folder, *arguments),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    assert process.stderr
    try:
        url = None
        for line in process.stderr:
            if found := re.search(r"on (http://\S+)/v1 ", line):
                url = found[1]
                break
        assert url
        yield process, url
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_with_an_answer_under_way(folder: Path, number: int) -> None:
    with (
        started(folder, "--max-tokens-limit", "200") as (process, url),
        OpenAI(base_url=url + "/v1", api_key="x") as client,
    ):
        prompt = "a"
        answer = client.completions.create(model="toy-é", prompt=prompt, max_tokens=4, temperature=0)
        assert answer.choices[0].text == bytes(greedy(TABLE, list(prompt.encode()), 4)).decode("utf-8", "replace")
        stream = client.completions.create(model="toy-é", prompt="a", max_tokens=200, stream=True)
        next(iter(stream))
        start = time.monotonic()
        process.send_signal(number)
        with pytest.raises(Exception, match="going down"):
            list(stream)
        out, errors = process.communicate(timeout=10)
        assert process.returncode == 0 and time.monotonic() - start < 5
        assert out == "" and "Traceback" not in errors
        assert "POST /v1/completions 200" in errors


def test_options_reach_the_server(folder: Path) -> None:
    options = ["-c", "64", "--threads", "1", "--max-tokens-limit", "5", "--max-body-bytes", "200", "--quiet"]
    with started(folder, *options, "--model-name", "m", BUDDY_API_KEY="k") as (process, url):
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer k"}) as client:
            model = client.get("/v1/models").json()["data"][0]
            assert (model["id"], model["context_length"]) == ("m", 64)
            assert (
                "at most 5" in client.post("/v1/completions", json={"model": "m", "prompt": "a", "max_tokens": 6}).text
            )
            assert client.post("/v1/completions", json={"model": "m", "prompt": "a" * 300}).status_code == 413
        assert httpx.get(url + "/v1/models").status_code == 401
        process.terminate()
        assert process.communicate(timeout=10) == ("", "")


def failing(*arguments: str, code: int = 1, **variables: str) -> str:
    """The one sentence of a failure."""
    done = subprocess.run(
        [sys.executable, "-m", "buddy_gen.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | variables,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("buddy: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_failures_are_sentences(folder: Path, tmp_path: Path) -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "cannot listen on 127.0.0.1 port " + port in failing(str(folder), "--port", port)
    assert "give another --host" in failing(str(folder), "--host", "no.such.host.invalid")
    assert "API key is empty" in failing(str(folder), "--port", "0", "--api-key", "")
    assert "1 to 256" in failing(str(folder), "--port", "0", "-c", "100000")
    assert "does not exist" in failing(str(tmp_path / "none"))
    for wrong in (["--port", "-1"], ["--port", "x"], ["--max-queue", "-1"], ["--wrong"], ["-t", "-1"]):
        failing(str(folder), *wrong, code=2)
    for name in ("toy.vocab", "toy.weights.safetensors"):
        damaged = shutil.copytree(folder, tmp_path / name)
        (damaged / name).write_bytes((damaged / name).read_bytes()[:100])
        assert name in failing(str(damaged), "--port", "0")
        (damaged / name).unlink()
        if name == "toy.vocab":
            missing = f"The vocabulary file '{damaged / name}' does not exist"
            assert missing in failing(str(damaged), "--port", "0")


def test_libraries_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    def found(*names: str) -> Path:
        made = tmp_path / "-".join(["x", *names])
        made.mkdir()
        for name in names:
            (made / name).write_bytes(b"")
        return find_library(made)

    with pytest.raises(BuddyError, match="holds no model"):
        found()
    with pytest.raises(BuddyError, match=r"has no libm\.so; build the model again"):
        found("m.weights.safetensors")
    with pytest.raises(BuddyError, match="several models"):
        found("m.weights.safetensors", "n.weights.safetensors", "libm.so", "libn.so")
    with pytest.raises(BuddyError, match="cannot be loaded"):
        LibraryEngine(found("m.weights.safetensors", "libm.so"))
    other = shutil.copytree(folder, tmp_path / "other")
    shutil.copy2(toy_server.libraries() / "other" / "libother.so", other / "libtoy.so")
    with pytest.raises(BuddyError, match="CPU lacks"):
        LibraryEngine(find_library(other))


@pytest.mark.parametrize(("asked", "given"), [(0, 256), (-1, 256), (17, 17)])
def test_contexts(folder: Path, asked: int, given: int) -> None:
    engine = LibraryEngine(find_library(folder), context=asked, threads=1)
    assert (engine.info.context, engine.info.threads) == (given, 1)
    engine.close()


def test_a_library_shows_its_interface_alone(folder: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", find_library(folder)], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in listing.splitlines()]
    assert names and all(name.startswith("buddy_llama_") for name in names)


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    toy_server.toy_folder(tmp_path, TABLE, vocab=False)
    shutil.copy2(toy_server.libraries() / "ids" / "libids.so", tmp_path / "libtoy.so")
    engine = LibraryEngine(find_library(tmp_path))
    with toy_server.serving(engine) as running:
        request = {"model": "toy", "prompt": [97, 98], "max_tokens": 4, "temperature": 0, "logprobs": 0}
        answer = running.post("/v1/completions", request).json()
        ids = greedy(TABLE, [97, 98], 4)
        assert answer["usage"]["completion_tokens"] == len(ids)
        choice = answer["choices"][0]
        assert choice["text"] == "" and choice["token_ids"] == ids
        assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in ids]
        for scores in ({}, {"logprobs": 3}):
            lines = running.post("/v1/completions", {**request, "logprobs": None, **scores, "stream": True}).text
            events = [line.removeprefix("data: ") for line in lines.strip().split("\n\n")]
            streamed = [json.loads(line)["choices"][0] for line in events[:-1]]
            assert [token for part in streamed for token in part["token_ids"]] == ids
            if scores:
                assert all(len(part["logprobs"]["top_logprobs"][0]) == 3 for part in streamed[: len(ids)])
        chat = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
        assert running.post("/v1/chat/completions", chat).json()["error"]["code"] == "chat_unavailable"
        assert running.post("/tokenize", {"content": "x"}).json()["error"]["code"] == "no_tokenizer"
    engine.close()

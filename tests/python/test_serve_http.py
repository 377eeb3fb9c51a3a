"""The server under clients that queue, leave, send too much or too slowly, and when it goes down."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from toy_server import MODEL, FakeEngine, Running, serving, until

from buddy_gen.errors import BuddyError

BODY: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
LONG = {**BODY, "max_tokens": 500}


def raw(**changes: Any) -> bytes:
    return json.dumps({**BODY, **changes}).encode()


def error(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def test_paths_and_methods() -> None:
    with serving(FakeEngine()) as running:
        assert running.get("/health").json() == {"status": "ok", "busy": False, "waiting": 0}
        models = running.get("/v1/models").json()
        assert models["object"] == "list" and [model["id"] for model in models["data"]] == [MODEL]
        assert running.get(f"/v1/models/{MODEL}").json() == models["data"][0]
        assert error(running.get("/v1/models/gpt-4"), 404)["code"] == "model_not_found"
        assert error(running.get("/v1/chat/completions"), 405)["code"] == "method_not_allowed"
        assert error(running.post("/v1/models", {}), 405)["code"] == "method_not_allowed"
        for path in ("/health/", "/v1/completions/"):  # no redirection
            assert error(running.get(path), 404)["code"] == "unknown_url"
        for path in ("/", "/v1", "/v1/embeddings", "/v1/chat/completions/x", "/%00", "/..%2f"):
            assert error(running.get(path), 404)["code"] in ("unknown_url", "model_not_found")


def test_a_body_must_say_that_it_is_json() -> None:
    with serving(FakeEngine()) as running:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = running.post("/v1/completions", content=raw(), headers={"Content-Type": kind})
            assert error(answer, 415)["code"] == "unsupported_media_type"
        for kind in ("application/json; charset=latin-1", 'application/json; x=y; Charset = "utf-16"'):
            answer = running.post("/v1/completions", content=raw(), headers={"Content-Type": kind})
            assert "UTF-8" in error(answer, 415)["message"]
        for kind in ("Application/JSON; charset=utf-8", 'application/json;charset="UTF-8"', "application/json; a=b;"):
            assert running.post("/v1/completions", content=raw(), headers={"Content-Type": kind}).status_code == 200


def test_the_api_key() -> None:
    with serving(FakeEngine(), api_key="sécret") as running:
        assert running.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer secret"}, {"Authorization": "Basic x"}, {"Authorization": ""}):
            for answer in (running.get("/v1/models", headers=headers), running.get("/v1/models/x", headers=headers)):
                assert error(answer, 401)["code"] == "invalid_api_key"
        body = {"content": raw(), "headers": {"Content-Type": "application/json"}}
        assert error(running.post("/v1/completions", **body), 401)["code"] == "invalid_api_key"
        right = {b"Authorization": "bearer sécret".encode()}
        assert running.get("/v1/models", headers=right).status_code == 200


def test_a_huge_body_is_refused_without_being_kept() -> None:
    with serving(FakeEngine(), max_body_bytes=1000) as running:
        exact = raw(prompt="x" * (1000 - len(raw(prompt=""))))
        headers = {"Content-Type": "application/json"}
        assert len(exact) == 1000
        assert running.post("/v1/completions", content=exact, headers=headers).status_code == 200
        for body in (exact + b" ", b"x" * 10_000, (b"y" * 100 for _ in range(50))):
            answer = running.post("/v1/completions", content=body, headers=headers)
            assert error(answer, 413)["code"] == "body_too_large"
        with running.connect() as opened:  # one that never ends
            opened.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
            opened.sendall(b"Content-Length: 100000000000\r\n\r\n" + b"x" * 20_000)
            assert b" 413 " in opened.recv(100)
        assert running.post("/v1/completions", BODY).status_code == 200


def test_a_slow_body_and_a_broken_one_hold_nobody_up() -> None:
    with serving(FakeEngine(), body_seconds=0.2) as running:
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n"
        )
        with running.connect() as slow, running.connect() as broken:
            slow.sendall(head + b'{"model"')
            broken.sendall(head + b'{"model"')
            broken.close()
            assert running.post("/v1/completions", BODY).status_code == 200
            assert b" 408 " in slow.recv(100)
        with running.connect() as garbage:
            garbage.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n")
            assert b" 400 " in garbage.recv(100)
        assert running.get("/health").status_code == 200


def test_failures_of_the_model_are_structured_and_pass(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    with serving(engine) as running:
        for failure, text in ((BuddyError("The logits are not numbers."), "The logits"), (KeyError("x"), "KeyError")):
            engine.failure = failure
            for stream in (False, True):
                found = error(running.post("/v1/completions", {**BODY, "stream": stream}), 500)
                assert text in found["message"] and found["type"] == "server_error"
        engine.failure = None
        assert running.post("/v1/completions", BODY).status_code == 200
        messages = [{"role": "assistant", "content": "x"}]
        chat = running.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
        assert "only after a user's message" in error(chat, 400)["message"]
        engine.chat_unavailable = "it has no chat template"
        chat = running.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
        assert error(chat, 400)["code"] == "chat_unavailable"


def test_a_model_without_a_tokenizer_takes_ids() -> None:
    with serving(FakeEngine(has_text=False, chat_unavailable="it was built without a tokenizer")) as running:
        assert running.post("/v1/completions", {**BODY, "prompt": [1, 2]}).status_code == 200
        assert error(running.post("/tokenize", {"content": "x"}), 400)["code"] == "no_tokenizer"
        assert error(running.post("/detokenize", {"tokens": [1]}), 400)["code"] == "no_tokenizer"
        assert error(running.post("/v1/completions", {**BODY, "prompt": [1], "stop": "x"}), 400)["param"] == "stop"


class Clients:
    """Requests that run side by side."""

    def __init__(self, running: Running, engine: FakeEngine) -> None:
        self.running, self.engine = running, engine
        self.pool = ThreadPoolExecutor(20)

    def post(self, prompt: str, **changes: Any) -> Future[Any]:
        """Sends a request, and waits until the server has it."""
        before = self.arrived()
        answer = self.pool.submit(self.running.post, "/v1/completions", {**BODY, "prompt": prompt, **changes})
        until(lambda: self.arrived() > before or answer.done())
        return answer

    def arrived(self) -> int:
        return len(self.engine.prompts) + self.running.scheduler.waiting


def release(engine: FakeEngine, tokens: int) -> None:
    assert engine.gate is not None
    engine.gate.release(tokens)


def test_first_come_first_served_and_a_bounded_queue() -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine, most_waiting=3) as running:
        clients = Clients(running, engine)
        answers = [clients.post(name) for name in "abcd"]
        until(lambda: engine.prompts)
        assert running.get("/health").json() == {"status": "ok", "busy": True, "waiting": 3}
        refused = running.post("/v1/completions", BODY)
        assert error(refused, 503)["code"] == "server_busy"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
        release(engine, 20)
        assert [answer.result().status_code for answer in answers] == [200] * 4
        assert [bytes(prompt).decode() for prompt in engine.prompts] == list("abcd")
        release(engine, 5)
        assert running.post("/v1/completions", BODY).status_code == 200


def test_no_queue_at_all() -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine, most_waiting=0) as running:
        first = Clients(running, engine).post("a")
        assert error(running.post("/v1/completions", BODY), 503)["code"] == "server_busy"
        release(engine, 5)
        assert first.result().status_code == 200


def leave(opened: socket.socket) -> None:
    opened.shutdown(socket.SHUT_RDWR)
    opened.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_answer_within_a_token(stream: bool) -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine) as running:
        opened = running.send("/v1/completions", raw(max_tokens=500, stream=stream))
        release(engine, 3)
        until(lambda: engine.generated == 3)
        leave(opened)
        until(lambda: not running.scheduler.busy)
        assert engine.generated == 3
        engine.gate = None
        assert running.post("/v1/completions", BODY).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_not_served(stream: bool) -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine, most_waiting=1) as running:
        clients = Clients(running, engine)
        first = clients.post("a")
        opened = running.send("/v1/completions", raw(prompt="b", stream=stream))
        until(lambda: running.scheduler.waiting == 1)
        leave(opened)
        until(lambda: running.scheduler.waiting == 0)
        last = clients.post("c")
        release(engine, 10)
        assert first.result().status_code == last.result().status_code == 200
        assert [bytes(prompt).decode() for prompt in engine.prompts] == ["a", "c"]


def test_a_client_that_leaves_between_choices() -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine) as running:
        opened = running.send("/v1/completions", raw(n=16))
        release(engine, 7)
        until(lambda: engine.generated == 7)
        leave(opened)
        until(lambda: not running.scheduler.busy)
        assert len(engine.prompts) == 2


def test_a_client_that_does_not_read_holds_nobody_up() -> None:
    engine = FakeEngine()
    with serving(engine, max_tokens=100_000) as running:
        deaf = running.send("/v1/completions", raw(max_tokens=20_000, stream=True))
        assert running.post("/v1/completions", BODY).status_code == 200
        until(lambda: engine.generated >= 20_000)
        leave(deaf)


def test_a_stream_comes_token_by_token() -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine) as running, running.openai() as client:
        release(engine, 1)
        with client.completions.create(model=MODEL, prompt="hi", max_tokens=3, stream=True) as stream:
            for letter in "abc":
                assert next(stream).choices[0].text == letter
                release(engine, 1)
            assert next(stream).choices[0].finish_reason == "length"


def test_going_down_ends_every_request_with_an_error() -> None:
    engine = FakeEngine(gate=threading.Semaphore(0))
    with serving(engine) as running:
        clients = Clients(running, engine)
        first = clients.post("a", max_tokens=500, stream=True)
        release(engine, 2)
        until(lambda: engine.generated == 2)
        second, third = clients.post("b"), clients.post("c", stream=True)
        start = time.monotonic()
        running.server.should_exit = True
        for waiting in (second, third):
            assert error(waiting.result(), 503)["code"] == "shutting_down"
        lines = first.result().text.strip().split("\n\n")
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert "[DONE]" not in first.result().text
        assert time.monotonic() - start < 5
    assert engine.generated == 2


class SlowText(FakeEngine):
    """Its texts have many tokens, and wait until they may be ended."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.inside = self.most_inside = 0
        self.lock = threading.Lock()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.inside, self.most_inside)
        self.may_end.wait(30)
        with self.lock:
            self.inside -= 1
        return list(range(100_000, 100_000 + len(text)))


def test_texts_do_not_hold_up_the_server() -> None:
    engine = SlowText()
    with serving(engine, most_waiting=3) as running, ThreadPoolExecutor(9) as pool:
        text = "x" * 1_000_000
        asked = [pool.submit(running.post, "/tokenize", {"content": text}) for _ in range(9)]
        until(lambda: sum(one.done() for one in asked) == 4)  # two work, three wait
        assert running.get("/health").status_code == 200
        engine.may_end.set()
        slowest = 0.0
        while not all(one.done() for one in asked):
            start = time.monotonic()
            assert running.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - start)
        assert slowest < 1 and engine.most_inside == 2
        answers = [one.result() for one in asked]
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [503] * 4
        for answer in answers:
            if answer.status_code == 503:
                assert error(answer, 503)["code"] == "server_busy" and answer.headers["retry-after"] == "1"
        whole = next(answer for answer in answers if answer.status_code == 200)
        assert whole.json() == {"tokens": list(range(100_000, 1_100_000))}
        assert running.post("/tokenize", {"content": ""}).json() == {"tokens": []}


def noise(running: Running, kind: int, chosen: random.Random) -> None:
    """A connection of somebody who means no good, or whose network is bad."""
    good = raw(stream=True, max_tokens=50)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(good)
    damaged = bytearray(good)
    damaged[chosen.randrange(len(good))] = chosen.randrange(256)
    content = (
        chosen.randbytes(chosen.randrange(1, 5000)),
        (request + good)[: chosen.randrange(1, 200)],
        request + good,
        request + damaged,
        (request + good) * 20,
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n" + good,
    )[kind % 6]
    with contextlib.suppress(OSError), running.connect() as opened:
        opened.settimeout(0.3)
        opened.sendall(content)
        if kind % 4 == 0:
            opened.recv(10)


def test_noise_does_no_harm() -> None:
    chosen = random.Random(5)
    with serving(FakeEngine()) as running:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda kind: noise(running, kind, random.Random(kind)), chosen.sample(range(10_000), 300)))
        until(lambda: not running.scheduler.busy and running.scheduler.waiting == 0)
        assert running.post("/v1/completions", BODY).json()["choices"][0]["text"] == "abcde"


def test_many_clients_at_once() -> None:
    engine = FakeEngine()
    with serving(engine, most_waiting=100) as running, ThreadPoolExecutor(16) as pool:

        def one(number: int) -> tuple[int, str]:
            body = {**BODY, "prompt": f"{number}", "max_tokens": 1 + number % 7, "stream": number % 2 == 0}
            answer = running.post("/v1/completions", body)
            return answer.status_code, answer.text

        answers = list(pool.map(one, range(80)))
        for number, (status, text) in enumerate(answers):
            assert status == 200
            expected = "abcdefg"[: 1 + number % 7]
            if number % 2 == 0:
                parts = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
                assert parts[-1] == "[DONE]"
                assert "".join(json.loads(part)["choices"][0]["text"] for part in parts[:-1]) == expected
            else:
                assert json.loads(text)["choices"][0]["text"] == expected
        assert sorted(bytes(prompt).decode() for prompt in engine.prompts) == sorted(map(str, range(80)))

"""Many connections that say little, and those that are served all the same."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest
from toy_server import MODEL, FakeEngine, Running, serving, until

from buddy_gen.serve.connections import ConnectionLimits

BODY = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 5}).encode()
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def healthy(opened: socket.socket) -> bool:
    """Whether a request on this connection is answered."""
    opened.sendall(HEALTH)
    answer = b""
    while not answer.endswith(b"}"):
        part = opened.recv(1000)
        if not part:
            return False
        answer += part
    return b" 200 " in answer


def test_headers_have_a_deadline() -> None:
    """Silent ones, half a request, drops of one, half a second request on a connection, and a body after the answer."""
    with serving(FakeEngine(), limits=ConnectionLimits(100, 0.4)) as running, contextlib.ExitStack() as stack:
        start = time.monotonic()
        silent, half, drops, second, body = [stack.enter_context(running.connect()) for _ in range(5)]
        half.sendall(HEALTH[:20])
        assert healthy(second)
        second.sendall(HEALTH[:-2])
        body.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
        assert b" 404 " in body.recv(1000)

        def drip() -> None:
            with contextlib.suppress(OSError):
                for i in range(200):
                    drops.sendall(HEALTH[4:5])
                    body.sendall(b"x" if i < 90 else b"")
                    time.sleep(0.05)

        dripping = threading.Thread(target=drip)
        dripping.start()
        for opened in (silent, half, drops, second, body):
            opened.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                while opened.recv(1000):
                    pass
        dripping.join(5)
        assert not dripping.is_alive() and time.monotonic() - start < 4
        until(lambda: not running.server.server_state.connections)


def test_an_answer_has_no_deadline() -> None:
    gate = threading.Semaphore(0)
    with serving(FakeEngine(gate=gate), limits=ConnectionLimits(100, 0.1)) as running:
        with running.send("/v1/completions", BODY) as opened:
            time.sleep(0.4)
            gate.release(5)
            answer = b""
            while b"abcde" not in answer:
                part = opened.recv(10_000)
                assert part
                answer += part
        with running.connect() as kept:  # between requests time is as before
            for _ in range(2):
                assert healthy(kept)
                time.sleep(0.3)


def unread(running: Running, path: str, body: bytes) -> socket.socket:
    """Sends a request on a connection that takes little before it is read."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(10)
    opened.connect(("127.0.0.1", running.port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    opened.sendall(head.encode() + body)
    return opened


@pytest.mark.slow
def test_a_stream_that_nobody_reads_ends() -> None:
    engine = FakeEngine(gate=threading.Semaphore(30_000))  # more than the system buffers; then it waits
    endless = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 10**7, "stream": True}).encode()
    limits = ConnectionLimits(2, send_seconds=0.5)
    with (
        serving(engine, limits=limits, max_tokens=10**7) as running,
        unread(running, "/v1/completions", endless),
    ):
        until(lambda: running.scheduler.busy)
        until(lambda: not running.scheduler.busy)
        until(lambda: not running.server.server_state.connections)
        assert 0 < engine.generated <= 30_000
        assert running.get("/health").json()["busy"] is False


@pytest.mark.slow
def test_a_whole_answer_that_nobody_reads_ends() -> None:
    long = json.dumps({"content": "a" * 3_000_000}).encode()
    limits = ConnectionLimits(2, send_seconds=0.3)
    with serving(FakeEngine(), limits=limits) as running, unread(running, "/tokenize", long):
        until(lambda: running.server.server_state.connections)
        until(lambda: not running.server.server_state.connections)


@pytest.mark.slow
def test_a_slow_reader_gets_all() -> None:
    """One that reads within each span of time, though all of it takes several."""
    long = json.dumps({"content": "a" * 3_000_000}).encode()
    limits = ConnectionLimits(2, send_seconds=0.5)
    with serving(FakeEngine(), limits=limits) as running, unread(running, "/tokenize", long) as opened:
        opened.sendall(HEALTH)
        answer = bytearray()
        start = time.monotonic()
        while not answer.endswith(b'"waiting":0}'):
            part = opened.recv(2**20 if time.monotonic() - start > 1.5 else 10_000)
            assert part
            answer += part
            if time.monotonic() - start < 1.5:
                time.sleep(0.02)
        assert answer.count(b"97") >= 3_000_000


def test_one_connection_too_many_is_told_so() -> None:
    with serving(FakeEngine(), limits=ConnectionLimits(16, 1)) as running, contextlib.ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(running.connect())
        until(lambda: len(running.server.server_state.connections) == 16)
        for _ in range(20):
            with running.connect() as refused:
                answer = b"".join(iter(lambda: refused.recv(1000), b""))
                assert b" 503 " in answer and b"server_busy" in answer
        until(lambda: not running.server.server_state.connections)
        assert running.get("/health").status_code == 200


SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
from toy_server import FakeEngine
from buddy_gen.serve.app import Settings, make_app
from buddy_gen.serve.connections import ConnectionLimits
from buddy_gen.serve.scheduler import Scheduler
from buddy_gen.serve.server import Server, listen, log_to_stderr
log_to_stderr(quiet=True)
opened = listen("127.0.0.1", 0)
scheduler = Scheduler(1)
limits = ConnectionLimits(200, 1) if sys.argv[1] == "many" else None
server = Server(make_app(FakeEngine(), scheduler, Settings("toy", 5)), scheduler.stop, limits)
print("port", opened.getsockname()[1], file=sys.stderr, flush=True)
server.run([opened])
"""


def flooded(kind: str) -> str:
    """What a server that may open 80 files says while 150 connect."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, kind],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stderr
    try:
        found = re.fullmatch(r"port (\d+)\n", process.stderr.readline())
        assert found
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                stack.enter_context(socket.create_connection(("127.0.0.1", int(found[1])), timeout=10))
            time.sleep(1.5)
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=10) as opened:
            assert healthy(opened)
        process.terminate()
        return process.communicate(timeout=15)[1]
    finally:
        process.kill()
        process.wait()


def test_the_limit_of_open_files_is_not_reached() -> None:
    assert flooded("few") == ""


def test_a_system_that_has_no_more_gives_a_line() -> None:
    said = flooded("many")
    assert re.fullmatch(r"\S+ A connection could not be accepted \(Too many open files\); it is tried again\.\n", said)


def test_limits_of_the_process() -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 4 <= ConnectionLimits.of_process().most <= min(512, max(4, allowed // 2))

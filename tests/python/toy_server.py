"""Servers for the tests, on real sockets: around an engine that does as it is told, and around the toy library.

The toy library is lib<name>.so of toy-library/, the compiled library around the toy model of tests/e2e/toy-model.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import toy_model
from openai import OpenAI

from buddy_gen.errors import BuddyError
from buddy_gen.serve.app import Settings, make_app
from buddy_gen.serve.connections import ConnectionLimits
from buddy_gen.serve.engine import CancelFlag, Engine, EngineInfo, Message, Outcome, Sampling, Stop, Token
from buddy_gen.serve.scheduler import Scheduler
from buddy_gen.serve.server import Server, listen

MODEL = "toy"
ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def libraries() -> Path:
    """The folder with <name>/lib<name>.so of each toy; they are kept with the build that is tested."""
    if given := os.environ.get("BUDDY_BUILD_DIR"):
        folder = Path(given) / "toy-library"
    else:
        folder = Path(tempfile.mkdtemp(prefix="toy-library-"))
    headers = folder / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ctest runs several test files at once
        for name, changes in toy_model.MODELS.items():
            header, text = headers / f"{name}_config.h", toy_model.render_config(name, **changes)
            if not header.exists() or header.read_text(encoding="utf-8") != text:
                header.write_text(text, encoding="utf-8")
        source = Path(__file__).with_name("toy-library")
        options = [f"-DHEADERS={headers}", f"-DMODELS={';'.join(toy_model.MODELS)}"]
        if ccache := shutil.which("ccache"):
            options.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
        for command in (
            ["cmake", "-G", "Ninja", "-S", source, "-B", folder / "build", *options],
            ["cmake", "--build", folder / "build", "--parallel", "2"],
        ):
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build"


def toy_folder(folder: Path, table: toy_model.Floats, **options: Any) -> Path:
    """A folder as `buddy build` leaves it, with the toy; gives the library."""
    toy_model.write_model(folder, table, **options)
    return Path(shutil.copy2(libraries() / "toy" / "libtoy.so", folder))


@dataclass
class FakeEngine:
    """Generates "a", "b", "c", ...; `gate`, where there is one, must let each token through."""

    gate: threading.Semaphore | None = None
    failure: BaseException | None = None
    chat_unavailable: str | None = None
    has_text: bool = True
    context: int = 4096
    prompts: list[list[int]] = field(default_factory=list)
    settings: list[Sampling] = field(default_factory=list)
    generated: int = 0
    closed: bool = False

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("ab" * 32, self.context, 256, self.has_text, 1, 1, 0, self.chat_unavailable)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())

    def detokenize(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        if messages[-1].role != "user":
            raise BuddyError("An answer can be generated only after a user's message.")
        return list("".join(message.content for message in messages).encode())

    def generate(
        self, ids: Sequence[int], sampling: Sampling, receiver: Callable[[Token], None], cancelled: CancelFlag
    ) -> Outcome:
        self.prompts.append(list(ids))
        self.settings.append(sampling)
        if self.failure:
            raise self.failure
        made, stop = 0, Stop.LENGTH
        while made < sampling.max_tokens:
            while self.gate and not cancelled.is_set() and not self.gate.acquire(timeout=0.005):
                pass
            if cancelled.is_set():
                stop = Stop.CANCELLED
                break
            receiver(Token(97 + made % 26, chr(97 + made % 26)))
            made += 1
            self.generated += 1
        receiver(Token(-1, ""))
        return Outcome(stop, len(ids), 0, made)

    def close(self) -> None:
        self.closed = True


@dataclass
class Running:
    """A server that runs in a thread of its own."""

    url: str
    port: int
    scheduler: Scheduler
    server: Server
    client: httpx.Client

    def openai(self, **options: Any) -> OpenAI:
        """OpenAI's own client, which does not try again by itself."""
        return OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 30, **options})

    def post(self, path: str, value: Any = None, **options: Any) -> httpx.Response:
        if value is not None:
            options = {"content": json.dumps(value), "headers": {"Content-Type": "application/json"}, **options}
        return self.client.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def send(self, path: str, body: bytes, headers: str = "Content-Type: application/json") -> socket.socket:
        """Sends a request by hand; who called reads, or does not."""
        opened = self.connect()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n"
        opened.sendall(head.encode() + body)
        return opened


@contextlib.contextmanager
def serving(
    engine: Engine, *, most_waiting: int = 8, limits: ConnectionLimits | None = None, **settings: Any
) -> Iterator[Running]:
    """Serves `engine` on a free port."""
    opened = listen("127.0.0.1", 0)
    port = opened.getsockname()[1]
    scheduler = Scheduler(most_waiting)
    chosen = Settings(**{"model": MODEL, "max_tokens": 512, **settings})
    server = Server(make_app(engine, scheduler, chosen), scheduler.stop, limits)
    thread = threading.Thread(target=server.run, args=([opened],), daemon=True)
    thread.start()
    until(lambda: server.started)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            yield Running(url, port, scheduler, server, client)
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()
        assert scheduler.join(10)


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Waits for what must happen soon."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)

"""Runs the application on a socket until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from buddy_gen.errors import BuddyError
from buddy_gen.serve.connections import ConnectionLimits, Exceptions, protocol_class

__all__ = ["Server", "listen", "log_to_stderr"]

_LISTEN_QUEUE = 256
_GRACE_SECONDS = 5  # for answers that are being sent when the server goes down


def log_to_stderr(*, quiet: bool) -> None:
    """A line for each request; only failures if `quiet`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("buddy.serve")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a client that has left


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        BuddyError: The address is wrong, foreign or in use.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BuddyError(f"The address {host} is none ({error.strerror}); give another --host.") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_LISTEN_QUEUE)
    except OSError as error:
        opened.close()
        raise BuddyError(
            f"The server cannot listen on {host} port {port} ({error.strerror}); give another --host or --port."
        ) from None
    return opened


class Server(uvicorn.Server):
    """uvicorn, which calls `stopping` before it waits for the answers under way, and does not end by a signal."""

    def __init__(self, app: ASGIApp, stopping: Callable[[], None], limits: ConnectionLimits | None = None) -> None:
        limits = limits or ConnectionLimits.of_process()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_class(limits),
                backlog=limits.accepted_at_once,
                ws="none",
                lifespan="off",
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Exceptions())
        await super().startup(sockets)
        for opened in sockets or []:
            opened.listen(_LISTEN_QUEUE)  # longer than what asyncio accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Ctrl-C and SIGTERM end the server; a second Ctrl-C does not wait for anybody."""
        if threading.current_thread() is not threading.main_thread():  # signals come to the main thread alone
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

"""Connections: how many there are at most, and how long each may take to say what it wants, and to take the answer."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import resource
import sys
import termios
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ConnectionLimits", "Exceptions", "protocol_class"]

_log = logging.getLogger("buddy.serve")
_MOST = 512
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_QUIET_SECONDS = 60  # between two lines about the same trouble


def _most_connections() -> int:
    """Half of the files that the process may open, so that the model's own and those being accepted have room."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if allowed == resource.RLIM_INFINITY else max(4, min(_MOST, allowed // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """`most` connections at once; a further one gets a 503."""

    most: int
    head_seconds: float = 10  # from a connection's first moment, or a request's first byte, to the end of its headers
    send_seconds: float = 30  # in which a client must take some of what is to be sent

    @classmethod
    def of_process(cls) -> ConnectionLimits:
        return cls(_most_connections())

    @property
    def accepted_at_once(self) -> int:
        """How many are taken from the system before the first of them is counted."""
        return max(1, self.most // 8)


def protocol_class(limits: ConnectionLimits) -> type[H11Protocol]:
    """uvicorn's protocol within `limits`."""
    return type("LimitedConnection", (_Connection,), {"limits": limits})


class _Connection(H11Protocol):
    limits: ClassVar[ConnectionLimits]
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None  # runs while the system takes no more for the client
    _untaken = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)  # so that pause_writing comes with the first byte that waits
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            transport.write(_BUSY)
            transport.close()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        self._forget_reading()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._forget_reading()
        super().resume_writing()

    def _await_reading(self) -> None:
        self._untaken = self._waiting_bytes()
        self._reading = self.loop.call_later(self.limits.send_seconds, self._check_reading)

    def _check_reading(self) -> None:
        """A client that has taken nothing is given up, which ends its answer as leaving does."""
        if self._waiting_bytes() < self._untaken:
            self._await_reading()
        else:
            self.transport.abort()

    def _waiting_bytes(self) -> int:
        """What the client's system has not taken: it waits here, or in ours, which makes room in large steps only."""
        opened = self.transport.get_extra_info("socket")
        content = fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(content, sys.byteorder)

    def _forget_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _watch(self) -> None:
        """Between requests time runs from the first byte on; an answer under way has all the time it needs."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_deadline()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.limits.head_seconds, self.transport.abort)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _busy() -> bytes:
    message = "The server has as many connections as it can take. Try again in 10 s."
    error = {"message": message, "type": "server_error", "param": None, "code": "server_busy"}
    body = json.dumps({"error": error}, separators=(",", ":")).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 10\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_BUSY = _busy()


class Exceptions:
    """The event loop's handler of exceptions: what the system has run out of is a line now and then."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_RESOURCES:
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + _QUIET_SECONDS
            _log.warning("A connection could not be accepted (%s); it is tried again.", error.strerror)

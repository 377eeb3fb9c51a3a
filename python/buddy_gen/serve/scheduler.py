"""One thread that generates, and a bounded first-in first-out queue in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.serve.api_error import ApiError
from buddy_gen.serve.engine import CancelFlag

__all__ = ["Job", "Scheduler"]

_log = logging.getLogger("buddy.serve")


class Job:
    """The work of one request. It runs in the scheduler's thread and is waited for in the event loop."""

    def __init__(self, work: Callable[[Job], None]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.cancelled = CancelFlag()

    def emit(self, event: object) -> None:
        """Called by the work: passes an event on."""
        with contextlib.suppress(RuntimeError):  # the loop may have been closed
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def run(self) -> None:
        """Does the work; whatever it raises goes to who waits."""
        try:
            self._work(self)
        except (ApiError, BuddyError) as error:
            self.emit(error)
        except BaseException as error:
            _log.exception("A request failed.")
            self.emit(ApiError(500, f"The server failed ({type(error).__name__}).", kind="server_error"))
        else:
            self.emit(None)

    async def events(self) -> AsyncIterator[Any]:
        """What the work emits, to its end.

        Raises:
            ApiError, BuddyError: The work ended with it.
        """
        while (event := await self._events.get()) is not None:
            if isinstance(event, ApiError | BuddyError):
                raise event
            yield event


class Scheduler:
    """Jobs run one after the other, in the order in which they came."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._stopped = False
        self._seconds = 1.0  # of a job, smoothed
        self._thread = threading.Thread(target=self._run, name="buddy-generate", daemon=True)
        self._thread.start()

    @property
    def most_waiting(self) -> int:
        return self._most_waiting

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return self._running is not None

    def submit(self, work: Callable[[Job], None]) -> Job:
        """Puts work at the end of the queue; called in the event loop.

        Raises:
            ApiError: The queue is full, or the server is going down.
        """
        job = Job(work)
        with self._changed:
            if self._stopped:
                raise _going_down()
            room = self._most_waiting + (self._running is None)  # the first in the queue is about to run
            if len(self._waiting) >= room:
                raise self._full()
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        """Takes a job out of the queue, or ends it within a token. One that has ended stays as it is."""
        job.cancelled.set()
        with self._changed, contextlib.suppress(ValueError):
            self._waiting.remove(job)

    def stop(self) -> None:
        """Refuses new jobs, and ends those that are here with an error."""
        with self._changed:
            self._stopped = True
            ended = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            self._changed.notify()
        for job in ended:
            job.cancelled.set()
            job.emit(_going_down())

    def join(self, timeout: float) -> bool:
        """Waits for the thread to end, after `stop`; false if it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = None
                while not self._waiting and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                job = self._running = self._waiting.popleft()
            start = time.monotonic()
            job.run()
            self._seconds += 0.3 * (time.monotonic() - start - self._seconds)

    def _full(self) -> ApiError:
        seconds = min(60, max(1, round(self._seconds)))
        return ApiError(
            503,
            f"The server is busy: {len(self._waiting)} requests are waiting. Try again in {seconds} s.",
            kind="server_error",
            code="server_busy",
            headers={"Retry-After": str(seconds)},
        )


def _going_down() -> ApiError:
    return ApiError(503, "The server is going down.", kind="server_error", code="shutting_down")

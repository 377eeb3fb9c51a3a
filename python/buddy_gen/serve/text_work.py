"""Work on text that needs no model evaluation: in threads, a few at once, a bounded number of others waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from buddy_gen.serve.api_error import ApiError

__all__ = ["TextWork", "dump_ids"]

_Result = TypeVar("_Result")
_AT_ONCE = 2
_PIECE = 2**14  # ids that are written without a break for other threads


class TextWork:
    """Runs functions in threads, in the order in which they came."""

    def __init__(self, most_waiting: int) -> None:
        self._room = _AT_ONCE + most_waiting
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """
        Raises:
            ApiError: Too many wait already; and what `work` raises.
        """
        if self._room == 0:
            raise ApiError(
                503,
                "The server is busy with other texts. Try again in 1 s.",
                kind="server_error",
                code="server_busy",
                headers={"Retry-After": "1"},
            )
        self._room -= 1
        try:
            async with self._free:
                return await asyncio.to_thread(work)
        finally:
            self._room += 1


def dump_ids(ids: Sequence[int]) -> str:
    """A JSON list, written in pieces: the JSON encoder lets no other thread run while it works."""
    pieces = (json.dumps(ids[i : i + _PIECE], separators=(",", ":"))[1:-1] for i in range(0, len(ids), _PIECE))
    return f"[{','.join(pieces)}]"

"""Work on all CPUs whose result does not depend on how many there are.

PyTorch's own threads cut a sum into as many parts as there are threads, so that its last digits follow their number.
Here the parts are fixed by the caller, and each is computed by one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

__all__ = ["Workers"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """A pool of threads; PyTorch is held to one thread in each of them, and in the thread that opens the pool."""

    def __init__(self, count: int = 0) -> None:
        """`count` threads; 0: as many as CPUs that this process may use."""
        self.count = count or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.count, initializer=_start)
        self._threads = torch.get_num_threads()

    def __enter__(self) -> Workers:
        torch.set_num_threads(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._threads)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results in the order of the items."""
        return list(self._pool.map(work, items))


def _start() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

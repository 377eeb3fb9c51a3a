"""PyTorch as a peer, in a process of its own: ``python -m buddy_gen.bench.torch_worker FOLDER --threads N``.

It loads a Hugging Face folder in float32, prints what that cost as a line of JSON, then answers each line of standard
input, a task with its prompt, by a line with the seconds, the generated ids and the process's peak memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

__all__ = ["main"]


class Worker:
    """A loaded model that is timed at tasks; the first two times of each task are a warm-up and do not count."""

    def __init__(self, folder: Path, threads: int, compiled: bool) -> None:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        model_class: Any = LlamaForCausalLM
        self._model = model_class.from_pretrained(folder, dtype=torch.float32).eval()
        self.load_seconds = time.perf_counter() - start
        self._compiled = compiled
        self._forward: Callable[..., Any] = self._model
        if compiled:
            torch._dynamo.config.cache_size_limit = 64
            self._forward = torch.compile(self._model, dynamic=False)
        self._caches: dict[int, Any] = {}
        self._warm: set[tuple[str, int]] = set()

    def run(self, kind: str, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
        """Seconds of a prefill of `prompt`, or of decoding `tokens` ids behind it, and the generated ids."""
        key = (kind, len(prompt))
        if key not in self._warm:
            for _ in range(2):
                self._time(kind, prompt, min(tokens, 4))
            self._warm.add(key)
        return self._time(kind, prompt, tokens)

    @torch.inference_mode()
    def _time(self, kind: str, prompt: list[int], tokens: int) -> tuple[float, list[int]]:
        cache = self._new_cache(len(prompt) + (tokens if kind == "decode" else 1))
        start = time.perf_counter()
        ids = [self._step(torch.tensor([prompt]), cache)]
        if kind == "prefill":
            return time.perf_counter() - start, ids
        start = time.perf_counter()
        for _ in range(tokens):
            ids.append(self._step(torch.tensor([ids[-1:]]), cache))
        return time.perf_counter() - start, ids

    def _new_cache(self, positions: int) -> Any:
        """An empty cache. Compiled code wants one of fixed size, rounded up so that few graphs are compiled."""
        if not self._compiled:
            return DynamicCache()
        size = -(-positions // 256) * 256
        if size not in self._caches:
            self._caches[size] = StaticCache(self._model.config, max_cache_len=size)
        self._caches[size].reset()
        return self._caches[size]

    def _step(self, ids: torch.Tensor, cache: Any) -> int:
        logits = self._forward(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        return int(logits[0, -1].argmax())


def peak_rss_bytes() -> int:
    """The most memory that this process had."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves tasks until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m buddy_gen.bench.torch_worker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    options = parser.parse_args(arguments)
    worker = Worker(options.folder, options.threads, options.compile)
    print(json.dumps({"load_seconds": worker.load_seconds}), flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        seconds, ids = worker.run(task["kind"], task["prompt"], task["tokens"])
        print(json.dumps({"seconds": seconds, "ids": ids, "peak_rss_bytes": peak_rss_bytes()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

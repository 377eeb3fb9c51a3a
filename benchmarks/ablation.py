"""What each optimisation of the pipeline buys: ``python benchmarks/ablation.py`` (see README.md).

The same model goes through ``buddy-opt --buddy-lower-to-llvm`` with each optimisation switched off in turn; every
variant runs in a process of its own, on the same weights.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from buddy_gen.errors import BuddyError  # noqa: E402
from buddy_gen.native import NativeModule, compile_module  # noqa: E402
from buddy_gen.target import resolve_target  # noqa: E402

VARIANTS = {
    "everything on": "",
    "without fusion": "fuse=false",
    "without grouped matmuls": "group=false",
    "without the attention kernel": "attention=false",
    "without the memory plan": "memory-plan=false",
    "without vectorisation": "vectorize=false",
    "without packed matmuls": "pack=false",
    "without parallel loops": "parallelize=false",
    "nothing on": "fuse=false group=false attention=false memory-plan=false vectorize=false pack=false "
    "parallelize=false",
}
POSITIONS = 512


class Model:
    """A model's two modules, compiled with a pipeline's options, its weights and its caches."""

    def __init__(self, folder: Path, options: str) -> None:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        target = resolve_target(about["target"])
        self._planned = "memory-plan=false" not in options
        self._modules: dict[str, NativeModule] = {
            entry: compile_module(
                (folder / f"llama_{entry}.mlir").read_text(encoding="utf-8"),
                target,
                f"buddy-lower-to-llvm={options}",
            )
            for entry in ("prefill", "decode")
        }
        with (folder / "llama.weights.safetensors").open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
        self._weights = np.memmap(folder / "llama.weights.safetensors", np.int8, "r", offset=start)
        shape = (about["layers"], about["kv_heads"], POSITIONS, about["head_dim"])
        self._caches = [np.zeros(shape, np.float32) for _ in range(2)]
        self._logits = np.empty((1, 1, about["vocab_size"]), np.float32)
        self._vocab_size = about["vocab_size"]
        self.arena_bytes = 0

    def evaluate(self, entry: str, tokens: int, position: int) -> float:
        """Seconds of one call with `tokens` ids."""
        ids = np.random.default_rng(position).integers(0, self._vocab_size, (1, tokens))
        arguments: list[Any] = [self._weights, ids, position, *self._caches, self._logits]
        module = self._modules[entry]
        if self._planned:
            room = module.arena_size(f"llama_{entry}", tokens)
            self.arena_bytes = max(self.arena_bytes, room)
            arena = np.zeros(room + 64, np.int8)
            arguments.append(arena[-arena.ctypes.data % 64 :][:room])
        start = time.perf_counter()
        module.entry(f"llama_{entry}")(*arguments)
        return time.perf_counter() - start


def work(folder: Path, options: str, prompt: int, most_seconds: float) -> dict[str, Any]:
    """Milliseconds of a token behind a prompt and of the prompt, and megabytes."""
    model = Model(folder, options)

    def repeat(call: Callable[[int], float], most: int) -> float:
        call(0)
        samples: list[float] = []
        while len(samples) < most and (not samples or sum(samples) < most_seconds):
            samples.append(call(len(samples) + 1))
        return median(samples) * 1000

    prefill = repeat(lambda _: model.evaluate("prefill", prompt, 0), 7)
    arena = model.arena_bytes
    decode = repeat(lambda number: model.evaluate("decode", 1, prompt + number), 33)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"prefill_ms": prefill, "decode_ms": decode, "arena_bytes": arena, "peak_rss_bytes": peak}


def generate(model: str, target: str, folder: Path) -> None:
    """Imports a model into `folder`, and notes its sizes beside it. Raises BuddyError."""
    command = [sys.executable, "-m", "buddy_gen.generate", "--name", "llama", "--model", model, "--target", target]
    command += ["--output-dir", str(folder), "--runtime-dir", str(folder), "--quiet"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise BuddyError(done.stderr.strip())
    header = (folder / "llama_config.h").read_text(encoding="utf-8")

    def number(name: str) -> int:
        return int(header.partition(f"std::int64_t {name} = ")[2].partition(";")[0])

    about = {
        "target": resolve_target(target).name,
        "layers": number("layers"),
        "kv_heads": number("kvHeads"),
        "head_dim": number("headDim"),
        "vocab_size": number("vocabSize"),
    }
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def measure(folder: Path, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one variant in its own process. Raises BuddyError."""
    command = [sys.executable, __file__, "--worker", str(folder), "--options", VARIANTS[variant]]
    command += ["--prompt", str(options.prompt), "--seconds", str(options.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuddyError(f"{variant}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return {"variant": variant, "options": VARIANTS[variant], **found}


def table(results: Sequence[dict[str, Any]], prompt: int) -> str:
    """The results as Markdown."""
    lines = [
        f"| | ms a token | ms a prompt of {prompt} | arena, MB | peak memory, MB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    first = results[0]
    for one in results:
        slower = [f"{one[key]:.1f} ({one[key] / first[key]:.2f}x)" for key in ("decode_ms", "prefill_ms")]
        arena = f"{one['arena_bytes'] / 1e6:.1f}" if one["arena_bytes"] else "heap"
        lines.append(f"| {one['variant']} | {' | '.join(slower)} | {arena} | {one['peak_rss_bytes'] / 1e6:.0f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="ablation.py", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2", help="a model in float32 (default: smollm2)")
    parser.add_argument("--target", default="native", help="the machine (default: native)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt (default: 128)")
    parser.add_argument("--seconds", type=float, default=10, help="most seconds for a figure (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--options", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not 1 <= options.prompt <= POSITIONS - 40:
        parser.error(f"--prompt takes 1 to {POSITIONS - 40} tokens, not {options.prompt}")
    console = Console(stderr=True, highlight=False)
    try:
        if options.worker:
            print(json.dumps(work(options.worker, options.options, options.prompt, options.seconds)))
            return 0
        with tempfile.TemporaryDirectory() as scratch:
            console.print("importing the model ...")
            generate(options.model, options.target, Path(scratch))
            results = []
            for variant in VARIANTS:
                console.print(f"{variant} ...")
                results.append(measure(Path(scratch), variant, options))
    except (BuddyError, OSError) as error:
        print(f"ablation: {error}", file=sys.stderr)
        return 1
    print(json.dumps(results, indent=1) if options.json else table(results, options.prompt))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the time of a run went, kernel by kernel, as rates beside the machine's limits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buddy_gen.bench.work import Limits, ModelWork, Task, threads_label
from buddy_gen.errors import BuddyError

__all__ = ["Kernel", "KernelTable", "parse_profile", "short_names"]

_LEAST_SHARE = 0.005  # kernels with less of the time share one row
_HEAD = "lm_head"


@dataclass(frozen=True)
class Kernel:
    """One kernel of an entry point."""

    name: str
    """As the program has it: the paths of the modules and ops that it was made of."""
    short_name: str
    calls: int
    seconds: float
    bytes_per_call: int | None
    """Of weights, or of the KV cache; None: not known."""
    flops_per_call: int | None
    """None: not known."""

    @property
    def bytes_per_second(self) -> float | None:
        return self._rate(self.bytes_per_call)

    @property
    def flops_per_second(self) -> float | None:
        return self._rate(self.flops_per_call)

    def _rate(self, amount: int | None) -> float | None:
        return amount * self.calls / self.seconds if amount and self.seconds > 0 else None


@dataclass(frozen=True)
class KernelTable:
    """The kernels of the entry point that a task is about, those that took longest first."""

    contender: str
    threads: int
    task: str
    entry: str
    calls: int
    seconds: float
    """Of all calls, what lies between kernels included."""
    kernels: list[Kernel]
    limits: Limits
    """Measured just before."""

    @property
    def title(self) -> str:
        each = self.seconds / self.calls * 1e3
        return f"{self.contender}, {threads_label(self.threads)}, {self.task}: {each:.2f} ms a call of {self.entry}"

    def multiplying_share(self) -> float | None:
        """The share of the FMA peak inside the products with weights; None where their operations are not known.

        The head is left out: it is applied to one position of a prompt, and bound by memory.
        """
        known = [one for one in self.kernels if one.flops_per_call and one.bytes_per_call and _HEAD not in one.name]
        flops = sum((one.flops_per_call or 0) * one.calls for one in known)
        return flops / sum(one.seconds for one in known) / self.limits.fma_flops_per_second if flops else None

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """A header, and a row for each kernel, for the small ones together and for the time between kernels."""
        shown = [one for one in self.kernels if one.seconds >= _LEAST_SHARE * self.seconds]
        rows = [self._row(one.short_name, one.calls, one.seconds, one) for one in shown]
        small = [one for one in self.kernels if one not in shown]
        if small:
            together = sum(one.calls for one in small), sum(one.seconds for one in small)
            rows.append(self._row(f"({len(small)} smaller)", *together))
        between = self.seconds - sum(one.seconds for one in self.kernels)
        rows.append(self._row("(between kernels)", self.calls, max(between, 0.0)))
        return ["kernel", "calls", "ms a call", "time", "GB/s", "read loop", "GFLOP/s", "FMA peak"], rows

    def _row(self, name: str, calls: int, seconds: float, kernel: Kernel | None = None) -> list[str]:
        cells = [name, str(calls), f"{seconds / calls * 1e3:.3f}", f"{seconds / self.seconds:.1%}"]
        read = kernel.bytes_per_second if kernel else None
        multiplied = kernel.flops_per_second if kernel else None
        cells += ["", ""] if read is None else [f"{read / 1e9:.1f}", f"{read / self.limits.read_bytes_per_second:.0%}"]
        if multiplied is None:
            return [*cells, "", ""]
        return [*cells, f"{multiplied / 1e9:.1f}", f"{multiplied / self.limits.fma_flops_per_second:.0%}"]


def parse_profile(
    output: str, contender: str, threads: int, task: Task, limits: Limits, work: ModelWork
) -> KernelTable:
    """The table of a task from what the program's ``--json --profile`` printed.

    Decoding has one row of activations at each call; a call of prefill has its share of the prompt, and the head one.
    The program knows bytes and operations of weights; those of attention are the model's, over its kernel's calls.

    Raises:
        BuddyError: It is something else, or the program never called the entry point.
    """
    try:
        values = json.loads(output)
        entry = next(one for one in values["profile"] if one["entry"] == task.kind)
        calls = int(entry["calls"])
        tokens = calls if task.kind == "decode" else int(values.get("prefilled_tokens", task.tokens))
        regions = entry["regions"]
        reading = [_number(region, "bytes_per_call") is not None for region in regions]
        names = short_names([str(region["name"]) for region in regions], reading)
        kernels = [_kernel(region, short, tokens / calls) for region, short in zip(regions, names, strict=True)]
        kernels = [_with_attention(kernel, task, calls, work) for kernel in kernels]
        kernels.sort(key=lambda kernel: -kernel.seconds)
        return KernelTable(contender, threads, task.label, task.kind, calls, float(entry["seconds"]), kernels, limits)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, ZeroDivisionError):
        start = output.strip()[:80]
        raise BuddyError(f"{contender} printed no profile of {task.kind} but {start!r}; build it again.") from None


def _kernel(region: dict[str, object], short_name: str, rows: float) -> Kernel:
    name = str(region["name"])
    flops = _number(region, "flops_per_token")
    rows = 1 if _HEAD in name else rows
    return Kernel(
        name,
        short_name,
        int(str(region["calls"])),
        float(str(region["seconds"])),
        _number(region, "bytes_per_call"),
        round(flops * rows) if flops else None,
    )


def _with_attention(kernel: Kernel, task: Task, calls: int, work: ModelWork) -> Kernel:
    """Adds what attention reads when it decodes, or computes when it prefills, spread over all calls of its kernel."""
    if not kernel.name.endswith("/attention") or " + " in kernel.name:
        return kernel
    share = calls / kernel.calls
    if task.kind == "decode":
        return replace(kernel, bytes_per_call=round(work.kv_bytes(task.average_position) * share))
    pairs = task.tokens * (task.tokens + 1) / 2
    return replace(kernel, flops_per_call=round(work.attention_flops(pairs) * share))


def _number(region: dict[str, object], key: str) -> int | None:
    return int(str(region[key])) if key in region else None


def short_names(names: Sequence[str], reading: Sequence[bool] = ()) -> list[str]:
    """The last module of each path and the op, without its number unless another kernel would have the same name.

    ``model.layers.*.mlp.gate_proj/linear_4 + model.layers.*.mlp.up_proj/linear_5`` becomes ``gate_proj + up_proj``.
    `reading` tells which kernels read weights, as far as any do: another one of the same linear layers prepares their
    input, such as the rounding to int8.
    """
    inputs = [not one for one in reading] if any(reading) else [False] * len(names)
    short = [_short(name, False) + _input(name, first) for name, first in zip(names, inputs, strict=True)]
    counts = Counter(short)
    return [
        one if counts[one] == 1 else _short(name, True) + _input(name, first)
        for one, name, first in zip(short, names, inputs, strict=True)
    ]


def _input(name: str, first: bool) -> str:
    return " input" if first and re.search(r"/linear(_\d+)?$", name) else ""


def _short(name: str, numbers: bool) -> str:
    parts = list(dict.fromkeys(_short_part(part, numbers) for part in name.split(" + ")))
    if len(parts) > 4:
        parts = [*parts[:3], f"{len(parts) - 3} more"]
    return " + ".join(parts)


def _short_part(part: str, numbers: bool) -> str:
    path, slash, op = part.rpartition("/")
    op = op if numbers else re.sub(r"_\d+$", "", op)
    modules = path.split(".")
    module = ".".join(modules[-2:] if modules[-1] == "*" else modules[-1:])
    if not slash or not module:
        return op
    return module if re.fullmatch(r"linear(_\d+)?", op) and not numbers else f"{module}/{op}"

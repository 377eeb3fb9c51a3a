"""From samples to figures: medians, spreads, shares of the roofline and the gate; as JSON, Markdown or a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from buddy_gen.bench.session import Sample
from buddy_gen.bench.work import Task

__all__ = ["Figure", "GateEntry", "Report", "make_report"]

DECODE_SHARE_TARGET = 0.70  # of a plain read loop's bandwidth, one thread
EAGER_RATIO_TARGET = 2.0  # times eager PyTorch in float32, two threads


@dataclass(frozen=True)
class Figure:
    """The median of some samples, and their spread: half the range as a fraction of the median."""

    median: float
    spread: float
    samples: int


def figure(values: Iterable[float]) -> Figure | None:
    """The figure of `values`; None when there are none."""
    known = list(values)
    if not known:
        return None
    middle = median(known)
    return Figure(middle, (max(known) - min(known)) / 2 / middle if middle else math.inf, len(known))


@dataclass(frozen=True)
class Result:
    """What one contender did at one task with one thread count."""

    contender: str
    threads: int
    task: str
    tokens_per_second: Figure
    share_of_roofline: Figure
    bound: str
    read_bytes_per_second: Figure
    """The read loop just before these samples."""
    ratio: Figure | None
    """The program's rate divided by this contender's, round by round; None for the program itself."""


@dataclass(frozen=True)
class MachineResult:
    """The machine's limits with one thread count."""

    threads: int
    read_bytes_per_second: Figure
    fma_flops_per_second: Figure


@dataclass(frozen=True)
class CostResult:
    """What a contender costs beside time. `equal_ids` of `compared_ids` decoded ids are the program's, up to the
    first that differs."""

    contender: str
    threads: int
    load_seconds: Figure | None
    peak_rss_bytes: Figure | None
    equal_ids: int | None
    compared_ids: int | None


@dataclass(frozen=True)
class GateEntry:
    """A figure with a target; `value` is None when the run did not measure it."""

    name: str
    value: float | None
    target: float
    unit: str
    detail: str = ""
    """The figures that the value comes from."""

    @property
    def met(self) -> bool:
        return self.value is not None and self.value >= self.target

    def sentence(self) -> str:
        target = f"target at least {_amount(self.target, self.unit)}"
        if self.value is None:
            return f"{self.name}: not measured ({target})"
        found = f"{_amount(self.value, self.unit)} ({target}: {'met' if self.met else 'MISSED'})"
        return f"{self.name}: {found}" + (f"; {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class Report:
    """Everything that one run found."""

    about: dict[str, Any]
    """Of the machine, the model and the settings, for the reader."""
    machine: list[MachineResult]
    results: list[Result]
    costs: list[CostResult]
    gate: list[GateEntry]
    samples: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types; figures are {median, spread, samples}."""
        content = asdict(self)
        content["gate"] = [{**asdict(entry), "met": entry.met} for entry in self.gate]
        return content

    def markdown(self) -> str:
        """The report as Markdown: what was measured, the limits, a row for each contender, the gate."""
        lines = [f"- {key}: {value}" for key, value in self.about.items()]
        parts = ["\n".join(lines), _markdown_table(*self.limits_table()), _markdown_table(*self.contender_table())]
        parts += [_EXPLANATION, "\n".join(f"- {entry.sentence()}" for entry in self.gate)]
        return "\n\n".join(parts) + "\n"

    def print(self, console: Console) -> None:
        """The report on a terminal, in tables that fit 80 columns."""
        for key, value in self.about.items():
            console.print(f"{key}: {value}", markup=False, soft_wrap=True)
        for header, rows in (self.limits_table(), self.figure_table(), self.cost_table()):
            table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
            for number, title in enumerate(header):
                table.add_column(title, justify="right" if number else "left")
            for row in rows:
                table.add_row(*row)
            console.print(table)
        for entry in self.gate:
            console.print(entry.sentence(), style="green" if entry.met else "red", markup=False, soft_wrap=True)

    def limits_table(self) -> tuple[list[str], list[list[str]]]:
        """The machine's limits: a header and rows."""
        rows = [
            [
                str(one.threads),
                _cell(one.read_bytes_per_second, lambda value: f"{value / 1e9:.1f}"),
                _cell(one.fma_flops_per_second, lambda value: f"{value / 1e9:.0f}"),
            ]
            for one in self.machine
        ]
        return ["threads", "read loop, GB/s", "FMA peak, GFLOP/s"], rows

    def contender_table(self) -> tuple[list[str], list[list[str]]]:
        """One row for each contender and thread count, a column for each task: a header and rows."""
        tasks = list(dict.fromkeys(one.task for one in self.results))
        by_key = {(one.contender, one.threads, one.task): one for one in self.results}
        rows = []
        for cost in self.costs:
            cells = [_result_cell(by_key.get((cost.contender, cost.threads, task))) for task in tasks]
            rows.append([cost.contender, str(cost.threads), *cells, *_cost_cells(cost)])
        return ["tokens/s", "threads", *tasks, *_COST_TITLES], rows

    def figure_table(self) -> tuple[list[str], list[list[str]]]:
        """One row for each figure, with how often ours is its rate: a header and rows."""
        order = list(dict.fromkeys((one.task, one.threads) for one in self.results))
        rows = []
        for task, threads in order:
            for one in self.results:
                if (one.task, one.threads) == (task, threads):
                    rate, share = _rate(one.tokens_per_second), f"{one.share_of_roofline.median:.0%}"
                    ratio = f"{one.ratio.median:.2f}x" if one.ratio is not None else ""
                    rows.append([task, str(threads), one.contender, rate, share, ratio])
        return ["task", "threads", "contender", "tokens/s", "roofline", "behind"], rows

    def cost_table(self) -> tuple[list[str], list[list[str]]]:
        """Load time, memory and agreement: a header and rows."""
        rows = [[one.contender, str(one.threads), *_cost_cells(one)] for one in self.costs]
        return ["contender", "threads", *_COST_TITLES], rows


_COST_TITLES = ("load, ms", "peak RSS, MB", "same ids")
_EXPLANATION = (
    "Cells: median tokens/s ± half the range (share of the roofline measured with each sample). The roofline of "
    "decode is bytes per token / read loop; of prefill, FLOPs / FMA peak, or bytes / read loop where that is slower."
)


def _amount(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else f"{value:.2f}x"


def _cell(value: Figure | None, text: Callable[[float], str]) -> str:
    return "" if value is None else f"{text(value.median)} ± {value.spread:.0%}"


def _rate(value: Figure) -> str:
    return f"{value.median:.{1 if value.median < 100 else 0}f} ± {value.spread:.0%}"


def _result_cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{_rate(result.tokens_per_second)} ({result.share_of_roofline.median:.0%})"


def _cost_cells(cost: CostResult) -> list[str]:
    load = _cell(cost.load_seconds, lambda value: f"{value * 1e3:.0f}")
    rss = f"{cost.peak_rss_bytes.median / 1e6:.0f}" if cost.peak_rss_bytes is not None else ""
    return [load, rss, f"{cost.equal_ids}/{cost.compared_ids}" if cost.compared_ids else ""]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def make_report(samples: Sequence[Sample], about: dict[str, Any], program: str, eager: str) -> Report:
    """Summarises a run. `program` and `eager` are the names of the contenders that the gate is about."""
    contenders = list(dict.fromkeys(sample.contender for sample in samples))
    thread_counts = sorted({sample.threads for sample in samples})
    tasks = list(dict.fromkeys(sample.task for sample in samples))

    def chosen(contender: str, threads: int, task: Task | None = None) -> list[Sample]:
        return [
            one for one in samples if one.contender == contender and one.threads == threads and task in (None, one.task)
        ]

    results = []
    for contender in contenders:
        for threads in thread_counts:
            for task in tasks:
                ours, theirs = chosen(program, threads, task), chosen(contender, threads, task)
                if theirs:
                    ratio = None if contender == program else _ratio(ours, theirs)
                    results.append(_result(theirs, ratio))
    costs = []
    for contender in contenders:
        for threads in thread_counts:
            theirs = chosen(contender, threads)
            if theirs:
                costs.append(_cost(theirs, [one for one in samples if one.contender == program]))
    machine = [_machine([one for one in samples if one.threads == threads]) for threads in thread_counts]
    gate = make_gate(results, program, eager)
    return Report(about, machine, results, costs, gate, [_sample_json(one) for one in samples])


def _ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> Figure | None:
    rates = {one.round: one.tokens_per_second for one in ours}
    return figure(rates[one.round] / one.tokens_per_second for one in theirs if one.round in rates)


def _result(samples: Sequence[Sample], ratio: Figure | None) -> Result:
    first = samples[0]
    rate = figure(one.tokens_per_second for one in samples)
    share = figure(one.share_of_roofline for one in samples)
    read = figure(one.limits.read_bytes_per_second for one in samples)
    assert rate is not None and share is not None and read is not None
    bounds = [one.work.bound(one.task, one.limits) for one in samples]
    bound = max(bounds, key=bounds.count)
    return Result(first.contender, first.threads, first.task.label, rate, share, bound, read, ratio)


def _cost(theirs: Sequence[Sample], ours: Sequence[Sample]) -> CostResult:
    decoding = [one for one in theirs if one.task.kind == "decode"]
    expected = next((one.measurement.ids for one in ours if one.task.kind == "decode"), ())
    equal: int | None = None
    for one in decoding:
        if one.measurement.ids and expected:
            pairs = zip(one.measurement.ids, expected, strict=False)
            same = next((at for at, (left, right) in enumerate(pairs) if left != right), len(expected))
            equal = same if equal is None else min(equal, same)
    return CostResult(
        theirs[0].contender,
        theirs[0].threads,
        figure(one.measurement.load_seconds for one in theirs if one.measurement.load_seconds is not None),
        figure(one.measurement.peak_rss_bytes for one in decoding if one.measurement.peak_rss_bytes is not None),
        equal,
        len(expected) if equal is not None else None,
    )


def _machine(samples: Sequence[Sample]) -> MachineResult:
    read = figure(one.limits.read_bytes_per_second for one in samples)
    fma = figure(one.limits.fma_flops_per_second for one in samples)
    assert read is not None and fma is not None
    return MachineResult(samples[0].threads, read, fma)


def make_gate(results: Sequence[Result], program: str, eager: str) -> list[GateEntry]:
    """The two conditions on decode: near the read loop with one thread, well before eager PyTorch with two."""
    decode = {(one.contender, one.threads): one for one in results if one.task.startswith("decode")}
    one, two, peer = decode.get((program, 1)), decode.get((program, 2)), decode.get((eager, 2))
    share = ratio = None
    share_detail = ratio_detail = ""
    if one is not None and one.bound == "memory":
        share = one.share_of_roofline.median
        read = one.read_bytes_per_second.median
        share_detail = f"{one.tokens_per_second.median:.1f} tokens/s, read loop {read / 1e9:.1f} GB/s"
    if two is not None and peer is not None and peer.ratio is not None:
        ratio = peer.ratio.median
        ratio_detail = f"{two.tokens_per_second.median:.1f} and {peer.tokens_per_second.median:.1f} tokens/s"
    return [
        GateEntry(
            "decode, 1 thread, share of a plain read loop's bandwidth",
            share,
            DECODE_SHARE_TARGET,
            "share",
            share_detail,
        ),
        GateEntry(f"decode, 2 threads, times {eager}", ratio, EAGER_RATIO_TARGET, "ratio", ratio_detail),
    ]


def _sample_json(sample: Sample) -> dict[str, Any]:
    return {
        "contender": sample.contender,
        "threads": sample.threads,
        "task": sample.task.label,
        "round": sample.round,
        "seconds": sample.measurement.seconds,
        "tokens_per_second": sample.tokens_per_second,
        "share_of_roofline": sample.share_of_roofline,
        "load_seconds": sample.measurement.load_seconds,
        "peak_rss_bytes": sample.measurement.peak_rss_bytes,
        **asdict(sample.limits),
    }

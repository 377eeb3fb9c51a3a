"""What a run found, as JSON, as Markdown for a document, or as tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from buddy_gen.bench.contenders import OURS, Identity
from buddy_gen.bench.gate import GateEntry, make_gate, matching_peer
from buddy_gen.bench.kernels import KernelTable
from buddy_gen.bench.session import Sample
from buddy_gen.bench.summary import CostResult, Figure, LimitResult, LongContext, Result, SampleIndex
from buddy_gen.bench.work import threads_label

__all__ = ["Comparison", "Report", "make_report"]


@dataclass(frozen=True)
class Comparison:
    """One of our builds beside another contender: its rate divided by the other's, by task."""

    ours: str
    theirs: str
    threads: int
    ratios: dict[str, Figure]


@dataclass(frozen=True)
class Report:
    """Everything that one run found."""

    about: dict[str, Any]
    """Of the machine, the model and the settings, for the reader."""
    limits: list[LimitResult]
    results: list[Result]
    costs: list[CostResult]
    comparisons: list[Comparison]
    long_contexts: list[LongContext]
    kernels: list[KernelTable]
    gate: list[GateEntry]
    samples: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types; figures are {median, spread, samples}."""
        content = asdict(self)
        for table, kernels in zip(content["kernels"], self.kernels, strict=True):
            table["kernels"] = [
                {**asdict(one), "bytes_per_second": one.bytes_per_second, "flops_per_second": one.flops_per_second}
                for one in kernels.kernels
            ]
        content["gate"] = [{**asdict(entry), "met": entry.met, "missed": entry.missed} for entry in self.gate]
        return content

    def markdown(self) -> str:
        """The report as Markdown: what was measured, the limits, speed, ratios, targets, kernels."""
        parts = ["\n".join(f"- {key}: {value}" for key, value in self.about.items())]
        parts += [_markdown_table(*self.limits_table()), _markdown_table(*self.contender_table()), _EXPLANATION]
        if self.comparisons:
            parts.append(_markdown_table(*self.comparison_table()))
        if self.gate:
            parts.append(_markdown_table(*self.gate_table()))
        if self.long_contexts:
            parts.append("\n".join(f"- {one.sentence()}" for one in self.long_contexts))
        for table in self.kernels:
            parts += [f"{table.title}:", _markdown_table(*table.rows())]
        return "\n\n".join(parts) + "\n"

    def print(self, console: Console) -> None:
        """The report on a terminal, in tables that fit 80 columns."""
        for key, value in self.about.items():
            console.print(f"{key}: {value}", markup=False, soft_wrap=True)
        tables = [self.limits_table(), self.figure_table(), self.cost_table()]
        for header, rows in [*tables, self.comparison_table()] if self.comparisons else tables:
            _print_table(console, header, rows)
        for kernels in self.kernels:
            console.print(kernels.title, markup=False, soft_wrap=True)
            _print_table(console, *kernels.rows())
        for one in self.long_contexts:
            console.print(one.sentence(), markup=False, soft_wrap=True)
        for entry in self.gate:
            style = "green" if entry.met else "red" if entry.missed else "yellow"
            console.print(entry.sentence(), style=style, markup=False, soft_wrap=True)

    def limits_table(self) -> tuple[list[str], list[list[str]]]:
        """The machine's limits, a column for each thread count: a header and rows."""
        threads = sorted({count for one in self.limits for count in one.per_second})
        rows = []
        for one in self.limits:
            unit = "GFLOP/s" if one.bytes is None else "GB/s"
            name = one.limit if one.bytes is None else f"{one.limit} ({one.bytes / 1e6:.0f} MB)"
            figures = [one.per_second.get(count) for count in threads]
            rows.append([f"{name}, {unit}", *(_cell(found, lambda value: f"{value / 1e9:.1f}") for found in figures)])
        return ["limit", *map(threads_label, threads)], rows

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
        """One row for each figure, with how often the first contender is its rate: a header and rows."""
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

    def comparison_table(self) -> tuple[list[str], list[list[str]]]:
        """One row for each pair and thread count, a column for each task: a header and rows."""
        tasks = list(dict.fromkeys(task for one in self.comparisons for task in one.ratios))
        rows = []
        for one in self.comparisons:
            cells = [_cell(one.ratios.get(task), lambda value: f"{value:.2f}x") for task in tasks]
            rows.append([f"{one.ours} / {one.theirs}", str(one.threads), *cells])
        return ["ratio", "threads", *tasks], rows

    def gate_table(self) -> tuple[list[str], list[list[str]]]:
        """One row for each target: a header and rows."""
        rows = [
            [entry.contender, entry.figure, entry.value_text, entry.target_text, entry.verdict, entry.detail]
            for entry in self.gate
        ]
        return ["build", "figure", "found", "target", "verdict", "from"], rows


_COST_TITLES = ("load, ms", "peak RSS, MB", "same ids")
_EXPLANATION = (
    "Cells: median tokens/s ± half the range (share of the roofline measured with each sample). The roofline of "
    "decode is bytes per token / read loop over the contender's own weights; of prefill, FLOPs / FMA peak, or bytes / "
    "read loop where that is slower. The FMA peak is that of float32 for every dtype: integer products can pass it."
)


def _cell(value: Figure | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value.median) + value.spread_text


def _rate(value: Figure) -> str:
    return f"{value.median:.{1 if value.median < 100 else 0}f}{value.spread_text}"


def _result_cell(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{_rate(result.tokens_per_second)} ({result.share_of_roofline.median:.0%})"


def _cost_cells(cost: CostResult) -> list[str]:
    load = _cell(cost.load_seconds, lambda value: f"{value * 1e3:.0f}")
    rss = f"{cost.peak_rss_bytes.median / 1e6:.0f}" if cost.peak_rss_bytes is not None else ""
    return [load, rss, f"{cost.equal_ids}/{cost.compared_ids}" if cost.compared_ids else ""]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = [all(not row[at] or row[at][0].isdigit() for row in rows) for at in range(len(header))]
    lines = [header, ["---:" if number else "---" for number in numeric], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _print_table(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for number, title in enumerate(header):
        table.add_column(title, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def make_report(
    samples: Sequence[Sample],
    about: dict[str, Any],
    identities: Sequence[Identity],
    kernels: Sequence[KernelTable] = (),
) -> Report:
    """Summarises a run of the contenders with these identities, the first of which the ratios are against."""
    index = SampleIndex(samples)
    long_contexts = index.long_contexts(identities)
    return Report(
        about,
        index.limits(identities),
        index.results(),
        index.costs(),
        _compare(index, identities),
        long_contexts,
        list(kernels),
        make_gate(index, identities, long_contexts, kernels),
        [_sample_json(one) for one in samples],
    )


def _compare(index: SampleIndex, identities: Sequence[Identity]) -> list[Comparison]:
    found = []
    for ours, theirs in _pairs(identities):
        for threads in index.threads:
            figures = {task.label: index.ratio(ours, theirs, threads, task) for task in index.tasks}
            ratios = {task: one for task, one in figures.items() if one is not None}
            if ratios:
                found.append(Comparison(ours, theirs, threads, ratios))
    return found


def _pairs(identities: Sequence[Identity]) -> list[tuple[str, str]]:
    """Each build of ours with the peers of its type, and with our builds that it should be faster than."""
    own = [one for one in identities if one.family == OURS]
    f32_peers = [one.name for one in identities if one.family != OURS and one.dtype in ("f32", "F32")]
    pairs: list[tuple[str, str]] = []
    for ours in own:
        peer = matching_peer(ours, identities)
        others = f32_peers if ours.dtype == "f32" else [peer.name] if peer is not None else []
        if ours.dtype != "f32":
            others += [one.name for one in own if one.dtype == "f32"][:1]
        if ours.dtype == "w4a8":
            others += [one.name for one in own if one.dtype == "w8a8"][:1]
        pairs += [(ours.name, other) for other in others]
    return pairs


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

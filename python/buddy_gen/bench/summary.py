"""From samples to figures: medians, spreads, ratios round by round, what a long context costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from buddy_gen.bench.contenders import OURS, Identity
from buddy_gen.bench.session import Sample
from buddy_gen.bench.work import Task, threads_label

__all__ = ["CostResult", "Figure", "LimitResult", "LongContext", "Result", "SampleIndex", "figure"]


@dataclass(frozen=True)
class Figure:
    """The median of some samples, and their spread: half the range as a fraction of the median."""

    median: float
    spread: float
    samples: int

    @property
    def spread_text(self) -> str:
        """The spread for a reader, to be put behind the median; nothing for a single sample."""
        return f" ± {self.spread:.0%}" if self.samples > 1 else ""


def figure(values: Iterable[float]) -> Figure | None:
    """The figure of `values`; None when there are none."""
    known = list(values)
    if not known:
        return None
    middle = median(known)
    return Figure(middle, (max(known) - min(known)) / 2 / abs(middle) if middle else math.inf, len(known))


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
    """The read loop over the contender's weights just before these samples."""
    ratio: Figure | None
    """The first contender's rate divided by this one's, round by round; None for the first itself."""


@dataclass(frozen=True)
class LimitResult:
    """One limit of the machine, by thread count."""

    limit: str
    bytes: int | None
    """What the read loop runs over; None for the peak of multiply-adds."""
    per_second: dict[int, Figure]
    """Bytes or operations in a second."""


@dataclass(frozen=True)
class CostResult:
    """What a contender costs beside time. `equal_ids` of `compared_ids` decoded ids are the first contender's, up to
    the first that differs."""

    contender: str
    threads: int
    load_seconds: Figure | None
    peak_rss_bytes: Figure | None
    equal_ids: int | None
    compared_ids: int | None


@dataclass(frozen=True)
class LongContext:
    """What decoding behind a long prompt takes more than behind a short one, beside what the KV cache's bytes take."""

    contender: str
    threads: int
    near: str
    far: str
    extra_seconds: Figure
    """For each token."""
    extra_bytes: float
    """Of the KV cache, for each token."""
    ratio: Figure
    """Extra seconds by those of the extra bytes at the bandwidth of the read loop over the weights."""
    anonymous_ratio: Figure | None
    """The same with the bandwidth of anonymous memory, which a KV cache is."""

    def sentence(self) -> str:
        extra = f"{self.extra_seconds.median * 1e3:.2f} ms{self.extra_seconds.spread_text} more a token"
        text = f"{self.contender}, {threads_label(self.threads)}, {self.far}: {extra} than {self.near}, for "
        text += f"{self.extra_bytes / 1e6:.1f} MB more of KV cache: {self.ratio.median:.2f}x what they take at the "
        text += "bandwidth of the read loop over the weights"
        if self.anonymous_ratio is None:
            return text
        return f"{text}, {self.anonymous_ratio.median:.2f}x at that of anonymous memory in 4 KiB pages"


class SampleIndex:
    """The samples of a run, by contender, threads and task. Ratios pair the samples of a round."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = samples
        self.contenders = list(dict.fromkeys(sample.contender for sample in samples))
        self.threads = sorted({sample.threads for sample in samples})
        self.tasks = list(dict.fromkeys(sample.task for sample in samples))
        self._by_key: dict[tuple[str, int, Task], list[Sample]] = {}
        for sample in samples:
            self._by_key.setdefault((sample.contender, sample.threads, sample.task), []).append(sample)

    def of(self, contender: str, threads: int, task: Task) -> list[Sample]:
        """The samples of one figure, by round."""
        return self._by_key.get((contender, threads, task), [])

    def rate(self, contender: str, threads: int, task: Task) -> Figure | None:
        """Tokens in a second."""
        return figure(one.tokens_per_second for one in self.of(contender, threads, task))

    def share(self, contender: str, threads: int, task: Task) -> Figure | None:
        """The share of the roofline."""
        return figure(one.share_of_roofline for one in self.of(contender, threads, task))

    def read_loop(self, contender: str, threads: int, task: Task) -> Figure | None:
        """Bytes in a second of the read loop before these samples."""
        return figure(one.limits.read_bytes_per_second for one in self.of(contender, threads, task))

    def bound(self, contender: str, threads: int, task: Task) -> str | None:
        """Which limit most samples' roofline is: memory or compute."""
        bounds = [one.work.bound(one.task, one.limits) for one in self.of(contender, threads, task)]
        return max(bounds, key=bounds.count) if bounds else None

    def ratio(self, ours: str, theirs: str, threads: int, task: Task) -> Figure | None:
        """The rate of `ours` divided by that of `theirs`."""
        return _ratio(self.of(ours, threads, task), self.of(theirs, threads, task))

    def task_ratio(self, contender: str, threads: int, above: Task, below: Task) -> Figure | None:
        """The rate at one task divided by that at another."""
        return _ratio(self.of(contender, threads, above), self.of(contender, threads, below))

    def scaling(self, contender: str, few: int, many: int, task: Task) -> Figure | None:
        """The rate with many threads divided by that with few."""
        return _ratio(self.of(contender, many, task), self.of(contender, few, task))

    def fastest(self, contenders: Iterable[str], threads: int, task: Task) -> str | None:
        """The contender with the highest rate."""
        rates = {name: rate.median for name in contenders if (rate := self.rate(name, threads, task)) is not None}
        return max(rates, key=lambda name: rates[name]) if rates else None

    def results(self) -> list[Result]:
        """A result for each contender, thread count and task."""
        first = self.contenders[0]
        results = []
        for contender in self.contenders:
            for threads in self.threads:
                for task in self.tasks:
                    key = (contender, threads, task)
                    rate, share, read, bound = self.rate(*key), self.share(*key), self.read_loop(*key), self.bound(*key)
                    if rate is None or share is None or read is None or bound is None:
                        continue
                    ratio = None if contender == first else self.ratio(first, contender, threads, task)
                    results.append(Result(contender, threads, task.label, rate, share, bound, read, ratio))
        return results

    def costs(self) -> list[CostResult]:
        """Load time, memory and agreement of each contender and thread count."""
        expected = _first_ids(self.all, self.contenders[0])
        by_key: dict[tuple[str, int], list[Sample]] = {}
        for contender in self.contenders:
            for threads in self.threads:
                chosen = [one for one in self.all if one.contender == contender and one.threads == threads]
                if chosen:
                    by_key[contender, threads] = chosen
        return [_cost(chosen, expected) for chosen in by_key.values()]

    def limits(self, identities: Sequence[Identity]) -> list[LimitResult]:
        """The read loop over each contender's weights and over anonymous memory, and the peak of multiply-adds."""
        found = []
        for identity in identities:
            chosen = [one for one in self.all if one.contender == identity.name]
            size = identity.file.stat().st_size if identity.file.is_file() else 0
            limit = f"read loop over the weights of {identity.name}"
            found.append(
                LimitResult(limit, size, _by_threads((one, one.limits.read_bytes_per_second) for one in chosen))
            )
        for identity in identities:
            chosen = [one for one in self.all if one.contender == identity.name]
            known = [
                (one, one.limits.anonymous_bytes_per_second)
                for one in chosen
                if one.limits.anonymous_bytes_per_second is not None
            ]
            if known:
                size = cache_bytes(known[0][0])
                found.append(LimitResult(f"anonymous memory, KV cache of {identity.name}", size, _by_threads(known)))
        peak = _by_threads((one, one.limits.fma_flops_per_second) for one in self.all)
        return [*found, LimitResult("FMA peak", None, peak)]

    def long_contexts(self, identities: Sequence[Identity]) -> list[LongContext]:
        """The extra cost behind the longest prompt, for each of our builds; none where all prompts are equally long."""
        decodes = [task for task in self.tasks if task.kind == "decode" and not task.context]
        if len(decodes) < 2:
            return []
        near, far = decodes[0], decodes[-1]
        found = []
        for identity in identities:
            for threads in self.threads:
                pairs = _pairs(self.of(identity.name, threads, far), self.of(identity.name, threads, near))
                if identity.family == OURS and pairs:
                    found.append(_long_context(pairs))
        return found


def cache_bytes(sample: Sample) -> int:
    """Bytes of the KV cache that a decoded token reads on the average."""
    return int(sample.work.kv_bytes(sample.task.average_position))


def _pairs(these: Sequence[Sample], those: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    by_round = {one.round: one for one in those}
    return [(one, by_round[one.round]) for one in these if one.round in by_round]


def _ratio(above: Sequence[Sample], below: Sequence[Sample]) -> Figure | None:
    return figure(one.tokens_per_second / other.tokens_per_second for one, other in _pairs(above, below))


def _by_threads(values: Iterable[tuple[Sample, float]]) -> dict[int, Figure]:
    lists: dict[int, list[float]] = {}
    for sample, value in values:
        lists.setdefault(sample.threads, []).append(value)
    figures = {threads: figure(lists[threads]) for threads in sorted(lists)}
    return {threads: one for threads, one in figures.items() if one is not None}


def _first_ids(samples: Sequence[Sample], contender: str) -> dict[Task, tuple[int, ...]]:
    """The ids that a contender decoded first, by task."""
    found: dict[Task, tuple[int, ...]] = {}
    for one in samples:
        if one.contender == contender and one.task.kind == "decode" and one.measurement.ids:
            found.setdefault(one.task, one.measurement.ids)
    return found


def _cost(samples: Sequence[Sample], expected: dict[Task, tuple[int, ...]]) -> CostResult:
    shortest = next((one.task for one in samples if one.task.kind == "decode"), None)
    decoding = [one for one in samples if one.task == shortest]
    ids = expected.get(shortest, ()) if shortest is not None else ()
    equal: int | None = None
    for one in decoding:
        if one.measurement.ids and ids:
            pairs = zip(one.measurement.ids, ids, strict=False)
            same = next((at for at, (left, right) in enumerate(pairs) if left != right), len(ids))
            equal = same if equal is None else min(equal, same)
    return CostResult(
        samples[0].contender,
        samples[0].threads,
        figure(one.measurement.load_seconds for one in samples if one.measurement.load_seconds is not None),
        figure(one.measurement.peak_rss_bytes for one in decoding if one.measurement.peak_rss_bytes is not None),
        equal,
        len(ids) if equal is not None else None,
    )


def _long_context(pairs: Sequence[tuple[Sample, Sample]]) -> LongContext:
    """Of samples behind a long prompt, each with the one behind a short prompt of its round."""
    first, other = pairs[0]
    more = first.work.bytes_read(first.task) - other.work.bytes_read(other.task)
    seconds = [1 / far.tokens_per_second - 1 / near.tokens_per_second for far, near in pairs]
    extra = figure(seconds)
    ratio = figure(one * far.limits.read_bytes_per_second / more for one, (far, _) in zip(seconds, pairs, strict=True))
    assert extra is not None and ratio is not None
    anonymous = figure(
        one * far.limits.anonymous_bytes_per_second / more
        for one, (far, _) in zip(seconds, pairs, strict=True)
        if far.limits.anonymous_bytes_per_second is not None
    )
    labels = f"after {other.task.prompt}", first.task.label
    return LongContext(first.contender, first.threads, *labels, extra, more, ratio, anonymous)

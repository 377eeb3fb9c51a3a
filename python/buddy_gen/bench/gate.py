"""The targets that a run can judge, each met or missed, with the figures that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from buddy_gen.bench.contenders import EAGER_NAME, LLAMA_CPP, OURS, PYTORCH, Identity
from buddy_gen.bench.kernels import KernelTable
from buddy_gen.bench.summary import LongContext, SampleIndex
from buddy_gen.bench.work import Task, threads_label

__all__ = ["GateEntry", "make_gate", "matching_peer"]

DECODE_SHARE = {
    "f32": (0.95, 0.90),
    **dict.fromkeys(("f16", "bf16"), (0.90, 0.90)),
    **dict.fromkeys(("w8a8", "gguf Q8_0"), (0.85, 0.85)),
    **dict.fromkeys(("w4a8", "gguf Q4_0", "gguf Q4_1"), (0.80, 0.80)),
}
"""Decode: share of a plain read loop's bandwidth, with one thread and with two."""
DECODE_OF_PEER = {
    **dict.fromkeys(("f16", "bf16"), 1.3),
    **dict.fromkeys(("w8a8", "gguf Q8_0"), 1.6),
    **dict.fromkeys(("w4a8", "gguf Q4_0", "gguf Q4_1"), 1.7),
}
"""Decode: times llama.cpp of the matching type."""
F32_DECODE = {1: 1.1, 2: 1.3}
"""Decode of f32: times the fastest f32 peer, by threads."""
F32_PREFILL = {16: 1.3, 128: 1.2, 512: 1.2}
"""Prefill of f32: times the fastest f32 peer, by length."""
EAGER_DECODE = 2.0  # f32 with two threads: times eager PyTorch
HALF_PREFILL = 1.15  # f16 and bf16: times the fastest peer of 16 bits
INT8_PREFILL_OF_PEER = 2.0  # w8a8: times llama.cpp Q8_0
INT8_PREFILL_OF_F32 = 1.3
INT4_PREFILL_OF_INT8 = 0.9
LONG_PREFILLS = (128, 512)  # the lengths that the four above are about
DECODE_OF_F32 = {"f16": 1.7, "w8a8": 3.0, "w4a8": 4.5}
"""Decode: times our own f32 build."""
BYTES_OF_F32 = {"f16": 0.50, "w8a8": 0.28, "w4a8": 0.19}
"""Bytes of weights for a token, at most, of those of our own f32 build."""
DECODE_SCALING, PREFILL_SCALING = 1.4, 1.9  # two threads: times one
LONG_CONTEXT = 1.15  # extra time behind a long prompt: at most so many times that of the extra bytes
EQUAL_CONTEXTS = 0.95  # the rate in a larger context, of that in a smaller one
GEMM_SHARE = 0.88  # of the FMA peak, inside the matrix products of prefill


@dataclass(frozen=True)
class GateEntry:
    """A figure with a target."""

    contender: str
    figure: str
    value: float
    target: float
    unit: str
    """share or ratio."""
    detail: str = ""
    """The figures that the value comes from."""
    at_most: bool = False
    obstacle: str = ""
    """Why the machine does not allow the target; such an entry is not judged."""

    @property
    def met(self) -> bool:
        if self.at_most:
            return 0 < self.value <= self.target
        return self.value >= self.target

    @property
    def missed(self) -> bool:
        return not self.met and not self.obstacle

    @property
    def verdict(self) -> str:
        if self.met:
            return "met"
        return f"not judged: {self.obstacle}" if self.obstacle else "MISSED"

    @property
    def target_text(self) -> str:
        return f"at {'most' if self.at_most else 'least'} {_amount(self.target, self.unit)}"

    @property
    def value_text(self) -> str:
        return _amount(self.value, self.unit)

    def sentence(self) -> str:
        found = f"{self.contender}, {self.figure}: {self.value_text} (target {self.target_text}: {self.verdict})"
        return found + (f"; {self.detail}" if self.detail else "")


def _amount(value: float, unit: str) -> str:
    return f"{value:.1%}" if unit == "share" else f"{value:.2f}x"


def matching_peer(ours: Identity, identities: Sequence[Identity]) -> Identity | None:
    """llama.cpp with the type that a build of ours is compared with: the same file for gguf, else of the same kind."""
    peers = [one for one in identities if one.family == LLAMA_CPP]
    if ours.dtype.startswith("gguf "):
        same = [one for one in peers if ours.source and one.source == ours.source]
        wanted = ours.dtype.removeprefix("gguf ")
        return next(iter([*same, *(one for one in peers if one.dtype == wanted)]), None)
    wanted = {"w8": "Q8_0", "w4": "Q4_0"}.get(ours.dtype[:2], ours.dtype.upper())
    return next((one for one in peers if one.dtype == wanted), None)


def make_gate(
    samples: SampleIndex,
    identities: Sequence[Identity],
    long_contexts: Sequence[LongContext],
    kernels: Sequence[KernelTable],
) -> list[GateEntry]:
    """The targets that the run has the figures for, build by build."""
    judge = _Judge(samples, identities)
    entries: list[GateEntry] = []
    for ours in identities:
        if ours.family != OURS:
            continue
        entries += judge.decode(ours)
        entries += judge.prefill(ours)
        entries += judge.scaling(ours)
        entries += judge.contexts(ours)
        entries += _long_context_entries(ours, long_contexts)
        entries += _gemm_entries(ours, kernels)
    return entries


class _Judge:
    def __init__(self, samples: SampleIndex, identities: Sequence[Identity]) -> None:
        self._samples = samples
        self._identities = identities
        self._decode = next((task for task in samples.tasks if task.kind == "decode"), None)
        self._prefills = [task for task in samples.tasks if task.kind == "prefill"]
        own = [one for one in identities if one.family == OURS]
        self._own = {dtype: next((one.name for one in own if one.dtype == dtype), None) for dtype in ("f32", "w8a8")}
        self._f32_peers = [one.name for one in identities if one.family != OURS and one.dtype in ("f32", "F32")]
        self._half_peers = [one.name for one in identities if one.family != OURS and one.dtype in ("F16", "BF16")]
        self._eager = next((one.name for one in identities if one.family == PYTORCH and one.name == EAGER_NAME), None)

    def decode(self, ours: Identity) -> Iterator[GateEntry]:
        task, samples = self._decode, self._samples
        if task is None:
            return
        peer = matching_peer(ours, self._identities)
        for threads in (1, 2):
            yield from self._decode_share(ours, threads, task)
            if ours.dtype == "f32":
                fastest = samples.fastest(self._f32_peers, threads, task)
                yield from self._ratio(ours, fastest, threads, task, F32_DECODE[threads], "the fastest f32 peer")
                if threads == 2:
                    yield from self._ratio(ours, self._eager, threads, task, EAGER_DECODE)
                continue
            if ours.dtype in DECODE_OF_PEER and peer is not None:
                yield from self._ratio(ours, peer.name, threads, task, DECODE_OF_PEER[ours.dtype])
            if ours.dtype in DECODE_OF_F32:
                yield from self._ratio(ours, self._own["f32"], threads, task, DECODE_OF_F32[ours.dtype])
        yield from self._bytes(ours)

    def _decode_share(self, ours: Identity, threads: int, task: Task) -> Iterator[GateEntry]:
        key = (ours.name, threads, task)
        share, rate, read = self._samples.share(*key), self._samples.rate(*key), self._samples.read_loop(*key)
        if (
            ours.dtype not in DECODE_SHARE
            or share is None
            or rate is None
            or read is None
            or self._samples.bound(*key) != "memory"
        ):
            return
        detail = f"{rate.median:.1f} tokens/s, read loop {read.median / 1e9:.1f} GB/s"
        figure = f"{task.label}, {threads_label(threads)}: share of a plain read loop's bandwidth"
        yield GateEntry(ours.name, figure, share.median, DECODE_SHARE[ours.dtype][threads - 1], "share", detail)

    def _bytes(self, ours: Identity) -> Iterator[GateEntry]:
        own, f32 = self._weight_bytes(ours.name), self._weight_bytes(self._own["f32"])
        if ours.dtype in BYTES_OF_F32 and own is not None and f32 is not None:
            share = round(own / f32, 2)  # norms stay f32, so that it can not be 0.5 to the last digit
            detail = f"{own / 1e6:.0f} and {f32 / 1e6:.0f} MB"
            figure = f"bytes of weights for a token, times {self._own['f32']}"
            yield GateEntry(ours.name, figure, share, BYTES_OF_F32[ours.dtype], "ratio", detail, at_most=True)

    def _weight_bytes(self, contender: str | None) -> int | None:
        return next((one.work.weight_bytes for one in self._samples.all if one.contender == contender), None)

    def prefill(self, ours: Identity) -> Iterator[GateEntry]:
        samples, dtype = self._samples, ours.dtype
        peer = matching_peer(ours, self._identities)
        for task in self._prefills:
            for threads in (1, 2):
                if dtype == "f32" and task.tokens in F32_PREFILL:
                    fastest = samples.fastest(self._f32_peers, threads, task)
                    target = F32_PREFILL[task.tokens]
                    yield from self._ratio(ours, fastest, threads, task, target, "the fastest f32 peer")
                if task.tokens not in LONG_PREFILLS:
                    continue
                if dtype in ("f16", "bf16"):
                    fastest = samples.fastest(self._half_peers, threads, task)
                    yield from self._ratio(ours, fastest, threads, task, HALF_PREFILL, "the fastest 16-bit peer")
                if dtype == "w8a8" and peer is not None:
                    yield from self._ratio(ours, peer.name, threads, task, INT8_PREFILL_OF_PEER)
                    yield from self._ratio(ours, self._own["f32"], threads, task, INT8_PREFILL_OF_F32)
                if dtype == "w4a8":
                    yield from self._ratio(ours, self._own["w8a8"], threads, task, INT4_PREFILL_OF_INT8)

    def scaling(self, ours: Identity) -> Iterator[GateEntry]:
        if ours.dtype != "f32":
            return
        for task in [*([self._decode] if self._decode else []), *self._prefills]:
            found = self._samples.scaling(ours.name, 1, 2, task)
            one, two = (self._samples.rate(ours.name, threads, task) for threads in (1, 2))
            if found is None or one is None or two is None:
                continue
            decoding = task.kind == "decode"
            if not decoding and self._samples.bound(ours.name, 1, task) != "compute":
                continue
            target = DECODE_SCALING if decoding else PREFILL_SCALING
            detail = f"{two.median:.1f} and {one.median:.1f} tokens/s"
            obstacle = self._narrow_memory(ours, task) if decoding else ""
            figure = f"{task.label}, 2 threads, times 1 thread"
            yield GateEntry(ours.name, figure, found.median, target, "ratio", detail, obstacle=obstacle)

    def _narrow_memory(self, ours: Identity, task: Task) -> str:
        """Why memory does not let two threads decode so much faster; empty where it does."""
        one, two = (self._samples.read_loop(ours.name, threads, task) for threads in (1, 2))
        if one is None or two is None or two.median / one.median >= DECODE_SCALING:
            return ""
        return f"the read loop itself grew {two.median / one.median:.2f}x"

    def contexts(self, ours: Identity) -> Iterator[GateEntry]:
        """The same rate in every context that the run was told to try."""
        tasks = sorted((task for task in self._samples.tasks if task.context), key=lambda task: task.context)
        for small, large in pairwise(tasks):
            for threads in self._samples.threads:
                found = self._samples.task_ratio(ours.name, threads, large, small)
                rates = [self._samples.rate(ours.name, threads, task) for task in (large, small)]
                if found is not None:
                    figure = f"{large.label}, {threads_label(threads)}, times -c {small.context}"
                    detail = " and ".join(f"{rate.median:.1f}" for rate in rates if rate is not None) + " tokens/s"
                    yield GateEntry(ours.name, figure, found.median, EQUAL_CONTEXTS, "ratio", detail)

    def _ratio(
        self, ours: Identity, theirs: str | None, threads: int, task: Task, target: float, role: str = ""
    ) -> Iterator[GateEntry]:
        if theirs is None or theirs == ours.name:
            return
        found = self._samples.ratio(ours.name, theirs, threads, task)
        own, other = (self._samples.rate(name, threads, task) for name in (ours.name, theirs))
        if found is None or own is None or other is None:
            return
        against = f"{role} ({theirs})" if role else theirs
        detail = f"{own.median:.1f} and {other.median:.1f} tokens/s"
        figure = f"{task.label}, {threads_label(threads)}, times {against}"
        yield GateEntry(ours.name, figure, found.median, target, "ratio", detail)


def _long_context_entries(ours: Identity, contexts: Sequence[LongContext]) -> Iterator[GateEntry]:
    for one in contexts:
        if one.contender == ours.name:
            figure = f"{one.far}, {threads_label(one.threads)}: extra time by that of the extra KV bytes"
            detail = f"{one.extra_seconds.median * 1e3:.2f} ms and {one.extra_bytes / 1e6:.1f} MB more than {one.near}"
            if one.anonymous_ratio is not None:
                detail += f"; {one.anonymous_ratio.median:.2f}x by the bandwidth of anonymous memory"
            value = one.ratio.median
            noise = "more noise than extra time" if value <= 0 else ""
            yield GateEntry(ours.name, figure, value, LONG_CONTEXT, "ratio", detail, at_most=True, obstacle=noise)


def _gemm_entries(ours: Identity, kernels: Sequence[KernelTable]) -> Iterator[GateEntry]:
    lengths = [f"prefill {length}" for length in LONG_PREFILLS]
    for table in kernels:
        if table.contender == ours.name and ours.dtype == "f32" and table.task in lengths:
            share = table.multiplying_share()
            if share is not None:
                figure = (
                    f"{table.task}, {threads_label(table.threads)}: share of the FMA peak inside the matrix products"
                )
                yield GateEntry(ours.name, figure, share, GEMM_SHARE, "share")

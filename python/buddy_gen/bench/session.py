"""One benchmark run: rounds over thread counts, tasks and contenders, each measurement paired with the limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buddy_gen.bench.contenders import Contender, Measurement
from buddy_gen.bench.work import Limits, ModelWork, Task

__all__ = ["Sample", "Settings", "run_rounds"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often."""

    threads: tuple[int, ...] = (1, 2)
    rounds: int = 5
    prompts: tuple[int, ...] = (16, 128, 512)
    decode_tokens: int = 128
    decode_prompt: int = 16

    def tasks(self) -> list[Task]:
        """Decode first, then prefill by length."""
        decode = Task("decode", self.decode_tokens, self.decode_prompt)
        return [decode, *(Task("prefill", length) for length in self.prompts)]


@dataclass(frozen=True)
class Sample:
    """One measurement, with the limits that were measured just before it."""

    contender: str
    threads: int
    task: Task
    round: int
    limits: Limits
    measurement: Measurement
    work: ModelWork
    """The work of the model as this contender stores it."""

    @property
    def share_of_roofline(self) -> float:
        return self.tokens_per_second / self.work.roofline(self.task, self.limits)

    @property
    def tokens_per_second(self) -> float:
        return self.task.tokens / self.measurement.seconds


def prompt_ids(length: int, vocabulary: int) -> list[int]:
    """A prompt of random ids, the same in every run."""
    source = random.Random(length)
    return [source.randrange(vocabulary) for _ in range(length)]


def run_rounds(
    contenders: Sequence[Contender],
    work: ModelWork,
    settings: Settings,
    measure_limits: Callable[[int], Limits],
    progress: Callable[[str], None],
) -> list[Sample]:
    """Measures everything `settings.rounds` times, interleaved.

    Within a round and a thread count, all contenders do a task one after the other, so that what disturbs the machine
    for a while disturbs all of them; who begins changes with the round. `measure_limits(threads)` comes before each.
    Raises BuddyError when a contender fails.
    """
    samples: list[Sample] = []
    tasks = settings.tasks()
    total = settings.rounds * len(settings.threads) * len(tasks) * len(contenders)
    for number in range(settings.rounds):
        turn = number % len(contenders)
        order = [*contenders[turn:], *contenders[:turn]]
        for threads in settings.threads:
            for task in tasks:
                prompt = prompt_ids(task.prompt if task.kind == "decode" else task.tokens, work.vocabulary)
                for contender in order:
                    limits = measure_limits(threads)
                    measurement = contender.run(task, threads, prompt)
                    own_work = contender.work(work)
                    sample = Sample(contender.name, threads, task, number, limits, measurement, own_work)
                    samples.append(sample)
                    progress(f"{len(samples)}/{total}  {describe(sample)}")
    return samples


def describe(sample: Sample) -> str:
    """One line about a sample."""
    threads = f"{sample.threads} thread{'s' if sample.threads > 1 else ''}"
    rate = f"{sample.tokens_per_second:.1f} tokens/s ({sample.share_of_roofline:.0%} of the roofline)"
    return f"{sample.contender}, {threads}, {sample.task.label}: {rate}"

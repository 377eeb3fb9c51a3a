"""One benchmark run: rounds over thread counts, tasks and contenders, each measurement paired with the limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from buddy_gen.bench.contenders import Contender, Measurement
from buddy_gen.bench.work import Limits, ModelWork, Task, threads_label

__all__ = ["Sample", "Settings", "prompt_ids", "run_rounds", "task_prompt"]


@dataclass(frozen=True)
class Settings:
    """What is measured, and how often."""

    threads: tuple[int, ...] = (1, 2)
    rounds: int = 5
    prompts: tuple[int, ...] = (16, 128, 512)
    decode_tokens: int = 128
    decode_prompts: tuple[int, ...] = (16,)
    contexts: tuple[int, ...] = ()
    """Sizes of our programs' context at which decoding behind the longest of those prompts is measured again."""

    def tasks(self) -> list[Task]:
        """Decode first, by prompt, then at other contexts, then prefill by length."""
        decode = [Task("decode", self.decode_tokens, prompt) for prompt in sorted(self.decode_prompts)]
        again = [replace(decode[-1], context=context) for context in self.contexts]
        return [*decode, *again, *(Task("prefill", length) for length in self.prompts)]


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


def task_prompt(task: Task, vocabulary: int) -> list[int]:
    """The prompt of a task."""
    return prompt_ids(task.prompt if task.kind == "decode" else task.tokens, vocabulary)


def run_rounds(
    contenders: Sequence[Contender],
    work: ModelWork,
    settings: Settings,
    measure_limits: Callable[[int, Contender, Task], Limits],
    progress: Callable[[str], None],
) -> list[Sample]:
    """Measures everything `settings.rounds` times, interleaved.

    Within a round and a thread count, all contenders do a task one after the other, so that what disturbs the machine
    for a while disturbs all of them; who begins changes with the round. `measure_limits` comes before each.
    Raises BuddyError when a contender fails.
    """
    samples: list[Sample] = []
    tasks = settings.tasks()
    takers = sum(contender.takes(task) for task in tasks for contender in contenders)
    total = settings.rounds * len(settings.threads) * takers
    for number in range(settings.rounds):
        turn = number % len(contenders)
        order = [*contenders[turn:], *contenders[:turn]]
        for threads in settings.threads:
            for task in tasks:
                prompt = task_prompt(task, work.vocabulary)
                for contender in order:
                    if not contender.takes(task):
                        continue
                    limits = measure_limits(threads, contender, task)
                    measurement = contender.run(task, threads, prompt)
                    own_work = contender.work(work)
                    sample = Sample(contender.name, threads, task, number, limits, measurement, own_work)
                    samples.append(sample)
                    progress(f"{len(samples)}/{total}  {describe(sample)}")
    return samples


def describe(sample: Sample) -> str:
    """One line about a sample."""
    rate = f"{sample.tokens_per_second:.1f} tokens/s ({sample.share_of_roofline:.0%} of the roofline)"
    return f"{sample.contender}, {threads_label(sample.threads)}, {sample.task.label}: {rate}"

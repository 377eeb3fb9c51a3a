"""Several conversations take turns: none is evaluated again, and none sees another one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import toy_model
from toy_model import greedy, random_table
from toy_server import serving, toy_folder

from buddy_gen.errors import BuddyError
from buddy_gen.serve.engine import CancelFlag, Outcome, Sampling
from buddy_gen.serve.library import LibraryEngine

pytestmark = pytest.mark.slow  # compiles the toy library

TABLE = random_table(5)
SYSTEM = list(b"You are a toy. ")
Ask = Callable[[Sequence[int], int], int]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_folder(tmp_path_factory.mktemp("toy"), TABLE)


@pytest.fixture
def opened(library: Path) -> Iterator[Callable[[int], Ask]]:
    """Opens the toy with so many sessions; gives what asks for an answer, checks it and tells its cached tokens."""
    engines: list[LibraryEngine] = []

    def open_toy(sessions: int) -> Ask:
        engine = LibraryEngine(library, sessions=sessions, threads=1)
        engines.append(engine)
        return lambda prompt, count: asked(engine, prompt, count).cached_tokens

    yield open_toy
    for engine in engines:
        engine.close()


def asked(engine: LibraryEngine, prompt: Sequence[int], count: int) -> Outcome:
    made: list[int] = []
    sampling = Sampling(max_tokens=count, temperature=0, ignore_end=True)
    outcome = engine.generate(prompt, sampling, lambda token: made.append(token.id), CancelFlag())
    assert made[:-1] == greedy(TABLE, prompt, count)
    return outcome


def test_conversations_take_turns(opened: Callable[[int], Ask]) -> None:
    ask = opened(2)
    one, two = list(b"One begins"), list(b"Two, too")
    assert ask(one, 3) == ask(two, 3) == 0
    for _ in range(3):  # each goes on behind its own answer
        for said in (one, two):
            before = len(said)
            said += [*greedy(TABLE, said, 3), *b"; and then?"]
            assert ask(said, 3) >= before


def test_one_session_forgets(opened: Callable[[int], Ask]) -> None:
    ask = opened(1)
    assert [ask(list(text), 1) for text in (b"abc", b"xyz", b"abcd")] == [0, 0, 0]
    assert ask(list(b"abcd"), 1) == 3  # the last token's logits are wanted


def test_a_common_beginning_is_copied(opened: Callable[[int], Ask]) -> None:
    """It is evaluated once, and the first conversation stays as it is."""
    ask = opened(3)
    assert ask([*SYSTEM, *b"first"], 4) == 0
    assert ask([*SYSTEM, *b"second"], 4) == len(SYSTEM)
    assert ask([*SYSTEM, *b"first", *greedy(TABLE, [*SYSTEM, *b"first"], 4), *b"!"], 1) == len(SYSTEM) + 5 + 3
    assert ask([*SYSTEM, *b"second", *b"?"], 1) == len(SYSTEM) + 6


def test_the_oldest_conversation_makes_room(opened: Callable[[int], Ask]) -> None:
    ask = opened(2)
    assert [ask(list(text), 1) for text in (b"aaaa", b"bbbb", b"aaaaa", b"cccc")] == [0, 0, 4, 0]
    assert ask(list(b"aaaaaa"), 1) == 5
    assert ask(list(b"bbbbb"), 1) == 0  # c took its place


def test_choices_and_corrections_take_one_place(library: Path, opened: Callable[[int], Ask]) -> None:
    """The same prompt again goes on where it was; another end of a prompt begins anew, and leaves the first."""
    ask = opened(2)
    ask(list(b"other"), 1)
    assert [ask(list(b"the same"), 2) for _ in range(5)] == [0, 7, 7, 7, 7]
    assert ask(list(b"other!"), 1) == 5
    assert ask(list(b"the sand"), 1) == 6
    assert ask(list(b"the sandy"), 1) == 8
    engine = LibraryEngine(library, sessions=2)
    with serving(engine) as running, running.openai() as client:
        for prompt in ("other", "go"):
            usage = client.completions.create(model="toy", prompt=prompt, n=4, max_tokens=2).usage
            assert usage and usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens == 0
        usage = client.completions.create(model="toy", prompt="other!", max_tokens=2).usage
        assert usage and usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens == 5
    engine.close()


@dataclass
class Remembered:
    """A session as the rules of docs/server.md have it."""

    ids: list[int] = field(default_factory=list)
    prompt: int = 0
    used: int = 0

    def common(self, prompt: Sequence[int]) -> int:
        size = 0
        while size < min(len(self.ids), len(prompt)) and self.ids[size] == prompt[size]:
            size += 1
        return size


@pytest.mark.parametrize("sessions", [1, 2, 3, 5])
def test_any_order_of_prompts(opened: Callable[[int], Ask], sessions: int) -> None:
    """Beginnings and answers that are shared at random: the answers are right, and nothing known is evaluated."""
    ask, chance = opened(sessions), random.Random(sessions)
    kept = [Remembered() for _ in range(sessions)]
    past: list[list[int]] = [[1]]
    for time in range(1, 200):
        begin = chance.choice(past)
        prompt = [*begin[: chance.randint(0, len(begin))], *chance.choices(range(97, 100), k=chance.randint(1, 4))]
        if len(prompt) > 60:
            continue
        best = max(session.common(prompt) for session in kept)
        own = [s for s in kept if s.common(prompt) and s.common(prompt) >= min(s.prompt, len(s.ids))]
        chosen = max(own, key=lambda s: s.common(prompt)) if own else min(kept, key=lambda s: s.used)
        count = chance.randint(0, 3)
        assert ask(prompt, count) == min(best, len(prompt) - 1)
        answer = greedy(TABLE, prompt, count)
        chosen.ids, chosen.prompt, chosen.used = [*prompt, *answer[:-1]], len(prompt), time
        past.append([*prompt, *answer])


def test_what_a_session_takes_is_told(library: Path) -> None:
    engine = LibraryEngine(library, sessions=3, context=100)
    row = toy_model.HEAD_DIM * 4
    assert engine.info.sessions == 3
    assert engine.info.session_bytes == 2 * toy_model.LAYERS * toy_model.KV_HEADS * 100 * row
    engine.close()
    for sessions in (0, -1, 1025):
        with pytest.raises(BuddyError, match=f"^{sessions} sessions were asked for: give 1 to 1024"):
            LibraryEngine(library, sessions=sessions)

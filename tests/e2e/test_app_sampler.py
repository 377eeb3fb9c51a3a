"""The sampler's candidates and probabilities, judged by transformers' logits processors, and log-probabilities."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_model import VOCAB, Floats, Program, programs, random_table, toy_logits, write_model
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Settings:
    """As the flags of the program have them."""

    temp: float = 1
    top_k: int = 0
    top_p: float = 1
    min_p: float = 0
    typical: float = 1
    repeat: float = 1
    presence: float = 0
    frequency: float = 0

    def processors(self) -> LogitsProcessorList:
        """What transformers' generate applies, in its order."""
        chain = LogitsProcessorList([TemperatureLogitsWarper(float(self.temp))])
        if self.top_k:
            chain.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            chain.append(TopPLogitsWarper(self.top_p))
        if self.min_p:
            chain.append(MinPLogitsWarper(self.min_p))
        if self.typical < 1:
            chain.append(TypicalLogitsWarper(self.typical))
        return chain

    def arguments(self) -> list[str]:
        numbers = (self.temp, self.top_k, self.top_p, self.min_p, self.typical)
        return [repr(n) for n in (*numbers, self.repeat, self.presence, self.frequency)]


@dataclass(frozen=True)
class Case:
    """One choice to make: (vocabulary) logits behind a prompt and the answer so far."""

    logits: Floats
    prompt: Sequence[int]
    answer: Sequence[int]

    def packed(self) -> bytes:
        words = (len(self.logits), len(self.prompt), *self.prompt, len(self.answer), *self.answer)
        return np.array(words, dtype=np.int32).tobytes() + self.logits.astype(np.float32).tobytes()


def distributions(settings: Settings, cases: Sequence[Case]) -> list[dict[int, float]]:
    """What the program's sampler would draw from, for each case."""
    command = [str(programs() / "sampler-tool"), *settings.arguments()]
    packed = b"".join(case.packed() for case in cases)
    out = subprocess.run(command, input=packed, capture_output=True, check=True).stdout
    results = []
    while out:
        count = int(np.frombuffer(out[:8], np.int64)[0])
        rows = np.frombuffer(out[8 : 8 + 16 * count], [("id", "<i8"), ("probability", "<f8")])
        results.append({int(row["id"]): float(row["probability"]) for row in rows})
        out = out[8 + 16 * count :]
    return results


def reference(settings: Settings, case: Case) -> dict[int, float]:
    """The same from transformers, in double precision; presence and frequency by the formula of OpenAI's API."""
    seen = torch.tensor([[*case.prompt, *case.answer]], dtype=torch.int64)
    scores = torch.from_numpy(case.logits.astype(np.float32))[None]
    if settings.repeat != 1:
        scores = RepetitionPenaltyLogitsProcessor(float(settings.repeat))(seen, scores)
    counts = torch.bincount(torch.tensor(case.answer, dtype=torch.int64), minlength=len(case.logits))
    lessened = scores.double() - counts * settings.frequency - (counts > 0) * settings.presence
    scores = settings.processors()(seen, lessened.float().double())
    probabilities = torch.softmax(scores[0], 0)
    kept = torch.isfinite(scores[0])
    return {int(i): float(probabilities[i]) for i in torch.nonzero(kept).flatten()}


def random_cases(seed: int, count: int = 25) -> list[Case]:
    """Flat, peaked and long-tailed logits, with what occurred before."""
    random = np.random.default_rng(seed)
    cases = []
    for index in range(count):
        size = int(random.integers(2, 700))
        scale = (0.3, 2.0, 6.0)[index % 3]
        logits = random.normal(0, scale, size) + (random.exponential(scale, size) if index % 2 else 0)
        prompt = random.integers(0, size, int(random.integers(1, 40))).tolist()
        answer = random.integers(0, min(size, 12), int(random.integers(0, 30))).tolist()
        cases.append(Case(logits.astype(np.float32), prompt, answer))
    return cases


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(temp=0.25),
        Settings(temp=2.5),
        Settings(top_k=1),
        Settings(top_k=40),
        Settings(top_k=10_000),
        Settings(top_p=0.9),
        Settings(top_p=0.05),
        Settings(temp=1.7, top_p=0.999),
        Settings(min_p=0.05),
        Settings(min_p=1.0),
        Settings(typical=0.9),
        Settings(typical=0.2),
        Settings(temp=0.6, typical=0.97),
        Settings(repeat=1.3),
        Settings(repeat=0.8),
        Settings(presence=1.5),
        Settings(frequency=0.7),
        Settings(presence=-0.5, frequency=-0.1),
        Settings(temp=0.8, top_k=50, top_p=0.95, min_p=0.02, typical=0.9),
        Settings(temp=1.4, top_k=90, top_p=0.8, min_p=0.01, typical=0.5, repeat=1.1, presence=0.3, frequency=0.2),
    ],
    ids=str,
)
def test_candidates_and_probabilities_equal_transformers(settings: Settings) -> None:
    cases = random_cases(7)
    for case, found in zip(cases, distributions(settings, cases), strict=True):
        expected = reference(settings, case)
        assert found.keys() == expected.keys()
        np.testing.assert_allclose([found[i] for i in expected], list(expected.values()), rtol=2e-5, atol=1e-12)
        assert math.fsum(found.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("settings", [Settings(top_k=3), Settings(typical=0.5), Settings(min_p=0.2)], ids=str)
def test_equally_likely_tokens(settings: Settings) -> None:
    """Ties at the border are all kept, as in transformers."""
    random = np.random.default_rng(3)
    cases = [Case(random.integers(0, 4, 50).astype(np.float32), [0], []) for _ in range(20)]
    for case, found in zip(cases, distributions(settings, cases), strict=True):
        assert found.keys() == reference(settings, case).keys()


def test_of_equally_likely_tokens_top_p_keeps_the_first() -> None:
    found = distributions(Settings(top_p=0.5), [Case(np.zeros(10, np.float32), [0], [])])[0]
    assert list(found) == [0, 1, 2, 3, 4] and set(found.values()) == {0.2}


def test_impossible_tokens() -> None:
    """Logits of minus infinity never become candidates that could be drawn, whatever the setting."""
    logits = np.array([-np.inf, 1, -np.inf, 2], dtype=np.float32)
    for settings in (Settings(), Settings(typical=0.9), Settings(top_p=0.99), Settings(temp=1e-6), Settings(top_k=3)):
        found = distributions(settings, [Case(logits, [0], [])])[0]
        assert found.get(0, 0) == found.get(2, 0) == 0
        assert math.fsum(found.values()) == 1


TABLE = random_table(5)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


@pytest.mark.parametrize("sampling", [[], ["--temp", "2", "--top-k", "3", "--repeat-penalty", "1.5", "--seed", "1"]])
def test_log_probabilities_are_the_models_own(toy: Program, sampling: list[str]) -> None:
    """Of the logits before any sampling setting."""
    result = toy.run("-p", "ab", "-n", "12", "--ignore-eos", "--json", "--logprobs", "4", *sampling).json
    assert [entry["id"] for entry in result["logprobs"]] == result["ids"]
    ids = [97, 98]
    for entry in result["logprobs"]:
        logits = torch.from_numpy(toy_logits(TABLE, ids)).double()
        expected = torch.log_softmax(logits, 0)
        assert entry["text"] == chr(entry["id"])
        assert entry["logprob"] == pytest.approx(float(expected[entry["id"]]), abs=1e-6)
        values, order = torch.topk(expected, 4)
        assert [top["id"] for top in entry["top"]] == order.tolist()
        assert [top["logprob"] for top in entry["top"]] == pytest.approx(values.tolist(), abs=1e-6)
        ids.append(entry["id"])


def test_log_probabilities_on_request_only(toy: Program, tmp_path: Path) -> None:
    assert "logprobs" not in toy.run("-p", "a", "-n", "1", "--json").json
    none = toy.run("-p", "a", "-n", "2", "--json", "--logprobs", "0").json["logprobs"]
    assert [entry["top"] for entry in none] == [[], []]
    every = toy.run("-p", "a", "-n", "1", "--json", "--logprobs", str(VOCAB)).json["logprobs"][0]["top"]
    assert sorted(top["id"] for top in every) == list(range(VOCAB))
    assert math.fsum(math.exp(top["logprob"]) for top in every) == pytest.approx(1, abs=1e-4)
    assert {top["id"]: top["text"] for top in every}[255] == "\N{REPLACEMENT CHARACTER}"  # half a character
    table = TABLE.copy()
    table[97, 120] = -np.inf
    impossible = Program(toy.path, write_model(tmp_path, table)).run(
        "-p", "a", "-n", "1", "--json", "--logprobs", str(VOCAB)
    )
    last = impossible.json["logprobs"][0]["top"][-1]
    assert last["id"] == 120 and last["logprob"] is None
    toy.run("-p", "a", "--logprobs", "1").fails(2, "--logprobs", "--json")
    toy.run("-p", "a", "--json", "--logprobs", "-1").fails(2, "--logprobs")


def test_penalties_work_on_the_answer_alone(toy: Program) -> None:
    """Presence and frequency: what the prompt holds does not count. The answer is computed by the formula."""
    ids, counts = [97] * 3, np.zeros(VOCAB)
    for _ in range(40):
        choice = int(np.argmax((toy_logits(TABLE, ids) - counts * 0.5 - (counts > 0) * 0.8).astype(np.float32)))
        counts[choice] += 1
        ids.append(choice)
    arguments = ["--ids", "97,97,97", "-n", "40", "--ignore-eos", "--json"]
    found = toy.run(*arguments, "--presence-penalty", "0.8", "--frequency-penalty", "0.5").json["ids"]
    assert found == ids[3:]

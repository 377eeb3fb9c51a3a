"""OpenAI's own client against the compiled library around the toy model, whose answers NumPy knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import openai
import pytest
import toy_model
from openai import OpenAI
from toy_model import CHAT_TEMPLATE, END, START, follow, greedy, random_table, toy_logits
from toy_server import MODEL, Running, serving, toy_folder, until

from buddy_gen.serve.library import LibraryEngine
from buddy_gen.tokenizers import write_vocab

pytestmark = pytest.mark.slow  # compiles the toy library

TABLE = follow(random_table(3), ",你 🙂é!")  # no byte is followed by two different ones
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    library = toy_folder(tmp_path_factory.mktemp("toy é"), TABLE, delay_ms=0)
    engine = LibraryEngine(library, threads=2)
    with serving(engine, max_tokens=engine.info.context) as server:
        yield server
    engine.close()


@pytest.fixture
def client(running: Running) -> Iterator[OpenAI]:
    with running.openai() as made:
        yield made


def chat_ids(*contents: str) -> list[int]:
    """The template's ids of a conversation; what was said has no special tokens."""
    marks = {"<|start|>": "\ue000", "<|end|>": "\ue001"}
    form = CHAT_TEMPLATE
    for spelling, mark in marks.items():
        form = form.replace(spelling, mark)
    turns = [{"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(contents)]
    text = jinja2.Template(form, keep_trailing_newline=True).render(messages=turns, add_generation_prompt=True)
    special = {"\ue000": [START], "\ue001": [END]}
    return [token for character in text for token in special.get(character) or character.encode()]


def turns(*contents: str) -> list[Any]:
    return [{"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(contents)]


def decoded(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def test_a_chat_equals_the_template_and_greedy(client: OpenAI) -> None:
    """Ten turns; each prefills its new part alone."""
    said = []
    for question in ("Hi", "é <|end|> x", "three", "4", "five <|start|>", "6"):
        said.append(question)
        prompt = chat_ids(*said)
        answer = client.chat.completions.create(messages=turns(*said), max_tokens=5, **GREEDY)
        choice, usage = answer.choices[0], answer.usage
        ids = greedy(TABLE, prompt, 5)
        assert choice.message.content == decoded(ids) and choice.message.role == "assistant"
        assert choice.finish_reason == ("length" if len(ids) == 5 else "stop")
        assert usage and (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(ids))
        assert usage.total_tokens == len(prompt) + len(ids) and usage.prompt_tokens_details
        if len(said) > 1:
            known = len(chat_ids(*said[:-2])) if len(said) > 2 else 1
            assert usage.prompt_tokens_details.cached_tokens >= known
        said.append(choice.message.content or "")


def test_a_stream_gives_what_a_whole_answer_has(client: OpenAI) -> None:
    request: dict[str, Any] = {**GREEDY, "messages": turns("Hello there"), "max_tokens": 40}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert not chunks[-1].choices and chunks[-1].usage and whole.usage
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**request, stream=True))


def test_characters_are_never_torn(client: OpenAI) -> None:
    """T6: what spans tokens comes as a whole."""
    stream = client.completions.create(prompt="Hello,", max_tokens=11, stream=True, **GREEDY)
    pieces = [chunk.choices[0].text for chunk in stream]
    assert [piece for piece in pieces if piece] == ["你", " ", "🙂", "é", "!"]
    cut = client.completions.create(prompt="Hello,", max_tokens=2, **GREEDY)
    assert cut.choices[0].text == "�"


def test_stop_strings(client: OpenAI) -> None:
    """A4: cut exactly, though they straddle tokens."""
    for stop, text in ((" 🙂", "你"), (["zzz", "🙂"], "你 "), ("!", "你 🙂é"), ("你 🙂é!", "")):
        for stream in (False, True):
            answer: Any = client.completions.create(prompt="Hello,", max_tokens=20, stop=stop, stream=stream, **GREEDY)
            chunks = list(answer) if stream else [answer]
            assert "".join(chunk.choices[0].text for chunk in chunks) == text
            assert chunks[-1].choices[0].finish_reason == "stop"
    beginning = client.completions.create(prompt="Hello,", max_tokens=4, stop="你 🙂", **GREEDY)
    assert (beginning.choices[0].text, beginning.choices[0].finish_reason) == ("你 ", "length")


def log_softmax(logits: Any) -> Any:
    wide = np.asarray(logits, np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def test_log_probabilities(client: OpenAI) -> None:
    prompt = chat_ids("Say something")
    ids = greedy(TABLE, prompt, 6)
    request: dict[str, Any] = {**GREEDY, "messages": turns("Say something"), "max_tokens": 6}
    asked: dict[str, Any] = {**request, "logprobs": True, "top_logprobs": 4}
    whole = client.chat.completions.create(**asked).choices[0].logprobs
    streamed = [
        score
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for score in chunk.choices[0].logprobs.content or []
    ]
    assert whole and whole.content and [score.to_dict() for score in whole.content] == [s.to_dict() for s in streamed]
    for position, (token, score) in enumerate(zip(ids, whole.content, strict=True)):
        right = log_softmax(toy_logits(TABLE, prompt + ids[:position]))
        order = np.argsort(-right, kind="stable")[:4]
        assert score.bytes == [token] and score.logprob == pytest.approx(right[token], abs=1e-6)
        assert [one.bytes for one in score.top_logprobs] == [
            [int(i)] if i < 256 else one.bytes for i, one in zip(order, score.top_logprobs, strict=True)
        ]
        assert [one.logprob for one in score.top_logprobs] == pytest.approx(list(right[order]), abs=1e-6)
    assert client.chat.completions.create(**request).choices[0].logprobs is None
    plain = client.completions.create(prompt=[1, 2, 3], max_tokens=4, logprobs=2, **GREEDY).choices[0].logprobs
    assert plain and plain.tokens and plain.token_logprobs and plain.top_logprobs and plain.text_offset
    assert len(plain.tokens) == len(plain.token_logprobs) == len(plain.top_logprobs) == 4
    assert max(plain.top_logprobs[0].values()) == pytest.approx(plain.token_logprobs[0])
    assert plain.text_offset == [0, 1, 2, 3]


def test_seeds_and_choices(client: OpenAI) -> None:
    request: dict[str, Any] = {"model": MODEL, "prompt": "go", "max_tokens": 12, "temperature": 1.5}
    three = [choice.text for choice in client.completions.create(**request, seed=7, n=3).choices]
    assert len(set(three)) == 3
    for repeat, text in enumerate(three):
        assert client.completions.create(**request, seed=7 + repeat).choices[0].text == text
    assert client.completions.create(**request).choices[0].text != client.completions.create(**request).choices[0].text
    several = client.completions.create(**{**request, "prompt": ["go", "stop"]}, seed=7, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in several.choices[:2]] == three[:2]
    assert several.usage and several.usage.prompt_tokens == 6 and several.usage.completion_tokens == 48
    texts: dict[int, str] = {}
    for chunk in client.completions.create(**request, seed=7, n=3, stream=True):
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert [texts[index] for index in range(3)] == three


def test_penalties_reach_the_sampler(client: OpenAI) -> None:
    request: dict[str, Any] = {**GREEDY, "prompt": "go", "max_tokens": 40}
    plain = client.completions.create(**request).choices[0].text
    ids = list(b"go")
    for _ in range(40):
        logits = toy_logits(TABLE, ids)
        counts = np.bincount(ids[2:], minlength=toy_model.VOCAB)
        ids.append(int(np.argmax(logits - 2 * counts - 1.5 * (counts > 0))))
        if ids[-1] == END:
            ids.pop()
            break
    fined = client.completions.create(**request, frequency_penalty=2, presence_penalty=1.5).choices[0].text
    assert fined == decoded(ids[2:]) != plain


def test_t12_every_declared_end_id_ends_an_answer(tmp_path: Path) -> None:
    library = toy_folder(tmp_path, TABLE)
    for ends in ([END], [END, ord("!")], [ord("!"), END, 0xF0]):
        spec = replace(toy_model.toy_spec(), end_ids=ends)
        write_vocab(tmp_path / "toy.vocab", spec, abi=toy_model.ABI, model_id=toy_model.MODEL_ID)
        engine = LibraryEngine(library)
        with serving(engine) as running, running.openai() as own:
            answer = own.completions.create(prompt="Hello,", max_tokens=11, **GREEDY).choices[0]
        engine.close()
        assert answer.text.startswith({1: "你 🙂é!", 2: "你 🙂é", 3: "你 "}[len(ends)])
        assert (answer.finish_reason == "stop" and "!" not in answer.text) or len(ends) == 1


def test_contexts(client: OpenAI) -> None:
    """A1."""
    context = toy_model.CONTEXT
    full = client.completions.create(prompt=[97] * context, max_tokens=5, **GREEDY)
    assert (full.choices[0].text, full.choices[0].finish_reason) == ("", "length")
    nearly = client.completions.create(prompt=[97] * (context - 2), max_tokens=5, **GREEDY)
    assert nearly.usage and nearly.usage.completion_tokens <= 3 and nearly.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=[97] * (context + 1), max_tokens=5, **GREEDY)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(messages=turns("x" * 300), **GREEDY)


def test_the_clients_errors(running: Running, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=turns("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(
            messages=turns("x"), tools=[{"type": "function", "function": {"name": "f"}}], **GREEDY
        )
    assert wrong.value.param == "tools" and wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(messages=turns("x", "y"), **GREEDY)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(messages=[*turns("x"), *turns("y")], **GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "buddy-gen"
    assert running.post("/tokenize", {"content": "a<|end|>", "parse_special": True}).json() == {"tokens": [97, END]}
    assert running.post("/tokenize", {"content": "<|end|>"}).json() == {"tokens": list(b"<|end|>")}


def test_concurrent_clients_get_their_own_answers(running: Running) -> None:
    def one(number: int) -> bool:
        prompt = f"client {number} " + "x" * number
        with running.openai(max_retries=5) as own:
            answer: Any = own.completions.create(prompt=prompt, max_tokens=8 + number, stream=number % 2 == 0, **GREEDY)
            text = "".join(chunk.choices[0].text for chunk in answer) if number % 2 == 0 else answer.choices[0].text
        return bool(text == decoded(greedy(TABLE, list(prompt.encode()), 8 + number)))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, range(18)))


def test_a_client_that_leaves_frees_the_model(tmp_path: Path) -> None:
    engine = LibraryEngine(toy_folder(tmp_path, TABLE, delay_ms=20))
    with serving(engine, max_tokens=256) as running, running.openai() as client:
        stream = client.completions.create(prompt="go", max_tokens=240, stream=True, **GREEDY)
        assert len(list(itertools.islice(stream, 3))) == 3
        stream.close()
        until(lambda: not running.scheduler.busy, seconds=1)
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.3).completions.create(prompt="go", max_tokens=240, **GREEDY)
        until(lambda: not running.scheduler.busy, seconds=1)
        answer = client.completions.create(prompt="go", max_tokens=2, **GREEDY)
        assert answer.choices[0].text == decoded(greedy(TABLE, list(b"go"), 2))
    engine.close()


def test_a_prompt_under_evaluation_is_left_too(tmp_path: Path) -> None:
    """A flag is looked at before each evaluation, so that a long prompt does not hold the model."""
    engine = LibraryEngine(toy_folder(tmp_path, TABLE, delay_ms=200))
    with serving(engine, max_tokens=256) as running:
        opened = running.send("/v1/completions", b'{"model": "toy", "prompt": "go", "max_tokens": 200}')
        until(lambda: running.scheduler.busy)
        opened.close()
        until(lambda: not running.scheduler.busy, seconds=1)
    engine.close()

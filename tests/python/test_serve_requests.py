"""What a request may say: every parameter with wrong types and values, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from toy_server import MODEL, FakeEngine, Running, serving

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
COMPLETION = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def running(engine: FakeEngine) -> Iterator[Running]:
    with serving(engine, max_tokens=100, max_body_bytes=100_000) as server:
        yield server


def refused(running: Running, path: str, body: dict[str, Any], param: str | None, status: int = 400) -> dict[str, Any]:
    """Asserts a structured error of one sentence about `param`."""
    answer = running.post(path, body)
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert error["message"].endswith(".") and "\n" not in error["message"] and len(error["message"]) < 300
    return error


WRONG_TYPES: list[tuple[str, list[Any]]] = [
    ("model", [1, True, ["toy"], {}]),
    ("temperature", ["1", True, [], {}]),
    ("top_p", ["1", False, []]),
    ("top_k", ["1", 1.5, True]),
    ("min_p", ["0", True, {}]),
    ("repeat_penalty", ["1", True, []]),
    ("presence_penalty", ["1", True, []]),
    ("frequency_penalty", ["1", True, []]),
    ("max_tokens", ["9", 2.5, True, []]),
    ("seed", ["7", 1.0, True, []]),
    ("n", ["2", 1.0, True, []]),
    ("stream", ["true", 1, []]),
    ("stop", [1, True, {}, [1], ["a", None], [["a"]]]),
    ("stream_options", ["x", 1, []]),
]
WRONG_VALUES: list[tuple[str, list[Any]]] = [
    ("temperature", [-0.1, 2.1, 1e999, -1e999, 10**400]),
    ("top_p", [-0.1, 1.1]),
    ("top_k", [-1, 2**64]),
    ("min_p", [-0.1, 1.1]),
    ("repeat_penalty", [0, -1, 1e9]),
    ("presence_penalty", [-2.1, 2.1]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("max_tokens", [0, -1, 101, 2**70]),
    ("seed", [2**64, -(2**70)]),
    ("n", [0, -1, 17]),
    ("stop", ["", ["a", ""], ["x"] * 17, "x" * 1001, "\ud800"]),
    ("logit_bias", [{"5": 1}, [1]]),
]
ONLY_CHAT: list[tuple[str, list[Any]]] = [
    ("max_completion_tokens", ["9", 2.5, 0, 101]),
    ("top_logprobs", ["1", 1.5, -1, 21, 3]),
    ("logprobs", [1, "yes"]),
    ("tools", [[{"type": "function"}], "x", {}]),
    ("tool_choice", ["required", {"type": "function"}]),
    ("functions", [[{}], 1]),
    ("response_format", [{"type": "json_object"}, "json", 1]),
    ("modalities", [["audio"], "text"]),
    ("messages", ["hi", {}, 1, []]),
]
ONLY_COMPLETION: list[tuple[str, list[Any]]] = [
    ("logprobs", ["1", 1.5, True, -1, 21]),
    ("echo", [True, "no", 0]),
    ("suffix", ["end", 1]),
    ("best_of", [2, "1", True]),
    ("prompt", [1, True, {}, [], ["a"] * 17, "\udfff"]),
]
CASES = [(path, name, value) for path in PATHS for name, values in WRONG_TYPES + WRONG_VALUES for value in values]
CASES += [("/v1/chat/completions", name, value) for name, values in ONLY_CHAT for value in values]
CASES += [("/v1/completions", name, value) for name, values in ONLY_COMPLETION for value in values]


def test_each_parameter_is_checked(running: Running, engine: FakeEngine) -> None:
    before = len(engine.prompts)
    for path, name, value in CASES:
        base = {key: kept for key, kept in PATHS[path].items() if key != "max_tokens" or "tokens" not in name}
        body = json.dumps({**base, name: value}).replace("Infinity", "1e999")
        answer = running.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, (path, name, value, answer.text)
        error = answer.json()["error"]
        assert error["param"] and error["param"].startswith(name), (name, value, error)
        assert error["type"] == "invalid_request_error" and len(error["message"]) < 300
    assert len(engine.prompts) == before, "a wrong request must not reach the model"


@pytest.mark.parametrize("path", PATHS)
def test_null_and_harmless_values_are_as_if_not_given(running: Running, path: str) -> None:
    names = {name for kind in (WRONG_TYPES, ONLY_CHAT if "chat" in path else ONLY_COMPLETION) for name, _ in kind}
    body = {**dict.fromkeys(names), **PATHS[path], "user": "me", "metadata": {"a": 1}, "logit_bias": {}, "store": False}
    assert running.post(path, body).status_code == 200
    harmless = {"echo": False, "suffix": "", "best_of": 1}
    if "chat" in path:
        harmless = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    assert running.post(path, {**PATHS[path], **harmless}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_what_is_missing_or_unknown_is_named(running: Running, path: str) -> None:
    for name in PATHS[path]:
        if name != "max_tokens":
            body = {key: value for key, value in PATHS[path].items() if key != name}
            assert refused(running, path, body, name)["code"] == "missing_required_parameter"
    assert refused(running, path, {**PATHS[path], "temprature": 1}, "temprature")["code"] == "unknown_parameter"
    long = "x" * 5000
    assert len(refused(running, path, {**PATHS[path], long: 1}, long[:64] + "...")["message"]) < 200
    assert refused(running, path, {**PATHS[path], "model": "gpt-4"}, "model", 404)["code"] == "model_not_found"
    assert refused(running, path, {**PATHS[path], "stream_options": {"include_usage": True}}, "stream_options")
    options = {"stream": True, "stream_options": {"usage": True}}
    refused(running, path, {**PATHS[path], **options}, "stream_options.usage")


def test_messages_are_checked(running: Running) -> None:
    user = {"role": "user", "content": "x"}
    for message, param in [
        ("hi", "messages[0]"),
        ({}, "messages[0].role"),
        ({"role": 1, "content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        ({"role": "user", "content": "\ud800"}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({**user, "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({**user, "colour": "red"}, "messages[0].colour"),
    ]:
        refused(running, "/v1/chat/completions", {**CHAT, "messages": [message]}, param)
    refused(
        running, "/v1/chat/completions", {**CHAT, "messages": [user, {"role": "assistant", "content": "y"}]}, "messages"
    )
    both = {**CHAT, "max_completion_tokens": 4}
    refused(running, "/v1/chat/completions", both, "max_completion_tokens")


def test_prompts_are_checked(running: Running) -> None:
    for prompt, param in [
        (["a", 1], "prompt[0]"),
        ([1, "a"], "prompt[1]"),
        ([1, 256], "prompt"),
        ([-1], "prompt"),
        ([[1], [1.5]], "prompt[1][0]"),
        ([[1], []], "prompt"),
        ("", "prompt"),
        ([True], "prompt[0]"),
    ]:
        refused(running, "/v1/completions", {**COMPLETION, "prompt": prompt}, param)
    refused(running, "/v1/completions", {**COMPLETION, "prompt": ["a"] * 9, "n": 2}, "n")


def test_a_prompt_longer_than_the_context(running: Running, engine: FakeEngine) -> None:
    """A1: one token too many is an error, exactly the context is not."""
    for path, name, text in (
        ("/v1/completions", "prompt", "x" * 4097),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": "x" * 4097}]),
    ):
        error = refused(running, path, {**PATHS[path], name: text}, name)
        assert error["code"] == "context_length_exceeded" and "4097" in error["message"] and "4096" in error["message"]
    assert running.post("/v1/completions", {**COMPLETION, "prompt": "x" * 4096}).status_code == 200
    assert len(engine.prompts[-1]) == 4096


def test_settings_reach_the_model(running: Running, engine: FakeEngine) -> None:
    running.post("/v1/completions", {"model": MODEL, "prompt": "hi"}).raise_for_status()
    plain = engine.settings[-1]
    assert (plain.max_tokens, plain.temperature, plain.top_p, plain.top_k, plain.stops) == (16, 1.0, 1.0, 0, ())
    running.post("/v1/chat/completions", {"model": MODEL, "messages": CHAT["messages"]}).raise_for_status()
    assert engine.settings[-1].max_tokens == 100 and engine.settings[-1].seed != plain.seed
    given = {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repeat_penalty": 1.1, "presence_penalty": -1}
    more = {"frequency_penalty": 2, "seed": -1, "stop": "x", "n": 2, "max_tokens": 5}
    running.post("/v1/completions", {**COMPLETION, **given, **more}).raise_for_status()
    first, second = engine.settings[-2:]
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0, 0.5, 7, 0.1)
    assert (first.repeat_penalty, first.presence_penalty, first.frequency_penalty) == (1.1, -1, 2)
    assert (first.seed, second.seed, first.stops, first.max_tokens) == (2**64 - 1, 0, ("x",), 5)
    running.post("/v1/completions", {**COMPLETION, "top_p": 0}).raise_for_status()
    assert (engine.settings[-1].top_p, engine.settings[-1].top_k) == (1.0, 1)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"null", "invalid_json"),
        (b'{"model": NaN}', "invalid_json"),
        (b'{"temperature": Infinity}', "invalid_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"[" * 50_000, "invalid_json"),
        (b'{"a":' * 15_000 + b"1" + b"}" * 15_000, "invalid_json"),
        (b'{"model": "\xff"}', "invalid_encoding"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
        (json.dumps(CHAT).encode("utf-16"), "invalid_encoding"),
    ],
)
def test_a_body_that_is_no_request(running: Running, body: bytes, code: str) -> None:
    for path in (*PATHS, "/tokenize", "/detokenize"):
        answer = running.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == code and "\n" not in error["message"], error


def test_tokenize_and_detokenize(running: Running) -> None:
    assert running.post("/tokenize", {"content": "hé"}).json() == {"tokens": [104, 195, 169]}
    assert running.post("/detokenize", {"tokens": [104, 195, 169]}).json() == {"content": "hé"}
    assert running.post("/tokenize", {"content": ""}).json() == {"tokens": []}
    assert running.post("/detokenize", {"tokens": []}).json() == {"content": ""}
    for path, body, param in [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 1}, "content"),
        ("/tokenize", {"content": "x", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "x", "special": True}, "special"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ]:
        refused(running, path, body, param)

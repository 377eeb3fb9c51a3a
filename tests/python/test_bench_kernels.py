"""The benchmark's kernel tables: names, rates, and what a program prints instead."""

from __future__ import annotations

import json

import pytest

from buddy_gen.bench.kernels import parse_profile, short_names
from buddy_gen.bench.work import Limits, ModelWork, Task
from buddy_gen.errors import BuddyError

WORK = ModelWork(
    layers=2, weight_bytes=1000, layer_weights=200, head_weights=50, query_rows=8, kv_rows=4, vocabulary=97
)
LIMITS = Limits(1e10, 1e11)


def test_short_names() -> None:
    names = {
        "model.layers.*.mlp.gate_proj/linear_4 + model.layers.*.mlp.up_proj/linear_5": "gate_proj + up_proj",
        "model.model.layers.*.self_attn/attention": "self_attn/attention",
        "model.lm_head/linear_14": "lm_head",
        "model.layers.*.mlp/mul_13": "mlp/mul",
        "model.layers.*/add_147": "layers.*/add_147",
        "model.layers.*/add_185": "layers.*/add_185",
        "/add_2": "add",
        "llama_decode": "llama_decode",
        " + ".join(f"a.p{number}/linear" for number in range(6)): "p0 + p1 + p2 + 3 more",
    }
    assert short_names(list(names)) == list(names.values())


def test_short_names_of_what_prepares_an_input() -> None:
    names = ["layers.*.down_proj/linear_6", "layers.*.down_proj/linear_6", "layers.*.mlp/mul_13"]
    assert short_names(names, [True, False, False]) == ["down_proj", "down_proj input", "mlp/mul"]
    assert short_names(names[1:], [False, False]) == ["down_proj", "mlp/mul"]  # nothing is known of weights


def region(name: str, calls: int, seconds: float, **more: int) -> dict[str, object]:
    return {"name": name, "calls": calls, "seconds": seconds, "share": 0.0, **more}


def profile(task: Task, calls: int, seconds: float, regions: list[dict[str, object]]) -> str:
    entry = {"entry": task.kind, "calls": calls, "seconds": seconds, "regions": regions}
    other = {"entry": "score", "calls": 1, "seconds": 1, "regions": []}
    return json.dumps({"prefilled_tokens": task.tokens, "profile": [other, entry]})


def test_decode() -> None:
    task = Task("decode", 10, 16)
    regions = [
        region("layers.*.self_attn/attention", 40, 0.2),
        region("layers.*.up_proj/linear", 20, 0.5, bytes_per_call=100_000_000, flops_per_token=1_000_000_000),
        region("layers.*/add_1", 20, 0.001),
        region("layers.*/add_2", 20, 0.002),
    ]
    table = parse_profile(profile(task, 10, 1.0, regions), "ours", 2, task, LIMITS, WORK)
    assert table.title == "ours, 2 threads, decode 10 after 16: 100.00 ms a call of decode"
    header, rows = table.rows()
    assert all(len(row) == len(header) for row in rows)
    assert rows[0] == ["up_proj", "20", "25.000", "50.0%", "4.0", "40%", "40.0", "40%"]
    assert rows[1][:4] == ["self_attn/attention", "40", "5.000", "20.0%"] and rows[1][6] == ""
    assert rows[2][:4] == ["(2 smaller)", "40", "0.075", "0.3%"]
    assert rows[3][:4] == ["(between kernels)", "10", "29.700", "29.7%"]
    attention = table.kernels[1]
    assert attention.bytes_per_call is not None
    # 40 calls read what 10 tokens have to read of the cache
    assert attention.bytes_per_call * 40 == pytest.approx(10 * WORK.kv_bytes(16 + 5.5), rel=0.01)


def test_prefill_multiplies_a_row_for_each_token_but_in_the_head() -> None:
    task = Task("prefill", 64)
    regions = [
        region("layers.*.up_proj/linear", 2, 0.5, bytes_per_call=1000, flops_per_token=100),
        region("lm_head/linear", 1, 0.1, bytes_per_call=1000, flops_per_token=100),
        region("layers.*.self_attn/attention", 2, 0.2),
    ]
    table = parse_profile(profile(task, 1, 1.0, regions), "ours", 1, task, LIMITS, WORK)
    products, attention, head = table.kernels
    assert (products.flops_per_call, head.flops_per_call) == (6400, 100)
    assert attention.flops_per_call == WORK.attention_flops(64 * 65 / 2) / 2 and attention.bytes_per_call is None
    assert table.multiplying_share() == pytest.approx(2 * 6400 / 0.5 / 1e11)


def test_operations_not_known() -> None:
    task = Task("prefill", 64)
    regions = [region("layers.*.up_proj/linear", 2, 0.5, bytes_per_call=1000)]
    table = parse_profile(profile(task, 1, 1.0, regions), "ours", 1, task, LIMITS, WORK)
    assert table.multiplying_share() is None and table.rows()[1][0][6:] == ["", ""]


@pytest.mark.parametrize("output", ["", "[]", "{}", '{"profile": []}', '{"profile": [{"entry": "decode"}]}'])
def test_no_profile(output: str) -> None:
    with pytest.raises(BuddyError, match="ours printed no profile of decode but "):
        parse_profile(output, "ours", 1, Task("decode", 8, 16), LIMITS, WORK)

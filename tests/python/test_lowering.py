"""Every lowering rule against eager PyTorch, with either dialect first, static and dynamic sizes.

Functions of one family are compiled together; the name of a result says which call was wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from buddy_gen.jit import CompiledGraph, compile_with
from buddy_gen.lowering.registry import registered_ops

PRIORITIES = [("linalg", "tosa"), ("tosa", "linalg")]
Results = dict[str, torch.Tensor]


def _tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    if dtype.is_floating_point:
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [torch.randint(-9, 9, shape, generator=generator).to(dtype) for shape in shapes]


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> Results:
    return {
        "add": x + y,
        "add alpha": torch.add(x, y, alpha=3),
        "add number": x + 2,
        "sub": x - y,
        "sub number": x - 3,
        "mul": x * y,
        "mul one": x * 1,
        "neg": -x,
        "maximum": torch.maximum(x, y),
        "minimum": torch.minimum(x, y),
        "relu": F.relu(x),
        "eq": x == y,
        "ne": x != y,
        "lt": x < y,
        "le number": x <= 1,
        "gt": x > y,
        "ge": x >= y,
        "where": torch.where(x > y, x, y),
        "full": torch.full_like(x, 7),
    }


def floats(x: torch.Tensor, y: torch.Tensor) -> Results:
    positive = x * x + 0.5
    return {
        "div": x / positive,
        "rsqrt": torch.rsqrt(positive),
        "sqrt": torch.sqrt(positive),
        "exp": torch.exp(x),
        "log": torch.log(positive),
        "tanh": torch.tanh(x),
        "erf": torch.erf(x),
        "cos": torch.cos(x * 100),
        "sin": torch.sin(x * 100),
        "sigmoid": torch.sigmoid(x * 10),
        "silu": F.silu(x * 10),
        "square": x.pow(2),
        "cube": x.pow(3),
        "half power": positive.pow(0.5),
    }


def extremes(x: torch.Tensor) -> Results:
    return {"exp": torch.exp(x), "sigmoid": torch.sigmoid(x), "silu": F.silu(x), "tanh": torch.tanh(x)}


def reductions(x: torch.Tensor) -> Results:
    return {
        "sum": x.sum(-1),
        "sum keepdim": x.sum(1, keepdim=True),
        "sum two": x.sum((0, 2)),
        "mean": x.mean(-1, keepdim=True),
        "mean drop": x.mean(0),
        "amax": x.amax(-1),
        "amax keepdim": x.amax((1, 2), keepdim=True),
    }


def shapes(x: torch.Tensor) -> Results:
    a, b, c = x.shape
    return {
        "view": x.reshape(a, b * c) + 0,
        "view split": x.view(a, b, 2, c // 2) * 2,
        "view unit": x.view(1, a, 1, b, c) + 1,
        "permute": x.permute(2, 0, 1) + 0,
        "transpose": x.transpose(0, 1) * 3,
        "slice": x[:, :, 1:3] + 0,
        "slice negative": x[:, :, -2:] + 0,
        "slice last": x[:, -1:, :] + 0,
        "slice step": x[:, :, ::2] * 1.5,
        "cat": torch.cat([x, x * 2], -1),
        "cat first": torch.cat([x, x[:1], x * 3], 0),
        "unsqueeze": x.unsqueeze(1) + 0,
        "expand": x[:, :, :1].expand(a, b, c) + 0,
    }


def products(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, batch: torch.Tensor) -> Results:
    flat = x.reshape(-1, x.shape[-1])
    return {
        "linear": F.linear(x, w),
        "linear bias": F.linear(x, w, bias),
        "mm": torch.mm(flat, w.t()),
        "addmm": torch.addmm(bias, flat, w.t()),
        "bmm": torch.bmm(x, batch),
    }


def indexing(table: torch.Tensor, ids: torch.Tensor) -> Results:
    return {"embedding": F.embedding(ids, table), "arange": torch.arange(ids.shape[1]) * 2 + 1}


def spellings(x: torch.Tensor) -> Results:
    """Overloads that Python code rarely reaches."""
    ops = torch.ops.aten
    return {
        "add": ops.add.Scalar(x, 2),
        "sub": ops.sub.Scalar(x, 2),
        "mul": ops.mul.Scalar(x, 3),
        "div": ops.div.Scalar(x, 3),
        "eq": ops.eq.Scalar(x, 1),
        "ne": ops.ne.Scalar(x, 1),
        "lt": ops.lt.Scalar(x, 1),
        "ge": ops.ge.Scalar(x, 1),
        "gt": ops.gt.Scalar(x, 1),
        "le": ops.le.Tensor(x, x * 2),
        "clone": ops.clone.default(x) * 2,
        "alias": ops.alias.default(x) + 1,
        "view": ops._unsafe_view.default(x, [-1]) * 1.5,
        "reshape": ops.reshape.default(x, [-1]) * 2.5,
        "full": torch.full((3, 4), 2.5),
        "scalar": torch.ops.aten.scalar_tensor.default(4.0) * x,
        "arange": torch.arange(5),
        "arange start": torch.arange(2, 7),
    }


def casts(x: torch.Tensor, i: torch.Tensor, b: torch.Tensor) -> Results:
    return {
        "float to int": (x * 3).to(torch.int64),
        "int to float": i.to(torch.float32) * 0.5,
        "bool to float": b.to(torch.float32),
        "bool to int": b.to(torch.int64),
        "float to bool": x.to(torch.bool),
        "int to bool": i.to(torch.bool),
        "mixed": i * x,
        "int with float number": i * 0.5,
        "int division": i / 4,
        "to half": x.to(torch.float16),
        "half arithmetic": x.to(torch.float16) * 2 + 1,
    }


FAMILIES: dict[str, tuple[Callable[..., Results], list[torch.Tensor]]] = {
    "arithmetic": (arithmetic, _tensors((3, 5, 7), (3, 5, 7))),
    "arithmetic broadcast": (arithmetic, _tensors((3, 1, 5), (4, 1))),
    "arithmetic scalar": (arithmetic, _tensors((2, 9), ())),
    "arithmetic rank 0": (arithmetic, _tensors((), ())),
    "arithmetic int": (arithmetic, _tensors((4, 33), (4, 33), dtype=torch.int64)),
    "floats": (floats, _tensors((5, 19), (5, 19))),
    "floats wide": (floats, _tensors((2, 64), (2, 64))),
    "floats rank 0": (floats, _tensors((), ())),
    "extremes": (
        extremes,
        [torch.tensor([-float("inf"), -104.0, -88.0, -1e-30, 0.0, 88.0, 89.0, float("inf"), float("nan")])],
    ),
    "reductions": (reductions, _tensors((3, 5, 21))),
    "reductions wide": (reductions, _tensors((2, 3, 64))),
    "shapes": (shapes, _tensors((3, 5, 8))),
    "products": (products, _tensors((3, 5, 9), (7, 9), (7,), (3, 9, 4))),
    "products wide": (products, _tensors((2, 13, 64), (48, 64), (48,), (2, 64, 33))),
    "indexing": (indexing, [*_tensors((11, 5)), torch.tensor([[3, 0, 10, 10]])]),
    "spellings": (spellings, _tensors((4, 6))),
    "casts": (casts, [*_tensors((4, 9)), *_tensors((4, 9), dtype=torch.int64), *[t > 0 for t in _tensors((4, 9))]]),
}


def _compiled(
    function: Callable[..., Results], priority: tuple[str, ...], dynamic: bool | None
) -> tuple[Any, list[CompiledGraph]]:
    torch._dynamo.reset()
    seen: list[CompiledGraph] = []
    backend = compile_with(priority, seen=seen)
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic), seen


def _compare(ours: Results, expected: Results) -> None:
    for name, right in expected.items():
        left = ours[name]
        assert (left.dtype, left.shape) == (right.dtype, right.shape), name
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(right.dtype, 2e-6)
        torch.testing.assert_close(
            left,
            right,
            rtol=tolerance,
            atol=tolerance * 2,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("priority", PRIORITIES, ids=",".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_rules_equal_eager(family: str, priority: tuple[str, ...]) -> None:
    function, inputs = FAMILIES[family]
    compiled, seen = _compiled(function, priority, dynamic=False)
    with torch.no_grad():
        _compare(compiled(*inputs), function(*inputs))
    assert len(seen) == 1


@pytest.mark.parametrize("priority", PRIORITIES, ids=",".join)
@pytest.mark.parametrize("family", ["arithmetic", "floats", "reductions", "shapes"])
def test_rules_with_a_dynamic_size_equal_eager(family: str, priority: tuple[str, ...]) -> None:
    function, inputs = FAMILIES[family]
    dim = 0 if family == "floats" else 1
    compiled, seen = _compiled(function, priority, dynamic=None)
    for length in (5, 2, 9):
        resized = [torch.randn([length if i == dim else size for i, size in enumerate(x.shape)]) for x in inputs]
        for value in resized:
            torch._dynamo.mark_dynamic(value, dim, min=2, max=64)
        with torch.no_grad():
            _compare(compiled(*resized), function(*resized))
    assert len(seen) == 1


def test_every_registered_op_is_compiled_by_some_test() -> None:
    used: set[str] = set()
    for function, inputs in FAMILIES.values():
        for priority in PRIORITIES:
            compiled, seen = _compiled(function, priority, dynamic=False)
            with torch.no_grad():
                compiled(*inputs)
            used |= {str(node.target) for graph in seen for node in graph.captured.graph.nodes}
    # Spellings that the decompositions replace before a rule could see them, and those of language models alone.
    elsewhere = {"aten.detach.default", "buddy.attention.default", "buddy.kv_update.default"}
    left = {str(op) for op in registered_ops()} - used - elsewhere
    assert not left, f"rules that no test compiles: {sorted(left)}"


def test_an_unsupported_op_is_named_with_every_other_one() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.cumsum(x, 0)
        return torch.sort(y)[0] + torch.linalg.inv(x)

    compiled, _ = _compiled(function, PRIORITIES[0], dynamic=False)
    with torch.no_grad(), pytest.raises(Exception) as caught:
        compiled(torch.randn(3, 3))
    text = str(caught.value)
    for op in ("cumsum", "sort", "linalg_inv"):
        assert op in text
    assert "test_lowering.py" in text


def test_the_backend_is_registered_by_name() -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 4)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(lambda t: t * 2 + 1, backend="buddy")(x), x * 2 + 1)

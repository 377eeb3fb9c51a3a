"""The registry of lowering rules.

A rule belongs to one ATen op and one dialect. It is a function ``(ctx, *args, **kwargs) -> ir.Value`` whose arguments
are those of the op, tensors as MLIR values of ranked tensor type and symbolic sizes as values of index type. A rule
that can't express a particular call raises `Declined`; the next dialect in the user's order is asked then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlir import ir

from buddy_gen.choices import DIALECTS

Rule = Callable[..., ir.Value]

_RULES: dict[tuple[Any, str], Rule] = {}


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """A dialect can't express this call; the message says why."""


def lowering(dialect: str, *ops: Any) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the rule of `dialect` for each of `ops`."""
    if dialect not in DIALECTS:
        raise ValueError(f"unknown dialect '{dialect}'")

    def register(rule: Rule) -> Rule:
        for op in ops:
            if (op, dialect) in _RULES:
                raise ValueError(f"{op} has a rule for {dialect} already")
            _RULES[op, dialect] = rule
        return rule

    return register


def find_rules(op: Any, priority: tuple[str, ...]) -> list[tuple[str, Rule]]:
    """The rules for `op` in order of preference, each with its dialect."""
    return [(dialect, _RULES[op, dialect]) for dialect in priority if (op, dialect) in _RULES]


def registered_ops() -> set[Any]:
    """Every op that has a rule in some dialect."""
    return {op for op, _ in _RULES}

"""Lowering rules: one per ATen op and dialect, in one file per family of ops."""

from buddy_gen.lowering import attention, elementwise, indexing, linear, reduction, shape
from buddy_gen.lowering.registry import Declined, find_rules, lowering

__all__ = [
    "Declined",
    "attention",
    "elementwise",
    "find_rules",
    "indexing",
    "linear",
    "lowering",
    "reduction",
    "shape",
]

"""How the numbers of a weight are stored: plain floats, or blocks of small integers with their scales.

The layouts are those of docs/quantization.md; `buddy_gen.lowering.stored` writes the same layouts into the code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from buddy_gen.weights.panels import panel_shape

__all__ = [
    "BF16",
    "F16",
    "F32",
    "FLOATS",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Encoding",
    "Format",
    "q8",
]

QUAD = 4
"""So many consecutive k of one row stand side by side: what an integer dot product takes at once."""

_LONGEST_ROTATION = 64


@dataclass(frozen=True)
class Encoding:
    """What the numbers of a block stand for: ``scale * (integer - zero) + sign * minimum``.

    With one group in a block, scale and minimum are halves. With several, a block has a half of each, and a group an
    integer of 8 bits that it is multiplied with.

    Attributes:
        bits: Of an integer; 8: signed, fewer: from 0 on.
        zero: What is subtracted from an integer.
        sign: 1 or -1 where a minimum is added or subtracted, 0 where there is none.
        groups: In a block.
        has_signed_factors: Whether the integers that scales are multiplied with are signed.
    """

    bits: int
    zero: int = 0
    sign: int = 0
    groups: int = 1
    has_signed_factors: bool = False


_ENCODINGS = {
    "q8": Encoding(8),
    "q4_0": Encoding(4, zero=8),
    "q4_1": Encoding(4, sign=1),
    "q5_0": Encoding(5, zero=16),
    "q5_1": Encoding(5, sign=1),
    "q4_k": Encoding(4, sign=-1, groups=8),
    "q5_k": Encoding(5, sign=-1, groups=8),
    "q6_k": Encoding(6, zero=32, groups=16, has_signed_factors=True),
}


@dataclass(frozen=True)
class Format:
    """A format of stored weights.

    Attributes:
        kind: f32, f16, bf16; or the name of an encoding (q8, q4_0, ..., q6_k), which is stored in blocks.
        group: Consecutive weights of a row that share a scale; 0 for floats, and for q8 a group of the whole row.
        is_rotated: Whether columns were mixed before they were rounded (`buddy_gen.weights.rotation`).
    """

    kind: str
    group: int = 0
    is_rotated: bool = False

    @property
    def in_blocks(self) -> bool:
        """Whether it is stored as blocks of R rows and one or more groups."""
        return self.kind in _ENCODINGS

    @property
    def encoding(self) -> Encoding:
        """What the numbers of a block stand for."""
        return _ENCODINGS[self.kind]

    @property
    def is_nibbles(self) -> bool:
        """Whether two weights share a byte (their lower 4 bits, if they have more)."""
        return self.in_blocks and self.encoding.bits < 8

    @property
    def has_minimum(self) -> bool:
        """Whether there is a minimum beside each scale."""
        return self.in_blocks and self.encoding.sign != 0

    @property
    def has_factors(self) -> bool:
        """Whether a block has several groups, each with an integer that the block's scale is multiplied with."""
        return self.in_blocks and self.encoding.groups > 1

    def of_columns(self, columns: int) -> Format:
        """The format for rows of `columns`, with a group that spans the row made explicit."""
        return self if self.group or not self.in_blocks else replace(self, group=-(-columns // QUAD) * QUAD)

    @property
    def rotation(self) -> int:
        """How many consecutive columns were mixed, a power of two that divides the group; 1: none."""
        return min(_LONGEST_ROTATION, self.group & -self.group) if self.is_rotated else 1

    def blocks(self, columns: int) -> int:
        """The number of blocks in a row of K = `columns`."""
        return -(-columns // (self.of_columns(columns).group * self.encoding.groups))

    def groups(self, columns: int) -> int:
        """G, the number of groups in a row of K = `columns`, in whole blocks."""
        return self.blocks(columns) * self.encoding.groups

    def padded(self, columns: int) -> int:
        """The length of a row in whole groups: G * g."""
        return self.groups(columns) * self.of_columns(columns).group if self.in_blocks else columns

    @property
    def integer_bytes(self) -> int:
        """Bytes of one row's integers (their lower 4 bits) in a group."""
        return self.group // 2 if self.is_nibbles else self.group

    @property
    def high_bits(self) -> int:
        """Bits of an integer past the lower 4, where those are stored by themselves; else 0."""
        return self.encoding.bits - 4 if self.is_nibbles else 0

    @property
    def high_bytes(self) -> int:
        """Bytes of these bits of one row in a group."""
        return self.group * self.high_bits // 8

    def group_bytes(self, panel: int) -> int:
        """Bytes of R rows of one group, without the halves, which belong to a block."""
        factors = (2 if self.has_minimum else 1) if self.has_factors else 0
        return panel * (self.integer_bytes + self.high_bytes + factors)

    def block_bytes(self, panel: int) -> int:
        """B: the bytes of one block."""
        return self.encoding.groups * self.group_bytes(panel) + panel * (4 if self.has_minimum else 2)

    def stored_shape(self, shape: tuple[int, int], panel: int) -> tuple[int, ...]:
        """The shape in the weights file of an [N, K] weight: [P, K, R] of floats or [P, blocks, B] bytes."""
        rows, columns = shape
        if not self.in_blocks:
            return panel_shape(shape, panel)
        exact = self.of_columns(columns)
        return -(-rows // panel), exact.blocks(columns), exact.block_bytes(panel)

    def describe(self, shape: tuple[int, ...], panel: int) -> dict[str, Any]:
        """The tensor's entry in the weights file's `layout`."""
        entry: dict[str, Any] = {"panel": panel, "shape": list(shape)}
        if self.in_blocks:
            group = self.of_columns(shape[1]).group
            entry |= {"format": self.kind, "group": group}
            if self.is_rotated:
                entry["rotation"] = self.of_columns(shape[1]).rotation
            if self.has_factors:
                entry["block"] = group * self.encoding.groups
        return entry

    @property
    def bits(self) -> float:
        """Bits per weight, scales included (a scale for the whole row counts as none)."""
        if not self.in_blocks:
            return 32.0 if self.kind == "f32" else 16.0
        return 8.0 * self.block_bytes(1) / (self.group * self.encoding.groups) if self.group else 8.0


F32, F16, BF16 = Format("f32"), Format("f16"), Format("bf16")
FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}
Q4_0, Q4_1 = Format("q4_0", 32), Format("q4_1", 32)
Q5_0, Q5_1 = Format("q5_0", 32), Format("q5_1", 32)
Q4_K, Q5_K, Q6_K = Format("q4_k", 32), Format("q5_k", 32), Format("q6_k", 16)


def q8(group: int, is_rotated: bool = False) -> Format:
    """int8 with a scale for each `group` weights, or for a whole row (0)."""
    return Format("q8", group, is_rotated)

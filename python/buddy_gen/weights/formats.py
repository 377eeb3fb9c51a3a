"""How the numbers of a weight are stored: plain floats, or blocks of small integers with their scales.

The layouts are those of docs/quantization.md; `buddy_gen.lowering.stored` writes the same layouts into the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy_gen.weights.panels import panel_shape

__all__ = ["BF16", "F16", "F32", "FLOATS", "Q4_0", "Q4_1", "Format", "q8"]

QUAD = 4
"""So many consecutive k of one row stand side by side: what an integer dot product takes at once."""


@dataclass(frozen=True)
class Format:
    """A format of stored weights.

    Attributes:
        kind: f32, f16, bf16; or q8, q4_0, q4_1, which are stored in blocks.
        group: Consecutive weights of a row that share a scale; 0 for floats, and for q8 a group of the whole row.
    """

    kind: str
    group: int = 0

    @property
    def in_blocks(self) -> bool:
        """Whether it is stored as blocks of R rows and one group."""
        return self.kind.startswith("q")

    @property
    def is_nibbles(self) -> bool:
        """Whether two weights share a byte."""
        return self.kind.startswith("q4")

    @property
    def has_minimum(self) -> bool:
        """Whether each group has a minimum beside its scale."""
        return self.kind == "q4_1"

    def of_columns(self, columns: int) -> Format:
        """The format for rows of `columns`, with a group that spans the row made explicit."""
        return self if self.group or not self.in_blocks else Format(self.kind, -(-columns // QUAD) * QUAD)

    def groups(self, columns: int) -> int:
        """G, the number of groups in a row of K = `columns`."""
        return -(-columns // self.of_columns(columns).group)

    def padded(self, columns: int) -> int:
        """The length of a row in whole groups: G * g."""
        return self.groups(columns) * self.of_columns(columns).group if self.in_blocks else columns

    @property
    def integer_bytes(self) -> int:
        """Bytes of one row's integers in a block."""
        return self.group // 2 if self.is_nibbles else self.group

    def block_bytes(self, panel: int) -> int:
        """B: the bytes of one block, R rows times one group."""
        return panel * (self.integer_bytes + (4 if self.has_minimum else 2))

    def stored_shape(self, shape: tuple[int, int], panel: int) -> tuple[int, ...]:
        """The shape in the weights file of an [N, K] weight: [P, K, R] of floats or [P, G, B] bytes."""
        rows, columns = shape
        if not self.in_blocks:
            return panel_shape(shape, panel)
        exact = self.of_columns(columns)
        return -(-rows // panel), exact.groups(columns), exact.block_bytes(panel)

    def describe(self, shape: tuple[int, ...], panel: int) -> dict[str, Any]:
        """The tensor's entry in the weights file's `layout`."""
        entry: dict[str, Any] = {"panel": panel, "shape": list(shape)}
        if self.in_blocks:
            entry |= {"format": self.kind, "group": self.of_columns(shape[1]).group}
        return entry

    @property
    def bits(self) -> float:
        """Bits per weight, scales included (a scale for the whole row counts as none)."""
        if not self.in_blocks:
            return 32.0 if self.kind == "f32" else 16.0
        return 8.0 * self.block_bytes(1) / self.group if self.group else 8.0


F32, F16, BF16 = Format("f32"), Format("f16"), Format("bf16")
FLOATS = {"f32": F32, "f16": F16, "bf16": BF16}
Q4_0, Q4_1 = Format("q4_0", 32), Format("q4_1", 32)


def q8(group: int) -> Format:
    """int8 with a scale for each `group` weights, or for a whole row (0)."""
    return Format("q8", group)

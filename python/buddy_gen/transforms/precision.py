"""What a user chooses of a model's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from buddy_gen.choices import DEFAULT_GROUP, default_kv_dtype
from buddy_gen.errors import BuddyError

__all__ = ["Precision"]


@dataclass(frozen=True)
class Precision:
    """What a user chose of a model's numbers.

    Attributes:
        dtype: One of `buddy_gen.choices.DTYPES`.
        group: One of `buddy_gen.choices.GROUPS`: how many int8 weights share a scale.
        kv_dtype: One of `buddy_gen.choices.KV_DTYPES`.
    """

    dtype: str = "f32"
    group: str = DEFAULT_GROUP
    kv_dtype: str = "f32"

    @staticmethod
    def of(dtype: str, group: str | None = None, kv_dtype: str | None = None) -> Precision:
        """A choice with its defaults filled in.

        Raises:
            BuddyError: A group is named for weights that have none to choose.
        """
        if group is not None and not dtype.startswith("w"):
            raise BuddyError(f"a group of {group} was asked for, but only w8 and w4 have groups to choose, not {dtype}")
        return Precision(dtype, group or DEFAULT_GROUP, kv_dtype or default_kv_dtype(dtype))

    @property
    def activation_bits(self) -> int | None:
        """Bits of the integers that products of quantised weights take as activations; None for f32.

        The blocks of a GGUF file meet 16 bits: as exact as its f32 run within rounding, and as fast as memory.
        """
        if self.dtype.endswith("a8"):
            return 8
        return 16 if self.dtype == "gguf" else None

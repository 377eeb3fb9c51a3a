"""The committed table of code point classes is what the pinned `tokenizers` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from buddy_gen.tokenizers import normalization_tables, unicode_tables

pytestmark = pytest.mark.slow


def test_the_table_is_up_to_date() -> None:
    table = Path(__file__).parents[2] / "cpp" / "containers" / "UnicodeTables.inc"
    assert table.read_text("utf-8") == unicode_tables.render(), "run python -m buddy_gen.tokenizers.unicode_tables"


def test_the_table_of_normal_forms_is_up_to_date() -> None:
    table = Path(__file__).parents[2] / "cpp" / "containers" / "NormalizationTables.inc"
    made = normalization_tables.render()
    assert table.read_text("utf-8") == made, "run python -m buddy_gen.tokenizers.normalization_tables"

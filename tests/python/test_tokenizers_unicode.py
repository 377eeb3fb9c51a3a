"""The committed table of code point classes is what the pinned `tokenizers` does."""

from __future__ import annotations

from pathlib import Path

from buddy_gen.tokenizers import unicode_tables


def test_the_table_is_up_to_date() -> None:
    table = Path(__file__).parents[2] / "cpp" / "containers" / "UnicodeTables.inc"
    assert table.read_text("utf-8") == unicode_tables.render(), "run python -m buddy_gen.tokenizers.unicode_tables"

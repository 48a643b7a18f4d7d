"""docs/data-model.md matches the data model in the code."""

from __future__ import annotations

from pathlib import Path

from worker.store.data_model_page import page

PAGE = Path(__file__).parents[2] / "docs" / "data-model.md"


def test_data_model_page_matches_the_code() -> None:
    """`make docs` regenerates the page after a key or field has changed."""
    assert PAGE.read_text(encoding="utf-8") == page()

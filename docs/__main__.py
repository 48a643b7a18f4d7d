"""`python -m docs` writes the pages, and the parts of pages, that are made from code."""

from __future__ import annotations

from docs.pages import GENERATED

for path, make in GENERATED.items():
    path.write_text(make())

"""Files that the package reads at run time: JSON Schemas of contracts, contracts of the local chain,
the files of a new project (`worker init`), and templates, styles and scripts of the pages."""

from __future__ import annotations

from pathlib import Path

SCHEMAS = Path(__file__).parent / "schema"
CHAIN = Path(__file__).parent / "chain"
PROJECT = Path(__file__).parent / "project"
PAGES = Path(__file__).parent / "pages"

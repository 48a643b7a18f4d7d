"""`python -m docs.site [FOLDER [PAGES]]` makes the site, of docs/ in build/site if nothing is named.

A link or an anchor that leads nowhere, and a page that is missing in the navigation, end it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main

HERE = Path(__file__).parent
SITE = HERE.parent / "build" / "site"
# Quiet; every page anew, because a page that is taken from a cache tells of no mistakes; warnings are errors.
OPTIONS = ["-q", "-E", "-a", "-n", "-W", "--keep-going", "-b", "html"]


def build(folder: Path = SITE, pages: Path = HERE) -> int:
    """0, or what Sphinx says when something is wrong."""
    cache = folder.with_suffix(".cache")
    return main([*OPTIONS, "-c", str(HERE), "-d", str(cache), str(pages), str(folder)])


if __name__ == "__main__":
    sys.exit(build(*map(Path, sys.argv[1:])))

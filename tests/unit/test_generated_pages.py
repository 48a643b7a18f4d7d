"""The pages in docs/ that describe the code match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import pages
from docs.diagram import svg
from docs.import_graph import edges, reduced

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"`([\w./]+\.(?:py|lua))`")


@pytest.mark.parametrize("path", pages.GENERATED, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    """`make docs` would change nothing."""
    assert path.read_text() == pages.GENERATED[path](), "run `make docs`"


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_named_in_the_docs_exist(page: str) -> None:
    """A path leads to a file; a bare name is that of a file somewhere in worker, tests or docs."""
    named = set(FILE.findall((ROOT / page).read_text()))
    files = {path.name for room in ("worker", "tests", "docs") for path in (ROOT / room).rglob("*.*")}
    assert len(named) > 5
    assert [name for name in sorted(named) if not ((ROOT / name).exists() or name in files)] == []


def test_architecture_diagram_shows_every_room() -> None:
    """The diagram contains every room by its name."""
    drawn = set(re.findall(r"\w+", pages.rooms_picture())) - {"mermaid", "flowchart", "TD"}
    assert drawn == {room.strip("_") for layer in pages.layers() for room in layer}


def test_all_import_forms_are_found(tmp_path: Path) -> None:
    """Imports inside functions and for types count too; those within a room do not."""
    package = tmp_path / "package"
    for room, text in {
        "top": "def f():\n    from package.middle import x",
        "middle": "if TYPE_CHECKING:\n    import package.ground.y\nfrom package.middle import z",
        "ground": "import os",
    }.items():
        (package / room).mkdir(parents=True)
        (package / room / "module.py").write_text(text)
    rooms = {"top", "middle", "ground"}
    assert edges(package, rooms) == {("top", "middle"), ("middle", "ground")}


def test_transitive_imports_are_not_drawn() -> None:
    """An edge that a longer path implies is not drawn."""
    assert reduced({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}


def test_diagrams_draw_every_node_and_arrow() -> None:
    """A node stands below all that lead to it, and an arrow over two rows is drawn too."""
    picture = svg("flowchart TD\n    a --> b\n    b --> c\n    a --> c", "Rows & arrows")
    assert "<title>Rows &amp; arrows</title>" in picture
    assert picture.count('class="arrow"') == 3
    heights = dict(re.findall(r'y="(\d+)">(\w)</text>', picture))
    assert [heights[at] for at in sorted(heights, key=int)] == ["a", "b", "c"]

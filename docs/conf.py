"""How Sphinx makes the site in build/site from the pages here: `make site`."""

from __future__ import annotations

import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.diagram import svg  # noqa: E402 - needs the path above

project = "worker"
extensions = ["myst_parser"]
myst_heading_anchors = 3
nitpicky = True
html_theme = "furo"
html_title = "worker"
html_favicon = "icon.svg"
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_show_copyright = False
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]


def draw_diagrams(app: Sphinx, page: nodes.document) -> None:
    """Puts a picture in place of each Mermaid block, named by the heading above it."""
    for block in list(page.findall(nodes.literal_block)):
        if block.get("language") == "mermaid":
            section = block.parent
            while not isinstance(section, nodes.section):
                section = section.parent
            picture = svg(block.astext(), section[0].astext())
            block.replace_self(nodes.raw("", f'<div class="table-wrapper">{picture}</div>', format="html"))


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", draw_diagrams)

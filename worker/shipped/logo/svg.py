"""SVG as a tree of elements: text and attributes are escaped by the serializer, never pasted."""

from __future__ import annotations

import xml.etree.ElementTree as ET

Element = ET.Element


def number(value: float) -> str:
    """At most two decimals, no trailing zeros, no minus zero."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def add(parent: Element, tag: str, **attributes: str | float) -> Element:
    """A child element; underscores in names stand for hyphens."""
    return ET.SubElement(
        parent,
        tag,
        {
            name.replace("_", "-"): value if isinstance(value, str) else number(value)
            for name, value in attributes.items()
        },
    )


def sheet(key: str, width: float, height: float, title: str, description: str) -> Element:
    """An empty drawing with its accessible name; `key` keeps ids apart when drawings share a page."""
    root = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {number(width)} {number(height)}",
            "width": number(width),
            "height": number(height),
            "role": "img",
            "aria-labelledby": f"{key}-title {key}-desc",
        },
    )
    add(root, "title", id=f"{key}-title").text = title
    add(root, "desc", id=f"{key}-desc").text = description
    return root


def render(root: Element) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"

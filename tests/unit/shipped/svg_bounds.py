"""Bounding box of a drawing: every point of every shape in the coordinates of the canvas.

Curves are bounded by their control points and arcs by circles around their end points, so the box is
never smaller than what is painted.
"""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

Matrix = tuple[float, float, float, float, float, float]
Point = tuple[float, float]

SVG = "{http://www.w3.org/2000/svg}"
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")


def box(root: ET.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of everything drawn, including half the stroke width."""
    points = [point for point in _walk(root, (1, 0, 0, 1, 0, 0), 0.0)]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def _walk(node: ET.Element, matrix: Matrix, stroke: float) -> Iterator[Point]:
    matrix = _times(matrix, _transform(node.get("transform", "")))
    stroke = float(node.get("stroke-width", stroke))
    painted = node.get("stroke") not in (None, "none") or node.get("fill") == "none"
    half = stroke / 2 if painted or stroke else 0.0
    for x, y in _own(node):
        for dx, dy in ((-half, -half), (half, half), (-half, half), (half, -half)):
            yield _apply(matrix, x + dx, y + dy)
    for child in node:
        yield from _walk(child, matrix, stroke)


def _own(node: ET.Element) -> Iterator[Point]:
    tag = node.tag.removeprefix(SVG)

    def get(name: str) -> float:
        return float(node.get(name, "0"))

    if tag == "path":
        yield from _path(node.get("d", ""))
    elif tag == "rect" and not node.get("width", "").endswith("%"):
        yield get("x"), get("y")
        yield get("x") + get("width"), get("y") + get("height")
    elif tag == "circle":
        yield get("cx") - get("r"), get("cy") - get("r")
        yield get("cx") + get("r"), get("cy") + get("r")
    elif tag == "ellipse":
        yield get("cx") - get("rx"), get("cy") - get("ry")
        yield get("cx") + get("rx"), get("cy") + get("ry")
    elif tag == "polygon":
        numbers = [float(n) for n in _NUMBER.findall(node.get("points", ""))]
        yield from zip(numbers[::2], numbers[1::2], strict=True)
    elif tag == "text":
        half = get("textLength") / 2
        yield get("x") - half, get("y") - get("font-size") * 0.8
        yield get("x") + half, get("y") + get("font-size") * 0.2


def _path(d: str) -> Iterator[Point]:
    x = y = 0.0
    for command, rest in re.findall(r"([MLHVCSQTAZqt])([^A-Za-z]*)", d):
        numbers = [float(n) for n in _NUMBER.findall(rest)]
        if command == "H":
            x = numbers[-1]
        elif command == "V":
            y = numbers[-1]
        elif command == "A":
            for i in range(0, len(numbers), 7):
                rx, ry, _, large, sweep, ex, ey = numbers[i : i + 7]
                yield from _arc(x, y, rx, ry, bool(large), bool(sweep), ex, ey)
                x, y = ex, ey
        elif command in "qt":
            for i in range(0, len(numbers), 2):
                yield x + numbers[i], y + numbers[i + 1]
            x, y = x + numbers[-2], y + numbers[-1]
        elif command != "Z":
            for i in range(0, len(numbers), 2):
                x, y = numbers[i], numbers[i + 1]
                yield x, y
        yield x, y


def _arc(
    x: float, y: float, rx: float, ry: float, large: bool, sweep: bool, ex: float, ey: float
) -> Iterator[Point]:
    """Points along an unrotated elliptic arc."""
    px, py, qx, qy = x / rx, y / ry, ex / rx, ey / ry
    chord = math.hypot(qx - px, qy - py)
    if chord == 0:
        return
    scale = max(1.0, chord / 2)
    height = math.sqrt(max(0.0, scale**2 - (chord / 2) ** 2))
    side = 1 if large == sweep else -1
    cx = (px + qx) / 2 + side * height * (py - qy) / chord * -1
    cy = (py + qy) / 2 + side * height * (qx - px) / chord * -1
    start, end = math.atan2(py - cy, px - cx), math.atan2(qy - cy, qx - cx)
    if sweep and end < start:
        end += 2 * math.pi
    if not sweep and end > start:
        end -= 2 * math.pi
    for i in range(33):
        angle = start + (end - start) * i / 32
        yield (cx + scale * math.cos(angle)) * rx, (cy + scale * math.sin(angle)) * ry


def _transform(text: str) -> Matrix:
    matrix: Matrix = (1, 0, 0, 1, 0, 0)
    for name, rest in re.findall(r"(\w+)\(([^)]*)\)", text):
        numbers = [float(n) for n in _NUMBER.findall(rest)]
        if name == "translate":
            step: Matrix = (1, 0, 0, 1, numbers[0], numbers[1])
        elif name == "scale":
            step = (numbers[0], 0, 0, numbers[-1], 0, 0)
        elif name == "rotate":
            a = math.radians(numbers[0])
            step = (math.cos(a), math.sin(a), -math.sin(a), math.cos(a), 0, 0)
        else:
            raise AssertionError(f"unexpected transform {name}")
        matrix = _times(matrix, step)
    return matrix


def _times(m: Matrix, n: Matrix) -> Matrix:
    a, b, c, d, e, f = m
    g, h, i, j, k, o = n
    return (a * g + c * h, b * g + d * h, a * i + c * j, b * i + d * j, a * k + c * o + e, b * k + d * o + f)


def _apply(m: Matrix, x: float, y: float) -> Point:
    a, b, c, d, e, f = m
    return a * x + c * y + e, b * x + d * y + f

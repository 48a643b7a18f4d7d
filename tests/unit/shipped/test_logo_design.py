"""The logo agent."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.job import FakeJob, run
from tests.unit.shipped.svg_bounds import SVG, box
from worker.core.errors import InvalidInput
from worker.shipped.logo import letters, naming, palette
from worker.shipped.logo.designs import DESIGNS
from worker.shipped.logo_design import INPUT_SCHEMA, logo_design, read

NAMES = ["logo_v1.svg", "logo_v2.svg", "logo_v3.svg"]
DOCUMENT = {
    "brief": "Create a minimalist logo for TechStartup Inc",
    "colors": ["#FF5733", "#333333"],
    "style_references": ["https://example.com/style1.png"],
}
TAGS = {"svg", "title", "desc", "metadata", "g", "path", "rect", "circle", "ellipse", "polygon", "text"}


def draw(brief: str, **more: Any) -> list[str]:
    job = FakeJob({"brief": brief, **more})
    assert run(logo_design, job) is None
    return [file.data.decode() for file in job.files]


def check(text: str) -> ET.Element:
    """Check the properties that every drawing has, whatever the brief."""
    root = ET.fromstring(text.encode())
    assert root.tag == f"{SVG}svg"
    assert len(text.encode()) < 20_000
    for node in root.iter():
        assert node.tag.removeprefix(SVG) in TAGS
        for name, value in node.attrib.items():
            assert not name.lower().startswith("on")
            assert "href" not in name.lower()
            assert "url(" not in value and "javascript" not in value.lower()
    left, top, width, height = (float(n) for n in root.attrib["viewBox"].split())
    x1, y1, x2, y2 = box(root)
    assert (left, top) == (0, 0)
    assert x1 >= -0.1 and y1 >= -0.1 and x2 <= width + 0.1 and y2 <= height + 0.1
    label = root.attrib["aria-labelledby"].split()
    ids = {node.attrib["id"]: node for node in root.iter() if "id" in node.attrib}
    assert root.attrib["role"] == "img"
    assert all((ids[one].text or "").strip() for one in label)
    return root


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M100 0A100 100 0 1 1-100 0A100 100 0 1 1 100 0Z", (-100, -100, 100, 100)),
        (letters.GLYPHS["C"][1], (0, 0, 87, 100)),
        (letters.GLYPHS["G"][1], (0, 0, 100, 100)),
        (letters.GLYPHS["J"][1], (0, 0, 50, 100)),
        (letters.GLYPHS["B"][1], (0, 0, 65, 100)),
        (letters.GLYPHS["O"][1], (0, 0, 100, 100)),
    ],
)
def test_bounding_box_follows_arcs(path: str, expected: tuple[float, ...]) -> None:
    """The bounding box used by these tests follows arcs correctly."""
    root = ET.fromstring(f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{path}"/></svg>')
    assert box(root) == pytest.approx(expected, abs=1.0)


def test_every_glyph_stays_in_its_box() -> None:
    """No letter exceeds the width and height that the layout assumes."""
    for char, (width, path) in letters.GLYPHS.items():
        if not path:
            continue
        root = ET.fromstring(f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{path}"/></svg>')
        x1, y1, x2, y2 = box(root)
        assert (x1, y1) >= (-1, -1) and y1 >= -1 and x2 <= width + 1 and y2 <= 101, char


def test_specification_example_gives_three_files() -> None:
    """The specification's input gives exactly three SVG files, with increasing progress."""
    job = FakeJob(DOCUMENT)
    assert run(logo_design, job) is None
    assert [file.name for file in job.files] == NAMES
    assert {file.mime for file in job.files} == {"image/svg+xml"}
    fractions = [fraction for fraction, _ in job.progressed]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    for file in job.files:
        root = check(file.data.decode())
        assert root.find(f"{SVG}title").text == "TechStartup logo"  # type: ignore[union-attr]


def test_three_drawings_differ_in_layout() -> None:
    """The three versions differ in proportions and shapes, not only in colours."""
    roots = [ET.fromstring(text) for text in draw(DOCUMENT["brief"])]
    ratios = set()
    for root in roots:
        _, _, width, height = (float(n) for n in root.attrib["viewBox"].split())
        ratios.add(round(width / height, 2))
    assert len(ratios) == 3
    shapes = {
        tuple(sorted(node.get("d", "") for node in root.iter() if node.tag == f"{SVG}path")) for root in roots
    }
    assert len(shapes) == 3


def test_same_input_gives_the_same_bytes() -> None:
    """A second run of the same input draws the same files; another brief draws different ones."""
    assert draw("A logo for Acme") == draw("A logo for Acme")
    assert draw("A logo for Acme") != draw("A calm logo for Acme")


def test_given_colors_are_used_as_they_are() -> None:
    """Saturated colours with enough contrast on white appear unchanged in the drawings."""
    text = "".join(draw("A logo for Acme", colors=["#0057B8", "#d7263d"]))
    assert "#0057b8" in text and "#d7263d" in text


def test_default_colors_are_used() -> None:
    """Without colours, or with an empty list, the brief selects one of our palettes."""
    assert draw("A logo for Acme") == draw("A logo for Acme", colors=[])
    used = {c for text in draw("A logo for Acme") for c in re.findall(r"#[0-9a-f]{6}", text)}
    assert len(used) >= 3


@pytest.mark.parametrize(
    ("colors", "field", "received"),
    [
        (["red"], "colors[0]", "red"),
        (["#FF5733", "#12345"], "colors[1]", "#12345"),
        (["#ggg"], "colors[0]", "#ggg"),
        (["#fff\n"], "colors[0]", "#fff"),
        (["#FFF;}"], "colors[0]", "#FFF;}"),
        (["＃fff"], "colors[0]", "＃fff"),
        ([""], "colors[0]", ""),
        ([7], "colors[0]", "7"),
        ([None], "colors[0]", "nothing"),
        ([["#fff"]], "colors[0]", "a list of 1"),
    ],
)
def test_refuses_what_is_not_a_hex_color(colors: list[Any], field: str, received: str) -> None:
    """A non-hex colour is refused with the HIRE specification's message, and nothing is drawn."""
    job = FakeJob({"brief": "A logo for Acme", "colors": colors})
    with pytest.raises(InvalidInput) as caught:
        run(logo_design, job)
    assert caught.value.code == "INVALID_INPUT"
    assert caught.value.message == "Color format not recognized"
    assert caught.value.details == {"field": field, "expected": "hex color", "received": received}
    assert job.files == []


@pytest.mark.parametrize(
    "reference",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "//example.com/a.png",
        "https://",
        "not a url",
        "https://exa mple.com/",
        "https://[::1",
        "https://example.com/" + "a" * 3000,
        5,
        "http://\u0000.com",
    ],
)
def test_refuses_references_that_are_not_urls(reference: Any) -> None:
    """A style reference must be an http(s) URL; the error names the invalid one, here the second."""
    with pytest.raises(InvalidInput) as caught:
        read({"brief": "Acme", "style_references": ["https://example.com/a.png", reference]})
    assert caught.value.details["field"] == "style_references[1]"
    assert caught.value.details["expected"] == "http(s) URL"
    assert len(caught.value.details["received"]) <= 60


def test_references_are_noted_by_host_only() -> None:
    """A drawing names the hosts of its references and contains no address that a viewer could fetch."""
    texts = draw("A logo for Acme", style_references=["https://user:pw@example.com/a?token=s3cret"])
    for text in texts:
        assert "example.com" in text
        assert "s3cret" not in text and "pw@" not in text and "https://" not in text


@pytest.mark.parametrize("brief", [None, "", "   ", 5, ["x"], "a" * 2001, "\u200b\u0000"])
def test_refuses_an_empty_brief(brief: Any) -> None:
    """A missing, blank, overlong or non-text brief is refused by field name."""
    with pytest.raises(InvalidInput) as caught:
        read({"brief": brief})
    assert caught.value.details["field"] == "brief"


@pytest.mark.parametrize("input", [None, [], "brief", {"brief": "A", "colors": "#fff"}])
def test_refuses_input_of_the_wrong_kind(input: Any) -> None:
    """Input that is not an object, or not a list where one is needed, is refused without a crash."""
    with pytest.raises(InvalidInput):
        read(input)


def test_refuses_endless_lists() -> None:
    """More colours or references than a logo can use are refused."""
    with pytest.raises(InvalidInput):
        read({"brief": "Acme", "colors": ["#fff"] * 13})
    with pytest.raises(InvalidInput):
        read({"brief": "Acme", "style_references": ["https://example.com"] * 11})


@pytest.mark.parametrize(
    "brief",
    [
        'logo for "><script>alert(1)</script>',
        "logo for <svg onload=alert(1)>",
        "]]></desc><script>x</script>",
        "&lt;script&gt; &#x3c;script&#x3e; <!ENTITY a 'b'>",
        'logo for "Bad\u0000\u001b\ud800\u202eName\uffff"',
        "logo called 'javascript:alert(1)'",
        "<?xml version='1.0'?><!DOCTYPE svg>",
        "W" * 2000,
        "W " * 1000,
        "🦄🦄🦄",
        "!!! ??? ...",
        "logo for شركة النور",
        "東京カフェ" * 100,
        "a\u0301" * 900,
        "logo for İSTANBUL ŁÓDŹ ẞ",
    ],
)
def test_hostile_briefs_stay_text(brief: str) -> None:
    """Any brief gives valid, bounded, small drawings that contain only shape elements."""
    for text in draw(brief, colors=["#fff", "#000"]):
        check(text)


@settings(max_examples=60, deadline=None)
@given(
    brief=st.text(min_size=1, max_size=200),
    colors=st.lists(st.from_regex(r"#(?:[0-9a-fA-F]{3}){1,2}", fullmatch=True), max_size=4),
)
def test_any_brief_and_any_colors_give_good_drawings(brief: str, colors: list[str]) -> None:
    """For arbitrary text and colours the drawings stay inside their canvas and the name stays readable."""
    if not naming.clean(brief):
        return
    design = read({"brief": brief, "colors": colors})
    for _, _, layout in DESIGNS:
        check(layout(design))
    chosen = design.palette
    assert palette.contrast(chosen.ink, chosen.paper) >= 7
    assert palette.contrast(chosen.primary, chosen.paper) >= 1.9
    assert palette.contrast(chosen.on(chosen.primary), chosen.primary) >= 3
    assert palette.contrast(chosen.on(chosen.night), chosen.night) >= 4.5


@pytest.mark.parametrize(
    ("brief", "name", "short"),
    [
        ("Create a minimalist logo for TechStartup Inc", "TechStartup", "TS"),
        ('We sell bikes. "Iron Bee" is our brand', "Iron Bee", "IB"),
        ("a warm mark for a coffee shop called Blue Heron", "Blue Heron", "BH"),
        ("Design for Müller & Söhne GmbH, a bakery", "Müller & Söhne", "MS"),
        ("a logo for sunny side bakery", "sunny side", "SS"),
        ("Create a logo for Joe's Diner", "Joe's Diner", "JD"),
        ("acme", "acme", "A"),
        ("logo", "logo", "L"),
        ("東京カフェ", "東京カフェ", "東"),
        ("!!!", "Logo", "L"),
    ],
)
def test_name_is_read_from_the_brief(brief: str, name: str, short: str) -> None:
    """The name is the quoted text, else the capitalised words after "for", else the first real words."""
    assert naming.brand_name(brief) == name
    assert naming.initials(name) == short


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Nd"]), min_size=1, max_size=20))
def test_camel_case_names_are_joined(word: str) -> None:
    """Splitting a word at its capitals loses nothing."""
    assert "".join(naming.humps(word)) == word


def test_every_letter_is_drawn_from_the_alphabet() -> None:
    """Latin names need no font: each letter becomes a path and there is no text element."""
    for text in draw("logo for 'Zoë Quick & Fox 42'"):
        root = check(text)
        assert root.find(f".//{SVG}text") is None
    assert letters.drawable("ÅÉÎÕÜČÇ'&-.+") and not letters.drawable("Ø東")


def test_valid_input_passes_its_own_schema() -> None:
    """The published input schema accepts the specification's example and refuses unknown fields."""
    jsonschema.validate(DOCUMENT, INPUT_SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**DOCUMENT, "callback": "x"}, INPUT_SCHEMA)


@pytest.mark.parametrize(
    ("text", "color"),
    [
        ("#fff", (255, 255, 255)),
        ("#A0b", (170, 0, 187)),
        ("#FF5733", (255, 87, 51)),
        ("fff", None),
        ("#ffff", None),
    ],
)
def test_hex_colors_are_parsed(text: str, color: Any) -> None:
    """Three and six digits are parsed; anything else is not a colour."""
    assert palette.parse(text) == color

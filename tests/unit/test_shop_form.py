"""The form of a capability: which fields it has, and what input a visitor's entries make."""

from __future__ import annotations

from typing import Any

import pytest

from worker.capabilities.declare import Capability
from worker.core.errors import InvalidInput
from worker.doors.shop_form import fields_of, read_form

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["brief", "size"],
    "properties": {
        "colors": {"type": "array", "items": {"type": "string", "title": "hex color"}},
        "brief": {"type": "string", "maxLength": 2000},
        "style": {"type": "string", "enum": ["plain", "bold"]},
        "size": {"type": "integer"},
        "round": {"type": "boolean"},
        "extra": {"type": "object"},
        "name": {"type": "string"},
    },
}
LOGO = Capability(
    "logo", input_schema=SCHEMA, example_input={"brief": "A logo", "size": 3, "colors": ["#fff", "#000"]}
)


def test_fields_follow_the_schema_and_start_with_the_example() -> None:
    """Required fields come first; each kind of value has its own field."""
    fields = fields_of(LOGO)
    assert [each.name for each in fields[:2]] == ["brief", "size"] and fields[0].required
    kinds = {each.name: (each.kind, each.value) for each in fields}
    assert kinds == {
        "brief": ("long", "A logo"),
        "size": ("number", "3"),
        "colors": ("list", "#fff\n#000"),
        "style": ("choice", ""),
        "round": ("flag", ""),
        "extra": ("json", ""),
        "name": ("text", ""),
    }
    assert next(each for each in fields if each.name == "colors").hint == "one hex color per line"


def test_entries_become_the_input() -> None:
    """Values have the types of the schema; empty fields are left out; line ends are the usual ones."""
    form = {
        "field.brief": "one\r\ntwo",
        "field.size": "4",
        "field.colors": " #fff \r\n\r\n#000",
        "field.style": "bold",
        "field.round": "true",
        "field.extra": '{"a": [1]}',
        "field.name": "",
        "field.unknown": "x",
    }
    assert read_form(LOGO, form) == {
        "brief": "one\ntwo",
        "size": 4,
        "colors": ["#fff", "#000"],
        "style": "bold",
        "round": True,
        "extra": {"a": [1]},
    }


def test_an_example_shows_fields_that_the_schema_leaves_open() -> None:
    """Further keys of the example are fields where the schema allows them."""
    brief = Capability(
        "brief",
        input_schema={"type": "object", "properties": {"prompt": {"type": "string"}}},
        example_input={"prompt": "Sum up.", "text": "x" * 80},
    )
    assert [(each.name, each.kind) for each in fields_of(brief)] == [("prompt", "text"), ("text", "long")]


@pytest.mark.parametrize("example", [None, [1, 2], "text"])
def test_any_other_input_is_one_json_text(example: Any) -> None:
    """Without properties the whole input is entered as JSON."""
    capability = Capability("any", example_input=example)
    (field,) = fields_of(capability)
    assert (field.key, field.kind) == ("input", "json")
    assert read_form(capability, {"input": "[3]"}) == [3]


def test_what_was_sent_stays_in_the_form() -> None:
    """A refused form comes back with the visitor's own entries, not the example."""
    fields = fields_of(LOGO, {"field.brief": "mine"})
    assert {each.name: each.value for each in fields}["brief"] == "mine"
    assert {each.name: each.value for each in fields}["size"] == ""


@pytest.mark.parametrize("text", ["many", "{", "1e999"])
def test_invalid_json_names_its_field(text: str) -> None:
    """A number or object that cannot be read is refused before anything is bought."""
    with pytest.raises(InvalidInput) as refused:
        read_form(LOGO, {"field.brief": "x", "field.size": text})
    assert refused.value.details["field"] == "size"

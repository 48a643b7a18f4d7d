"""The bazaar extension: official validators accept it, whatever the author declared."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from x402.extensions.bazaar import extract_discovery_info_from_extension, validate_discovery_extension
from x402.extensions.bazaar.facilitator import _sanitize_resource_service_metadata

from worker.capabilities.declare import REGISTRY
from worker.shipped import brief, chat, code_review, explain_code, logo_design, proposal
from worker.x402.bazaar import Described, bazaar_extension, is_public_url, service_metadata, without_schemas

TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 1}},
    "required": ["text"],
    "additionalProperties": False,
}
COUNT = {"type": "object", "properties": {"words": {"type": "integer"}}}
LARGE = {
    "type": "object",
    "required": ["field0"],
    "properties": {f"field{n}": {"type": "string", "description": "d" * 100} for n in range(20)},
}
SHIPPED = (brief, chat, code_review, explain_code, logo_design, proposal)


def holds(described: Described) -> dict[str, Any]:
    """Return the extension after the official validator and extractor, and check `info` by `schema`."""
    extension = bazaar_extension(described)
    checked = validate_discovery_extension(extension)
    assert checked.valid, checked.errors
    assert extract_discovery_info_from_extension(extension).input.method == "POST"
    jsonschema.Draft202012Validator.check_schema(extension["schema"])
    jsonschema.validate(extension["info"], extension["schema"])
    return extension


def test_small_schemas_and_examples_are_embedded_whole() -> None:
    """A declaration that fits is sent as the author wrote it."""
    extension = holds(Described(TEXT, COUNT, {"text": "to be"}, {"words": 2}))
    assert extension["info"]["input"]["body"] == {"text": "to be"}
    assert extension["info"]["output"] == {"type": "json", "example": {"words": 2}}
    properties = extension["schema"]["properties"]
    assert properties["input"]["properties"]["body"] == TEXT
    assert properties["output"]["properties"]["example"] == COUNT


@pytest.mark.parametrize(
    "described",
    [
        Described(),
        Described(LARGE, LARGE, {"field0": "x"}, {"field0": "x"}),
        Described(TEXT, COUNT, {"text": "x" * 5_000}, {"words": 1}),
        Described(TEXT, COUNT, None, None),
        Described({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, None, {"any": 1}),
        Described({"$id": "https://a.example/s", "type": "object"}, None, {"any": 1}),
        Described({"type": "array", "items": {"type": "string"}}, None, ["x" * 1_000]),
        Described({"type": "string"}, {"type": "string"}, "y" * 1_000, "z"),
        Described({"type": "integer"}, None, 7),
        Described({"type": ["object", "null"], "properties": {"a": True}}, None, {"a": 1}),
    ],
)
def test_every_declaration_gives_a_valid_extension(described: Described) -> None:
    """Large, absent and self-referring schemas and examples are replaced by something small and valid."""
    extension = holds(described)
    assert len(str(extension)) < 4_500
    assert len(str(holds_after_reduction(extension))) < 2_000


def holds_after_reduction(extension: dict[str, Any]) -> dict[str, Any]:
    reduced = without_schemas(extension)
    assert validate_discovery_extension(reduced).valid
    return reduced


def test_shipped_agents_have_valid_extensions() -> None:
    """The shipped agents can be listed unchanged."""
    assert SHIPPED
    sold = [each for each in REGISTRY.capabilities.values() if each.price != "0"]
    assert sold
    for each in sold:
        holds(Described(each.input_schema, each.output_schema, each.example_input, each.example_output))


def test_service_metadata_survives_the_catalogs_rules() -> None:
    """Names, tags and icons that the catalog would drop are not sent; others are sent unchanged."""
    tags = ["Text", "text", "ünï", "x" * 33, "", "a", "b", "c", "d", "e"]
    shown = service_metadata("Wörter zählen für alle, ganz lange Namen", tags, "https://w.example/icon.png")
    assert shown["tags"] == ["Text", "a", "b", "c", "d"]
    kept = _sanitize_resource_service_metadata(shown)
    assert (kept.service_name, kept.tags, kept.icon_url) == (
        shown["serviceName"],
        shown["tags"],
        shown["iconUrl"],
    )


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://worker.example/favicon.ico", True),
        ("http://127.0.0.1:8000/favicon.ico", False),
        ("http://localhost/favicon.ico", False),
        ("http://[::1]/favicon.ico", False),
        ("http://2130706433/favicon.ico", False),
        ("http://0x7f000001/x", False),
        ("https://user@worker.example/x", False),
        ("ftp://worker.example/x", False),
    ],
)
def test_public_urls_are_those_that_the_catalog_accepts(url: str, public: bool) -> None:
    """URLs are accepted by the same rules as the official ones."""
    assert is_public_url(url) is public
    assert (_sanitize_resource_service_metadata({"iconUrl": url}).icon_url is not None) is public

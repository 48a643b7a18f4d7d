"""The `bazaar` extension of a 402: describes request and response for catalogs of paid endpoints.

A facilitator validates `info` against `schema` before it lists an endpoint, and clients echo both in a
header, so they are kept small. A schema that is too large or has internal references is replaced by its
outline; /openapi.json has the full schema.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

BAZAAR = "bazaar"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Bytes of JSON per schema and per example.
MAX_SCHEMA = 900
MAX_EXAMPLE = 400
MAX_NAME, MAX_TAGS, MAX_TAG, MAX_ICON = 32, 5, 32, 2048

_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_REFERENCES = ("$ref", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor", "$defs", "definitions")
_LOOPBACK = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


@dataclass(frozen=True, slots=True)
class Described:
    """One paid operation that takes a JSON body and returns JSON, as its declaration describes it."""

    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    example_input: Any = None
    example_output: Any = None
    method: str = "POST"


def bazaar_extension(described: Described) -> dict[str, Any]:
    """Return `extensions.bazaar`: an example request and answer, and the schema that both fit."""
    body_schema = _small_schema(described.input_schema)
    body = described.example_input
    if body is None or _size(body) > MAX_EXAMPLE:
        # A shortened example may violate the full schema, but never the outline without `required`.
        body, body_schema = _shortened(body), _types_only(body_schema)
    answer_schema = _small_schema(described.output_schema)
    output: dict[str, Any] = {"type": "json"}
    if described.example_output is not None and _size(described.example_output) <= MAX_EXAMPLE:
        output["example"] = described.example_output
    return {
        "info": {
            "input": {"type": "http", "method": described.method, "bodyType": "json", "body": body},
            "output": output,
        },
        "schema": _schema(described.method, body_schema, answer_schema),
    }


def without_schemas(extension: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extension with its author's schemas and the example answer left out."""
    info = extension["info"]
    return {
        "info": {"input": info["input"], "output": {"type": "json"}},
        "schema": _schema(info["input"]["method"], {}, {}),
    }


def service_metadata(name: str, tags: Iterable[str], icon_url: str | None) -> dict[str, Any]:
    """Return the resource's catalog fields, without values that catalog rules would drop."""
    found: dict[str, Any] = {}
    title = "".join(_PRINTABLE.findall(name))[:MAX_NAME].strip()
    if title:
        found["serviceName"] = title
    unique = {tag.lower(): tag for tag in reversed([*tags]) if len(tag) <= MAX_TAG}
    fitting = [tag for tag in reversed(unique.values()) if _PRINTABLE.fullmatch(tag)]
    if fitting:
        found["tags"] = fitting[:MAX_TAGS]
    if icon_url and is_public_url(icon_url):
        found["iconUrl"] = icon_url
    return found


def is_public_url(url: str) -> bool:
    """Whether catalogs accept the URL: absolute, with a host name that is neither an IP address nor local."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or not host or len(url) > MAX_ICON or "@" in parts.netloc:
        return False
    if host in _LOOPBACK or ":" in host or host.isdigit() or re.fullmatch(r"0x[0-9a-f]+", host):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _schema(method: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the form where validators look for the schemas of body and answer."""
    return {
        "$schema": DIALECT,
        "type": "object",
        "required": ["input"],
        "properties": {
            "input": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "method", "bodyType", "body"],
                "properties": {
                    "type": {"type": "string", "const": "http"},
                    "method": {"type": "string", "enum": [method]},
                    "bodyType": {"type": "string", "enum": ["json"]},
                    "body": dict(body),
                },
            },
            "output": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"type": "string"}, "example": dict(answer)},
            },
        },
    }


def _small_schema(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schema if it can be embedded, else the types of its top level."""
    if schema is None:
        return {}
    own = {name: value for name, value in schema.items() if name != "$schema"}
    if _size(own) <= MAX_SCHEMA and not _refers(own):
        return own
    outline = _outline(own)
    return outline if _size(outline) <= MAX_SCHEMA else _types_only(outline)


def _outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    outline = _types_only(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        outline["properties"] = {
            name: _types_only(each) if isinstance(each, Mapping) else {} for name, each in properties.items()
        }
        required = schema.get("required")
        if isinstance(required, list | tuple):
            outline["required"] = [*required]
    return outline


def _types_only(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": schema["type"]} if "type" in schema else {}


def _refers(schema: Any) -> bool:
    """Whether the schema has references, which would point elsewhere once it is embedded."""
    if isinstance(schema, Mapping):
        return any(name in _REFERENCES or _refers(value) for name, value in schema.items())
    return isinstance(schema, list | tuple) and any(_refers(each) for each in schema)


def _shortened(example: Any) -> Any:
    """Return a placeholder of the same type for an example that is missing or too large."""
    if isinstance(example, Mapping):
        short = {name: value for name, value in example.items() if _size(value) <= 80}
        return short if _size(short) <= MAX_EXAMPLE else {}
    if isinstance(example, list | tuple):
        return []
    return str(example)[:80] if isinstance(example, str) else {}


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), default=str))

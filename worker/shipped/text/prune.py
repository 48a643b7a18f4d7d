"""An output cut down to what a contract's schema lets through."""

from __future__ import annotations

from typing import Any


def prune(value: Any, schema: Any) -> Any:
    """Drop keys that `additionalProperties: false` forbids, and round numbers where integers are asked.

    Only plain `properties` and `items` are followed; whatever else a schema says is for its validator.
    """
    if not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        listed = schema.get("properties")
        listed = listed if isinstance(listed, dict) else {}
        closed = schema.get("additionalProperties") is False
        return {k: prune(v, listed.get(k)) for k, v in value.items() if k in listed or not closed}
    if isinstance(value, list):
        return [prune(item, schema.get("items")) for item in value]
    if isinstance(value, float) and schema.get("type") == "integer":
        return round(value)
    return value

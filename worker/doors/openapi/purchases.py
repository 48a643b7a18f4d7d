"""One OpenAPI operation for each capability on sale: its schemas, example and price in both dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from worker.capabilities.declare import Capability
from worker.core.amounts import to_atomic
from worker.x402.bazaar import DIALECT

Node = dict[str, Any]
# The least that USDC can express.
LEAST = "0.000001"


def purchase_path(general: Node, capability: Capability, path: str, asset: str) -> Node:
    """The path item for buying this capability: the generic operation, specialized.

    `asset` is the address of the dollar that it is paid in.
    """
    content = f"#/paths/{path.replace('/', '~1')}/post/requestBody/content/application~1json/schema"
    body: Node = {"schema": rebased(capability.input_schema or {}, content)}
    if capability.example_input is not None:
        body["example"] = capability.example_input
    return {
        "post": {
            **general,
            "parameters": [each for each in general["parameters"] if each["in"] != "path"],
            "operationId": "buy_" + re.sub(r"\W", "_", capability.name),
            "summary": capability.title or capability.name,
            "description": capability.description or capability.name,
            "tags": [*capability.tags],
            "security": [],
            "x-payment-info": payment_info(capability, asset),
            "requestBody": {"required": True, "content": {"application/json": body}},
        }
    }


def payment_info(capability: Capability, asset: str) -> Node:
    """The price for agents that read `price` and `protocols`, and for those that read `offers`."""
    if capability.prices_input:
        price = {"mode": "dynamic", "currency": "USD", "min": LEAST, "max": capability.price}
    else:
        price = {"mode": "fixed", "currency": "USD", "amount": capability.price}
    return {
        "price": price,
        "protocols": [{"x402": {}}],
        "offers": [
            {
                "intent": "charge",
                "method": "x402",
                "amount": None if capability.prices_input else str(to_atomic(capability.price)),
                "currency": asset,
                "description": f"{'at most ' if capability.prices_input else ''}{capability.price} USDC",
            }
        ],
    }


def rebased(schema: Mapping[str, Any], pointer: str) -> Node:
    """The schema for embedding in the document: its internal references are rebased."""

    def at(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {
                name: _moved(value, pointer) if name == "$ref" else at(value)
                for name, value in node.items()
                if not (node is schema and name == "$schema" and value == DIALECT)
            }
        return [at(each) for each in node] if isinstance(node, list | tuple) else node

    moved: Node = at(schema)
    return moved


def _moved(reference: Any, pointer: str) -> Any:
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        return pointer + reference[1:]
    return reference

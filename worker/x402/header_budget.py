"""Shrinks a 402 whose header would exceed the limit. Removes, in this order: the signed offers, the
schemas of the input and output, every network but the first. /openapi.json still has the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.x402.bazaar import BAZAAR, without_schemas
from worker.x402.headers import Reduction
from worker.x402.receipts import OFFER_RECEIPT


def _without_signed_offers(document: Mapping[str, Any]) -> Mapping[str, Any]:
    extensions = {name: each for name, each in document["extensions"].items() if name != OFFER_RECEIPT}
    return {**document, "extensions": extensions}


def _without_schemas(document: Mapping[str, Any]) -> Mapping[str, Any]:
    extensions = dict(document["extensions"])
    if BAZAAR in extensions:
        extensions[BAZAAR] = without_schemas(extensions[BAZAAR])
    return {**document, "extensions": extensions}


def _first_network(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**document, "accepts": document["accepts"][:1]}


LEFT_OUT: tuple[Reduction, ...] = (_without_signed_offers, _without_schemas, _first_network)

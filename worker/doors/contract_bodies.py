"""Contracts in request bodies: read under their limits, and whom they name as seeker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.core.canonical import parse
from worker.core.errors import BadRequest, UnsupportedMedia
from worker.core.evm import is_address
from worker.doors.answers import this_request
from worker.doors.bodies import raw

# Unpaid contracts occupy the store's memory: room for two schemas of the maximum size, plus text.
CONTRACT_BYTES = 128 << 10
CONTRACT_VALUES = 6_000
# Beyond an address's limit only bodies of this size are parsed, to find out whether a customer sent them.
RESERVE_BYTES = 8 << 10


def contract_body() -> dict[str, Any]:
    expect_json(this_request().environ)
    document = parse(raw(), max_bytes=CONTRACT_BYTES, max_values=CONTRACT_VALUES)
    if not isinstance(document, dict):
        raise BadRequest("a contract is a JSON object", expected="object")
    return document


def expect_json(environ: Mapping[str, Any]) -> None:
    kind = environ.get("CONTENT_TYPE", "").partition(";")[0].strip(" \t").lower()
    if kind not in ("", "application/json"):
        raise UnsupportedMedia(field="Content-Type", expected="application/json", received=kind)


def seeker_wallet(document: Mapping[str, Any]) -> str:
    """The seeker wallet that a draft names; '' if there is no valid one."""
    parties = document.get("parties")
    seeker = parties.get("seeker") if isinstance(parties, dict) else None
    wallet = seeker.get("wallet") if isinstance(seeker, dict) else None
    return wallet if isinstance(wallet, str) and is_address(wallet) else ""

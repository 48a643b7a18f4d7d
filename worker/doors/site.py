"""The site door: public documents for crawlers, models and verifiers, and an icon."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from flask import Blueprint, Response, redirect, request

from worker.capabilities.declare import Capability
from worker.core.settings import Settings
from worker.doors.answers import json_answer
from worker.doors.site_documents import SiteDocuments

NAME = "site"
_MINUTES = "public, max-age=300"
_SIDE = 32
_BLUE = (0x1F, 0x5F, 0xBF, 0xFF)


def door(
    documents: SiteDocuments, for_sale: Callable[[], dict[str, Capability]], settings: Settings
) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    @blueprint.get("/llms.txt")
    def llms() -> Response:
        return _cached(Response(documents.llms(for_sale()), mimetype="text/plain"))

    @blueprint.get("/.well-known/x402")
    def resources() -> Response:
        return _document(documents.resources(for_sale()))

    @blueprint.get("/.well-known/agent-card.json")
    def agent_card() -> Response:
        return _document(documents.agent_card(for_sale()))

    @blueprint.get("/.well-known/agent-registration.json")
    def registration() -> Response:
        return _document(documents.registration(for_sale()))

    @blueprint.get("/.well-known/did.json")
    def did() -> Response:
        return _document(documents.did_document())

    @blueprint.get("/favicon.ico")
    def favicon() -> Any:
        if settings.icon_url:
            return redirect(settings.icon_url)
        return _cached(Response(icon(), mimetype="image/x-icon"))

    return blueprint


def _document(body: Any) -> Response:
    return _cached(json_answer(body))


def _cached(response: Response) -> Response:
    response.headers["Cache-Control"] = _MINUTES
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.set_etag(hashlib.sha256(response.get_data()).hexdigest()[:32])
    response.make_conditional(request)
    return response


@cache
def icon() -> bytes:
    """A plain blue square of 32 by 32 points, as a PNG in an ICO."""
    rows = (b"\x00" + bytes(_BLUE) * _SIDE) * _SIDE
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, _SIDE, _SIDE, 0, 0, 1, 32, len(png), 22) + png

"""Static files of the pages: names that contain a digest, so that browsers may keep them for a year."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flask import Blueprint, Response, request

from worker.core.errors import NotFound
from worker.data import PAGES

NAME = "static"
PATH = "/static/"
_FOLDER = PAGES / "static"
_A_YEAR = "public, max-age=31536000, immutable"
_MIMES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
# Below this size compression saves no packet.
_WORTH_COMPRESSING = 1_400


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file in memory; `packed` is its gzip form."""

    name: str
    mime: str
    digest: str
    content: bytes
    packed: bytes | None

    @property
    def address(self) -> str:
        """Its path; the digest stands before the suffix."""
        path = Path(self.name)
        return PATH + str(path.with_name(f"{path.stem}.{self.digest}{path.suffix}"))


@cache
def assets() -> dict[str, Asset]:
    """All static files by name, for example `base.css` or `dashboard/charts.js`."""
    files = sorted(path for path in _FOLDER.rglob("*") if path.is_file())
    return {str(path.relative_to(_FOLDER)): _read(path) for path in files}


@cache
def _by_address() -> dict[str, Asset]:
    return {each.address: each for each in assets().values()}


def door() -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    @blueprint.get(f"{PATH}<path:name>")
    def file(name: str) -> Response:
        asset = _by_address().get(PATH + name)
        if asset is None:
            raise NotFound("no such file")
        packed = asset.packed if "gzip" in request.accept_encodings else None
        response = Response(packed or asset.content, mimetype=asset.mime)
        response.headers["Cache-Control"] = _A_YEAR
        response.headers["Vary"] = "Accept-Encoding"
        if packed:
            response.headers["Content-Encoding"] = "gzip"
        response.set_etag(asset.digest + ("-gzip" if packed else ""))
        response.make_conditional(request)
        return response

    return blueprint


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    mime = _MIMES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    compressible = mime.startswith("text/") or mime == "image/svg+xml"
    packed = gzip.compress(content, mtime=0) if compressible and len(content) > _WORTH_COMPRESSING else None
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Asset(str(path.relative_to(_FOLDER)), mime, digest, content, packed)

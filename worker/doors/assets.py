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
    read = (_read(path) for path in sorted(_FOLDER.rglob("*")) if path.is_file())
    return {asset.name: asset for asset in read}


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
        packed = asset.packed if request.accept_encodings["gzip"] > 0 else None
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
    """Vendored files are kept compressed, under their name and `.gz`."""
    raw, name = path.read_bytes(), str(path.relative_to(_FOLDER))
    kept_packed = path.suffix == ".gz"
    name = name.removesuffix(".gz")
    content = gzip.decompress(raw) if kept_packed else raw
    mime = _MIMES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    compressible = mime.startswith("text/") or mime == "image/svg+xml"
    packed = raw if kept_packed else None
    if compressible and not packed and len(content) > _WORTH_COMPRESSING:
        packed = gzip.compress(content, mtime=0)
    return Asset(name, mime, hashlib.sha256(content).hexdigest()[:12], content, packed)

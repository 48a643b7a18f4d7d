"""File names that are safe in headers, on disk and on display. Pure functions."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote

_RESERVED = dict.fromkeys(map(ord, '<>:"|?*'), "_")


def safe_name(name: str) -> str:
    """A file name of at most 200 bytes without paths, control, direction and reserved characters."""
    name = unicodedata.normalize("NFC", name)
    name = "".join(
        " " if ch.isspace() else ch for ch in name if ch.isspace() or unicodedata.category(ch)[0] != "C"
    )
    pieces = [piece.strip(" .") for piece in re.split(r"[/\\]", name)]
    name = unicodedata.normalize("NFC", " ".join("_".join(filter(None, pieces)).translate(_RESERVED).split()))
    stem, dot, ending = name.rpartition(".")
    ending = dot + ending if stem and len(ending.encode()) <= 16 else ""
    stem = name.removesuffix(ending) if ending else name
    stem = stem.encode()[: 200 - len(ending.encode())].decode(errors="ignore").strip(" .")
    return stem + ending if stem else "file"


def content_disposition(name: str) -> str:
    """Both forms of RFC 6266: plain ASCII for old clients, the exact name for others."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9 !#&()+,.;=@\[\]_{}~-]", "_", plain).strip(" .") or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='!#$&+-.^_`|~')}"

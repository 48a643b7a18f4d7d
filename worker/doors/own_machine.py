"""Detects requests made directly from this machine, which count as the operator without a token."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

from werkzeug.wsgi import get_host

from worker.core.values import is_this_machine

# A proxy adds one of these headers, or uses HTTP/1.0 upstream.
_FORWARDED = frozenset(
    {
        "HTTP_FORWARDED",
        "HTTP_VIA",
        "HTTP_X_FORWARDED_FOR",
        "HTTP_X_FORWARDED_HOST",
        "HTTP_X_FORWARDED_PROTO",
        "HTTP_X_REAL_IP",
    }
)
_LOOPBACK = ("127.0.0.1", "::1")


def asked_from_this_machine(environ: Mapping[str, Any]) -> bool:
    """Whether client and Host header are this machine, and no proxy forwarded the request.

    The host is checked because a page in a local browser can point its own name at 127.0.0.1 (DNS rebinding),
    and the origin, which browsers name with all that changes something, because it can ask 127.0.0.1 as well.
    """
    if not _FORWARDED.isdisjoint(environ) or environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return False
    origin = environ.get("HTTP_ORIGIN")
    return (
        is_own_address(environ.get("REMOTE_ADDR") or "")
        and _is_own_name(get_host(environ))  # type: ignore[arg-type]
        and (origin is None or _is_own_name(origin.partition("://")[2]))
    )


def _is_own_name(asked: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    before, _, port = asked.rpartition(":")
    host = (before if port.isdigit() else asked).strip("[]")
    if host in _LOOPBACK or is_own_address(host):
        return True
    try:
        return is_this_machine(f"http://{asked}")
    except ValueError:  # brackets around what is no address
        return False


def is_own_address(text: str) -> bool:
    """Whether an IP address belongs to this machine: only such an address can be bound."""
    if text in _LOOPBACK:
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return address.is_loopback
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((text, 0))
        except OSError:
            return False
    return True

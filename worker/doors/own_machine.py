"""Detects requests made directly from this machine, which count as the operator without a token."""

from __future__ import annotations

import ipaddress
import socket

from flask import Request

from worker.core.values import is_this_machine

# A proxy adds one of these, or uses HTTP/1.0 upstream.
_FORWARDED = (
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-Ip",
)


def asked_from_this_machine(request: Request) -> bool:
    """Whether client and Host header are this machine, and no proxy forwarded the request.

    The host is checked because a page in a local browser can point its own name at 127.0.0.1 (DNS rebinding).
    """
    if any(name in request.headers for name in _FORWARDED):
        return False
    if request.environ.get("SERVER_PROTOCOL") == "HTTP/1.0":
        return False
    host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
    return is_own_address(request.remote_addr or "") and (
        is_this_machine(f"http://{request.host}") or is_own_address(host.strip("[]"))
    )


def is_own_address(text: str) -> bool:
    """Whether an IP address belongs to this machine: only such an address can be bound."""
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

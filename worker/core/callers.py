"""Maps a client's address to the network whose limits its requests count against."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

# A provider's customer gets at least this much IPv6 address space.
IPV6_PREFIX = 64


@lru_cache(maxsize=1_024)
def network_of(address: str | None) -> str:
    """The network of a client's address: the IPv4 address itself, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:  # a Unix socket, or a placeholder from a proxy
        return address or "-"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))

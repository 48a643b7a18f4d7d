"""Which hosts and addresses from untrusted URLs the worker may call. Pure.

An address must be public by our own list and by Python's: either alone has gaps (Python 3.11 treats
`::127.0.0.1`, `fec0::1` and NAT64 as public).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from worker.core.errors import BadRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_CLOSED_V4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's internal control server, on a public address
        "169.254.0.0/16",  # link-local, including cloud metadata services
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# IPv6 is closed outside global unicast: that covers ::/96, ::ffff:0:0/96, NAT64, ULA, fec0::/10, multicast.
_UNICAST = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, including Teredo, benchmarks and ORCHID
        "2001:db8::/32",
        "2002::/16",  # 6to4 embeds any IPv4 address
        "3fff::/20",
    )
)
_URL = re.compile(r"[!-\[\]-~]{1,2048}")
_HOST = re.compile(
    r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


class UrlRefused(BadRequest):
    """The worker never calls this URL. `reason`: url, scheme, userinfo, host, port, address, header."""

    code = "URL_REFUSED"
    advice = "Give an https URL of a public host; nothing was sent."

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
        self.reason = reason


@dataclass(frozen=True)
class AddressRules:
    """What the operator allows beyond https to public addresses on port 443. `ports` None: any port."""

    http: bool = False
    ports: frozenset[int] | None = frozenset({443})
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True)
class UrlParts:
    """A URL parsed once; all later code uses these parts, never the text."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def place(self) -> tuple[str, str, int]:
        """What a connection leads to."""
        return self.scheme, self.host, self.port


def rules_for(env: str, *, ports: Iterable[int] = (), networks: Iterable[str] = ()) -> AddressRules:
    """The rules of a WORKER_ENV: only `local` and `test` allow loopback, http and any port."""
    allowed = tuple(ip_network(network) for network in networks)
    if env in ("local", "test"):
        return AddressRules(http=True, ports=None, networks=LOOPBACK + allowed)
    return AddressRules(ports=frozenset({443, *ports}), networks=allowed)


def parse_target(url: str, rules: AddressRules) -> UrlParts:
    """Parse a URL or refuse it, without a DNS lookup."""
    if not _URL.fullmatch(url):
        raise UrlRefused("url", "the URL must be at most 2048 plain ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlRefused("url", "the URL is malformed") from error
    if parts.scheme != "https" and not (rules.http and parts.scheme == "http"):
        raise UrlRefused("scheme", "the URL must begin with https://")
    if "@" in parts.netloc:
        raise UrlRefused("userinfo", "the URL must not carry a user name or password")
    host = _host(parts.hostname or "", bracketed=parts.netloc.startswith("["))
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    if not 1 <= port <= 65535 or (rules.ports is not None and port not in rules.ports):
        raise UrlRefused("port", "this port is not allowed")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return UrlParts(parts.scheme, host, port, path)


def may_call(address: str, rules: AddressRules) -> bool:
    """Whether the worker may connect to this resolved address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return False
    return is_public(parsed) or any(parsed in network for network in rules.networks)


def is_public(address: Address) -> bool:
    """Whether the address is on the public internet and embeds no other address."""
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    return address in _UNICAST and not any(address in network for network in _CLOSED_V6)


def _host(host: str, *, bracketed: bool) -> str:
    """A canonical IP literal or a plain name; refuses forms that libraries parse differently."""
    try:
        if bracketed:
            if "%" in host:
                raise UrlRefused("host", "an address must not name an interface")
            return str(IPv6Address(host))
        host = host.removesuffix(".")
        if _NUMERIC.fullmatch(host):
            return str(IPv4Address(host))
    except ValueError as error:
        raise UrlRefused("host", "write an address in its usual form") from error
    if not _HOST.fullmatch(host):
        raise UrlRefused("host", "the URL needs a plain host name; write others in punycode")
    return host

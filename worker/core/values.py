"""Parsers for setting values: durations, numbers, lists, addresses, keys, networks.

Each parser takes the text and returns the value, or raises `InvalidValue` with what it expected.
The message never contains the text itself, because it may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from worker.core.amounts import atomic_units
from worker.core.evm import address_of_point, checksum_address, is_mistyped
from worker.core.store_address import EXPECTED, BadAddress, parse

T = TypeVar("T")

NETWORKS = {"base": "eip155:8453", "base-sepolia": "eip155:84532"}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s?)?", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


class InvalidValue(ValueError):
    """The text is invalid; says what would be valid."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def text(value: str) -> str:
    return value


def identifier(value: str) -> str:
    if not _IDENTIFIER.fullmatch(value):
        raise InvalidValue("1 to 128 letters, digits, _ or -")
    return value


def integer(low: int, high: int) -> Callable[[str], int]:
    expected = f"a whole number from {low} to {high}"

    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,9}", value, re.ASCII) or not low <= int(value) <= high:
            raise InvalidValue(expected)
        return int(value)

    return read


def duration(low: float, high: float) -> Callable[[str], float]:
    """Parses seconds, written `90`, `90s`, `5m`, `1h` or `1h30m`."""
    expected = f"a duration such as 30s, 5m or 1h, from {low:g} s to {high:g} s"

    def read(value: str) -> float:
        match = _DURATION.fullmatch(value)
        if match is None or not value or len(value) > 20:
            raise InvalidValue(expected)
        hours, minutes, seconds = match.groups()
        total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)
        if not low <= total <= high:
            raise InvalidValue(expected)
        return total

    return read


def size(low: int, high: int) -> Callable[[str], int]:
    """Parses bytes, written `50MB`, `512kB`, `2GB` or plainly."""
    units = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}

    def read(value: str) -> int:
        match = re.fullmatch(r"(\d{1,15}) ?([kmg]b)?", value.lower(), re.ASCII)
        found = int(match[1]) * units[match[2] or ""] if match else -1
        if not low <= found <= high:
            raise InvalidValue(f"a size such as 50MB, from {low >> 20} MB")
        return found

    return read


def dollars(value: str) -> int:
    """Parses USDC, written `1` or `0.25`, to atomic units."""
    if not re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?", value, re.ASCII):
        raise InvalidValue("an amount of USDC such as 1 or 0.25, with at most six decimals")
    return atomic_units(value)


def one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise InvalidValue("one of " + ", ".join(choices))
        return value.lower()

    return read


def listed(item: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Parses comma-separated values; drops empty ones."""

    def read(value: str) -> tuple[T, ...]:
        return tuple(item(part.strip()) for part in value.split(",") if part.strip())

    return read


def module(value: str) -> str:
    if not _MODULE.fullmatch(value):
        raise InvalidValue("comma-separated names of Python modules, such as shop.agents,shop.tools")
    return value


def credentials(value: str) -> tuple[tuple[str, str], ...]:
    """Parses `name:secret,name:secret`; a secret may contain colons; names and secrets must be unique."""
    pairs = []
    for part in value.split(","):
        name, colon, secret = part.strip().partition(":")
        if not colon or not name.strip() or not secret.strip():
            raise InvalidValue("comma-separated name:secret pairs")
        pairs.append((name.strip(), secret.strip()))
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidValue("each name once")
    if len({secret for _, secret in pairs}) < len(pairs):
        raise InvalidValue("a different secret for each name")
    return tuple(pairs)


def kernel_limits(value: str) -> tuple[tuple[str, int, int], ...]:
    """Parses `name:executions a day:percent of the places`; the name `*` means every other kernel."""
    expected = "comma-separated name:executions per day:percent, such as alpha:5000:50,*:100:10"
    limits = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([^:]+):(\d{1,9}):(\d{1,3})\s*", part, re.ASCII)
        if match is None or not int(match[2]) or not 1 <= int(match[3]) <= 100:
            raise InvalidValue(expected)
        limits.append((match[1].strip(), int(match[2]), int(match[3])))
    if len({name for name, _, _ in limits}) < len(limits):
        raise InvalidValue("each name once")
    return tuple(limits)


def policy_hash(value: str) -> tuple[str, str]:
    """Parses `policy_id:hash`; the hash may be prefixed with `sha256:`."""
    policy_id, colon, digest = value.partition(":")
    digest = digest.removeprefix("sha256:")
    if not policy_id or not colon or not re.fullmatch(r"[0-9a-f]{64}", digest, re.ASCII):
        raise InvalidValue("comma-separated policy_id:hash pairs, each hash 64 lower-case hex digits")
    return policy_id, digest


def evidence_origin(value: str) -> str:
    """Parses a host name (implies https) or a full origin. There is no wildcard."""
    if "*" in value:
        raise InvalidValue("comma-separated hosts or origins, such as files.example")
    return origin(value if "://" in value else f"https://{value}")


def _split(value: str, expected: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as broken:
        raise InvalidValue(expected) from broken
    if port == 0 or any(ch.isspace() or not ch.isprintable() for ch in value):
        raise InvalidValue(expected)
    return parts


def web_url(value: str) -> str:
    """Parses an http(s) URL without credentials, query or fragment; strips the trailing slash."""
    expected = "an address such as https://worker.example, without user, query or fragment"
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise InvalidValue(expected)
    if parts.query or parts.fragment:
        raise InvalidValue(expected)
    return value.rstrip("/")


def rpc_url(value: str) -> str:
    expected = "the http(s) address of an Ethereum node"
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidValue(expected)
    return value


def origin(value: str) -> str:
    expected = "* or comma-separated origins, such as https://app.example"
    if value == "*":
        return value
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise InvalidValue(expected)
    if parts.path or parts.query or parts.fragment:
        raise InvalidValue(expected)
    return value


def redis_url(value: str) -> str:
    """Validates a store URL. Other options could override what the TLS settings guarantee."""
    try:
        parse(value)
    except BadAddress as bad:
        raise InvalidValue(EXPECTED) from bad
    return value


def certificate(value: str) -> str:
    """Reads PEM text, or the path of a file that contains it."""
    is_text = value.startswith("-----BEGIN")
    if not is_text:
        existing(value, expected="a PEM file, or the PEM text itself")
    if is_text and "\\n" in value:
        raise InvalidValue("PEM text with real line breaks instead of \\n, or the path of a PEM file")
    try:
        ssl.create_default_context(cadata=value if is_text else Path(value).read_text("ascii"))
    except (OSError, ValueError) as broken:  # an ssl.SSLError is an OSError
        raise InvalidValue("a whole certificate as PEM text, or the path of a PEM file") from broken
    return value


def existing(value: str, *, expected: str = "a file or directory that exists") -> str:
    try:
        found = Path(value).exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise InvalidValue(expected)
    return value


def files_url(value: str) -> str:
    expected = "a directory, or s3://bucket/prefix"
    if "://" not in value:
        return value
    parts = _split(value, expected)
    if parts.scheme != "s3" or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidValue(expected)
    return value.rstrip("/")


def network(value: str) -> str:
    """Returns the CAIP-2 name of a network whose dollar token we know."""
    found = NETWORKS.get(value.lower(), value.lower())
    if found not in NETWORKS.values():
        raise InvalidValue(" or ".join(f"{name} ({caip2})" for name, caip2 in NETWORKS.items()))
    return found


def is_test_network(caip2: str) -> bool:
    return caip2 == NETWORKS["base-sepolia"]


def email(value: str) -> str:
    if not re.fullmatch(r"[^\s@<>,]{1,64}@[A-Za-z0-9.-]{1,190}", value):
        raise InvalidValue("an e-mail address")
    return value


def guidance(value: str) -> str:
    """Guidance for callers' models; catalogs warn above 4,000 characters, and we add some of our own."""
    if len(value) > 3_000:
        raise InvalidValue("at most 3,000 characters")
    return value


def registration(value: str) -> tuple[str, int]:
    """An ERC-8004 registration: the registry's CAIP-10 name, and the agent's number there."""
    match = re.fullmatch(r"(eip155:\d{1,18}:0x[0-9a-fA-F]{40}):(\d{1,78})", value, re.ASCII)
    if match is None:
        raise InvalidValue("CHAIN:REGISTRY:ID, such as eip155:8453:0x8004...a432:22")
    return match[1], int(match[2])


def is_this_machine(url: str) -> bool:
    """Whether a URL points to the reader's own machine (a loopback name or address)."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host in LOOPBACK or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def private_key(value: str) -> str:
    """Parses a secp256k1 key: 0x and 64 lower-case hex digits."""
    digits = value.lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{64}", digits, re.ASCII) or not 0 < int(digits, 16) < _ORDER:
        raise InvalidValue("a secp256k1 private key of 64 hex digits")
    return "0x" + digits


def webhook_key(value: str) -> bytes:
    """Parses the 32 bytes of an ed25519 key: `whsk_` and base64, or 64 hex digits."""
    expected = "an ed25519 key of 32 bytes: whsk_ and base64, or 64 hex digits"
    if re.fullmatch(r"[0-9a-fA-F]{64}", value, re.ASCII):
        return bytes.fromhex(value)
    try:
        seed = base64.b64decode(value.removeprefix("whsk_"), validate=True)
    except (binascii.Error, ValueError) as broken:
        raise InvalidValue(expected) from broken
    if len(seed) != 32:
        raise InvalidValue(expected)
    return seed


def wallet(value: str) -> str:
    """Parses an address and checks its checksum: a mixed-case address with a wrong one was mistyped."""
    digits = value[2:]
    if not value.startswith("0x") or not re.fullmatch(r"[0-9a-fA-F]{40}", digits, re.ASCII):
        raise InvalidValue("an address: 0x and 40 hex digits")
    if is_mistyped(value):
        raise InvalidValue("an address whose checksum (the case of its letters) is right")
    return checksum_address(value)


def address_of(key: str) -> str:
    """Derives the address of a private key. Takes milliseconds; importing `eth_account` takes 0.4 s."""
    secret = bytes.fromhex(key.removeprefix("0x"))
    try:
        import coincurve
    except ImportError:
        from eth_keys.datatypes import PrivateKey

        point = PrivateKey(secret).public_key.to_bytes()
    else:
        point = coincurve.PublicKey.from_secret(secret).format(compressed=False)[1:]
    return address_of_point(point)


def bare(url: str) -> str:
    """Strips what may be secret from a URL: user, password, path and query."""
    try:
        parts = urlsplit(url)
        if parts.scheme.endswith("+sentinel"):
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/..."
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(an unreadable address)"
    if not parts.hostname:
        return f"{parts.scheme}:..." if parts.scheme else "(no address)"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    more = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{more}"

"""What the text of a setting can mean: durations, numbers, lists, addresses, keys, networks.

Each reader takes the text and returns the value, or raises `Unfit` with what it expected.
The text itself is never part of the message, because it may be a secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

T = TypeVar("T")

NETWORKS = {"base": "eip155:8453", "base-sepolia": "eip155:84532"}
TEST_CHAINS = frozenset({1328, 1337, 4801, 5042002, 31337, 43113, 80002, 84532, 421614, 11155111, 11155420})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d{1,6})?)s?)?", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)


class Unfit(ValueError):
    """The text does not fit; says what would."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def text(value: str) -> str:
    return value


def identifier(value: str) -> str:
    if not _IDENTIFIER.fullmatch(value):
        raise Unfit("1 to 128 letters, digits, _ or -")
    return value


def integer(low: int, high: int) -> Callable[[str], int]:
    expected = f"a whole number from {low} to {high}"

    def read(value: str) -> int:
        if not re.fullmatch(r"\d{1,9}", value, re.ASCII) or not low <= int(value) <= high:
            raise Unfit(expected)
        return int(value)

    return read


def duration(low: float, high: float) -> Callable[[str], float]:
    """Seconds, written `90`, `90s`, `5m`, `1h` or `1h30m`."""
    expected = f"a duration such as 30s, 5m or 1h, from {low:g} s to {high:g} s"

    def read(value: str) -> float:
        match = _DURATION.fullmatch(value)
        if match is None or not value or len(value) > 20:
            raise Unfit(expected)
        hours, minutes, seconds = match.groups()
        total = int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)
        if not low <= total <= high:
            raise Unfit(expected)
        return total

    return read


def dollars(value: str) -> int:
    """An amount of USDC in atomic units, written `1` or `0.25`."""
    match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,6}))?", value, re.ASCII)
    if match is None:
        raise Unfit("an amount of USDC such as 1 or 0.25, with at most six decimals")
    return int(match[1]) * 1_000_000 + int((match[2] or "").ljust(6, "0"))


def one_of(*choices: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in choices:
            raise Unfit("one of " + ", ".join(choices))
        return value.lower()

    return read


def listed(item: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Values between commas; empty ones are dropped."""

    def read(value: str) -> tuple[T, ...]:
        return tuple(item(part.strip()) for part in value.split(",") if part.strip())

    return read


def module(value: str) -> str:
    if not _MODULE.fullmatch(value):
        raise Unfit("names of Python modules between commas, such as shop.agents,shop.tools")
    return value


def credentials(value: str) -> tuple[tuple[str, str], ...]:
    """`name:secret,name:secret`; the secret may hold colons, a name or a secret may not repeat."""
    pairs = []
    for part in value.split(","):
        name, colon, secret = part.strip().partition(":")
        if not colon or not name.strip() or not secret.strip():
            raise Unfit("name:secret pairs between commas")
        pairs.append((name.strip(), secret.strip()))
    if len({name for name, _ in pairs}) < len(pairs):
        raise Unfit("each name once")
    if len({secret for _, secret in pairs}) < len(pairs):
        raise Unfit("a secret of its own for each name")
    return tuple(pairs)


def kernel_limits(value: str) -> tuple[tuple[str, int, int], ...]:
    """`name:executions a day:percent of the places`; the name `*` stands for every other kernel."""
    expected = "name:executions a day:percent between commas, such as alpha:5000:50,*:100:10"
    limits = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*([^:]+):(\d{1,9}):(\d{1,3})\s*", part, re.ASCII)
        if match is None or not int(match[2]) or not 1 <= int(match[3]) <= 100:
            raise Unfit(expected)
        limits.append((match[1].strip(), int(match[2]), int(match[3])))
    if len({name for name, _, _ in limits}) < len(limits):
        raise Unfit("each name once")
    return tuple(limits)


def policy_hash(value: str) -> tuple[str, str]:
    """`policy_id:hash`, the hash with or without `sha256:` before it."""
    policy_id, colon, digest = value.partition(":")
    digest = digest.removeprefix("sha256:")
    if not policy_id or not colon or not re.fullmatch(r"[0-9a-f]{64}", digest, re.ASCII):
        raise Unfit("policy_id:hash pairs between commas, each hash 64 lower-case hex digits")
    return policy_id, digest


def evidence_origin(value: str) -> str:
    """A host name, which means https, or a whole origin. There is no way to say all of them."""
    if "*" in value:
        raise Unfit("hosts or origins between commas, such as files.example")
    return origin(value if "://" in value else f"https://{value}")


def _split(value: str, expected: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as broken:
        raise Unfit(expected) from broken
    if port == 0 or any(ch.isspace() or not ch.isprintable() for ch in value):
        raise Unfit(expected)
    return parts


def web_url(value: str) -> str:
    """An http(s) address without credentials, query or fragment; no slash at its end."""
    expected = "an address such as https://worker.example, without user, query or fragment"
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise Unfit(expected)
    if parts.query or parts.fragment:
        raise Unfit(expected)
    return value.rstrip("/")


def rpc_url(value: str) -> str:
    expected = "the http(s) address of an Ethereum node"
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Unfit(expected)
    return value


def origin(value: str) -> str:
    expected = "* or origins between commas, such as https://app.example"
    if value == "*":
        return value
    parts = _split(value, expected)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise Unfit(expected)
    if parts.path or parts.query or parts.fragment:
        raise Unfit(expected)
    return value


def redis_url(value: str) -> str:
    """A store's address. Other options than `db` could undo what the TLS settings promise."""
    expected = "redis://host:port/0, rediss://... or unix:///path, with no option but db"
    parts = _split(value, expected)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise Unfit(expected)
    if not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise Unfit(expected)
    if parts.scheme != "unix" and not re.fullmatch(r"(/\d{0,3})?", parts.path, re.ASCII):
        raise Unfit(expected)
    if parts.fragment or (parts.query and not re.fullmatch(r"db=\d{1,3}", parts.query, re.ASCII)):
        raise Unfit(expected)
    return value


def certificate(value: str) -> str:
    """A PEM text, or the path of a file that holds one."""
    if value.startswith("-----BEGIN CERTIFICATE-----"):
        return value
    return existing(value, expected="a PEM file, or the PEM text itself")


def existing(value: str, *, expected: str = "a file or directory that exists") -> str:
    try:
        found = Path(value).exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise Unfit(expected)
    return value


def files_url(value: str) -> str:
    expected = "a directory, or s3://bucket/prefix"
    if "://" not in value:
        return value
    parts = _split(value, expected)
    if parts.scheme != "s3" or not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        raise Unfit(expected)
    return value.rstrip("/")


def network(value: str) -> str:
    """The CAIP-2 name of an EVM chain; `base` and `base-sepolia` stand for theirs."""
    found = NETWORKS.get(value.lower(), value.lower())
    if not re.fullmatch(r"eip155:[1-9]\d{0,17}", found, re.ASCII):
        raise Unfit("base, base-sepolia, or eip155: and a chain id")
    return found


def is_test_network(caip2: str) -> bool:
    return int(caip2.rpartition(":")[2]) in TEST_CHAINS


def private_key(value: str) -> str:
    """A secp256k1 key: 0x and 64 lower-case hex digits."""
    digits = value.lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{64}", digits, re.ASCII) or not 0 < int(digits, 16) < _ORDER:
        raise Unfit("a secp256k1 private key of 64 hex digits")
    return "0x" + digits


def webhook_key(value: str) -> bytes:
    """The 32 bytes of an ed25519 key: `whsk_` and base64, or 64 hex digits."""
    expected = "an ed25519 key of 32 bytes: whsk_ and base64, or 64 hex digits"
    if re.fullmatch(r"[0-9a-fA-F]{64}", value, re.ASCII):
        return bytes.fromhex(value)
    try:
        seed = base64.b64decode(value.removeprefix("whsk_"), validate=True)
    except (binascii.Error, ValueError) as broken:
        raise Unfit(expected) from broken
    if len(seed) != 32:
        raise Unfit(expected)
    return seed


def wallet(value: str) -> str:
    """An address with its checksum. A mixed-case address whose checksum is wrong was mistyped."""
    digits = value[2:]
    if not value.startswith("0x") or not re.fullmatch(r"[0-9a-fA-F]{40}", digits, re.ASCII):
        raise Unfit("an address: 0x and 40 hex digits")
    proper = _checksummed(digits.lower())
    if digits not in {digits.lower(), digits.upper()} and value != proper:
        raise Unfit("an address whose checksum (the case of its letters) is right")
    return proper


def address_of(key: str) -> str:
    """The address of a private key. Costs milliseconds where `eth_account` costs 0.4 s to import."""
    secret = bytes.fromhex(key.removeprefix("0x"))
    try:
        import coincurve
    except ImportError:
        from eth_keys.datatypes import PrivateKey

        point = PrivateKey(secret).public_key.to_bytes()
    else:
        point = coincurve.PublicKey.from_secret(secret).format(compressed=False)[1:]
    return _checksummed(_keccak(point)[-20:].hex())


def _checksummed(digits: str) -> str:
    marks = _keccak(digits.encode()).hex()
    return "0x" + "".join(
        c.upper() if int(mark, 16) > 7 else c for c, mark in zip(digits, marks, strict=False)
    )


def _keccak(data: bytes) -> bytes:
    from Crypto.Hash import keccak

    return keccak.new(digest_bits=256, data=data).digest()


def bare(url: str) -> str:
    """An address without what may be secret in it: user, password, path and query."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(an unreadable address)"
    if not parts.hostname:
        return f"{parts.scheme}:..." if parts.scheme else "(no address)"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    more = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{more}"

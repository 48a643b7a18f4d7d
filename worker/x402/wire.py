"""Decodes a seeker's payment: V2 in PAYMENT-SIGNATURE or V1 in X-PAYMENT, into one value.

Decoding is strict, because a payment is stored once and only the stored form is ever sent on.
offer.py decides whether it matches our offer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from worker.core.bounded_cache import BoundedCache, keep_by_length
from worker.core.evm import checksum_address, is_address, is_bytes32
from worker.core.json import ascii_of
from worker.x402.headers import PAYMENT_SIGNATURE, X_PAYMENT, decode, refuse
from worker.x402.networks import Network, find_network
from worker.x402.payment_keys import PaymentKey
from worker.x402.typed_data import UINT256_MAX, Authorization

PAYMENT_IDENTIFIER = "payment-identifier"
# The version in which the journal is read, unless a caller says another.
_RESTORED = 2

# Characters of payments that a process keeps decoded. One takes up to 22 times its text in memory: a header
# has 1 kB as a rule, 16 kB at most, and may consist of empty lists.
_KEPT_CHARS = 256 * 1024

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,77}")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{16,128}")
_OTHER_PAYLOADS = {
    "permit2Authorization": "permit2",
    "permit2": "permit2",
    "delegationManager": "erc7710",
    "transaction": "a signed transaction",
}


@dataclass(frozen=True, slots=True)
class Requirements:
    """The terms a seeker says they accepted, unchanged; offer.py compares them with ours."""

    scheme: str
    network: str
    asset: str
    amount: str
    pay_to: str
    max_timeout_seconds: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaymentPayload:
    """One payment in V2 form; `raw` is stored, and sent to facilitators, unchanged."""

    version: int
    accepted: Requirements
    authorization: Authorization
    signature: str
    extensions: Mapping[str, Any]
    resource: Mapping[str, Any] | None
    raw: Mapping[str, Any]

    @property
    def signature_bytes(self) -> bytes:
        return bytes.fromhex(self.signature[2:])

    @property
    def identifier(self) -> str | None:
        """Return the seeker's own idempotency key, if they sent one."""
        entry = self.extensions.get(PAYMENT_IDENTIFIER)
        info = entry.get("info") if isinstance(entry, dict) else None
        found = info.get("id") if isinstance(info, dict) else None
        return found if isinstance(found, str) else None

    def stored(self) -> str:
        """Return the JSON text to journal; `restore` reads it back.

        This process soon sends and settles what it journals, so it keeps what that text says: `raw`, which
        may differ from the other fields.
        """
        text = ascii_of(self.raw)
        document = Journaled(text, self.raw)
        if self.version == _RESTORED and self._is_its_raw:
            document.payment = self
        _JOURNALED.add(text, document, len(text))
        return text

    @property
    def _is_its_raw(self) -> bool:
        """Whether no part of `raw` was replaced since it was decoded."""
        same = self.raw.get("extensions", self.extensions) is self.extensions
        return same and self.raw.get("resource") is self.resource


def with_checksums(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a payment or our terms as sent to a facilitator: every address in EIP-55 form.

    It is the document itself if they are so already. A seeker, a contract or an older journal may have them
    in lower case. This changes no digest: the 20 bytes are what is signed.
    """
    changed: dict[str, Any] = {}
    for name, value in document.items():
        if name in ("accepted", "payload", "authorization") and isinstance(value, dict):
            checked: Any = with_checksums(value)
        elif name in ("asset", "payTo", "from", "to") and is_address(value):
            checked = checksum_address(value)
        else:
            continue
        if checked is not value and checked != value:
            changed[name] = checked
    return {**document, **changed} if changed else document


class Journaled(dict[str, Any]):
    """A payment or our terms as journaled. Nobody changes it, and all calls about it send the same bytes."""

    def __init__(self, text: str, document: Mapping[str, Any] | None = None) -> None:
        """`document`: what the text says, if that is known."""
        super().__init__(json.loads(text) if document is None else document)
        self._text = text

    @cached_property
    def payment(self) -> PaymentPayload:
        return _parse(self, version=_RESTORED)

    @cached_property
    def sent(self) -> bytes:
        """Its JSON as sent to a facilitator."""
        checked = with_checksums(self)
        if checked is self and self._text.isascii():
            return self._text.encode("ascii")
        return ascii_of(checked).encode("ascii")


_JOURNALED: BoundedCache[Journaled] = BoundedCache(_KEPT_CHARS)


def journaled(text: str) -> Journaled:
    """Parses what the journal has; a payment that is verified is soon settled."""
    found = _JOURNALED.get(text)
    if found is None:
        found = Journaled(text)
        _JOURNALED.add(text, found, len(text))
    return found


def sent_form(document: Mapping[str, Any]) -> bytes:
    """Return a payment or our terms as JSON for a facilitator."""
    return ascii_of(dict(with_checksums(document))).encode("ascii")


def payment_key(payment: PaymentPayload) -> str:
    """Return the key that identifies this payment: no chain accepts the same key twice."""
    accepted, authorization = payment.accepted, payment.authorization
    return str(PaymentKey(accepted.network, accepted.asset, authorization.payer, authorization.nonce))


def read_payment(headers: Mapping[str, str], requirements: Mapping[str, Any]) -> PaymentPayload | None:
    """Return the payment a request carries, None without one; `requirements` are our V2 terms.

    `headers` must find names in any case, as HTTP servers' mappings do.
    When both headers are present the V2 one counts, as in the published clients.
    """
    if (signature := headers.get(PAYMENT_SIGNATURE)) is not None:
        return decode_payment(signature)
    if (legacy := headers.get(X_PAYMENT)) is not None:
        return decode_v1_payment(legacy, requirements)
    return None


def read_any_payment(headers: Mapping[str, str], network: Network) -> PaymentPayload | None:
    """Return the payment in a request, whatever its purpose; None without one."""
    terms = {"asset": network.asset, "amount": "0", "payTo": "-", "maxTimeoutSeconds": 0}
    return read_payment(headers, terms)


def read_payment_key(headers: Mapping[str, str], network: Network) -> str | None:
    """Return the key of the payment in a request, whatever it was meant for; None without one."""
    payment = read_any_payment(headers, network)
    return None if payment is None else payment_key(payment)


# A request reads its payment twice, and others come between.
@keep_by_length(_KEPT_CHARS)
def decode_payment(header: str) -> PaymentPayload:
    """Return the payment in a PAYMENT-SIGNATURE header, or refuse it as malformed."""
    document = decode(header, PAYMENT_SIGNATURE)
    _expect_version(document, 2, PAYMENT_SIGNATURE)
    return _parse(document, version=2)


def decode_v1_payment(header: str, requirements: Mapping[str, Any]) -> PaymentPayload:
    """Return the payment in an X-PAYMENT header, in V2 form.

    V1 names only scheme and network; the rest of the accepted terms can only be ours.
    """
    document = decode(header, X_PAYMENT)
    _expect_version(document, 1, X_PAYMENT)
    name = _text(document, "network", "")
    network = find_network(name)
    accepted = {
        **requirements,
        "scheme": _text(document, "scheme", ""),
        "network": network.caip2 if network else name,
    }
    turned = {"x402Version": 2, "accepted": accepted, "payload": document.get("payload")}
    return _parse(turned, version=1)


def restore(stored: str, *, version: int = _RESTORED) -> PaymentPayload:
    """Return a payment from our own journal; `version` is the dialect its seeker speaks."""
    document = journaled(stored)
    return document.payment if version == _RESTORED else _parse(document, version=version)


def _parse(document: Mapping[str, Any], *, version: int) -> PaymentPayload:
    accepted = _object(document, "accepted", "")
    extensions = document.get("extensions")
    if extensions is not None and not isinstance(extensions, dict):
        refuse("extensions", "an object", extensions)
    resource = document.get("resource")
    if resource is not None and not isinstance(resource, dict):
        refuse("resource", "an object", resource)
    authorization, signature = _parse_payload(document.get("payload"))
    payment = PaymentPayload(
        version=version,
        accepted=_parse_requirements(accepted),
        authorization=authorization,
        signature=signature,
        extensions=extensions or {},
        resource=resource,
        raw=dict(document),
    )
    _check_identifier(payment)
    return payment


def _parse_requirements(accepted: dict[str, Any]) -> Requirements:
    seconds = accepted.get("maxTimeoutSeconds")
    if type(seconds) is not int:
        refuse("accepted.maxTimeoutSeconds", "an integer", seconds)
    extra = accepted.get("extra")
    if extra is not None and not isinstance(extra, dict):
        refuse("accepted.extra", "an object", extra)
    return Requirements(
        scheme=_text(accepted, "scheme", "accepted."),
        network=_text(accepted, "network", "accepted."),
        asset=_text(accepted, "asset", "accepted."),
        amount=_text(accepted, "amount", "accepted."),
        pay_to=_text(accepted, "payTo", "accepted."),
        max_timeout_seconds=seconds,
        extra=extra or {},
    )


def _parse_payload(payload: Any) -> tuple[Authorization, str]:
    if not isinstance(payload, dict):
        refuse("payload", "an object", payload)
    for key, kind in _OTHER_PAYLOADS.items():
        if key in payload:
            refuse("payload", "an EIP-3009 authorization", kind, reason="unsupported_payload_type")
    authorization = _object(payload, "authorization", "payload.")
    signature = _text(payload, "signature", "payload.")
    if len(signature) % 2 or _HEX.fullmatch(signature) is None:
        refuse("payload.signature", "0x and whole bytes of hex", "something else")
    where = "payload.authorization."
    nonce = _text(authorization, "nonce", where)
    if not is_bytes32(nonce):
        refuse(f"{where}nonce", "0x and 64 hex digits", nonce)
    parsed = Authorization(
        payer=_address(authorization, "from", where),
        to=_address(authorization, "to", where),
        value=_number(authorization, "value", where),
        valid_after=_number(authorization, "validAfter", where),
        valid_before=_number(authorization, "validBefore", where),
        nonce=nonce.lower(),
    )
    return parsed, signature.lower()


def _check_identifier(payment: PaymentPayload) -> None:
    entry = payment.extensions.get(PAYMENT_IDENTIFIER)
    if entry is None:
        return
    where = f"extensions.{PAYMENT_IDENTIFIER}"
    info = entry.get("info") if isinstance(entry, dict) else None
    if not isinstance(info, dict):
        refuse(f"{where}.info", "an object", info)
    found = info.get("id")
    if found is not None and not (isinstance(found, str) and _IDENTIFIER.fullmatch(found)):
        refuse(f"{where}.info.id", "16 to 128 letters, digits, - or _", found)


def _expect_version(document: dict[str, Any], wanted: int, name: str) -> None:
    version = document.get("x402Version")
    if type(version) is not int or version != wanted:
        refuse("x402Version", f"{wanted} in {name}", version, reason="invalid_x402_version")


def _object(parent: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        refuse(f"{where}{key}", "an object", value)
    return value


def _text(parent: Mapping[str, Any], key: str, where: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value:
        refuse(f"{where}{key}", "a string", value)
    return value


def _address(parent: Mapping[str, Any], key: str, where: str) -> str:
    value = _text(parent, key, where)
    if not is_address(value):
        refuse(f"{where}{key}", "0x and 40 hex digits", value)
    return value.lower()


def _number(parent: Mapping[str, Any], key: str, where: str) -> int:
    value = _text(parent, key, where)
    number = int(value) if _DECIMAL.fullmatch(value) else -1
    if not 0 <= number <= UINT256_MAX:
        refuse(f"{where}{key}", "a decimal string of at most 256 bits", value)
    return number

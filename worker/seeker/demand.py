"""Parses what a 402 asks for: the V2 header first, else the V1 body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.core.errors import BadRequest
from worker.seeker.problems import OfferRefused
from worker.x402.headers import PAYMENT_REQUIRED, decode

_AMOUNT = re.compile(r"0|[1-9][0-9]{0,18}")
_MOST = 20


@dataclass(frozen=True, slots=True)
class Demand:
    """One way to pay that a 402 offers. `accepted` is the offer as received."""

    version: int
    scheme: str
    network: str
    asset: str
    amount: int
    pay_to: str
    max_timeout_s: int
    resource_url: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    accepted: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaymentDemands:
    """All offers in a 402, and what it says about the payment sent with the request."""

    demands: tuple[Demand, ...]
    error: str


def read_asking(headers: Mapping[str, str], body: bytes) -> PaymentDemands:
    """Parse a 402; `headers` has lower-case names. Raises OfferRefused if no part can be understood."""
    header = headers.get(PAYMENT_REQUIRED.lower())
    document = _from_header(header) if header is not None else _from_body(body)
    version = document.get("x402Version")
    if version not in (1, 2) or (version == 2) != (header is not None):
        raise OfferRefused("the offer's x402 version is unknown", field="x402Version")
    accepts = document.get("accepts")
    if not isinstance(accepts, list) or not accepts:
        raise OfferRefused("the 402 offers no way to pay", field="accepts")
    read = _read_v2 if version == 2 else _read_v1
    demands = [found for each in accepts[:_MOST] if (found := read(document, each)) is not None]
    if not demands:
        raise OfferRefused("no offer in the 402 can be read", field="accepts")
    error = document.get("error")
    return PaymentDemands(tuple(demands), error if isinstance(error, str) else "")


def _from_header(header: str) -> dict[str, Any]:
    try:
        return decode(header, PAYMENT_REQUIRED)
    except BadRequest as fault:
        raise OfferRefused("the 402's header cannot be read", field=PAYMENT_REQUIRED) from fault


def _from_body(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OfferRefused("the 402 contains no usable offer", field=PAYMENT_REQUIRED)
    return found


def _read_v2(document: Mapping[str, Any], offered: Any) -> Demand | None:
    resource = document.get("resource")
    resource = resource if isinstance(resource, dict) else None
    extensions = document.get("extensions")
    return _demand(
        2,
        offered,
        "amount",
        resource_url=(resource or {}).get("url"),
        resource=resource,
        extensions=extensions if isinstance(extensions, dict) else {},
    )


def _read_v1(document: Mapping[str, Any], offered: Any) -> Demand | None:
    url = offered.get("resource") if isinstance(offered, dict) else None
    return _demand(1, offered, "maxAmountRequired", resource_url=url)


def _demand(
    version: int,
    offered: Any,
    amount_key: str,
    *,
    resource_url: Any,
    resource: Mapping[str, Any] | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> Demand | None:
    """None for an entry of another shape: other schemes may be listed beside one that we can pay."""
    if not isinstance(offered, dict):
        return None
    texts = [offered.get(key) for key in ("scheme", "network", "asset", "payTo", amount_key)]
    if not all(isinstance(text, str) for text in texts):
        return None
    scheme, network, asset, pay_to, amount = (str(text) for text in texts)
    seconds, extra = offered.get("maxTimeoutSeconds"), offered.get("extra")
    if not _AMOUNT.fullmatch(amount) or type(seconds) is not int:
        return None
    return Demand(
        version=version,
        scheme=scheme,
        network=network,
        asset=asset,
        amount=int(amount),
        pay_to=pay_to,
        max_timeout_s=seconds,
        resource_url=resource_url if isinstance(resource_url, str) else "",
        extra=extra if isinstance(extra, dict) else {},
        accepted=offered,
        resource=resource,
        extensions=extensions or {},
    )

"""Parsing a 402: both x402 versions, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.fake_worker import FakeWorker, ReceivedRequest
from worker.seeker.demand import read_asking
from worker.seeker.problems import OfferRefused
from worker.x402.headers import encode

GOT = ReceivedRequest("POST", "/execute", {}, b"")


def v2(**changes: Any) -> dict[str, str]:
    document = {**FakeWorker().offer().payment_required("payment required"), **changes}
    return {"payment-required": encode(document)}


def entry(**changes: Any) -> list[dict[str, Any]]:
    return [{**FakeWorker().offer().requirements(), **changes}]


def test_header_wins_over_the_body() -> None:
    """If both versions are offered, the newer one is used."""
    asked = FakeWorker().ask(GOT)
    asking = read_asking(asked.headers, asked.body)
    [demand] = asking.demands
    assert (demand.version, demand.amount, demand.network) == (2, 500_000, "eip155:84532")
    assert demand.resource_url == "https://worker.example/execute"
    assert asking.error == "payment required"


def test_body_is_read_without_a_header() -> None:
    """The V1 field names are parsed into the same value."""
    [demand] = read_asking({}, FakeWorker().ask(GOT).body).demands
    assert (demand.version, demand.amount, demand.network) == (1, 500_000, "base-sepolia")
    assert demand.resource_url == "https://worker.example/execute"


@pytest.mark.parametrize(
    "headers",
    [
        {"payment-required": "not base64!"},
        {"payment-required": encode({})},
        v2(x402Version=1),
        v2(x402Version=3),
        v2(accepts=[]),
        v2(accepts={}),
        v2(accepts=["x", None, 5]),
        v2(accepts=entry(amount="-5")),
        v2(accepts=entry(amount="0.5")),
        v2(accepts=entry(amount=500_000)),
        v2(accepts=entry(amount="9" * 20)),
        v2(accepts=entry(payTo=None)),
        v2(accepts=entry(maxTimeoutSeconds="600")),
        v2(accepts=entry(maxTimeoutSeconds=True)),
    ],
)
def test_malformed_header_is_refused_despite_a_valid_body(headers: dict[str, str]) -> None:
    """A malformed header is refused, even if the body is valid."""
    with pytest.raises(OfferRefused):
        read_asking(headers, FakeWorker().ask(GOT).body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"x402Version":2,"accepts":[{}]}']
)
def test_body_without_a_demand_is_refused(body: bytes) -> None:
    """HIRE's four headers alone, or junk, cannot be paid."""
    with pytest.raises(OfferRefused):
        read_asking({"x-payment-amount": "5"}, body)


def test_unknown_payment_methods_are_ignored() -> None:
    """Entries of an unknown shape are skipped."""
    strange = {"scheme": "exact", "network": "solana:main", "amount": {"max": 5}}
    [demand] = read_asking(v2(accepts=[strange, *entry()]), b"").demands
    assert demand.amount == 500_000


def test_v1_demand_without_its_amount_is_refused() -> None:
    """The V2 name of the amount field is not accepted in a V1 body."""
    document = json.loads(FakeWorker().ask(GOT).body)
    document["accepts"][0]["amount"] = document["accepts"][0].pop("maxAmountRequired")
    with pytest.raises(OfferRefused):
        read_asking({}, json.dumps(document).encode())

"""Reading a 402: both dialects, and nothing that is neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.seller import Got, Seller
from worker.payments.headers import encode
from worker.seeker.demand import read_asking
from worker.seeker.problems import OfferRefused

GOT = Got("POST", "/execute", {}, b"")


def v2(**changes: Any) -> dict[str, str]:
    document = {**Seller().offer().payment_required("payment required"), **changes}
    return {"payment-required": encode(document)}


def entry(**changes: Any) -> list[dict[str, Any]]:
    return [{**Seller().offer().requirements(), **changes}]


def test_the_header_counts_before_the_body() -> None:
    """Where both dialects ask, the newer one is answered."""
    asked = Seller().ask(GOT)
    asking = read_asking(asked.headers, asked.body)
    [demand] = asking.demands
    assert (demand.version, demand.amount, demand.network) == (2, 500_000, "eip155:84532")
    assert demand.resource_url == "https://worker.example/execute"
    assert asking.error == "payment required"


def test_the_body_counts_where_there_is_no_header() -> None:
    """The first version's own words are read into the same value."""
    [demand] = read_asking({}, Seller().ask(GOT).body).demands
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
def test_a_broken_header_is_refused_even_with_a_good_body(headers: dict[str, str]) -> None:
    """A header that cannot be read is not replaced by what the body says."""
    with pytest.raises(OfferRefused):
        read_asking(headers, Seller().ask(GOT).body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"x402Version":2,"accepts":[{}]}']
)
def test_a_body_that_asks_for_nothing_is_refused(body: bytes) -> None:
    """HIRE's own four headers alone, or junk, cannot be paid."""
    with pytest.raises(OfferRefused):
        read_asking({"x-payment-amount": "5"}, body)


def test_an_unknown_way_to_pay_may_stand_beside_ours() -> None:
    """Entries of another shape are passed over."""
    strange = {"scheme": "exact", "network": "solana:main", "amount": {"max": 5}}
    [demand] = read_asking(v2(accepts=[strange, *entry()]), b"").demands
    assert demand.amount == 500_000


def test_the_first_dialect_is_refused_without_its_amount() -> None:
    """A V2 word for the amount in a V1 body is not taken for it."""
    document = json.loads(Seller().ask(GOT).body)
    document["accepts"][0]["amount"] = document["accepts"][0].pop("maxAmountRequired")
    with pytest.raises(OfferRefused):
        read_asking({}, json.dumps(document).encode())

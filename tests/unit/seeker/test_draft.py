"""From a manifest to a draft."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.seller import SEEKER, WORKER, Seller
from worker.contracts.schema import check_contract
from worker.contracts.terms import AFTER_WORK, CapabilityOffer, Listing, parse_terms, refusals
from worker.errors import BadRequest, Problem
from worker.payments.networks import BASE, BASE_SEPOLIA
from worker.seeker.draft import Order, draft, read_listing
from worker.seeker.problems import AnswerUnreadable, OfferRefused

NOW = 1_700_000_000.0
LISTING = Listing(
    agent_id="agent_worker",
    wallet=WORKER,
    network=BASE_SEPOLIA.caip2,
    network_names=frozenset({"base-sepolia"}),
    production=True,
    capabilities={"logo-design": CapabilityOffer(500_000, 30_000, "before_work")},
    min_lead_us=120_000_000,
)


def manifest(**changes: Any) -> dict[str, Any]:
    return {**Seller().manifest(), **changes}


@pytest.mark.parametrize(
    "order",
    [
        Order("logo-design"),
        Order("logo-design", webhook="https://seeker.example/hook", settlement="before_work", price="0.75"),
        Order("logo-design", output_schema={"type": "object"}, description="Three logos", deadline_s=600),
    ],
)
def test_a_draft_is_one_that_our_own_worker_signs(order: Order) -> None:
    """It fits the schema, and a worker in production finds nothing to refuse."""
    document = draft(read_listing(manifest(), "logo-design"), order, SEEKER, NOW)
    check_contract(document, draft=True)
    terms = parse_terms(document)
    refusals(terms, document, LISTING, int(NOW * 1e6))
    assert terms.price == (750_000 if order.price else 500_000)
    assert terms.settlement == (order.settlement or AFTER_WORK)
    assert terms.deadline == int((NOW + order.deadline_s) * 1e6)
    assert (terms.webhook or {}).get("url") == order.webhook


def test_no_two_drafts_share_an_id() -> None:
    """The id opens the result, so it is made anew each time."""
    listed = read_listing(manifest(), "logo-design")
    assert len({draft(listed, Order("logo-design"), SEEKER, NOW)["contract_id"] for _ in range(20)}) == 20


def test_money_is_taken_before_the_work_only_where_that_was_ordered() -> None:
    """A worker's wish to be paid first does not change the terms by itself."""
    first = Seller().manifest()
    first["capabilities"][0]["settle"] = "before_work"
    listed = read_listing(first, "logo-design")
    assert listed.before_work
    assert "settlement" not in draft(listed, Order("logo-design"), SEEKER, NOW)["terms"]


def test_silence_about_the_network_means_hires_own() -> None:
    """A manifest without our extension is of a worker on Base."""
    assert read_listing(manifest(metadata={}), "logo-design").network is BASE
    assert read_listing(manifest(metadata=None), "logo-design").network is BASE
    for strange in ("eip155:1", 5, ""):
        with pytest.raises(OfferRefused):
            read_listing(manifest(metadata={"network": strange}), "logo-design")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"capabilities": {}},
        manifest(agent={}),
        manifest(agent={"id": "a", "owner": {"wallet": "0x12"}}),
        manifest(endpoint={}),
        manifest(endpoint="https://x"),
        manifest(capabilities=[{"name": "logo-design"}]),
        manifest(capabilities=[{"name": "logo-design", "pricing": {"amount": 5, "currency": "USDC"}}]),
    ],
)
def test_what_is_no_manifest_is_told(document: Any) -> None:
    """The field that is missing is named, whatever came."""
    with pytest.raises(Problem) as raised:
        read_listing(document, "logo-design")
    assert isinstance(raised.value, AnswerUnreadable | BadRequest)


def test_what_is_not_offered_is_told_with_what_is() -> None:
    """The refusal lists the worker's capabilities."""
    with pytest.raises(BadRequest) as raised:
        read_listing(manifest(), "translation")
    assert raised.value.details["expected"] == ["logo-design"]


def test_another_currency_is_refused() -> None:
    """A number in another coin is no price."""
    other = Seller().manifest()
    other["capabilities"][0]["pricing"]["currency"] = "EURC"
    with pytest.raises(OfferRefused):
        read_listing(other, "logo-design")

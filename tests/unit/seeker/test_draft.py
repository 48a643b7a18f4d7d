"""From a manifest to a draft."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.fake_worker import SEEKER, WORKER, FakeWorker
from worker.contracts.terms import AFTER_WORK, CapabilityOffer, Listing, parse_terms, refusals
from worker.core.errors import BadRequest, Problem
from worker.schemas.validators import check_contract
from worker.seeker.draft import Order, draft, read_listing
from worker.seeker.problems import AnswerUnreadable, OfferRefused
from worker.x402.networks import BASE, BASE_SEPOLIA

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
    return {**FakeWorker().manifest(), **changes}


@pytest.mark.parametrize(
    "order",
    [
        Order("logo-design"),
        Order("logo-design", webhook="https://seeker.example/hook", settlement="before_work", price="0.75"),
        Order("logo-design", output_schema={"type": "object"}, description="Three logos", deadline_s=600),
    ],
)
def test_draft_is_accepted_by_our_worker(order: Order) -> None:
    """The draft fits the schema, and a production worker accepts it."""
    document = draft(read_listing(manifest(), "logo-design"), order, SEEKER, NOW)
    check_contract(document, draft=True)
    terms = parse_terms(document)
    refusals(terms, document, LISTING, int(NOW * 1e6))
    assert terms.price == (750_000 if order.price else 500_000)
    assert terms.settlement == (order.settlement or AFTER_WORK)
    assert terms.deadline == int((NOW + order.deadline_s) * 1e6)
    assert (terms.webhook or {}).get("url") == order.webhook


def test_draft_ids_are_unique() -> None:
    """The id gives access to the result, so each draft gets a new one."""
    listed = read_listing(manifest(), "logo-design")
    assert len({draft(listed, Order("logo-design"), SEEKER, NOW)["contract_id"] for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("settle", "ordered", "drafted"),
    [
        ("before_work", None, "before_work"),
        ("before_work", "after_work", "after_work"),
        ("after_work", None, None),
        ("after_work", "before_work", "before_work"),
    ],
)
def test_settlement_mode_follows_the_manifest(settle: str, ordered: str | None, drafted: str | None) -> None:
    """Streams are paid before the work: without that term in the contract no chunk would be sent early."""
    offered = FakeWorker().manifest()
    offered["capabilities"][0]["settle"] = settle
    listed = read_listing(offered, "logo-design")
    document = draft(listed, Order("logo-design", settlement=ordered), SEEKER, NOW)
    assert document["terms"].get("settlement") == drafted


def test_missing_network_means_base() -> None:
    """A manifest without our extension describes a worker on Base."""
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
def test_invalid_manifest_is_reported(document: Any) -> None:
    """The missing field is named, whatever the document is."""
    with pytest.raises(Problem) as raised:
        read_listing(document, "logo-design")
    assert isinstance(raised.value, AnswerUnreadable | BadRequest)


def test_unknown_capability_lists_the_offered_ones() -> None:
    """The refusal lists the worker's capabilities."""
    with pytest.raises(BadRequest) as raised:
        read_listing(manifest(), "translation")
    assert raised.value.details["expected"] == ["logo-design"]


def test_unknown_currency_is_refused() -> None:
    """A price in another currency is refused."""
    other = FakeWorker().manifest()
    other["capabilities"][0]["pricing"]["currency"] = "EURC"
    with pytest.raises(OfferRefused):
        read_listing(other, "logo-design")

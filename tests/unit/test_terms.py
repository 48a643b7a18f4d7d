"""Parsing a contract's terms, and which contracts are not signed."""

from __future__ import annotations

import copy
import json
from dataclasses import FrozenInstanceError, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contracts.ids import new_contract_id
from worker.contracts.refund_terms import HONOURED
from worker.contracts.terms import (
    CapabilityOffer,
    Listing,
    Terms,
    parse_terms,
    refusals,
    which_capability,
)
from worker.core.canonical import contract_hash
from worker.core.errors import Problem
from worker.core.fields import parse_time

EXAMPLE = json.loads(
    (Path(__file__).parents[2] / "contracts" / "examples" / "contract-draft.json").read_text("utf-8")
)
NOW = parse_time("2026-01-30T10:30:00Z", "now")
SECOND = 1_000_000


class RemovedTerm:
    """Marks a term to remove; its repr is the same in every process."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = RemovedTerm()
OFFER = Listing(
    agent_id="agent_worker001",
    wallet="0x1563915e194d8cfba1943570603f7606a3115508",
    network="eip155:8453",
    network_names=frozenset({"base"}),
    production=True,
    capabilities={"review-score": CapabilityOffer(price=500_000, max_latency_ms=30_000)},
    min_lead_us=120 * SECOND,
)
OTHER = "0x00000000000000000000000000000000000000aa"


def changed(path: str, value: Any, base: dict[str, Any] = EXAMPLE) -> dict[str, Any]:
    """Return a copy of the example with the value at a dotted path replaced or, for ABSENT, removed."""
    contract = copy.deepcopy(base)
    *way, last = path.split(".")
    place: Any = contract
    for part in way:
        place = place.setdefault(part, {})
    if value is ABSENT:
        place.pop(last, None)
    else:
        place[last] = value
    return contract


def decide(contract: dict[str, Any], offer: Listing = OFFER, now: int = NOW) -> None:
    refusals(parse_terms(contract), contract, offer, now)


def refusal(contract: dict[str, Any], offer: Listing = OFFER, now: int = NOW) -> Problem:
    with pytest.raises(Problem) as caught:
        decide(contract, offer, now)
    return caught.value


def test_example_contract_is_parsed():
    """Every term of the shipped draft is parsed: amounts in units, times in microseconds, text verbatim."""
    assert parse_terms(EXAMPLE) == Terms(
        contract_id="ctr_7k2m9qx4v8n1c6t3b5w0zr8yhj",
        created_at=NOW,
        seeker_agent="agent_seeker001",
        seeker_wallet="0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A",
        worker_agent="agent_worker001",
        worker_wallet="0x1563915e194D8CfBA1943570603F7606A3115508",
        price=500_000,
        price_text="0.5",
        currency="USDC",
        network="base",
        deadline=NOW + (25 * 3600 + 1800) * SECOND,
        trigger="on_delivery",
        settlement="after_work",
        fee_percentage=Decimal(1),
        fee_wallet="0x00000000000000000000000000000000000000fe",
        max_latency_ms=60_000,
        retries=3,
        refund_conditions=("deadline_missed", "output_schema_invalid"),
        capability="review-score",
        input_schema={},
        output_schema=EXAMPLE["task"]["output_schema"],
        webhook={"url": "https://seeker.example/hooks/hire"},
    )


def test_terms_are_immutable():
    """Terms are immutable."""
    with pytest.raises(FrozenInstanceError):
        parse_terms(EXAMPLE).price = 1


def test_example_contract_is_signed():
    """The shipped draft is accepted, up to the last acceptable moment."""
    decide(EXAMPLE)
    decide(EXAMPLE, now=NOW + 600 * SECOND)
    decide(EXAMPLE, now=NOW - 600 * SECOND)


def test_optional_fields_have_defaults():
    """Without sla, schemas, capability and webhook: no limit, no retries, no conditions, after the work."""
    contract = copy.deepcopy(EXAMPLE)
    del contract["sla"], contract["webhook"]
    contract["task"] = {"description": "anything"}
    terms = parse_terms(contract)
    assert (terms.max_latency_ms, terms.retries, terms.refund_conditions) == (None, 0, ())
    assert (terms.capability, terms.input_schema, terms.output_schema, terms.webhook) == (None,) * 4
    assert terms.settlement == "after_work"
    decide(contract)


@pytest.mark.parametrize(
    ("policy", "retries"),
    [
        ("3 attempts", 3),
        ("3", 3),
        (" 2 retries, then give up", 2),
        ("1x", 1),
        ("03 attempts", 3),
        ("3 attempts. Or 5", 3),
        (3, 3),
        (3.0, 3),
        (0, 0),
        ("0 attempts", 0),
        ("three attempts", 0),
        ("up to 3 attempts", 0),
        ("3.5 attempts", 0),
        ("-1", 0),
        (-1, 0),
        (2.5, 0),
        (True, 0),
        ("", 0),
        ("\u0663 attempts", 0),
        ({"times": 3}, 0),
        ([3], 0),
        (None, 0),
        ("9" * 100_000, 999_999_999),
        (float("inf"), 0),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_retry_policies_are_parsed(policy, retries):
    """A leading or bare integer is the number of free retries; missing or unparsable means none."""
    assert parse_terms(changed("sla.retry_policy", policy)).retries == retries


@pytest.mark.parametrize("path", ["sla.retry_policy", "sla.max_latency_ms", "terms.platform_fee.percentage"])
def test_equal_hashes_mean_equal_terms(path):
    """2 and 2.0 have the same hash, so they must be the same term."""
    whole, point = changed(path, 2), changed(path, 2.0)
    assert contract_hash(whole) == contract_hash(point)
    assert parse_terms(whole) == parse_terms(point)


def test_fee_keeps_its_decimal():
    """A fraction of a percent is not changed by binary floating point."""
    assert parse_terms(changed("terms.platform_fee.percentage", 1.1)).fee_percentage == Decimal("1.1")
    assert parse_terms(changed("terms.platform_fee.percentage", 0.000001)).fee_percentage == Decimal(
        "0.000001"
    )


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("contract_id", ABSENT, "contract_id"),
        ("contract_id", "a b", "contract_id"),
        ("contract_id", "ctr_abc\n", "contract_id"),
        ("created_at", "now", "created_at"),
        ("parties", ABSENT, "parties.seeker.agent_id"),
        ("parties.worker", [], "parties.worker.agent_id"),
        ("parties.worker.wallet", ABSENT, "parties.worker.wallet"),
        ("terms.price", "5 USDC", "terms.price.amount"),
        ("terms.price.amount", 5, "terms.price.amount"),
        ("terms.price.amount", "0.0000001", "terms.price.amount"),
        ("terms.price.amount", "-1", "terms.price.amount"),
        ("terms.price.amount", "1e3", "terms.price.amount"),
        ("terms.deadline", "2026-01-31", "terms.deadline"),
        ("terms.deadline", ABSENT, "terms.deadline"),
        ("terms.payment_trigger", None, "terms.payment_trigger"),
        ("terms.settlement", 1, "terms.settlement"),
        ("terms.platform_fee", ABSENT, "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", "1", "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", True, "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", -1, "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", float("nan"), "terms.platform_fee.percentage"),
        ("terms.platform_fee.wallet", ABSENT, "terms.platform_fee.wallet"),
        ("sla.max_latency_ms", "1000", "sla.max_latency_ms"),
        ("sla.max_latency_ms", -1, "sla.max_latency_ms"),
        ("sla.max_latency_ms", 1.5, "sla.max_latency_ms"),
        ("sla.max_latency_ms", float("inf"), "sla.max_latency_ms"),
        ("sla.refund_conditions", "no_response", "sla.refund_conditions"),
        ("task.capability", 1, "task.capability"),
        ("webhook", "https://seeker.example", "webhook"),
    ],
)
def test_invalid_terms_are_refused_without_the_schema(path, value, field):
    """Parsing never assumes a validated schema: missing or malformed terms are refused by path."""
    with pytest.raises(Problem) as caught:
        parse_terms(changed(path, value))
    assert caught.value.status == 400
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("version", "HIRE/2.0", "VERSION_UNSUPPORTED"),
        ("version", "HIRE/10.0", "VERSION_UNSUPPORTED"),
        ("parties.worker.agent_id", "agent_other", "CONTRACT_PARTY_MISMATCH"),
        ("parties.worker.agent_id", "AGENT_WORKER001", "CONTRACT_PARTY_MISMATCH"),
        ("parties.worker.wallet", OTHER, "CONTRACT_PARTY_MISMATCH"),
        ("parties.worker.wallet", "", "CONTRACT_PARTY_MISMATCH"),
        ("parties.seeker.wallet", "alice.eth", "CONTRACT_PARTY_MISMATCH"),
        ("terms.price.amount", "0.499999", "PRICE_TOO_LOW"),
        ("terms.price.amount", "0", "PRICE_TOO_LOW"),
        ("terms.price.currency", "EURC", "CURRENCY_UNSUPPORTED"),
        ("terms.price.currency", "usdc", "CURRENCY_UNSUPPORTED"),
        ("terms.price.network", "base-sepolia", "NETWORK_UNSUPPORTED"),
        ("terms.price.network", "eip155:84532", "NETWORK_UNSUPPORTED"),
        ("terms.price.network", "", "NETWORK_UNSUPPORTED"),
        ("terms.payment_trigger", "on_acceptance", "UNSUPPORTED_PAYMENT_TRIGGER"),
        ("terms.payment_trigger", "escrow", "UNSUPPORTED_PAYMENT_TRIGGER"),
        ("terms.payment_trigger", "milestone", "UNSUPPORTED_PAYMENT_TRIGGER"),
        ("terms.payment_trigger", "whenever", "UNSUPPORTED_PAYMENT_TRIGGER"),
        ("terms.settlement", "before_work", "SETTLEMENT_UNSUPPORTED"),
        ("terms.settlement", "never", "SETTLEMENT_UNSUPPORTED"),
        ("sla.refund_conditions", ["no_response", "quality_rejected"], "REFUND_CONDITION_UNSUPPORTED"),
        ("created_at", "2026-01-30T10:19:59Z", "CREATED_AT_OUT_OF_WINDOW"),
        ("created_at", "2026-01-30T10:40:00.000001Z", "CREATED_AT_OUT_OF_WINDOW"),
        ("terms.deadline", "2026-01-30T10:31:59.999999Z", "DEADLINE_TOO_SOON"),
        ("terms.deadline", "2020-01-01T00:00:00Z", "DEADLINE_TOO_SOON"),
        ("terms.deadline", "2026-02-06T10:30:00.000001Z", "DEADLINE_TOO_FAR"),
        ("sla.max_latency_ms", 29_999, "LATENCY_TOO_SHORT"),
        ("sla.max_latency_ms", 0, "LATENCY_TOO_SHORT"),
        ("sla.retry_policy", "4 attempts", "TOO_MANY_RETRIES"),
        ("sla.retry_policy", "9" * 5000, "TOO_MANY_RETRIES"),
        ("terms.platform_fee.percentage", 2.000001, "PLATFORM_FEE_TOO_HIGH"),
        ("terms.platform_fee.percentage", 100, "PLATFORM_FEE_TOO_HIGH"),
        ("terms.platform_fee.wallet", "", "PLATFORM_FEE_UNPAYABLE"),
        ("terms.platform_fee.wallet", "0x" + "0" * 40, "PLATFORM_FEE_UNPAYABLE"),
        ("contract_id", "ctr_abc123", "CONTRACT_ID_WEAK"),
        ("task.output_schema", {"$ref": "https://example.org/x"}, "SCHEMA_REFUSED"),
        ("task.input_schema", {"$ref": "https://example.org/x"}, "SCHEMA_REFUSED"),
        ("task.output_schema", {"description": "x" * 40_000}, "SCHEMA_REFUSED"),
        ("task.output_schema", False, "SCHEMA_REFUSED"),
        ("version", "HIRE/1.99999", "VERSION_UNSUPPORTED"),
        ("version", "HIRE/1.07", "VERSION_UNSUPPORTED"),
        ("parties.seeker.wallet", OFFER.wallet, "CONTRACT_PARTY_MISMATCH"),
        ("parties.seeker.wallet", "0x" + "0" * 40, "CONTRACT_PARTY_MISMATCH"),
        ("parties.seeker.wallet", "0xAb" + "ab" * 19, "CONTRACT_PARTY_MISMATCH"),
        ("terms.platform_fee.wallet", "0xAb" + "ab" * 19, "PLATFORM_FEE_UNPAYABLE"),
        ("terms.platform_fee.percentage", 1e-320, "PLATFORM_FEE_UNPAYABLE"),
        ("terms.platform_fee.percentage", 0.1234567, "PLATFORM_FEE_UNPAYABLE"),
        ("sla.retry_policy", -1, "TERMS_REFUSED"),
        ("sla.retry_policy", "-1 attempts", "TERMS_REFUSED"),
        ("terms.late_penalty", "5 USDC", "TERMS_REFUSED"),
        ("terms.tip", 1, "TERMS_REFUSED"),
        ("terms.price.discount", "10 %", "TERMS_REFUSED"),
        ("terms.platform_fee.minimum_fee", "1", "TERMS_REFUSED"),
        ("sla.refund_percentage", 50, "TERMS_REFUSED"),
        ("task.capability", "logo-design", "CAPABILITY_UNAVAILABLE"),
        ("task.capability", "", "CAPABILITY_UNAVAILABLE"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_unacceptable_terms_are_refused_at_signing(path, value, code):
    """Each term we do not sign is refused with its code and the field to change."""
    found = refusal(changed(path, value))
    assert (found.code, found.status) == (code, 422)
    assert found.details["field"].startswith(path)
    assert found.charged is False
    json.dumps(found.details)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", "HIRE/1.7"),
        ("parties.worker.wallet", OFFER.wallet.lower()),
        ("parties.worker.wallet", "0x" + OFFER.wallet[2:].upper()),
        ("terms.price.amount", "0.500000"),
        ("terms.price.amount", "500"),
        ("terms.price.network", "eip155:8453"),
        ("terms.settlement", "after_work"),
        ("created_at", "2026-01-30T10:20:00Z"),
        ("created_at", "2026-01-30T10:40:00Z"),
        ("terms.deadline", "2026-01-30T10:32:00Z"),
        ("terms.deadline", "2026-02-06T10:30:00Z"),
        ("sla.max_latency_ms", 30_000),
        ("sla.retry_policy", 3),
        ("terms.platform_fee.percentage", 2),
        ("terms.platform_fee", {"percentage": 0, "wallet": ""}),
        ("task.capability", ABSENT),
        ("task.output_schema", True),
        ("task.output_schema", None),
        ("contract_id", "0b0e8a2e-1c6f-4b1c-9a55-1c2d3e4f5a6b"),
        ("extension", {"anything": [1]}),
        ("terms.governing_law", "none"),
        ("terms.platform_fee.percentage", 0.123456),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_terms_at_the_limit_are_signed(path, value):
    """The last acceptable value of each term is accepted."""
    decide(changed(path, value))


def test_weak_contract_id_is_not_echoed():
    """The refusal of a guessable id states its bits and does not contain the id."""
    found = refusal(changed("contract_id", "ctr_abc123"))
    assert "abc123" not in json.dumps([found.message, found.details, found.advice])
    assert "bits" in found.details["received"]


def test_generated_ids_are_strong_enough():
    """A draft whose id we generated is not refused for it."""
    for _ in range(50):
        decide(changed("contract_id", new_contract_id()))


def test_network_base_means_the_configured_network():
    """Outside production base means the configured network; in production that must be exactly base."""
    sepolia = replace(OFFER, network="eip155:84532", network_names=frozenset({"base-sepolia"}))
    assert refusal(EXAMPLE, sepolia).code == "NETWORK_UNSUPPORTED"
    laptop = replace(sepolia, production=False)
    decide(EXAMPLE, laptop)
    for name in ("base-sepolia", "eip155:84532"):
        decide(changed("terms.price.network", name), laptop)
        decide(changed("terms.price.network", name), sepolia)
    assert refusal(changed("terms.price.network", "eip155:8453"), laptop).code == "NETWORK_UNSUPPORTED"


def test_settlement_before_work_needs_both_sides():
    """before_work is signed if the capability offers it; without the term it is after_work."""
    early = replace(
        OFFER, capabilities={"review-score": CapabilityOffer(500_000, 30_000, settle="before_work")}
    )
    decide(changed("terms.settlement", "before_work"), early)
    decide(EXAMPLE, early)
    assert parse_terms(EXAMPLE).settlement == "after_work"
    assert refusal(changed("terms.settlement", "soon"), early).code == "SETTLEMENT_UNSUPPORTED"


def test_capability_selection():
    """The named capability, else the only one; several without a name are ambiguous, none is unavailable."""
    one = {"a": CapabilityOffer(1, 1)}
    two = {**one, "b": CapabilityOffer(2, 1)}
    named = parse_terms(changed("task.capability", "b"))
    silent = parse_terms(changed("task.capability", ABSENT))
    assert which_capability(named, two) == "b"
    assert which_capability(silent, one) == "a"
    for terms, offered, code in (
        (named, one, "CAPABILITY_UNAVAILABLE"),
        (silent, {}, "CAPABILITY_UNAVAILABLE"),
        (silent, two, "CAPABILITY_AMBIGUOUS"),
    ):
        with pytest.raises(Problem) as caught:
            which_capability(terms, offered)
        assert (caught.value.code, caught.value.details["field"]) == (code, "task.capability")


def test_price_and_latency_follow_the_capability():
    """With several capabilities each contract is checked against the one it names."""
    offer = replace(
        OFFER,
        capabilities={
            "cheap": CapabilityOffer(price=100_000, max_latency_ms=1_000),
            "dear": CapabilityOffer(price=600_000, max_latency_ms=90_000),
        },
    )
    decide(changed("task.capability", "cheap"), offer)
    assert refusal(changed("task.capability", "dear"), offer).code == "PRICE_TOO_LOW"
    paid = changed("task.capability", "dear", changed("terms.price.amount", "0.6"))
    assert refusal(paid, offer).code == "LATENCY_TOO_SHORT"
    assert refusal(EXAMPLE, offer).code == "CAPABILITY_UNAVAILABLE"
    assert refusal(changed("task.capability", ABSENT), offer).code == "CAPABILITY_AMBIGUOUS"


def test_fee_policy_is_the_operators():
    """A limit other than two percent can be set."""
    assert refusal(EXAMPLE, replace(OFFER, max_fee_percentage=Decimal("0.5"))).code == "PLATFORM_FEE_TOO_HIGH"
    decide(changed("terms.platform_fee.percentage", 5), replace(OFFER, max_fee_percentage=Decimal(5)))


def test_first_reason_is_reported():
    """With everything wrong the parties are reported first, and fixing them reveals the next error."""
    contract = changed("terms.price.amount", "0.1", changed("parties.worker.wallet", OTHER))
    assert refusal(contract).code == "CONTRACT_PARTY_MISMATCH"
    assert refusal(changed("parties.worker.wallet", OFFER.wallet, contract)).code == "PRICE_TOO_LOW"


@given(st.integers(-(10**15), 10**15), st.integers(0, 2 * 10**6), st.integers(0, 10))
def test_signed_terms_satisfy_every_rule(shift, price, retries):
    """Every accepted contract has price, times and retries within policy."""
    contract = changed("terms.price.amount", f"{price // 10**6}.{price % 10**6:06d}")
    contract = changed("sla.retry_policy", retries, contract)
    now = NOW + shift
    try:
        decide(contract, now=now)
        accepted = True
    except Problem:
        accepted = False
    deadline = parse_time(contract["terms"]["deadline"], "deadline")
    assert accepted == (
        price >= 500_000
        and retries <= 3
        and abs(shift) <= 600 * SECOND
        and 120 * SECOND <= deadline - now <= 7 * 86_400 * SECOND
    )


@pytest.mark.parametrize("condition", HONOURED)
def test_supported_refund_condition_is_signed(condition: str) -> None:
    """A condition that we honour automatically may be promised."""
    decide(changed("sla.refund_conditions", [condition]))


def test_unsupported_refund_names_the_supported_ones() -> None:
    """The refusal gives the condition's location and the supported conditions."""
    details = refusal(changed("sla.refund_conditions", ["deadline_missed", "quality_rejected"])).details
    assert details["field"] == "sla.refund_conditions[1]"
    assert (details["expected"], details["received"]) == (list(HONOURED), "quality_rejected")

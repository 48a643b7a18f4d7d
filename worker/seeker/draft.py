"""Builds a contract, complete except for signatures, from a worker's manifest and a seeker's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from worker.contracts.ids import new_contract_id
from worker.contracts.terms import BEFORE_WORK, CURRENCY, TRIGGER
from worker.core.amounts import to_atomic
from worker.core.errors import BadRequest
from worker.core.evm import is_address
from worker.seeker.problems import AnswerUnreadable, OfferRefused, plain
from worker.x402.networks import BASE, Network, find_network

ZERO_WALLET = "0x" + "0" * 40
SEEKER_ID = "agent_seeker"
DEADLINE_SECONDS = 7_200.0
RETRIES = 3


@dataclass(frozen=True, slots=True)
class Order:
    """What to buy, and on which terms. Omitted fields are taken from the worker's manifest."""

    capability: str
    description: str = ""
    price: str | None = None
    deadline_s: float = DEADLINE_SECONDS
    settlement: str | None = None
    webhook: str | None = None
    output_schema: Any = None
    agent_id: str = SEEKER_ID


@dataclass(frozen=True, slots=True)
class ListedCapability:
    """What a manifest says about one capability and its payee."""

    worker_id: str
    wallet: str
    url: str
    network: Network
    capability: str
    price: str
    description: str
    before_work: bool
    webhook_key: str = ""

    @property
    def amount(self) -> int:
        return to_atomic(self.price, field="capabilities.pricing.amount")


def read_listing(manifest: Any, capability: str) -> ListedCapability:
    """Read one capability of a manifest, as far as a hire needs it."""
    offered = _list(manifest, "capabilities")
    names = [plain(each.get("name"), 60) for each in offered if isinstance(each, dict)]
    found = next(
        (each for each in offered if isinstance(each, dict) and each.get("name") == capability), None
    )
    if found is None:
        raise BadRequest(
            "the worker has no such capability",
            code="CAPABILITY_UNAVAILABLE",
            field="capability",
            expected=sorted(names)[:30],
            received=capability,
            advice="Name one that it offers.",
        )
    wallet = _text(manifest, "agent", "owner", "wallet")
    if not is_address(wallet):
        raise AnswerUnreadable("the manifest names no wallet to pay", field="agent.owner.wallet")
    currency = _text(found, "pricing", "currency")
    if currency != CURRENCY:
        raise OfferRefused(
            "the price is in another currency", field="pricing.currency", expected=CURRENCY, received=currency
        )
    return ListedCapability(
        worker_id=_text(manifest, "agent", "id"),
        wallet=wallet,
        url=_text(manifest, "endpoint", "url"),
        network=_network(manifest),
        capability=capability,
        price=_text(found, "pricing", "amount"),
        description=plain(found.get("description") or capability, 200),
        before_work=found.get("settle") == BEFORE_WORK,
        webhook_key=_webhook_key(manifest),
    )


def draft(listed: ListedCapability, order: Order, wallet: str, now_s: float) -> dict[str, Any]:
    """Draft the contract, with an unguessable id."""
    terms: dict[str, Any] = {
        "price": {
            "amount": order.price or listed.price,
            "currency": CURRENCY,
            "network": listed.network.name,
        },
        "deadline": _iso(now_s + order.deadline_s),
        "payment_trigger": TRIGGER,
        "platform_fee": {"percentage": 0, "wallet": ZERO_WALLET},
    }
    settlement = order.settlement or (BEFORE_WORK if listed.before_work else None)
    if settlement is not None:
        terms["settlement"] = settlement
    task: dict[str, Any] = {
        "description": order.description or listed.description,
        "capability": order.capability,
    }
    if order.output_schema is not None:
        task["output_schema"] = order.output_schema
    document: dict[str, Any] = {
        "version": "HIRE/1.0",
        "contract_id": new_contract_id(),
        "created_at": _iso(now_s),
        "parties": {
            "seeker": {"agent_id": order.agent_id, "wallet": wallet},
            "worker": {"agent_id": listed.worker_id, "wallet": listed.wallet},
        },
        "task": task,
        "terms": terms,
        "sla": {"retry_policy": f"{RETRIES} attempts"},
    }
    if order.webhook is not None:
        document["webhook"] = {"url": order.webhook}
    return document


def _network(manifest: Mapping[str, Any]) -> Network:
    """The network the manifest names; HIRE itself only knows `base`, so that is the default."""
    metadata = manifest.get("metadata")
    named = metadata.get("network") if isinstance(metadata, dict) else None
    if named is None:
        return BASE
    found = find_network(named) if isinstance(named, str) else None
    if found is None:
        raise OfferRefused(
            "the worker is paid on a network that is not known here",
            field="metadata.network",
            received=plain(named, 60),
        )
    return found


def _webhook_key(manifest: Mapping[str, Any]) -> str:
    metadata = manifest.get("metadata")
    found = metadata.get("webhook_public_key") if isinstance(metadata, dict) else None
    return found if isinstance(found, str) else ""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(document: Any, *path: str) -> str:
    found = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, str) or not found:
        raise AnswerUnreadable("the manifest lacks a field", field=".".join(path), expected="text")
    return found


def _list(document: Any, name: str) -> list[Any]:
    found = document.get(name) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise AnswerUnreadable("this is not a manifest", field=name, expected="a list")
    return found

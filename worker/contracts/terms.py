"""What a contract says, as values, and whether this worker signs it.

`parse_terms` reads; `refusals` decides, in a fixed order, and names the first term that stands in the
way. Neither knows a store, a clock or a schema compiler: applying the seeker's schemas to examples
comes later, in a work process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from worker.contracts.amounts import to_atomic, to_text
from worker.contracts.fields import parse_time, shown
from worker.contracts.ids import ENOUGH_BITS, estimated_bits, is_contract_id, new_contract_id
from worker.contracts.schema import bound_schema
from worker.contracts.signatures import is_address, same_address
from worker.errors import BadRequest, Problem

__all__ = [
    "CapabilityOffer",
    "Listing",
    "Terms",
    "TermsRefused",
    "new_contract_id",
    "parse_terms",
    "refusals",
    "which_capability",
]

AFTER_WORK, BEFORE_WORK = "after_work", "before_work"
CURRENCY = "USDC"
TRIGGER = "on_delivery"

CREATED_WITHIN_US = 600 * 1_000_000
LONGEST_US = 7 * 86_400 * 1_000_000
MOST_RETRIES = 3

_KINDS: dict[type, str] = {str: "text", list: "an array", dict: "an object"}
_ZERO_ADDRESS = "0x" + "0" * 40
_RETRIES = re.compile(r"\s*([0-9]+)(?![0-9]|[.,][0-9])")


class TermsRefused(Problem):
    """A well-formed contract that this worker does not sign."""

    code, status = "TERMS_REFUSED", 422
    message = "the terms are not acceptable"
    advice = "Change the named term and send the draft again; nothing was signed or charged."


@dataclass(frozen=True)
class Terms:
    """A contract's content. Amounts are atomic units, times microseconds."""

    contract_id: str
    created_at: int
    seeker_agent: str
    seeker_wallet: str
    worker_agent: str
    worker_wallet: str
    price: int
    price_text: str
    currency: str
    network: str
    deadline: int
    trigger: str
    settlement: str
    fee_percentage: Decimal
    fee_wallet: str
    max_latency_ms: int | None
    retries: int
    refund_conditions: tuple[str, ...]
    capability: str | None
    input_schema: Any
    output_schema: Any
    webhook: Mapping[str, Any] | None


@dataclass(frozen=True)
class CapabilityOffer:
    """What one capability costs, how long it may take, and when its payment is taken."""

    price: int
    max_latency_ms: int
    settle: str = AFTER_WORK


@dataclass(frozen=True)
class Listing:
    """What this worker offers to anyone."""

    agent_id: str
    wallet: str
    network: str
    network_names: frozenset[str]
    production: bool
    capabilities: Mapping[str, CapabilityOffer]
    min_lead_us: int
    max_fee_percentage: Decimal = Decimal(2)

    def names_network(self, name: str) -> bool:
        """Whether a contract's network is ours; outside production `base` means whichever is."""
        return name == self.network or name in self.network_names or (name == "base" and not self.production)


def parse_terms(contract: Mapping[str, Any]) -> Terms:
    """The terms of a contract that has passed the schema and has an id."""
    contract_id = _text(contract, "contract_id")
    if not is_contract_id(contract_id):
        raise BadRequest(
            "the contract id cannot be used",
            field="contract_id",
            expected="1 to 128 of letters, digits, - and _",
        )
    price_text = _text(contract, "terms", "price", "amount")
    conditions = _optional(contract, list, "sla", "refund_conditions") or []
    settlement = _optional(contract, str, "terms", "settlement")
    return Terms(
        contract_id=contract_id,
        created_at=parse_time(_text(contract, "created_at"), "created_at"),
        seeker_agent=_text(contract, "parties", "seeker", "agent_id"),
        seeker_wallet=_text(contract, "parties", "seeker", "wallet"),
        worker_agent=_text(contract, "parties", "worker", "agent_id"),
        worker_wallet=_text(contract, "parties", "worker", "wallet"),
        price=to_atomic(price_text, field="terms.price.amount"),
        price_text=price_text,
        currency=_text(contract, "terms", "price", "currency"),
        network=_text(contract, "terms", "price", "network"),
        deadline=parse_time(_text(contract, "terms", "deadline"), "terms.deadline"),
        trigger=_text(contract, "terms", "payment_trigger"),
        settlement=AFTER_WORK if settlement is None else settlement,
        fee_percentage=_percentage(contract),
        fee_wallet=_text(contract, "terms", "platform_fee", "wallet"),
        max_latency_ms=_whole(contract, "sla", "max_latency_ms"),
        retries=_retries(_at(contract, "sla", "retry_policy")),
        refund_conditions=tuple(str(condition) for condition in conditions),
        capability=_optional(contract, str, "task", "capability"),
        input_schema=_at(contract, "task", "input_schema"),
        output_schema=_at(contract, "task", "output_schema"),
        webhook=_optional(contract, dict, "webhook"),
    )


def which_capability(terms: Terms, offered: Mapping[str, Any]) -> str:
    """The capability a contract buys: the one it names, else the only one there is."""
    if terms.capability is not None:
        if terms.capability in offered:
            return terms.capability
        raise TermsRefused(
            "this worker has no such capability",
            code="CAPABILITY_UNAVAILABLE",
            field="task.capability",
            expected=sorted(offered),
            received=shown(terms.capability),
        )
    if len(offered) == 1:
        return next(iter(offered))
    if not offered:
        raise TermsRefused(
            "this worker offers nothing now", code="CAPABILITY_UNAVAILABLE", field="task.capability"
        )
    raise TermsRefused(
        "the contract does not say which capability it buys",
        code="CAPABILITY_AMBIGUOUS",
        field="task.capability",
        expected=sorted(offered),
        received="nothing",
    )


def refusals(terms: Terms, contract: Mapping[str, Any], offer: Listing, now_us: int) -> None:
    """Raise the first reason not to sign; return if there is none."""
    version = _text(contract, "version")
    if not re.fullmatch(r"HIRE/1\.[0-9]+", version):
        raise _refusal("VERSION_UNSUPPORTED", "version", "HIRE/1.0", version)
    _check_parties(terms, offer)
    capability = offer.capabilities[which_capability(terms, offer.capabilities)]
    _check_money(terms, offer, capability)
    _check_times(terms, offer, capability, now_us)
    _check_fee(terms, offer)
    bits = estimated_bits(terms.contract_id)
    if bits < ENOUGH_BITS:
        # The id itself is a secret and is not repeated.
        raise _refusal(
            "CONTRACT_ID_WEAK",
            "contract_id",
            f"at least {ENOUGH_BITS} bits of randomness, such as ctr_ and 26 random letters and digits",
            f"at most {bits} bits",
            "whoever guesses the contract id could read the result",
        )
    bound_schema(terms.input_schema, field="task.input_schema")
    bound_schema(terms.output_schema, field="task.output_schema")


def _check_parties(terms: Terms, offer: Listing) -> None:
    code = "CONTRACT_PARTY_MISMATCH"
    if terms.worker_agent != offer.agent_id:
        raise _refusal(code, "parties.worker.agent_id", offer.agent_id, terms.worker_agent)
    if not same_address(terms.worker_wallet, offer.wallet):
        raise _refusal(code, "parties.worker.wallet", offer.wallet, terms.worker_wallet)
    if not is_address(terms.seeker_wallet):
        raise _refusal(code, "parties.seeker.wallet", "0x and 40 hex digits", terms.seeker_wallet)


def _check_money(terms: Terms, offer: Listing, capability: CapabilityOffer) -> None:
    if terms.price < capability.price:
        raise _refusal(
            "PRICE_TOO_LOW", "terms.price.amount", f"at least {to_text(capability.price)}", terms.price_text
        )
    if terms.currency != CURRENCY:
        raise _refusal("CURRENCY_UNSUPPORTED", "terms.price.currency", CURRENCY, terms.currency)
    if not offer.names_network(terms.network):
        expected = sorted({offer.network, *offer.network_names})
        raise _refusal("NETWORK_UNSUPPORTED", "terms.price.network", expected, terms.network)
    if terms.trigger != TRIGGER:
        raise _refusal("UNSUPPORTED_PAYMENT_TRIGGER", "terms.payment_trigger", TRIGGER, terms.trigger)
    allowed = [AFTER_WORK] if capability.settle == AFTER_WORK else [AFTER_WORK, BEFORE_WORK]
    if terms.settlement not in allowed:
        raise _refusal("SETTLEMENT_UNSUPPORTED", "terms.settlement", allowed, terms.settlement)


def _check_times(terms: Terms, offer: Listing, capability: CapabilityOffer, now_us: int) -> None:
    if abs(terms.created_at - now_us) > CREATED_WITHIN_US:
        raise _refusal(
            "CREATED_AT_OUT_OF_WINDOW",
            "created_at",
            "a time within 10 minutes of now",
            _distance(terms.created_at - now_us),
        )
    lead = terms.deadline - now_us
    if lead < offer.min_lead_us:
        raise _refusal(
            "DEADLINE_TOO_SOON",
            "terms.deadline",
            f"at least {-(-offer.min_lead_us // 1_000_000)} s from now",
            _distance(lead),
        )
    if lead > LONGEST_US:
        raise _refusal("DEADLINE_TOO_FAR", "terms.deadline", "at most 7 days from now", _distance(lead))
    if terms.max_latency_ms is not None and terms.max_latency_ms < capability.max_latency_ms:
        raise _refusal(
            "LATENCY_TOO_SHORT",
            "sla.max_latency_ms",
            f"at least {capability.max_latency_ms}",
            terms.max_latency_ms,
        )
    if terms.retries > MOST_RETRIES:
        raise _refusal("TOO_MANY_RETRIES", "sla.retry_policy", f"at most {MOST_RETRIES}", terms.retries)


def _check_fee(terms: Terms, offer: Listing) -> None:
    if terms.fee_percentage > offer.max_fee_percentage:
        raise _refusal(
            "PLATFORM_FEE_TOO_HIGH",
            "terms.platform_fee.percentage",
            f"at most {offer.max_fee_percentage}",
            str(terms.fee_percentage),
        )
    payable = is_address(terms.fee_wallet) and not same_address(terms.fee_wallet, _ZERO_ADDRESS)
    if terms.fee_percentage > 0 and not payable:
        raise _refusal(
            "PLATFORM_FEE_UNPAYABLE",
            "terms.platform_fee.wallet",
            "0x and 40 hex digits, not all zero",
            terms.fee_wallet,
        )


def _refusal(code: str, field: str, expected: Any, received: Any, message: str | None = None) -> TermsRefused:
    return TermsRefused(message, code=code, field=field, expected=expected, received=shown(received))


def _distance(us: int) -> str:
    seconds = abs(us) // 1_000_000
    return f"{seconds} s from now" if us >= 0 else f"{seconds} s ago"


def _at(contract: Mapping[str, Any], *path: str) -> Any:
    found: Any = contract
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _text(contract: Mapping[str, Any], *path: str) -> str:
    found = _at(contract, *path)
    if not isinstance(found, str):
        raise BadRequest("a field is missing", field=".".join(path), expected="text", received=shown(found))
    return found


def _optional(contract: Mapping[str, Any], kind: type, *path: str) -> Any:
    found = _at(contract, *path)
    if found is not None and not isinstance(found, kind):
        raise BadRequest(
            "a field is of the wrong type",
            field=".".join(path),
            expected=_KINDS[kind],
            received=shown(found),
        )
    return found


def _whole(contract: Mapping[str, Any], *path: str) -> int | None:
    """An integer, also where it was written as 60000.0: both have the same hash."""
    found = _at(contract, *path)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not _is_whole(found):
        raise BadRequest(
            "a field is of the wrong type",
            field=".".join(path),
            expected="a whole number from 0",
            received=shown(found),
        )
    return int(found)


def _is_whole(number: float) -> bool:
    return number >= 0 and float(number).is_integer()


def _percentage(contract: Mapping[str, Any]) -> Decimal:
    found = _at(contract, "terms", "platform_fee", "percentage")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= 100:
        raise BadRequest(
            "the platform fee cannot be read",
            field="terms.platform_fee.percentage",
            expected="a number from 0 to 100",
            received=shown(found),
        )
    # The shortest text of a double is the number that was written and hashed.
    return Decimal(str(int(found) if found == int(found) else found))


def _retries(policy: Any) -> int:
    """Free tries after the first: a leading or bare integer; anything else grants none."""
    if isinstance(policy, float) and policy.is_integer():
        policy = int(policy)
    if isinstance(policy, int) and not isinstance(policy, bool):
        return max(policy, 0)
    match = _RETRIES.match(policy) if isinstance(policy, str) else None
    # Nine digits are refused as surely as ninety, and ninety thousand would be slow to read.
    return int(match[1].lstrip("0")[:9] or "0") if match else 0

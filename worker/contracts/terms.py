"""Parses a contract's terms and decides whether this worker signs it.

`parse_terms` reads; `refusals` decides, in a fixed order, and names the first unacceptable term. Neither
uses a store, a clock or a schema compiler: a work process applies the seeker's schemas to examples later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from worker.contracts.ids import ENOUGH_BITS, estimated_bits, is_contract_id
from worker.contracts.refund_terms import HONOURED, first_not_honoured
from worker.contracts.term_keys import first_about_money, unknown_keys
from worker.contracts.term_values import (
    fee_percentage,
    free_retries,
    is_negative,
    optional_at,
    text_at,
    value_at,
    whole_at,
)
from worker.core.amounts import to_atomic, to_text
from worker.core.errors import BadRequest, Problem
from worker.core.evm import is_address, is_mistyped, same_address
from worker.core.fields import parse_time, shown
from worker.schemas.validators import bound_schema

AFTER_WORK, BEFORE_WORK = "after_work", "before_work"
CURRENCY = "USDC"
TRIGGER = "on_delivery"

CREATED_WITHIN_US = 600 * 1_000_000
LONGEST_US = 7 * 86_400 * 1_000_000
MOST_RETRIES = 3

_FEE_DECIMALS = 6
_ZERO_ADDRESS = "0x" + "0" * 40


class TermsRefused(Problem):
    """A well-formed contract that this worker does not sign."""

    code, status = "TERMS_REFUSED", 422
    message = "the terms are not acceptable"
    advice = "Change the named term and send the draft again; nothing was signed or charged."


@dataclass(frozen=True)
class Terms:
    """A contract's content. Amounts are in atomic units, times in microseconds."""

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
    """One capability's price, maximum latency, and when its payment settles."""

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
        """Whether a contract's network is ours; outside production `base` means whichever network is ours."""
        return name == self.network or name in self.network_names or (name == "base" and not self.production)


def parse_terms(contract: Mapping[str, Any]) -> Terms:
    """Parses the terms of a contract that matches the schema and has an id."""
    contract_id = text_at(contract, "contract_id")
    if not is_contract_id(contract_id):
        raise BadRequest(
            "the contract id cannot be used",
            field="contract_id",
            expected="1 to 128 of letters, digits, - and _",
        )
    price_text = text_at(contract, "terms", "price", "amount")
    conditions = optional_at(contract, list, "sla", "refund_conditions") or []
    settlement = optional_at(contract, str, "terms", "settlement")
    return Terms(
        contract_id=contract_id,
        created_at=parse_time(text_at(contract, "created_at"), "created_at"),
        seeker_agent=text_at(contract, "parties", "seeker", "agent_id"),
        seeker_wallet=text_at(contract, "parties", "seeker", "wallet"),
        worker_agent=text_at(contract, "parties", "worker", "agent_id"),
        worker_wallet=text_at(contract, "parties", "worker", "wallet"),
        price=to_atomic(price_text, field="terms.price.amount"),
        price_text=price_text,
        currency=text_at(contract, "terms", "price", "currency"),
        network=text_at(contract, "terms", "price", "network"),
        deadline=parse_time(text_at(contract, "terms", "deadline"), "terms.deadline"),
        trigger=text_at(contract, "terms", "payment_trigger"),
        settlement=AFTER_WORK if settlement is None else settlement,
        fee_percentage=fee_percentage(contract),
        fee_wallet=text_at(contract, "terms", "platform_fee", "wallet"),
        max_latency_ms=whole_at(contract, "sla", "max_latency_ms"),
        retries=free_retries(value_at(contract, "sla", "retry_policy")),
        refund_conditions=tuple(str(condition) for condition in conditions),
        capability=optional_at(contract, str, "task", "capability"),
        input_schema=value_at(contract, "task", "input_schema"),
        output_schema=value_at(contract, "task", "output_schema"),
        webhook=optional_at(contract, dict, "webhook"),
    )


def which_capability(terms: Terms, offered: Mapping[str, Any]) -> str:
    """The capability a contract buys: the one it names, else the only one offered."""
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
            "this worker offers no capability now", code="CAPABILITY_UNAVAILABLE", field="task.capability"
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
    version = text_at(contract, "version")
    if not re.fullmatch(r"HIRE/1\.(0|[1-9][0-9]?)", version):
        raise _refusal("VERSION_UNSUPPORTED", "version", "HIRE/1.0", version)
    _check_parties(terms, offer)
    capability = offer.capabilities[which_capability(terms, offer.capabilities)]
    _check_money(terms, offer, capability)
    _check_times(terms, contract, offer, capability, now_us)
    _check_fee(terms, offer)
    _check_unknown(contract)
    at = first_not_honoured(terms.refund_conditions)
    if at is not None:
        field, found = f"sla.refund_conditions[{at}]", terms.refund_conditions[at]
        raise _refusal("REFUND_CONDITION_UNSUPPORTED", field, list(HONOURED), found)
    bits = estimated_bits(terms.contract_id)
    if bits < ENOUGH_BITS:
        # The id is a secret and must not appear in the error.
        raise _refusal(
            "CONTRACT_ID_WEAK",
            "contract_id",
            f"at least {ENOUGH_BITS} bits of randomness, such as ctr_ and 26 random letters and digits",
            f"at most {bits} bits",
            "the contract id could be guessed, and it grants access to the result",
        )
    bound_schema(terms.input_schema, field="task.input_schema")
    bound_schema(terms.output_schema, field="task.output_schema")


def _check_parties(terms: Terms, offer: Listing) -> None:
    code = "CONTRACT_PARTY_MISMATCH"
    if terms.worker_agent != offer.agent_id:
        raise _refusal(code, "parties.worker.agent_id", offer.agent_id, terms.worker_agent)
    if not same_address(terms.worker_wallet, offer.wallet):
        raise _refusal(code, "parties.worker.wallet", offer.wallet, terms.worker_wallet)
    _check_wallet(terms.worker_wallet, "parties.worker.wallet", code)
    field = "parties.seeker.wallet"
    _check_wallet(terms.seeker_wallet, field, code)
    if same_address(terms.seeker_wallet, offer.wallet):
        raise _refusal(code, field, "another wallet than the worker's", terms.seeker_wallet)


def _check_wallet(wallet: str, field: str, code: str) -> None:
    if not is_address(wallet) or same_address(wallet, _ZERO_ADDRESS):
        raise _refusal(code, field, "0x and 40 hex digits, not all zero", wallet)
    if is_mistyped(wallet):
        raise _refusal(code, field, "an address whose checksum (the case of its letters) is right", wallet)


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


def _check_times(
    terms: Terms, contract: Mapping[str, Any], offer: Listing, capability: CapabilityOffer, now_us: int
) -> None:
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
    if is_negative(value_at(contract, "sla", "retry_policy")):
        policy = value_at(contract, "sla", "retry_policy")
        raise _refusal("TERMS_REFUSED", "sla.retry_policy", f"a number from 0 to {MOST_RETRIES}", policy)
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
    if terms.fee_percentage != round(terms.fee_percentage, _FEE_DECIMALS):
        raise _refusal(
            "PLATFORM_FEE_UNPAYABLE",
            "terms.platform_fee.percentage",
            f"at most {_FEE_DECIMALS} decimals",
            str(terms.fee_percentage),
        )
    if terms.fee_percentage > 0:
        _check_wallet(terms.fee_wallet, "terms.platform_fee.wallet", "PLATFORM_FEE_UNPAYABLE")


def _check_unknown(contract: Mapping[str, Any]) -> None:
    """Refuses unknown keys about money; other unknown keys are signed and listed in the answer."""
    promise = first_about_money(unknown_keys(contract))
    if promise is not None:
        raise _refusal(
            "TERMS_REFUSED",
            promise,
            "no term about money that this worker does not honour",
            value_at(contract, *promise.split(".")),
        )


def _refusal(code: str, field: str, expected: Any, received: Any, message: str | None = None) -> TermsRefused:
    return TermsRefused(message, code=code, field=field, expected=expected, received=shown(received))


def _distance(us: int) -> str:
    seconds = abs(us) // 1_000_000
    return f"{seconds} s from now" if us >= 0 else f"{seconds} s ago"

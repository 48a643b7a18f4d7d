"""Lease for one settlement call: granted for itself, or with the seal of the work that was paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from worker.payments.retry_delays import SECOND_US

SETTLE_LEASE_US = 5 * SECOND_US
# Who holds a lease that was granted with the seal (lua/_hooks.lua), and when it must be renewed. It is short:
# a process that dies before it calls delays the settlement little.
SEAL_TOKEN = "seal"
SEAL_RENEW_S = 0.2


def renewed_before(granted_after: float) -> float:
    """When (monotonic) a lease must be renewed that was granted after that moment."""
    return granted_after + SETTLE_LEASE_US / 3e6


@dataclass(frozen=True, slots=True)
class ClaimedPayment:
    """A payment as this process has just claimed it: payload and requirements as JSON."""

    number: int
    payload: str
    requirements: str
    payer: str
    contract_ref: str


@dataclass(frozen=True, slots=True)
class SettlementLease:
    """Lease for one settlement call.

    `earlier_unknown`: an earlier call ended without a certain answer. `may_have_landed`: one of those calls
    may have moved the money; a call that met a used nonce did not. `refusal`: the facilitator refused at
    `refused_us`, which is believed after a look at the chain; `named`: a hash to look for. Use the lease
    only if it is `replicated`: if the store has replicas, one of them has it. Before `renew_at` (monotonic)
    it is held for certain.
    """

    number: int
    token: str
    payload: bytes
    requirements: bytes
    payer: str
    renew_at: float
    earlier_unknown: bool = False
    may_have_landed: bool = False
    refusal: str = ""
    refused_us: int = 0
    named: str = ""
    replicated: bool = True
    contract_ref: str = ""

    @classmethod
    def with_seal(cls, payment: ClaimedPayment, sealed_after: float) -> Self:
        """The lease that came with a seal: it is short, and the seal came after that moment (monotonic)."""
        return cls(
            number=payment.number,
            token=SEAL_TOKEN,
            payload=payment.payload.encode(),
            requirements=payment.requirements.encode(),
            payer=payment.payer.lower(),
            renew_at=sealed_after + SEAL_RENEW_S,
            contract_ref=payment.contract_ref,
        )

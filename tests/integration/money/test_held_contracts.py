"""After a store crash, contracts whose payment may be lost are held: which ones and for how long."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.ledger_setup import PRICE, SEEKER, WORKER, LedgerSetup, key_of
from tests.fakes.paid_door import PaidDoor
from tests.fakes.seeker import nonce_of
from tests.integration.test_ledger_comparison import ComparisonSetup, roll_back, snapshot
from tests.store_crash import crash
from worker.contracts.book import Contract
from worker.contracts.terms import parse_terms
from worker.hiring.conditions import MayBePaid
from worker.local.valkey import EmbeddedStore
from worker.payments.ledger import Ledger
from worker.payments.retry_delays import SECOND_US
from worker.payments.safe_writes import SafeWrites, Witness

BODY = {"do": "ok"}
LONGEST_US = 2_000 * SECOND_US


class Process:
    """A worker process that writes money records."""

    def __init__(self, ledger_setup: LedgerSetup) -> None:
        self.ledger_setup = ledger_setup
        self.witness = Witness(ledger_setup.client, ledger_setup.keys, test_clock=True)
        safe = SafeWrites(
            ledger_setup.client,
            ledger_setup.keys,
            apart=ledger_setup.client,
            test_clock=True,
            witness=self.witness,
        )
        self.ledger = Ledger(ledger_setup.client, ledger_setup.keys, test_clock=True, safe=safe)
        self.witness.vouch()

    def claim(self) -> None:
        self.ledger_setup.ledger = self.ledger
        self.ledger_setup.claim()


class CrashingStore:
    """A separate store that can crash and lose data."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.client = redis.Redis.from_url(store.url)
        self.bench = ComparisonSetup(self.client)
        self.bench.comparison = self.bench.make(longest_us=LONGEST_US)
        self.bench.compare()
        self.older = self.bench.ledger_setup.now()
        self.bench.ledger_setup.move_time(1)

    def held_us(self, signed_us: int | None = None) -> int:
        signed_us = self.older if signed_us is None else signed_us
        return self.bench.mark.comparison_pending(signed_us, LONGEST_US)

    def process(self) -> Process:
        return Process(self.bench.ledger_setup)

    def restart(self, before: dict[bytes, bytes] | None = None) -> None:
        """Kills and restarts the store, with the data it had at `before` if given."""
        crash(self.store)
        if before is not None:
            roll_back(self.client, before)


@pytest.fixture(name="crashing_store")
def _crashing_store(tmp_path: Path) -> Iterator[CrashingStore]:
    with EmbeddedStore(tmp_path) as store:
        yield CrashingStore(store)


def test_hold_ends_when_every_process_finds_its_writes(crashing_store: CrashingStore) -> None:
    """The hold ends some time after every process has found its writes; one process is not enough."""
    one, other = crashing_store.process(), crashing_store.process()
    one.claim()
    other.claim()
    crashing_store.restart()
    assert crashing_store.held_us()
    one.witness.vouch()
    crashing_store.bench.ledger_setup.move_time(6)
    one.witness.vouch()
    assert crashing_store.held_us()
    other.witness.vouch()
    assert crashing_store.held_us() == 0


def test_hold_lasts_until_every_process_has_reported(crashing_store: CrashingStore) -> None:
    """A process that the store has lost as well gets time to object."""
    known = crashing_store.process()
    with_it = snapshot(crashing_store.client)
    forgotten = crashing_store.process()
    forgotten.claim()
    crashing_store.restart(with_it)
    known.witness.vouch()
    assert crashing_store.held_us()
    forgotten.witness.vouch()
    crashing_store.bench.ledger_setup.move_time(6)
    known.witness.vouch()
    assert crashing_store.held_us()


def test_process_that_remembers_more_restores_the_hold(crashing_store: CrashingStore) -> None:
    """A frozen process remembers a lost write: contracts are held from then on."""
    known, frozen = crashing_store.process(), crashing_store.process()
    crashing_store.bench.ledger_setup.move_time(20)
    known.witness.vouch()
    before = snapshot(crashing_store.client)
    frozen.claim()
    crashing_store.restart(before)
    known.witness.vouch()
    crashing_store.bench.ledger_setup.move_time(6)
    known.witness.vouch()
    assert crashing_store.held_us() == 0
    frozen.witness.vouch()
    assert crashing_store.held_us()


def test_process_lost_with_the_store_keeps_the_hold(crashing_store: CrashingStore) -> None:
    """A process lost together with the store cannot confirm its writes: only the chain ends the hold."""
    known, dead = crashing_store.process(), crashing_store.process()
    dead.claim()
    crashing_store.restart()
    for _ in range(3):
        crashing_store.bench.ledger_setup.move_time(6)
        known.witness.vouch()
    assert crashing_store.held_us()
    assert crashing_store.bench.compare() and crashing_store.held_us()
    crashing_store.bench.ledger_setup.move_time(LONGEST_US // SECOND_US + 10)
    assert crashing_store.bench.compare() and crashing_store.held_us() == 0


def test_process_gone_before_the_crash_is_not_awaited(crashing_store: CrashingStore) -> None:
    """A process silent for a while before the crash had no writes that could be lost."""
    gone = crashing_store.process()
    gone.claim()
    known = crashing_store.process()
    crashing_store.bench.ledger_setup.move_time(20)
    known.witness.vouch()
    crashing_store.restart()
    known.witness.vouch()
    crashing_store.bench.ledger_setup.move_time(6)
    known.witness.vouch()
    assert crashing_store.held_us() == 0


def test_second_crash_before_all_reports_keeps_the_hold(crashing_store: CrashingStore) -> None:
    """The store crashes again before every process has reported: no process remembers everything."""
    known = crashing_store.process()
    crashing_store.restart()
    assert crashing_store.held_us()
    crashing_store.restart()
    known.witness.vouch()
    crashing_store.bench.ledger_setup.move_time(6)
    known.witness.vouch()
    assert crashing_store.held_us()


def test_older_hold_survives_a_lossless_restart(crashing_store: CrashingStore) -> None:
    """A lossless restart releases the contracts it held, but not those held by an earlier crash."""
    known = crashing_store.process()
    before = snapshot(crashing_store.client)
    known.claim()
    crashing_store.restart(before)
    known.witness.vouch()
    assert crashing_store.held_us()
    crashing_store.bench.ledger_setup.move_time(1)
    between = crashing_store.bench.ledger_setup.now()
    crashing_store.bench.ledger_setup.move_time(1)
    crashing_store.restart()
    known.witness.vouch()
    assert crashing_store.held_us(between)
    crashing_store.bench.ledger_setup.move_time(6)
    known.witness.vouch()
    assert crashing_store.held_us(between) == 0 and crashing_store.held_us()


def test_newer_contract_is_not_held(crashing_store: CrashingStore) -> None:
    """It was signed after the store returned, so no payment for it can have been lost."""
    crashing_store.restart()
    crashing_store.held_us()
    crashing_store.bench.ledger_setup.move_time(1)
    assert crashing_store.held_us(crashing_store.bench.ledger_setup.now()) == 0


def test_claim_script_checks_the_hold_itself(crashing_store: CrashingStore) -> None:
    """The store crashes between the check and the claim: the claim script refuses."""
    ledger_setup = crashing_store.bench.ledger_setup
    ref = ledger_setup.contract()
    crashing_store.restart()
    with pytest.raises(AssertionError, match="held"):
        _claim(ledger_setup, ref, crashing_store.older)
    assert ledger_setup.client.hget(ledger_setup.keys.contract(ref), "execution") is None
    _claim(ledger_setup, ref, ledger_setup.now() + SECOND_US)


def _claim(ledger_setup: LedgerSetup, ref: str, signed_us: int) -> None:
    ledger = ledger_setup.ledger
    real = ledger.claim

    def dated(values, **verified):  # type: ignore[no-untyped-def]
        return real({**values, "signed": signed_us, "longest": LONGEST_US}, **verified)

    ledger.claim = dated  # type: ignore[method-assign]
    try:
        ledger_setup.claim(ref)
    finally:
        ledger.claim = real  # type: ignore[method-assign]


def test_found_money_waits_for_a_forgotten_contract(crashing_store: CrashingStore) -> None:
    """It is listed; the contract returns and waits for the next comparison, which binds them."""
    bench, ledger_setup = crashing_store.bench, crashing_store.bench.ledger_setup
    before = snapshot(crashing_store.client)
    ref = ledger_setup.contract()
    document = crashing_store.client.hgetall(ledger_setup.keys.contract(ref))
    nonce = "0x" + secrets.token_hex(32)
    ledger_setup.chain.settle((SEEKER, nonce), WORKER, PRICE)
    crashing_store.restart(before)
    ledger_setup.chain.mine(seconds=3600)
    assert bench.compare()
    assert [line.outcome for line in bench.found.listed()] == ["listed"]
    ledger_setup.move_time(2)
    crashing_store.client.hset(
        ledger_setup.keys.contract(ref), mapping={**document, b"registered": ledger_setup.now()}
    )
    crashing_store.client.zadd(
        ledger_setup.keys.contracts, {ledger_setup.keys.contract(ref): ledger_setup.now() + 10**10}
    )
    created = int(document[b"created"])
    assert bench.mark.comparison_pending(created, 0, ledger_setup.now())
    ledger_setup.move_time(2)
    assert bench.comparison.run(), "somebody waits for it, so it does not take its time"
    waiting = bench.found.waiting_for(ref)
    assert waiting is not None and waiting.key == key_of(nonce)
    assert json.loads(waiting.payload)["payload"]["authorization"]["to"].lower() == WORKER.lower()
    assert [line.outcome for line in bench.found.listed()] == [f"contract {ref}"]


def test_contract_signing_time_prefers_our_clock() -> None:
    """Our own timestamp is used where available; a seeker's may be up to a minute ahead."""
    document = {
        "contract_id": "ctr_1",
        "created_at": "2026-01-01T00:10:00Z",
        "parties": {
            "seeker": {"agent_id": "s", "wallet": SEEKER},
            "worker": {"agent_id": "w", "wallet": WORKER},
        },
        "terms": {
            "price": {"amount": "0.01", "currency": "USDC", "network": "base"},
            "deadline": "2026-01-02T00:00:00Z",
            "payment_trigger": "on_delivery",
            "platform_fee": {"percentage": 1, "wallet": SEEKER},
        },
    }
    terms = parse_terms(document)
    created = terms.created_at + 999_999
    for drafted, signed in (
        (0, created - 60 * SECOND_US),
        (created - 1, created - 1),
        (created + 1, created),
    ):
        contract = Contract("r", "{}", terms, "h", registered=0, execution=None, drafted=drafted)
        assert contract.signed_us == signed


def test_found_payment_releases_its_own_contract(paid_door: PaidDoor) -> None:
    """Found money matches two contracts: the one named by its payment is bound and not held."""
    key = "0x" + secrets.token_hex(32)
    one, other = paid_door.deal(key=key), paid_door.deal(key=key)
    payment = one.payment()
    paid_door.comparison._longest_us = LONGEST_US
    paid_door.chain.settle((one.wallet, nonce_of(payment)), paid_door.pay_to, one.price)
    paid_door.parts.client.hset("w:compared", "life", "the one that was lost")
    paid_door.jump(1)
    paid_door.tick()
    assert [line.outcome for line in paid_door.parts.found.listed()] == ["listed"]
    for deal, header in ((one, None), (one, one.payment()), (other, None), (other, other.payment())):
        with pytest.raises(MayBePaid) as held:
            deal.execute(BODY, header)
        assert held.value.charged is None
    task = one.execute(BODY, payment)
    assert task.money.paid == 1 and one.moved() == one.price
    assert one.id is not None and paid_door.execution(one.id).phase == "working"
    with pytest.raises(MayBePaid):
        other.execute(BODY)

"""Ledger and chain comparison: forgotten payments are found, with no double charge meanwhile."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.facilitator_memory import POOR, USED
from tests.fakes.ledger_setup import PLATFORM, PRICE, SEEKER, WORKER, LedgerSetup, SignedClaim, key_of
from tests.store_crash import crash
from worker.core.states import Phase
from worker.local.valkey import EmbeddedStore
from worker.payments.comparison import EVERY_US, SOON_EVERY_US, Comparison, ComparisonMark
from worker.payments.found import FoundMoney
from worker.payments.report import JournalReport, imbalances
from worker.payments.retry_delays import SECOND_US
from worker.x402.networks import BASE_SEPOLIA
from worker.x402.wire import restore

HOUR_US = 3600 * SECOND_US
STRANGER = "0x" + "77" * 20


class ComparisonSetup:
    """A ledger with the comparison of its clock."""

    def __init__(self, client: redis.Redis, chain: MemoryChain | None = None) -> None:
        self.client = client
        self.ledger_setup = LedgerSetup(client)
        if chain is not None:
            self.ledger_setup.chain = self.ledger_setup.facilitator.chain = chain
            self.ledger_setup.settler._chain = self.ledger_setup.settler.verifier.chain = chain
        self.mark = ComparisonMark(client, self.ledger_setup.keys, test_clock=True)
        self.found = FoundMoney(
            client, self.ledger_setup.keys, self.ledger_setup.ledger, BASE_SEPOLIA, test_clock=True
        )
        self.comparison = self.make()

    def make(self, *, span: int = 10_000, with_chain: bool = True, longest_us: int = 0) -> Comparison:
        chain = self.ledger_setup.chain if with_chain else None
        ledger_setup = self.ledger_setup
        return Comparison(
            *(self.mark, ledger_setup.ledger, ledger_setup.settler, self.found),
            pay_to=WORKER,
            chain=chain,
            longest_us=longest_us,
            span=span,
        )

    def compare(self) -> bool:
        """Runs the next regular comparison, whenever that is due."""
        self.ledger_setup.chain.mine()
        self.client.hdel("w:compared", "at", "lease")
        return self.comparison.run()

    def refuse(self, paid: SignedClaim, *, sealed: bool) -> None:
        """The facilitator refuses the payment, before or after the work."""
        if sealed:
            self.ledger_setup.seal(paid)
            self.ledger_setup.facilitator.plan = [POOR]
            self.ledger_setup.settler.settle(paid.id)
        else:
            self.ledger_setup.ledger.verify_refused(paid.id, paid.number, POOR)

    def balanced(self) -> list[str]:
        lines = [line.decode() for line in self.client.lrange("w:journal", 0, -1)]
        return imbalances(JournalReport().read(lines), self.ledger_setup.sums, {})


@pytest.fixture(name="setup")
def _setup(client: redis.Redis) -> ComparisonSetup:
    setup = ComparisonSetup(client)
    setup.compare()
    return setup


def snapshot(client: redis.Redis) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def roll_back(client: redis.Redis, before: dict[bytes, bytes]) -> None:
    """The store loses everything since then, as if the end of its file were lost."""
    client.flushall()
    for key, blob in before.items():
        client.restore(key, 0, blob)


# Transfers of known payments


def test_unseen_payment_is_settled(setup: ComparisonSetup) -> None:
    """The money moved without a settle response: the comparison completes the execution."""
    paid = setup.ledger_setup.claim()
    setup.ledger_setup.seal(paid)
    setup.ledger_setup.facilitator.plan = ["moved"]
    setup.ledger_setup.chain.down = True
    setup.ledger_setup.settler.settle(paid.id)
    assert setup.ledger_setup.state(paid) == "unknown"
    setup.ledger_setup.chain.down = False
    assert setup.compare()
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None and (execution.state, execution.phase) == ("completed", Phase.DONE)
    money = setup.ledger_setup.ledger.money(paid.id)
    assert money is not None and money.payments[0].how == "chain"
    assert setup.found.listed() == [] and setup.balanced() == []


def test_settled_payment_is_left_alone(setup: ComparisonSetup) -> None:
    """A payment settled in the ledger is not recorded again, however often it is compared."""
    setup.ledger_setup.paid()
    length = setup.client.llen("w:journal")
    for _ in range(3):
        setup.client.hdel("w:compared", "block")
        assert setup.compare()
    assert setup.client.llen("w:journal") == length and setup.found.listed() == []


def test_released_payment_that_lands_is_refunded(setup: ComparisonSetup) -> None:
    """A seeker may submit a released authorization: it buys nothing, so a refund is owed."""
    paid = setup.ledger_setup.claim()
    setup.ledger_setup.store.cancel(paid.id, b"{}", by="operator")
    setup.ledger_setup.chain.settle(paid.authorization, WORKER, PRICE)
    setup.compare()
    assert setup.ledger_setup.state(paid) == "settled" and setup.ledger_setup.sums["refunds_due"] == PRICE
    assert setup.balanced() == []


def test_nonce_spent_on_another_amount_settles_nothing(setup: ComparisonSetup) -> None:
    """Two authorizations with one nonce: the small one that landed does not pay for the large one."""
    paid = setup.ledger_setup.claim()
    setup.ledger_setup.seal(paid)
    setup.ledger_setup.chain.settle(paid.authorization, WORKER, 1)
    setup.compare()
    assert setup.ledger_setup.state(paid) == "verified"
    (line,) = setup.found.listed()
    assert (line.amount, line.payer, line.outcome) == (1, SEEKER.lower(), "listed")


def test_payment_for_a_removed_execution_is_listed(setup: ComparisonSetup) -> None:
    """A payment whose execution was purged before its money arrived is listed for the operator."""
    paid = setup.ledger_setup.claim()
    setup.client.delete(f"w:money:{paid.id}", f"w:x:{paid.id}")
    setup.ledger_setup.chain.settle(paid.authorization, WORKER, PRICE)
    setup.compare()
    assert [line.outcome for line in setup.found.listed()] == ["listed"]


# Unknown transfers


@pytest.mark.parametrize("sealed", [False, True])
def test_found_money_pays_the_one_waiting_execution(setup: ComparisonSetup, sealed: bool) -> None:
    """A refused first payment, then unannounced money: the work begins, or its result is released."""
    paid = setup.ledger_setup.claim()
    setup.refuse(paid, sealed=sealed)
    setup.ledger_setup.chain.settle((SEEKER, "0x" + "5a" * 32), WORKER, PRICE)
    setup.compare()
    money = setup.ledger_setup.ledger.money(paid.id)
    assert money is not None and money.paid == 2 and money.payments[1].how == "chain"
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None
    assert execution.phase == (Phase.DONE if sealed else Phase.WORKING)
    assert setup.ledger_setup.ledger.bound(key_of("0x" + "5a" * 32)) == (paid.id, 2)
    assert [line.outcome for line in setup.found.listed()] == [f"execution {paid.id}"]
    assert setup.balanced() == []


def test_plain_transfer_counts_as_found_money(setup: ComparisonSetup) -> None:
    """A plain transfer of exactly the expected amount pays as well."""
    paid = setup.ledger_setup.claim()
    setup.refuse(paid, sealed=True)
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.compare()
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None and execution.state == "completed" and setup.balanced() == []


def test_found_money_waits_for_a_contract_without_an_execution(setup: ComparisonSetup) -> None:
    """The claim itself was lost: the contract holds the money until its seeker returns."""
    ref = setup.ledger_setup.contract()
    nonce = "0x" + secrets.token_hex(32)
    setup.client.expire(f"w:contract:{ref}", 1000)
    landed = setup.ledger_setup.chain.settle((SEEKER, nonce), WORKER, PRICE)
    setup.compare()
    waiting = setup.found.waiting_for(ref)
    assert waiting is not None and (waiting.key, waiting.transaction) == (key_of(nonce), landed)
    payment = restore(waiting.payload)
    assert (payment.authorization.payer, payment.authorization.value) == (SEEKER.lower(), PRICE)
    assert setup.client.ttl(f"w:contract:{ref}") == -1, "money does not expire"
    assert setup.client.zcard("w:contracts") == 0
    setup.client.hdel("w:compared", "block")
    setup.compare()
    assert [line.outcome for line in setup.found.listed()] == [f"contract {ref}"]


def test_waiting_money_is_claimed_and_recorded(setup: ComparisonSetup) -> None:
    """Claimed under its own key and recorded as settled, found money starts the work, once."""
    ref = setup.ledger_setup.contract()
    nonce = "0x" + secrets.token_hex(32)
    setup.ledger_setup.chain.settle((SEEKER, nonce), WORKER, PRICE)
    setup.compare()
    waiting = setup.found.waiting_for(ref)
    assert waiting is not None
    paid = setup.ledger_setup.claim(ref, nonce=nonce)
    assert setup.ledger_setup.settler.record_settled(paid.id, 1, waiting.transaction, "chain") == "working"
    assert setup.found.waiting_for(ref) is None
    setup.compare()
    assert setup.balanced() == []


def test_found_money_with_a_used_nonce_is_settled(setup: ComparisonSetup) -> None:
    """The seeker resends the forgotten payment: no facilitator is asked, only the chain counts."""
    ref = setup.ledger_setup.contract()
    nonce = "0x" + secrets.token_hex(32)
    setup.ledger_setup.chain.settle((SEEKER, nonce), WORKER, PRICE)
    setup.compare()
    paid = setup.ledger_setup.claim(ref, nonce=nonce)
    assert setup.ledger_setup.ledger.verify_refused(paid.id, 1, USED) == ("gone", "")
    assert setup.ledger_setup.state(paid) == "settling"
    setup.compare()
    execution = setup.ledger_setup.store.get(paid.id)
    assert setup.ledger_setup.state(paid) == "settled" and execution is not None
    assert execution.phase is Phase.WORKING and setup.balanced() == []


@pytest.mark.parametrize(("payer", "amount"), [(SEEKER, PRICE - 1), (SEEKER, PRICE + 1), (STRANGER, PRICE)])
def test_unmatched_transfer_is_listed(setup: ComparisonSetup, payer: str, amount: int) -> None:
    """A transfer with another payer or amount pays for nothing and is listed."""
    ref = setup.ledger_setup.contract()
    setup.ledger_setup.chain.mint(STRANGER, 10**9)
    setup.ledger_setup.chain.transfer(payer, WORKER, amount)
    setup.compare()
    assert setup.found.waiting_for(ref) is None
    assert [(line.amount, line.outcome) for line in setup.found.listed()] == [(amount, "listed")]


def test_ambiguous_transfer_is_listed(setup: ComparisonSetup) -> None:
    """With two contracts of one seeker at one price, the paid one cannot be determined."""
    refs = [setup.ledger_setup.contract() for _ in range(2)]
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.compare()
    assert [setup.found.waiting_for(ref) for ref in refs] == [None, None]
    assert [line.outcome for line in setup.found.listed()] == ["listed"]


def test_old_transfer_does_not_pay_a_newer_contract(setup: ComparisonSetup) -> None:
    """Money older than a contract cannot be its payment."""
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.ledger_setup.move_time(60)
    ref = setup.ledger_setup.contract()
    setup.compare()
    assert setup.found.waiting_for(ref) is None and setup.found.listed()[0].outcome == "listed"


def test_second_equal_transfer_is_listed(setup: ComparisonSetup) -> None:
    """The first of two equal transfers is bound, the second is listed."""
    ref = setup.ledger_setup.contract()
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.compare()
    assert [line.outcome for line in setup.found.listed()] == [f"contract {ref}", "listed"]


def test_paid_contract_takes_no_found_money(setup: ComparisonSetup) -> None:
    """A paid, running or finished contract takes no found money."""
    setup.ledger_setup.paid()
    setup.ledger_setup.claim()
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.compare()
    assert [line.outcome for line in setup.found.listed()] == ["listed"]


def test_found_money_is_listed_once(setup: ComparisonSetup) -> None:
    """Comparing the same blocks again adds no entry and binds nothing twice."""
    paid = setup.ledger_setup.claim()
    setup.refuse(paid, sealed=True)
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE)
    setup.ledger_setup.chain.transfer(SEEKER, WORKER, 5)
    for _ in range(3):
        setup.client.hdel("w:compared", "block")
        setup.compare()
    outcomes = [line.outcome for line in setup.found.listed()]
    assert outcomes == [f"execution {paid.id}", "listed"] and setup.balanced() == []
    money = setup.ledger_setup.ledger.money(paid.id)
    assert money is not None and len(money.payments) == 2


def test_crash_between_binding_and_settling_is_recovered(setup: ComparisonSetup) -> None:
    """Killed after binding found money, the next comparison settles it; no 402 is issued meanwhile."""

    class ProcessKilled(BaseException):
        pass

    paid = setup.ledger_setup.claim()
    setup.refuse(paid, sealed=True)
    setup.ledger_setup.chain.settle((SEEKER, "0x" + "5b" * 32), WORKER, PRICE)

    def die(name: str) -> None:
        raise ProcessKilled

    setup.ledger_setup.settler.checkpoint = die
    with pytest.raises(ProcessKilled):
        setup.compare()
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None and execution.phase is Phase.SETTLING
    setup.ledger_setup.settler.checkpoint = lambda name: None
    setup.compare()
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None and execution.state == "completed" and setup.balanced() == []


# Position in the chain


def test_blocks_are_compared_once(setup: ComparisonSetup) -> None:
    """The next comparison begins after the last block of this one."""
    setup.ledger_setup.chain.mint(STRANGER, 10**9)
    setup.ledger_setup.chain.transfer(STRANGER, WORKER, 7)
    setup.compare()
    block = int(setup.client.hget("w:compared", "block") or 0)
    assert block == setup.ledger_setup.chain.head().block
    asked: list[int] = []
    real = setup.ledger_setup.chain.transfers_to

    def spy(pay_to: str, first: int, last: int) -> list[object]:
        asked.append(first)
        return list(real(pay_to, first, last))

    setup.ledger_setup.chain.transfers_to = spy  # type: ignore[method-assign, assignment]
    setup.compare()
    assert asked == [block + 1]


def test_long_ranges_are_compared_in_resumable_spans(setup: ComparisonSetup) -> None:
    """A long gap is compared in spans, and a compared span is not repeated."""
    setup.ledger_setup.chain.mint(STRANGER, 10**9)
    for _ in range(25):
        setup.ledger_setup.chain.transfer(STRANGER, WORKER, 3)
    setup.comparison = setup.make(span=10)
    real = setup.ledger_setup.chain.transfers_to
    calls: list[tuple[int, int]] = []

    def failing(pay_to: str, first: int, last: int) -> list[object]:
        calls.append((first, last))
        if len(calls) == 2:
            setup.ledger_setup.chain.down = True
        return list(real(pay_to, first, last))

    setup.ledger_setup.chain.transfers_to = failing  # type: ignore[method-assign, assignment]
    assert not setup.compare()
    setup.ledger_setup.chain.down = False
    assert setup.compare()
    assert calls[2][0] == calls[0][1] + 1, "it goes on where it stopped"
    assert len(setup.found.listed()) == 25


def test_comparison_runs_every_ten_minutes(setup: ComparisonSetup) -> None:
    """Between comparisons no query is sent; while contracts are held they run more often."""
    run = setup.comparison.run
    setup.client.hset("w:compared", "hold", "0")
    assert not run()
    setup.ledger_setup.move_time(SOON_EVERY_US // SECOND_US + 1)
    assert not run()
    setup.client.hset("w:compared", "hold", setup.ledger_setup.now() + HOUR_US)
    assert run()
    setup.client.hset("w:compared", "hold", "0")
    setup.ledger_setup.move_time(EVERY_US // SECOND_US + 1)
    assert run() and not run()


def test_comparison_lease_excludes_a_second_clock(setup: ComparisonSetup) -> None:
    """The comparing clock holds a lease, which expires if its process dies."""
    setup.client.hdel("w:compared", "at")
    assert setup.mark.begin() is not None
    assert setup.mark.begin() is None
    setup.ledger_setup.move_time(61)
    assert setup.mark.begin() is not None


# After a store restart


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


def test_older_contracts_wait_after_a_restart(store: EmbeddedStore) -> None:
    """From the first command after a crash until the comparison is done, and no longer."""
    client = redis.Redis.from_url(store.url)
    setup = ComparisonSetup(client)
    setup.compare()
    signed_at = setup.ledger_setup.now()
    assert not setup.mark.comparison_pending(signed_at)
    crash(store)
    assert setup.mark.comparison_pending(signed_at)
    assert not setup.mark.comparison_pending(setup.ledger_setup.now() + 120 * SECOND_US), (
        "a newer one was never paid"
    )
    setup.ledger_setup.chain.down = True
    assert not setup.comparison.run() and setup.mark.comparison_pending(signed_at)
    setup.ledger_setup.chain.down = False
    setup.ledger_setup.chain.mine(seconds=3600)
    setup.ledger_setup.move_time(10)
    assert setup.comparison.run()
    assert not setup.mark.comparison_pending(signed_at)


def test_lagging_chain_ends_no_comparison(store: EmbeddedStore) -> None:
    """A transaction sent just before the crash may be in a block that is not visible yet."""
    client = redis.Redis.from_url(store.url)
    setup = ComparisonSetup(client, MemoryChain(time_us=(int(time.time()) - 100) * SECOND_US))
    setup.ledger_setup.chain.mint(SEEKER, 10**9)
    signed_at = setup.ledger_setup.now() - 10 * SECOND_US
    assert not setup.comparison.run() and setup.mark.comparison_pending(signed_at)
    setup.ledger_setup.chain.mine(seconds=200)
    setup.ledger_setup.move_time(2)
    setup.ledger_setup.chain.confirmations = 0
    assert setup.comparison.run() and not setup.mark.comparison_pending(signed_at)


def test_new_store_holds_no_contracts(store: EmbeddedStore) -> None:
    """A store that was never compared holds no older contracts."""
    client = redis.Redis.from_url(store.url)
    mark = ComparisonMark(client, LedgerSetup(client).keys)
    time.sleep(1.1 - time.time() % 1)  # the store sees it in the same second
    assert not mark.comparison_pending(int(time.time() * 1e6))
    assert mark.comparison_pending(int((time.time() - 60) * 1e6))


def test_held_contracts_are_released_without_a_chain(store: EmbeddedStore) -> None:
    """Without a chain to compare with, the restart is recorded and older contracts are served again."""
    client = redis.Redis.from_url(store.url)
    setup = ComparisonSetup(client)
    setup.comparison = setup.make(with_chain=False)
    signed_at = setup.ledger_setup.now()
    assert setup.comparison.run()
    crash(store)
    assert setup.mark.comparison_pending(signed_at)
    assert setup.comparison.run() and not setup.mark.comparison_pending(signed_at)


def test_hold_check_costs_one_command(setup: ComparisonSetup) -> None:
    """The paid path spends one script on it, and no further commands."""
    setup.mark.comparison_pending(0)
    before = int(setup.client.info("stats")["total_commands_processed"])
    setup.mark.comparison_pending(0)
    after = int(setup.client.info("stats")["total_commands_processed"])
    checked = 2  # every script first checks the type of each of its keys
    assert after - before - checked <= 8, "EVALSHA and what the script itself calls, beside INFO"


@pytest.mark.parametrize("forgotten", ["claim", "settlement"])
def test_rolled_back_store_recovers_its_payments(setup: ComparisonSetup, forgotten: str) -> None:
    """Rolled back to before the settlement or the claim, the money is found again, once."""
    ref = setup.ledger_setup.contract()
    nonce = "0x" + secrets.token_hex(32)
    before = snapshot(setup.client)
    paid = setup.ledger_setup.claim(ref, nonce=nonce, fee=100, fee_wallet=PLATFORM)
    setup.ledger_setup.seal(paid)
    if forgotten == "settlement":
        before = snapshot(setup.client)
    setup.ledger_setup.settler.settle(paid.id)
    roll_back(setup.client, before)
    setup.client.hset("w:compared", "life", "the one before the crash")
    assert setup.mark.comparison_pending(setup.ledger_setup.now() - HOUR_US)
    setup.ledger_setup.chain.mine(seconds=120)
    assert setup.compare()
    assert not setup.mark.comparison_pending(setup.ledger_setup.now() - HOUR_US)
    if forgotten == "settlement":
        execution = setup.ledger_setup.store.get(paid.id)
        assert execution is not None and execution.state == "completed"
        assert setup.ledger_setup.sums["settled"] == PRICE and setup.ledger_setup.sums["fees_due"] == 100
    else:
        waiting = setup.found.waiting_for(ref)
        assert waiting is not None and waiting.key == key_of(nonce)
    assert len(setup.ledger_setup.chain.transfers_to(WORKER, 0, setup.ledger_setup.chain.head().block)) == 1

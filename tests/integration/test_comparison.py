"""Ledger against chain: what the store forgot is found again, and nobody is asked to pay twice meanwhile."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.desk import PLATFORM, PRICE, SEEKER, WORKER, Desk, Paid, key_of
from tests.fakes.facilitator_memory import POOR, USED
from worker.executions.states import Phase
from worker.local.valkey import EmbeddedStore
from worker.payments.comparison import EVERY_US, SOON_EVERY_US, Comparison, ComparisonMark
from worker.payments.found import FoundMoney
from worker.payments.ledger import SECOND_US
from worker.payments.networks import BASE_SEPOLIA
from worker.payments.report import imbalances, read_journal
from worker.payments.wire import restore

STRANGER = "0x" + "77" * 20


class Bench:
    """A desk with the comparison of its clock."""

    def __init__(self, client: redis.Redis, chain: MemoryChain | None = None) -> None:
        self.client = client
        self.desk = Desk(client)
        if chain is not None:
            self.desk.chain = self.desk.facilitator.chain = chain
            self.desk.settler._chain = chain
        self.mark = ComparisonMark(client, self.desk.keys, test_clock=True)
        self.found = FoundMoney(client, self.desk.keys, self.desk.ledger, BASE_SEPOLIA, test_clock=True)
        self.comparison = self.make()

    def make(self, *, span: int = 10_000, with_chain: bool = True) -> Comparison:
        chain = self.desk.chain if with_chain else None
        desk = self.desk
        return Comparison(
            self.mark, desk.ledger, desk.settler, self.found, pay_to=WORKER, chain=chain, span=span
        )

    def compare(self) -> bool:
        """The next regular comparison, whenever that is."""
        self.desk.chain.mine()
        self.client.hdel("w:compared", "at", "lease")
        return self.comparison.run()

    def refuse(self, paid: Paid, *, sealed: bool) -> None:
        """The facilitator refuses the payment, before the work or after it."""
        if sealed:
            self.desk.seal(paid)
            self.desk.facilitator.plan = [POOR]
            self.desk.settler.settle(paid.id)
        else:
            self.desk.ledger.verify_refused(paid.id, paid.number, POOR)

    def balanced(self) -> list[str]:
        lines = [line.decode() for line in self.client.lrange("w:journal", 0, -1)]
        return imbalances(read_journal(lines), self.desk.sums, {})


@pytest.fixture(name="bench")
def _bench(client: redis.Redis) -> Bench:
    bench = Bench(client)
    bench.compare()
    return bench


def snapshot(client: redis.Redis) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys("*")}


def roll_back(client: redis.Redis, before: dict[bytes, bytes]) -> None:
    """The store forgets everything since then, as one that lost the end of its file."""
    client.flushall()
    for key, blob in before.items():
        client.restore(key, 0, blob)


# Transfers of payments that the ledger has


def test_a_payment_that_landed_unseen_is_settled(bench: Bench) -> None:
    """The money moved and nobody told us: the comparison completes the execution."""
    paid = bench.desk.claim()
    bench.desk.seal(paid)
    bench.desk.facilitator.plan = ["moved"]
    bench.desk.chain.down = True
    bench.desk.settler.settle(paid.id)
    assert bench.desk.state(paid) == "unknown"
    bench.desk.chain.down = False
    assert bench.compare()
    execution = bench.desk.store.get(paid.id)
    assert execution is not None and (execution.state, execution.phase) == ("completed", Phase.DONE)
    money = bench.desk.ledger.money(paid.id)
    assert money is not None and money.payments[0].how == "chain"
    assert bench.found.listed() == [] and bench.balanced() == []


def test_a_settled_payment_is_left_alone(bench: Bench) -> None:
    """What the books have settled is not booked again, however often it is compared."""
    bench.desk.paid()
    length = bench.client.llen("w:journal")
    for _ in range(3):
        bench.client.hdel("w:compared", "block")
        assert bench.compare()
    assert bench.client.llen("w:journal") == length and bench.found.listed() == []


def test_a_released_payment_that_lands_is_given_back(bench: Bench) -> None:
    """A seeker may send an authorization that we let go of: it buys nothing, so a refund is owed."""
    paid = bench.desk.claim()
    bench.desk.store.cancel(paid.id, b"{}", by="operator")
    bench.desk.chain.settle(paid.authorization, WORKER, PRICE)
    bench.compare()
    assert bench.desk.state(paid) == "settled" and bench.desk.sums["refunds_due"] == PRICE
    assert bench.balanced() == []


def test_a_nonce_spent_on_another_amount_settles_nothing(bench: Bench) -> None:
    """Two authorizations with one nonce: the small one that landed does not pay for the large one."""
    paid = bench.desk.claim()
    bench.desk.seal(paid)
    bench.desk.chain.settle(paid.authorization, WORKER, 1)
    bench.compare()
    assert bench.desk.state(paid) == "verified"
    (line,) = bench.found.listed()
    assert (line.amount, line.payer, line.outcome) == (1, SEEKER.lower(), "listed")


def test_money_for_a_removed_execution_is_listed(bench: Bench) -> None:
    """A payment whose execution was purged before its money came is the operator's to judge."""
    paid = bench.desk.claim()
    bench.client.delete(f"w:money:{paid.id}", f"w:x:{paid.id}")
    bench.desk.chain.settle(paid.authorization, WORKER, PRICE)
    bench.compare()
    assert [line.outcome for line in bench.found.listed()] == ["listed"]


# Transfers that nobody knows


@pytest.mark.parametrize("sealed", [False, True])
def test_found_money_pays_the_one_execution_that_waits(bench: Bench, sealed: bool) -> None:
    """A refused first payment, then money that nobody announced: the work begins, or its result opens."""
    paid = bench.desk.claim()
    bench.refuse(paid, sealed=sealed)
    bench.desk.chain.settle((SEEKER, "0x" + "5a" * 32), WORKER, PRICE)
    bench.compare()
    money = bench.desk.ledger.money(paid.id)
    assert money is not None and money.paid == 2 and money.payments[1].how == "chain"
    execution = bench.desk.store.get(paid.id)
    assert execution is not None
    assert execution.phase == (Phase.DONE if sealed else Phase.WORKING)
    assert bench.desk.ledger.bound(key_of("0x" + "5a" * 32)) == (paid.id, 2)
    assert [line.outcome for line in bench.found.listed()] == [f"execution {paid.id}"]
    assert bench.balanced() == []


def test_found_money_without_an_authorization_counts_too(bench: Bench) -> None:
    """A plain transfer of exactly what is waited for pays as well."""
    paid = bench.desk.claim()
    bench.refuse(paid, sealed=True)
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.compare()
    execution = bench.desk.store.get(paid.id)
    assert execution is not None and execution.state == "completed" and bench.balanced() == []


def test_found_money_waits_for_a_contract_without_an_execution(bench: Bench) -> None:
    """The claim itself was forgotten: the contract keeps the money until its seeker comes again."""
    ref = bench.desk.contract()
    nonce = "0x" + secrets.token_hex(32)
    bench.client.expire(f"w:contract:{ref}", 1000)
    landed = bench.desk.chain.settle((SEEKER, nonce), WORKER, PRICE)
    bench.compare()
    waiting = bench.found.waiting_for(ref)
    assert waiting is not None and (waiting.key, waiting.transaction) == (key_of(nonce), landed)
    payment = restore(waiting.payload)
    assert (payment.authorization.payer, payment.authorization.value) == (SEEKER.lower(), PRICE)
    assert bench.client.ttl(f"w:contract:{ref}") == -1, "money does not expire"
    assert bench.client.zcard("w:contracts") == 0
    bench.client.hdel("w:compared", "block")
    bench.compare()
    assert [line.outcome for line in bench.found.listed()] == [f"contract {ref}"]


def test_waiting_money_is_claimed_and_recorded(bench: Bench) -> None:
    """Claimed under its own key and recorded as settled, found money starts the work, once."""
    ref = bench.desk.contract()
    nonce = "0x" + secrets.token_hex(32)
    bench.desk.chain.settle((SEEKER, nonce), WORKER, PRICE)
    bench.compare()
    waiting = bench.found.waiting_for(ref)
    assert waiting is not None
    paid = bench.desk.claim(ref, nonce=nonce)
    assert bench.desk.settler.record_settled(paid.id, 1, waiting.transaction, "chain") == "working"
    assert bench.found.waiting_for(ref) is None
    bench.compare()
    assert bench.balanced() == []


def test_found_money_that_is_claimed_and_called_used_is_settled(bench: Bench) -> None:
    """The seeker sends the forgotten payment again: nobody is asked about it, only the chain counts."""
    ref = bench.desk.contract()
    nonce = "0x" + secrets.token_hex(32)
    bench.desk.chain.settle((SEEKER, nonce), WORKER, PRICE)
    bench.compare()
    paid = bench.desk.claim(ref, nonce=nonce)
    assert bench.desk.ledger.verify_refused(paid.id, 1, USED) == "gone"
    assert bench.desk.state(paid) == "settling"
    bench.compare()
    execution = bench.desk.store.get(paid.id)
    assert bench.desk.state(paid) == "settled" and execution is not None
    assert execution.phase is Phase.WORKING and bench.balanced() == []


@pytest.mark.parametrize(("payer", "amount"), [(SEEKER, PRICE - 1), (SEEKER, PRICE + 1), (STRANGER, PRICE)])
def test_money_that_fits_nothing_is_listed(bench: Bench, payer: str, amount: int) -> None:
    """Another payer or another amount pays for nothing; it stands on the list."""
    ref = bench.desk.contract()
    bench.desk.chain.mint(STRANGER, 10**9)
    bench.desk.chain.transfer(payer, WORKER, amount)
    bench.compare()
    assert bench.found.waiting_for(ref) is None
    assert [(line.amount, line.outcome) for line in bench.found.listed()] == [(amount, "listed")]


def test_money_that_fits_two_contracts_is_listed(bench: Bench) -> None:
    """With two contracts of one seeker at one price nobody can say which was paid."""
    refs = [bench.desk.contract() for _ in range(2)]
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.compare()
    assert [bench.found.waiting_for(ref) for ref in refs] == [None, None]
    assert [line.outcome for line in bench.found.listed()] == ["listed"]


def test_an_old_transfer_pays_for_no_newer_contract(bench: Bench) -> None:
    """Money from before a contract was made cannot have been meant for it."""
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.desk.move_time(60)
    ref = bench.desk.contract()
    bench.compare()
    assert bench.found.waiting_for(ref) is None and bench.found.listed()[0].outcome == "listed"


def test_two_transfers_pay_one_contract_once(bench: Bench) -> None:
    """The first of two equal transfers is bound, the second is listed."""
    ref = bench.desk.contract()
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.compare()
    assert [line.outcome for line in bench.found.listed()] == [f"contract {ref}", "listed"]


def test_a_paid_contract_takes_no_found_money(bench: Bench) -> None:
    """What is paid for, under way or done does not wait for money."""
    bench.desk.paid()
    bench.desk.claim()
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.compare()
    assert [line.outcome for line in bench.found.listed()] == ["listed"]


def test_found_money_is_listed_once(bench: Bench) -> None:
    """Comparing the same blocks again adds no line and binds nothing a second time."""
    paid = bench.desk.claim()
    bench.refuse(paid, sealed=True)
    bench.desk.chain.transfer(SEEKER, WORKER, PRICE)
    bench.desk.chain.transfer(SEEKER, WORKER, 5)
    for _ in range(3):
        bench.client.hdel("w:compared", "block")
        bench.compare()
    outcomes = [line.outcome for line in bench.found.listed()]
    assert outcomes == [f"execution {paid.id}", "listed"] and bench.balanced() == []
    money = bench.desk.ledger.money(paid.id)
    assert money is not None and len(money.payments) == 2


def test_a_crash_between_binding_and_settling_is_healed(bench: Bench) -> None:
    """Killed after found money was bound, the next comparison settles it; no 402 goes out meanwhile."""

    class Killed(BaseException):
        pass

    paid = bench.desk.claim()
    bench.refuse(paid, sealed=True)
    bench.desk.chain.settle((SEEKER, "0x" + "5b" * 32), WORKER, PRICE)

    def die(name: str) -> None:
        raise Killed

    bench.desk.settler.checkpoint = die
    with pytest.raises(Killed):
        bench.compare()
    execution = bench.desk.store.get(paid.id)
    assert execution is not None and execution.phase is Phase.SETTLING
    bench.desk.settler.checkpoint = lambda name: None
    bench.compare()
    execution = bench.desk.store.get(paid.id)
    assert execution is not None and execution.state == "completed" and bench.balanced() == []


# How far it has come


def test_a_block_is_looked_at_once(bench: Bench) -> None:
    """The next comparison begins after the last block of this one."""
    bench.desk.chain.mint(STRANGER, 10**9)
    bench.desk.chain.transfer(STRANGER, WORKER, 7)
    bench.compare()
    block = int(bench.client.hget("w:compared", "block") or 0)
    assert block == bench.desk.chain.head().block
    asked: list[int] = []
    real = bench.desk.chain.transfers_to

    def spy(pay_to: str, first: int, last: int) -> list[object]:
        asked.append(first)
        return list(real(pay_to, first, last))

    bench.desk.chain.transfers_to = spy  # type: ignore[method-assign, assignment]
    bench.compare()
    assert asked == [block + 1]


def test_many_blocks_are_taken_in_spans_and_a_crash_keeps_what_was_done(bench: Bench) -> None:
    """A long gap is compared piece by piece, and what was compared is not compared again."""
    bench.desk.chain.mint(STRANGER, 10**9)
    for _ in range(25):
        bench.desk.chain.transfer(STRANGER, WORKER, 3)
    bench.comparison = bench.make(span=10)
    real = bench.desk.chain.transfers_to
    calls: list[tuple[int, int]] = []

    def failing(pay_to: str, first: int, last: int) -> list[object]:
        calls.append((first, last))
        if len(calls) == 2:
            bench.desk.chain.down = True
        return list(real(pay_to, first, last))

    bench.desk.chain.transfers_to = failing  # type: ignore[method-assign, assignment]
    assert not bench.compare()
    bench.desk.chain.down = False
    assert bench.compare()
    assert calls[2][0] == calls[0][1] + 1, "it goes on where it stopped"
    assert len(bench.found.listed()) == 25


def test_it_compares_every_ten_minutes(bench: Bench) -> None:
    """Between comparisons nothing is asked; soon after a start of the store they come faster."""
    run = bench.comparison.run
    assert not run()
    bench.desk.move_time(SOON_EVERY_US // SECOND_US + 1)
    young = int(bench.client.info("server")["uptime_in_seconds"]) < 170
    if young:
        assert run()
    bench.desk.move_time(EVERY_US // SECOND_US + 1)
    assert run() and not run()


def test_two_clocks_do_not_compare_at_once(bench: Bench) -> None:
    """Who compares has a lease; it lapses if that process dies."""
    bench.client.hdel("w:compared", "at")
    assert bench.mark.begin() is not None
    assert bench.mark.begin() is None
    bench.desk.move_time(61)
    assert bench.mark.begin() is not None


# After the store came back


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


def crash(store: EmbeddedStore, client: redis.Redis) -> None:
    """kill -9, and wait until the supervisor has started the server again."""
    pid = store.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if store.pid not in (None, pid) and client.ping():
                return
        except redis.RedisError:
            pass
        time.sleep(0.02)
    raise AssertionError("the store did not come back")


def test_older_contracts_wait_after_a_restart(store: EmbeddedStore) -> None:
    """From the first command after a crash until the comparison is done, and not a moment longer."""
    client = redis.Redis.from_url(store.url)
    bench = Bench(client)
    bench.compare()
    made = bench.desk.now()
    assert not bench.mark.comparison_pending(made)
    crash(store, client)
    assert bench.mark.comparison_pending(made)
    assert not bench.mark.comparison_pending(bench.desk.now() + 120 * SECOND_US), "a newer one was never paid"
    bench.desk.chain.down = True
    assert not bench.comparison.run() and bench.mark.comparison_pending(made)
    bench.desk.chain.down = False
    bench.desk.chain.mine(seconds=3600)
    bench.desk.move_time(10)
    assert bench.comparison.run()
    assert not bench.mark.comparison_pending(made)


def test_a_chain_that_lags_behind_the_crash_ends_no_comparison(store: EmbeddedStore) -> None:
    """What was sent just before the crash may stand in a block that is not seen yet."""
    client = redis.Redis.from_url(store.url)
    bench = Bench(client, MemoryChain(time_us=(int(time.time()) - 100) * SECOND_US))
    bench.desk.chain.mint(SEEKER, 10**9)
    made = bench.desk.now() - 10 * SECOND_US
    assert not bench.comparison.run() and bench.mark.comparison_pending(made)
    bench.desk.chain.mine(seconds=200)
    bench.desk.move_time(2)
    bench.desk.chain.confirmations = 0
    assert bench.comparison.run() and not bench.mark.comparison_pending(made)


def test_a_new_store_asks_nobody_to_wait(store: EmbeddedStore) -> None:
    """A store that was never compared holds no contract from before it."""
    client = redis.Redis.from_url(store.url)
    mark = ComparisonMark(client, Desk(client).keys)
    time.sleep(1.1)
    assert not mark.comparison_pending(int(time.time() * 1e6))
    assert mark.comparison_pending(int((time.time() - 60) * 1e6))


def test_without_a_chain_a_clock_ends_the_waiting(store: EmbeddedStore) -> None:
    """With nothing to compare with, the restart is noted and older contracts are served again."""
    client = redis.Redis.from_url(store.url)
    bench = Bench(client)
    bench.comparison = bench.make(with_chain=False)
    made = bench.desk.now()
    assert bench.comparison.run()
    crash(store, client)
    assert bench.mark.comparison_pending(made)
    assert bench.comparison.run() and not bench.mark.comparison_pending(made)


def test_asking_is_one_command(bench: Bench) -> None:
    """The paid path pays one script for it, and no pattern of commands beside it."""
    bench.mark.comparison_pending(0)
    before = int(bench.client.info("stats")["total_commands_processed"])
    bench.mark.comparison_pending(0)
    after = int(bench.client.info("stats")["total_commands_processed"])
    assert after - before <= 5, "EVALSHA and what the script itself calls, beside INFO"


@pytest.mark.parametrize("forgotten", ["claim", "settlement"])
def test_a_store_that_forgot_its_last_second_is_healed(bench: Bench, forgotten: str) -> None:
    """Rolled back to before the settlement, or before the claim: the money is known again, once."""
    ref = bench.desk.contract()
    nonce = "0x" + secrets.token_hex(32)
    before = snapshot(bench.client)
    paid = bench.desk.claim(ref, nonce=nonce, fee=100, fee_wallet=PLATFORM)
    bench.desk.seal(paid)
    if forgotten == "settlement":
        before = snapshot(bench.client)
    bench.desk.settler.settle(paid.id)
    roll_back(bench.client, before)
    bench.client.hset("w:compared", "run_id", "the one before the crash")
    assert bench.mark.comparison_pending(bench.desk.now() - 3_600_000_000)
    assert bench.compare()
    assert not bench.mark.comparison_pending(bench.desk.now() - 3_600_000_000)
    if forgotten == "settlement":
        execution = bench.desk.store.get(paid.id)
        assert execution is not None and execution.state == "completed"
        assert bench.desk.sums["settled"] == PRICE and bench.desk.sums["fees_due"] == 100
    else:
        waiting = bench.found.waiting_for(ref)
        assert waiting is not None and waiting.key == key_of(nonce)
    assert len(bench.desk.chain.transfers_to(WORKER, 0, bench.desk.chain.head().block)) == 1

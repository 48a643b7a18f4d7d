"""Legs and comparison run by the clock: the local chain, real HTTP, killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.fakes import facilitator_faults as faults
from tests.fakes.chain_services import facilitator_of, seekers_chain
from tests.fakes.dollar import Rpc
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.ledger_setup import KEY, PLATFORM, PRICE, SEEKER, WORKER, LedgerSetup, SignedClaim
from worker.core.settings import Settings
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts
from worker.payments.leg import Leg, LegKey, LegKind, LegState

PATIENCE = 20.0


@pytest.fixture(name="chain", scope="module")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with seekers_chain(tmp_path_factory.mktemp("chain")) as chain:
        yield chain


@pytest.fixture(name="facilitator", scope="module")
def _facilitator(chain: Rpc) -> Iterator[str]:
    with facilitator_of(chain) as url:
        yield url


@pytest.fixture(name="environ")
def _environ(valkey: EmbeddedStore, client: redis.Redis, chain: Rpc, facilitator: str) -> dict[str, str]:
    return {
        "WORKER_ENV": "test",
        "REDIS_URL": valkey.url,
        "WORKER_KEY": KEY,
        "NETWORK": "base-sepolia",
        "RPC_URL": chain.url,
        "FACILITATOR_URL": facilitator,
        "SECRET_KEY": "s" * 32,
        "FEE_THRESHOLD": "0.0003",
    }


def parts_of(environ: dict[str, str], **changed: str) -> Parts:
    return Parts(Settings.load({**environ, **changed}), "clock")


def ledger_setup_of(parts: Parts) -> LedgerSetup:
    assert parts.chain is not None
    return LedgerSetup(parts.client, outside=(parts.facilitator, parts.chain))


def refund_of(parts: Parts, paid: SignedClaim) -> Leg:
    leg = parts.leg_books.get(LegKey(LegKind.REFUND, paid.id, paid.number))
    assert leg is not None
    return leg


def tick_until(parts: Parts, done: Callable[[], bool]) -> None:
    """Ticks the payment pool as a clock does, but faster."""
    until = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < until, "it did not come to its end"
        parts.money_pool.chore(parts.store.now())
        time.sleep(0.05)


def test_refund_and_fee_reach_their_wallets(environ: dict[str, str], chain: Rpc) -> None:
    """On a real chain through a real facilitator: the payer gets the refund, the platform its fee."""
    parts = parts_of(environ)
    ledger_setup = ledger_setup_of(parts)
    held = {who: chain.dollars(who) for who in (SEEKER, WORKER, PLATFORM)}
    owed = ledger_setup.owed()
    for _ in range(3):
        ledger_setup.paid(fee=100)
    assert chain.dollars(WORKER) == held[WORKER] + 4 * PRICE
    tick_until(parts, lambda: parts.leg_books.open() == [] and ledger_setup.sums["fees_due"] == 0)
    assert chain.dollars(SEEKER) == held[SEEKER] - 3 * PRICE
    assert chain.dollars(WORKER) == held[WORKER] + 3 * PRICE - 300
    assert chain.dollars(PLATFORM) == held[PLATFORM] + 300
    assert refund_of(parts, owed).receipt
    parts.money_pool.close(1)


def test_clock_settles_open_payments(environ: dict[str, str], chain: Rpc) -> None:
    """The clock alone verifies and settles a payment that no request waits for."""
    parts = parts_of(environ)
    ledger_setup = ledger_setup_of(parts)
    paid = ledger_setup.claim()
    ledger_setup.client.zadd("w:open", {paid.id: 1})
    tick_until(parts, lambda: ledger_setup.state(paid) == "verified")
    ledger_setup.end(paid, "completed")
    before = chain.dollars(WORKER)
    tick_until(parts, lambda: ledger_setup.state(paid) == "settled")
    assert chain.dollars(WORKER) == before + PRICE
    parts.money_pool.close(1)


def test_comparison_reads_the_real_chain(environ: dict[str, str], chain: Rpc) -> None:
    """A settlement lost by the store is read from the asset's logs."""
    parts = parts_of(environ)
    ledger_setup = ledger_setup_of(parts)
    paid = ledger_setup.claim()
    ledger_setup.seal(paid)
    forgotten = {key: parts.client.dump(key) for key in parts.client.keys("*")}
    ledger_setup.settler.settle(paid.id)
    parts.client.flushall()
    for key, blob in forgotten.items():
        parts.client.restore(key, 0, blob)
    parts.client.zrem("w:open", paid.id)  # only the comparison looks
    assert ledger_setup.state(paid) == "verified"
    tick_until(parts, lambda: ledger_setup.state(paid) == "settled")
    execution = parts.store.get(paid.id)
    assert execution is not None and execution.state == "completed"
    parts.money_pool.close(1)


def test_no_legs_are_sent_without_a_key(environ: dict[str, str]) -> None:
    """A worker without a key leaves its legs due; its clock still ticks."""
    del environ["WORKER_KEY"]
    parts = parts_of(environ, WORKER_WALLET=WORKER)
    assert parts.leg_runner is None
    parts.money_pool.chore(parts.store.now())
    parts.money_pool.close(1)


def test_web_process_has_no_chain(environ: dict[str, str]) -> None:
    """Only clock and command line query the chain; the web process checks whether it was queried."""
    web = Parts(Settings.load(environ), "web")
    assert web.chain is None and web.comparison_mark.comparison_pending(0)
    parts = parts_of(environ)
    tick_until(parts, lambda: not web.comparison_mark.comparison_pending(0))
    parts.money_pool.close(1)


def test_importing_the_clocks_parts_does_not_import_web3(environ: dict[str, str]) -> None:
    """web3 is imported at the first chain query, so that the web process never loads it."""
    program = (
        "import os, sys\nfrom worker.parts import Parts\nfrom worker.core.settings import Settings\n"
        "parts = Parts(Settings.load(os.environ), 'web')\nparts.comparison_mark.comparison_pending(0)\n"
        "parts.settler, parts.money_pool\nassert 'web3' not in sys.modules"
    )
    environ |= {"PATH": os.environ["PATH"]}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=PATIENCE)


LIES = {
    "refused by 400": (faults.refuse("insufficient_funds", status=400), LegState.REFUSED),
    "refused by 200": (faults.refuse("insufficient_funds"), LegState.REFUSED),
    "settled, connection dropped": (faults.drop(moves=True), LegState.SETTLED),
    "dropped before": (faults.drop(moves=False), LegState.SETTLED),
    "pending by 500 with a hash": (faults.pending(), LegState.SETTLED),
    "success without a hash": (faults.no_hash(), LegState.SETTLED),
    "garbage": (faults.garbage(502, moves=True), LegState.SETTLED),
    "refused by an unknown code": (faults.refuse("something_new"), LegState.SETTLED),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_facilitator_pays_a_leg_once(environ: dict[str, str], lie: str) -> None:
    """Over HTTP and without a node: whatever one response says, the leg moves once and is not lost."""
    fault, state = LIES[lie]
    del environ["RPC_URL"]
    with FacilitatorServer() as server:
        parts = parts_of(environ, FACILITATOR_URL=server.url)
        ledger_setup = LedgerSetup(parts.client)
        paid = ledger_setup.owed()
        server.plan("settle", fault)
        tick_until(parts, lambda: refund_of(parts, paid).state is state)
        assert server.charged(WORKER) == (0 if state is LegState.REFUSED else PRICE)
        sent = [call["body"]["paymentPayload"] for call in server.calls("settle")]
        assert all(each == sent[0] for each in sent) and server.overlaps == 0
        if state is LegState.REFUSED:
            assert parts.leg_books.retry(refund_of(parts, paid).name) == "due"
            tick_until(parts, lambda: refund_of(parts, paid).state is LegState.SETTLED)
            assert server.charged(WORKER) == PRICE
        parts.money_pool.close(1)


def test_work_processes_complete_legs(environ: dict[str, str], chain: Rpc, tmp_path: Path) -> None:
    """`worker work` alone: its clock sends the refund, records the comparison and ends on SIGTERM."""
    parts = parts_of(environ)
    paid = ledger_setup_of(parts).owed()
    held = chain.dollars(SEEKER)
    signed_at = parts.store.now() - 3_600_000_000
    assert parts.comparison_mark.comparison_pending(signed_at)
    environ |= {"WORKER_STATE_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [sys.executable, "-m", "worker", "work"], env=environ, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + PATIENCE
        while refund_of(parts, paid).state is not LegState.SETTLED and time.monotonic() < until:
            time.sleep(0.05)
        while parts.comparison_mark.comparison_pending(signed_at) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert chain.dollars(SEEKER) == held + PRICE
    assert not parts.comparison_mark.comparison_pending(signed_at)


KILLED_CLOCK = """
import os, signal, sys
from worker.parts import Parts
from worker.core.settings import Settings
parts = Parts(Settings.load(os.environ), "clock")
def point(name):
    if name == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
parts.leg_runner.checkpoint = point
for leg in parts.leg_runner.due(parts.store.now()):
    parts.leg_runner.attend(leg)
"""


@pytest.mark.parametrize("point", ["after_leg_begin", "after_leg_signed", "after_leg_settle"])
def test_clock_killed_inside_a_leg_pays_once(environ: dict[str, str], chain: Rpc, point: str) -> None:
    """Another clock completes the leg of a killed one, with one transfer on the chain."""
    parts = parts_of(environ)
    paid = ledger_setup_of(parts).owed()
    held: dict[str, Any] = {who: chain.dollars(who) for who in (SEEKER, WORKER)}
    command = [sys.executable, "-c", KILLED_CLOCK, point]
    ended = subprocess.run(command, env={**environ, "PATH": os.environ["PATH"]}, timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL
    parts.client.incrby("w:test-clock", 6_000_000)  # its lease expires
    tick_until(parts, lambda: refund_of(parts, paid).state is LegState.SETTLED)
    assert chain.dollars(SEEKER) == held[SEEKER] + PRICE
    assert chain.dollars(WORKER) == held[WORKER] - PRICE
    parts.money_pool.close(1)

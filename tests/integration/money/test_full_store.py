"""Full store or stopped clock: no 402 is issued, and settled money is still recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes import facilitator_faults as faults
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.paid_worker import SECOND, PaidWorker
from tests.fakes.seeker import DoorAnswer
from tests.waiting import eventually
from worker.local.valkey import EmbeddedStore

PRICE = 10_000


@contextmanager
def memory(paid_worker: PaidWorker, bytes_allowed: int) -> Iterator[None]:
    """Sets the memory limit; the worker caches the reading for a second."""
    paid_worker.client.config_set("maxmemory", bytes_allowed)
    time.sleep(1.1)
    try:
        yield
    finally:
        paid_worker.client.config_set("maxmemory", 0)
        time.sleep(1.1)


def used(paid_worker: PaidWorker) -> int:
    return int(paid_worker.client.info("memory")["used_memory"])


def test_no_new_work_above_three_quarters_of_memory(paid_worker: PaidWorker) -> None:
    """No contract, 402 or claim while memory is short; finished work is still served."""
    done, asked = paid_worker.seeker().hire(), paid_worker.seeker().hire()
    first = done.pay()
    header = asked.sign()
    draft = asked.seeker.draft()
    with memory(paid_worker, int(used(paid_worker) / 0.88)):
        drafted = asked.seeker.door("POST", "/contracts", draft)
        registered = asked.seeker.door("PUT", "/contracts", asked.document)
        for response in (asked.execute(), asked.execute(None, header), drafted, registered):
            assert (response.status, response.code) == (503, "WORKER_BUSY")
            assert response.header("PAYMENT-REQUIRED") is None and response.header("Retry-After")
        assert done.execute().content == first.content
    assert asked.execute(None, header).status == 200
    assert paid_worker.charged(asked.seeker.wallet) == PRICE


def test_settlement_into_a_full_store_is_written_later(paid_worker: PaidWorker) -> None:
    """A settlement that could not be written is written as soon as the store accepts writes."""
    hired = paid_worker.seeker().hire()
    wallet = hired.seeker.wallet
    paid_worker.fault("settle", wallet, faults.hang(30, moves=False))
    header = hired.sign()
    answers: list[DoorAnswer] = []
    request = threading.Thread(target=lambda: answers.append(hired.execute(None, header)), daemon=True)
    request.start()
    eventually(lambda: paid_worker.calls("settle", wallet), description="the settle call")
    contract = paid_worker.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    id = contract.execution
    with memory(paid_worker, 1_000_000):
        paid_worker.facilitator.release()
        eventually(lambda: paid_worker.charged(wallet) == PRICE, description="the transfer")
        time.sleep(0.5)
        assert paid_worker.payment(id).state == "settling", "written into a full store"
        response = hired.execute(None, header, Prefer="respond-async")
        assert response.status == 202 and response.header("PAYMENT-REQUIRED") is None
    done = hired.ended(id)
    assert done.json["status"] == "completed" and paid_worker.payment(id).how == "facilitator"
    request.join(20)
    assert paid_worker.charged(wallet) == PRICE and paid_worker.runs(id) == 1


def test_no_402_without_a_ticking_clock(tmp_path: Path) -> None:
    """Ten seconds after the last tick, 402 becomes 503; results are still served."""
    store = EmbeddedStore(tmp_path)
    with FacilitatorServer() as facilitator:
        paid_worker = PaidWorker(tmp_path, store, facilitator)
        try:
            paid_worker.start_work()
            done, fresh = paid_worker.seeker().hire(), paid_worker.seeker().hire()
            first = done.pay()
            header = fresh.sign()
            paid_worker.stop_work()
            paid_worker.client.incrby(paid_worker.parts.keys.test_clock, 11 * SECOND)
            for response in (fresh.execute(), fresh.execute(None, header)):
                assert response.status == 503 and response.header("PAYMENT-REQUIRED") is None
            assert done.execute().content == first.content
            assert paid_worker.charged(fresh.seeker.wallet) == 0
            paid_worker.start_work()
            assert eventually(lambda: fresh.execute(None, header).status == 200, description="a new clock")
            assert paid_worker.charged(fresh.seeker.wallet) == PRICE
        finally:
            paid_worker.stop_work()
            store.stop()

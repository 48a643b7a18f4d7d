"""A store that is full, a clock that has stopped: nothing is asked for, and what moved is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes import facilitator_faults as faults
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.seeker import Said
from tests.fakes.shop import SECOND, Shop
from tests.waiting import eventually
from worker.local.valkey import EmbeddedStore

PRICE = 10_000


@contextmanager
def memory(shop: Shop, bytes_allowed: int) -> Iterator[None]:
    """The store may use so much; what is read of it is kept for a second."""
    shop.client.config_set("maxmemory", bytes_allowed)
    time.sleep(1.1)
    try:
        yield
    finally:
        shop.client.config_set("maxmemory", 0)
        time.sleep(1.1)


def used(shop: Shop) -> int:
    return int(shop.client.info("memory")["used_memory"])


def test_above_three_quarters_nothing_new_is_begun(shop: Shop) -> None:
    """No contract, no 402 and no claim while memory is short; what is done already is still answered."""
    done, asked = shop.seeker().hire(), shop.seeker().hire()
    first = done.pay()
    header = asked.sign()
    draft = asked.seeker.draft()
    with memory(shop, int(used(shop) / 0.88)):
        contract = asked.seeker.door("POST", "/contracts", draft)
        for said in (asked.execute(), asked.execute(None, header), contract):
            assert (said.status, said.code) == (503, "WORKER_BUSY")
            assert said.header("PAYMENT-REQUIRED") is None and said.header("Retry-After")
        assert done.execute().content == first.content
    assert asked.execute(None, header).status == 200
    assert shop.charged(asked.seeker.wallet) == PRICE


def test_a_store_that_is_full_when_the_settlement_answers(shop: Shop) -> None:
    """Money that moved while nothing could be written is written as soon as something can."""
    hired = shop.seeker().hire()
    wallet = hired.seeker.wallet
    shop.fault("settle", wallet, faults.hang(30, moves=False))
    header = hired.sign()
    answers: list[Said] = []
    request = threading.Thread(target=lambda: answers.append(hired.execute(None, header)), daemon=True)
    request.start()
    eventually(lambda: shop.calls("settle", wallet), what="the settle call")
    contract = shop.parts.book.find(hired.id)
    assert contract is not None and contract.execution
    id = contract.execution
    with memory(shop, 1_000_000):
        shop.facilitator.release()
        eventually(lambda: shop.charged(wallet) == PRICE, what="the transfer")
        time.sleep(0.5)
        assert shop.payment(id).state == "settling", "written into a full store"
        said = hired.execute(None, header, Prefer="respond-async")
        assert said.status == 202 and said.header("PAYMENT-REQUIRED") is None
    done = hired.ended(id)
    assert done.json["status"] == "completed" and shop.payment(id).how == "facilitator"
    request.join(20)
    assert shop.charged(wallet) == PRICE and shop.runs(id) == 1


def test_without_a_clock_nobody_is_asked_to_pay(tmp_path: Path) -> None:
    """Ten seconds after the last tick 402 becomes 503, and results are still given out."""
    store = EmbeddedStore(tmp_path)
    with FacilitatorServer() as facilitator:
        shop = Shop(tmp_path, store, facilitator)
        try:
            shop.start_work()
            done, fresh = shop.seeker().hire(), shop.seeker().hire()
            first = done.pay()
            header = fresh.sign()
            shop.stop_work()
            shop.client.incrby(shop.parts.keys.test_clock, 11 * SECOND)
            for said in (fresh.execute(), fresh.execute(None, header)):
                assert said.status == 503 and said.header("PAYMENT-REQUIRED") is None
            assert done.execute().content == first.content
            assert shop.charged(fresh.seeker.wallet) == 0
            shop.start_work()
            assert eventually(lambda: fresh.execute(None, header).status == 200, what="a new clock")
            assert shop.charged(fresh.seeker.wallet) == PRICE
        finally:
            shop.stop_work()
            store.stop()

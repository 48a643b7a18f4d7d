"""Promises about time: latency and deadline are kept or nothing is charged, and results wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import requests

from tests.e2e.hire.exchange import Shop
from tests.e2e.hire.receiver import Receiver


def test_a_broken_latency_promise(shop: Shop, receiver: Receiver, tmp_path: Path) -> None:
    """Work that takes longer than was promised fails, is not charged, and says which condition was broken."""
    contract = shop.contract("gated", sla={"max_latency_ms": 120_000}, webhook={"url": receiver.url()})
    reply = shop.buy(contract, {"gate": str(tmp_path / "never")}, Prefer="respond-async")
    task = reply.json()["task_id"]
    shop.until(contract, task, lambda body: body["status"] == "partial")
    before = shop.balance(shop.facts["seeker_wallet"])
    shop.move_clock(121)
    body = shop.ended(contract, task)
    error = body["error"]
    assert error["code"] == "SLA_TIMEOUT"
    assert error["details"]["refund_condition"] == "no_response" and error["details"]["charged"] is False
    assert shop.charges(task) == 0 and shop.balance(shop.facts["seeker_wallet"]) == before
    assert shop.execute(contract, {"gate": str(tmp_path / "never")}).status_code == 504
    receiver.wait(1)
    told = [call.told for call in receiver.calls if call.told["event"] == "task_failed"] or [
        receiver.wait(2)[1].told
    ]
    assert told[0]["error"]["code"] == "SLA_TIMEOUT"


def test_a_missed_deadline(shop: Shop, tmp_path: Path) -> None:
    """Work that is not done by the deadline fails with 410 and costs nothing."""
    contract, task = shop.begin("gated", {"gate": str(tmp_path / "never")}, deadline_in=1200)
    shop.until(contract, task, lambda body: body["status"] == "partial")
    shop.move_clock(1300)
    error = shop.ended(contract, task)["error"]
    assert error["code"] in ("DEADLINE_MISSED", "EXECUTION_TIMEOUT"), error
    assert error["details"]["charged"] is False
    assert shop.charges(task) == 0


def test_a_deadline_passed_in_the_queue(shop: Shop) -> None:
    """A parked or waiting task whose deadline passes is over, and answered as missed."""
    busy = [shop.begin("napping", {"seconds": 2}) for _ in range(2)]
    contract, task = shop.begin("napping", {"seconds": 0}, deadline_in=1200)
    shop.move_clock(1300)
    error = shop.ended(contract, task)["error"]
    assert error["code"] == "DEADLINE_MISSED"
    assert error["details"]["refund_condition"] == "deadline_missed"
    reply = shop.execute(contract, {"seconds": 0})
    assert (reply.status_code, reply.headers["Idempotent-Replayed"]) == (410, "true")
    assert shop.charges(task) == 0
    for each in busy:
        # Their lease and their authorization have run out meanwhile; whoever does not wait for them cancels.
        shop.http.delete(f"{shop.url}/tasks/{each[1]}", headers={"X-Contract-ID": each[0]})


def test_a_contract_that_has_expired(shop: Shop) -> None:
    """After its deadline a contract that nobody executed is refused before money, a completed one answers."""
    unused = shop.contract("text", deadline_in=1200)
    used, body = shop.done("text", {"text": "kept"}, deadline_in=1200)
    shop.move_clock(1300)
    reply = shop.execute(unused, {"text": "x"})
    assert reply.status_code in (404, 410) and "PAYMENT-REQUIRED" not in reply.headers
    again = shop.execute(used, {"text": "kept"})
    assert (again.status_code, again.json()) == (200, body)


def test_who_dies_after_paying_has_the_result_an_hour_later(shop: Shop, tmp_path: Path) -> None:
    """A client that pays and is never seen again until an hour later gets its result without paying."""
    gate = tmp_path / "gate"
    given = {"gate": str(gate)}
    contract = shop.contract("gated")
    asked = shop.execute(contract, given)
    payment = shop.sign(asked)
    before = shop.balance(shop.facts["seeker_wallet"])

    def dies() -> None:
        with pytest.raises(requests.exceptions.Timeout), requests.Session() as http:
            http.post(
                f"{shop.url}/execute",
                json=given,
                headers={"X-Contract-ID": contract, "PAYMENT-SIGNATURE": payment},
                timeout=0.4,
            )

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    gate.touch()
    settled = time.monotonic() + 20
    while shop.balance(shop.facts["seeker_wallet"]) == before:
        assert time.monotonic() < settled, "the work was not settled without its client"
        time.sleep(0.1)
    shop.move_clock(3600)
    back = shop.execute(contract, given)
    assert back.status_code == 200 and back.headers["Idempotent-Replayed"] == "true"
    assert back.json()["output"] and back.headers["PAYMENT-RESPONSE"]
    assert before - shop.balance(shop.facts["seeker_wallet"]) == 10_000
    for each in back.json()["deliverables"]:
        assert requests.get(each["url"], timeout=10).status_code == 200
    # Also with the same payment, which it had kept.
    assert shop.execute(contract, given, payment=payment).content == back.content
    assert before - shop.balance(shop.facts["seeker_wallet"]) == 10_000

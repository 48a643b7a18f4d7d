"""Latency limits and deadlines: they are met or nothing is charged, and results are kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import requests

from tests.e2e.hire.hire_session import HireSession
from tests.e2e.hire.webhook_receiver import Receiver


def test_latency_violation_fails_uncharged(session: HireSession, receiver: Receiver, tmp_path: Path) -> None:
    """Work beyond its latency limit fails, is not charged, and names the violated condition."""
    contract = session.contract("gated", sla={"max_latency_ms": 120_000}, webhook={"url": receiver.url()})
    reply = session.buy(contract, {"gate": str(tmp_path / "never")}, Prefer="respond-async")
    task = reply.json()["task_id"]
    session.until(contract, task, lambda body: body["status"] == "partial")
    before = session.balance(session.facts["seeker_wallet"])
    session.move_clock(121)
    body = session.ended(contract, task)
    error = body["error"]
    assert error["code"] == "SLA_TIMEOUT"
    assert error["details"]["refund_condition"] == "no_response" and error["details"]["charged"] is False
    assert session.charges(task) == 0 and session.balance(session.facts["seeker_wallet"]) == before
    assert session.execute(contract, {"gate": str(tmp_path / "never")}).status_code == 504
    receiver.wait(1)
    payloads = [call.payload for call in receiver.calls if call.payload["event"] == "task_failed"] or [
        receiver.wait(2)[1].payload
    ]
    assert payloads[0]["error"]["code"] == "SLA_TIMEOUT"


def test_missed_deadline_fails_uncharged(session: HireSession, tmp_path: Path) -> None:
    """Work not done by the deadline fails with 410 and costs nothing."""
    contract, task = session.begin("gated", {"gate": str(tmp_path / "never")}, deadline_in=1200)
    session.until(contract, task, lambda body: body["status"] == "partial")
    session.move_clock(1300)
    error = session.ended(contract, task)["error"]
    assert error["code"] in ("DEADLINE_MISSED", "EXECUTION_TIMEOUT"), error
    assert error["details"]["charged"] is False
    assert session.charges(task) == 0


def test_deadline_passing_in_the_queue_fails_the_task(session: HireSession) -> None:
    """A parked or queued task whose deadline passes ends and is reported as missed."""
    busy = [session.begin("napping", {"seconds": 20}) for _ in range(2)]
    contract, task = session.begin("napping", {"seconds": 0}, deadline_in=1200)
    session.until(contract, task, lambda body: body["phase"] == "working")  # its payment is verified
    session.move_clock(1300)
    error = session.ended(contract, task)["error"]
    assert error["code"] == "DEADLINE_MISSED"
    assert error["details"]["refund_condition"] == "deadline_missed"
    reply = session.execute(contract, {"seconds": 0})
    assert (reply.status_code, reply.headers["Idempotent-Replayed"]) == (410, "true")
    assert session.charges(task) == 0
    for each in busy:
        # Their leases and authorizations expire meanwhile; cancel them instead of waiting for them.
        session.http.delete(f"{session.url}/tasks/{each[1]}", headers={"X-Contract-ID": each[0]})


def test_expired_contract_is_refused_before_payment(session: HireSession) -> None:
    """After its deadline an unexecuted contract is refused before payment; a completed one replays."""
    unused = session.contract("text", deadline_in=1200)
    used, body = session.done("text", {"text": "kept"}, deadline_in=1200)
    session.move_clock(1300)
    reply = session.execute(unused, {"text": "x"})
    assert reply.status_code in (404, 410) and "PAYMENT-REQUIRED" not in reply.headers
    again = session.execute(used, {"text": "kept"})
    assert (again.status_code, again.json()) == (200, body)


def test_client_that_disappears_after_paying_finds_its_result_later(
    session: HireSession, tmp_path: Path
) -> None:
    """A client that pays and disconnects gets its result an hour later without paying again."""
    gate = tmp_path / "gate"
    input = {"gate": str(gate)}
    contract = session.contract("gated")
    asked = session.execute(contract, input)
    payment = session.sign(asked)
    before = session.balance(session.facts["seeker_wallet"])

    def dies() -> None:
        with pytest.raises(requests.exceptions.Timeout), requests.Session() as http:
            http.post(
                f"{session.url}/execute",
                json=input,
                headers={"X-Contract-ID": contract, "PAYMENT-SIGNATURE": payment},
                timeout=0.4,
            )

    thread = threading.Thread(target=dies)
    thread.start()
    thread.join()
    gate.touch()
    settled = time.monotonic() + 20
    while session.balance(session.facts["seeker_wallet"]) == before:
        assert time.monotonic() < settled, "the work was not settled without its client"
        time.sleep(0.1)
    session.move_clock(3600)
    back = session.execute(contract, input)
    assert back.status_code == 200 and back.headers["Idempotent-Replayed"] == "true"
    assert back.json()["output"] and back.headers["PAYMENT-RESPONSE"]
    assert before - session.balance(session.facts["seeker_wallet"]) == 10_000
    for each in back.json()["deliverables"]:
        assert requests.get(each["url"], timeout=10).status_code == 200
    # Also with the same payment, which it had stored.
    assert session.execute(contract, input, payment=payment).content == back.content
    assert before - session.balance(session.facts["seeker_wallet"]) == 10_000

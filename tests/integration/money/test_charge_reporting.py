"""`charged` states only known facts: never "failed" or "not charged" on a guess."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_door import PaidDoor
from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import DoorAnswer, FlaskDoor, Hired, Seeker
from tests.waiting import eventually
from tests.web_app import application

PRICE = 10_000


def details(response: DoorAnswer) -> dict[str, Any]:
    found: dict[str, Any] = response.json["error"]["details"]
    return found


def is_pending(response: DoorAnswer) -> bool:
    """Whether the response is pending and advises to retry the identical request later."""
    error_details = details(response)
    return (
        response.json["status"] == "pending"
        and error_details["charged"] is None
        and int(response.header("Retry-After") or 0) > 0
        and "identical request" in error_details["advice"]
        and "not charged" not in error_details["advice"]
    )


def forget(paid_worker: PaidWorker, hired: Hired) -> None:
    """The store loses the contract, as it may lose its last writes."""
    paid_worker.client.delete(paid_worker.parts.keys.contract(paid_worker.parts.book.ref(hired.id)))


def test_forgotten_paid_contract_is_pending_not_uncharged(paid_worker: PaidWorker) -> None:
    """404 with a payment reports it as pending; without one it says nothing about money."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    id = hired.execute(None, header).json["task_id"]
    forget(paid_worker, hired)
    paid, bare = hired.execute(None, header), hired.execute()
    assert (paid.status, bare.status) == (404, 404)
    assert is_pending(paid), paid.content
    assert "PUT" in details(paid)["advice"]
    for response in (bare, hired.poll(id)):
        assert (response.status, details(response)["charged"]) == (404, None)
        assert "charged" not in details(response)["advice"]


@pytest.mark.parametrize("path", ["/execute", "/tasks/00000000-0000-4000-8000-000000000000"])
def test_outage_claims_nothing_about_the_charge(paid_worker: PaidWorker, tmp_path: Path, path: str) -> None:
    """503 with a payment is pending, even before the record is read; without one `charged` is null."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    nowhere = replace(paid_worker.settings, redis_url="redis://127.0.0.1:9/0")
    with application(nowhere) as app:
        away = Hired(Seeker(FlaskDoor(app), hired.seeker.key), hired.document)
        if path == "/execute":
            assert is_pending(paid := away.execute(None, header)) and paid.status == 503, paid.content
            assert details(away.execute())["charged"] is None
        else:
            response = away.seeker.door("GET", path, None, {"X-Contract-ID": hired.id})
            assert (response.status, details(response)["charged"]) == (503, None)
            assert "charged" not in details(response)["advice"]
    assert paid_worker.charged(hired.seeker.wallet) == 0


def test_early_refusal_claims_nothing_about_the_charge(paid_worker: PaidWorker) -> None:
    """The payment sent with an unreadable body may have been claimed earlier."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    assert hired.execute(None, header).status == 200
    client = paid_worker.app.test_client()
    sent = {"X-Contract-ID": hired.id, "PAYMENT-SIGNATURE": header, "Content-Type": "application/json"}
    answer = client.post("/execute", data=b"{", headers=sent)
    error = answer.get_json()["error"]
    assert (answer.status_code, answer.get_json()["status"]) == (400, "failed")
    assert error["details"]["charged"] is None and "charged" not in error["details"]["advice"]


def test_different_input_reports_the_first_payments_charge(paid_worker: PaidWorker) -> None:
    """409: null while the work runs and may still be charged, true once it was."""
    hired = paid_worker.seeker().hire()
    first, other = {"do": "sleep", "seconds": 1.0}, {"do": "ok"}
    id = hired.pay(first, Prefer="respond-async").json["task_id"]
    response = hired.execute(other)
    assert (response.status, details(response)["charged"]) == (409, None)
    hired.ended(id)
    response = hired.execute(other)
    assert (response.status, details(response)["charged"]) == (409, True)


def test_refusal_by_the_record_reports_uncharged(paid_worker: PaidWorker) -> None:
    """When the record was read and has no payment, the response says so."""
    hired = paid_worker.seeker().hire()
    response = hired.execute(None, "%%%")
    assert (response.status, details(response)["charged"]) == (400, False)


def test_open_payment_of_failed_work_is_charged_null(paid_worker: PaidWorker) -> None:
    """A cancelled task whose settlement is unknown reports no outcome."""
    hired = paid_worker.seeker().hire("early", "0.02", terms={"settlement": "before_work"})
    paid_worker.fault("settle", hired.seeker.wallet, faults.hang(20))
    response = hired.pay(Prefer="respond-async")
    id = response.json["task_id"]
    eventually(lambda: paid_worker.calls("settle", hired.seeker.wallet), description="the settle call")
    refused = hired.cancel(id)
    assert (refused.status, details(refused)["charged"]) == (409, None)
    paid_worker.facilitator.release()
    assert hired.ended(id).json["status"] == "completed"


def test_task_status_and_money_are_read_together(paid_door: PaidDoor) -> None:
    """One read returns a consistent state and payment, even while the record changes."""
    deal = paid_door.deal()
    deal.execute({"do": "ok"}, deal.payment())
    id = deal.id
    assert id is not None
    client, keys = paid_door.parts.client, paid_door.parts.keys
    over = threading.Event()

    def flip() -> None:
        """Toggles the execution's end together with its payment, each in one transaction."""
        for turn in range(100_000):
            if over.is_set():
                return
            done = turn % 2 == 0
            with client.pipeline(transaction=True) as pipe:
                pipe.hset(keys.record(id), "state", "completed" if done else "running")
                pipe.hset(keys.money(id), "1 state", "settled" if done else "settling")
                pipe.execute()

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        contract = paid_door.contract(deal)
        assert contract is not None
        seen = set()
        for _ in range(2_000):
            task = paid_door.parts.tasks.read(contract, id)
            payment = task.money.payment()
            assert payment is not None
            seen.add((str(task.execution.state), str(payment.state)))
    finally:
        over.set()
        thread.join(30)
        client.hset(keys.record(id), "state", "pending")
        client.hset(keys.money(id), "1 state", "claimed")
    assert seen <= {("completed", "settled"), ("running", "settling")} | {("pending", "claimed")}


def test_missing_resources_claim_nothing_about_the_charge(paid_worker: PaidWorker) -> None:
    """Responses about a missing file, stream or contract make no statement about the charge."""
    hired = paid_worker.seeker().hire()
    done = hired.pay().json
    address = f"/files/{done['task_id']}/output/{'0' * 32}/output.json"
    forget(paid_worker, hired)
    named = {"X-Contract-ID": hired.id}
    door = hired.seeker.door
    for path in (address, f"/stream/{done['task_id']}", "/contracts"):
        response = door("GET", path, None, named)
        assert (response.status, details(response)["charged"]) == (404, None), path
        assert "charged" not in details(response)["advice"]


def test_trailing_slash_claims_nothing_more(paid_worker: PaidWorker, tmp_path: Path) -> None:
    """A trailing slash reaches the same route and gets the same statement about the charge."""
    hired = paid_worker.seeker().hire()
    sent = {"X-Contract-ID": hired.id, "PAYMENT-SIGNATURE": hired.sign()}
    nowhere = replace(paid_worker.settings, redis_url="redis://127.0.0.1:9/0")
    with application(nowhere) as app:
        response = FlaskDoor(app)("POST", "/execute/", {"do": "ok"}, sent)
        assert response.status == 503 and is_pending(response), response.content


@pytest.mark.parametrize("request_line", ["PUT /execute", "POST //execute", "POST /hire/execute"])
def test_unknown_route_claims_nothing_about_a_payment(paid_worker: PaidWorker, request_line: str) -> None:
    """The identical payment may have been claimed at the right URL before."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    assert hired.execute(None, header).status == 200
    sent = {"X-Contract-ID": hired.id, "PAYMENT-SIGNATURE": header}
    method, path = request_line.split()
    error_details = details(FlaskDoor(paid_worker.app)(method, path, {"do": "ok"}, sent))
    assert error_details["charged"] is None and "charged" not in error_details["advice"]

"""Temporary refusals carry Retry-After; a hanging settlement is reported as an open payment."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_worker import PaidWorker
from tests.waiting import eventually
from tests.web_app import TOKEN, application, settings_for


def test_failed_for_a_passing_reason_says_when_to_come_back(paid_worker: PaidWorker) -> None:
    """A terminal TRANSIENT_FAILURE is 503 with Retry-After, immediately and when replayed."""
    hired = paid_worker.seeker().hire()
    body = {"do": "flaky", "key": hired.id, "fails": 99}
    failed = hired.pay(body)
    assert (failed.status, failed.code) == (503, "TRANSIENT_FAILURE")
    for answer in (failed, hired.execute(body)):
        assert answer.status == 503 and int(answer.header("Retry-After") or 0) > 0
    assert paid_worker.charged(hired.seeker.wallet) == 0


def test_every_refusal_for_now_has_retry_after(tmp_path: Path) -> None:
    """Without the store every door answers 503 with Retry-After, including streams."""
    settings = settings_for("redis://:secret@127.0.0.1:1/0", tmp_path, kernel_token=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Contract-ID": "ctr_" + "c" * 20}
    paths = ("/manifest", "/contracts", "/tasks/x", "/stream/x", "/v0/ready", "/ready", "/metrics")
    with application(settings) as app:
        client = app.test_client()
        answers = [client.get(path, headers=headers) for path in (*paths, "/v0/executions")]
        answers.append(client.post("/execute", headers=headers, json={}))
    for answer in answers:
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) > 0, answer.request.path


def test_hanging_settlement_says_that_only_the_payment_is_open(paid_worker: PaidWorker) -> None:
    """While the facilitator hangs, the poll says that the work is done and what not to do."""
    hired = paid_worker.seeker().hire()
    paid_worker.fault("settle", hired.seeker.wallet, faults.hang(30))
    asked = hired.pay(Prefer="respond-async")
    task = asked.json["task_id"]
    eventually(lambda: paid_worker.calls("settle", hired.seeker.wallet), description="the settle call")
    open_task = hired.poll(task)
    assert (open_task.json["status"], open_task.json["phase"]) == ("pending", "settling")
    assert open_task.json["message"].startswith("The work is done; only its payment is open.")
    assert open_task.header("Retry-After")
    paid_worker.facilitator.release()
    assert hired.ended(task).json["status"] == "completed"
    assert paid_worker.charged(hired.seeker.wallet) == 10_000

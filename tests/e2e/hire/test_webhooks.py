"""Webhooks over real HTTP: bodies, signatures, the retry schedule and its end."""

from __future__ import annotations

import base64
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from tests.e2e.hire.hire_session import HireSession
from tests.e2e.hire.webhook_receiver import Call, Receiver
from tests.e2e.tree import PYTHON, ROOT
from tests.waiting import eventually

SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def verify_by_hand(session: HireSession, call: Call) -> None:
    """Verifies the asymmetric signature with the key published in the manifest."""
    text = session.http.get(f"{session.url}/manifest").json()["metadata"]["webhook_public_key"]
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix("whpk_")))
    signed = f"{call.headers['webhook-id']}.{call.headers['webhook-timestamp']}.".encode() + call.body
    signature = next(part for part in call.headers["webhook-signature"].split(" ") if part.startswith("v1a,"))
    key.verify(base64.b64decode(signature.removeprefix("v1a,")), signed)


def cli(session: HireSession, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, "worker", "webhooks", *words, "--state", str(session.local.state)],
        cwd=ROOT,
        env={**session.local.environ, "WORKER_ENV": "test"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_completed_webhook_matches_the_specification_and_verifies(
    session: HireSession, receiver: Receiver
) -> None:
    """The contract's webhook gets the specified body, and the official library accepts its signature."""
    hook = {
        "url": receiver.url("/from-contract"),
        "secret": SECRET,
        "token": "tok-1",
        "authentication": {"scheme": "Bearer", "credentials": "abc"},
    }
    contract, body = session.done("text", {"text": "x"}, webhook=hook)
    call = receiver.wait(1)[0]
    payload = call.payload
    assert call.path == "/from-contract"
    assert payload["event"] == "task_completed"
    assert (payload["contract_id"], payload["task_id"]) == (contract, body["task_id"])
    assert payload["deliverables"] == body["deliverables"] and payload["output"] == body["output"]
    assert payload["type"] == "task.completed" and payload["data"] == {"task_id": body["task_id"]}
    assert call.headers["x-webhook-token"] == "tok-1" and call.headers["authorization"] == "Bearer abc"
    assert Webhook(SECRET).verify(call.body, call.headers) is not None
    verify_by_hand(session, call)
    with pytest.raises(Exception):  # noqa: B017 - any refusal will do
        Webhook(SECRET).verify(call.body + b" ", call.headers)


def test_webhook_without_a_secret_is_signed_with_the_worker_key(
    session: HireSession, receiver: Receiver
) -> None:
    """The header's webhook is signed only with the manifest's key; both webhooks are called once."""
    contract = session.contract("text", webhook={"url": receiver.url("/one")})
    session.buy(contract, {"text": "x"}, X_Webhook_URL=receiver.url("/two"))
    calls = receiver.wait(2)
    time.sleep(1.5)
    assert sorted(call.path for call in receiver.calls) == ["/one", "/two"]
    for call in calls:
        assert call.headers["webhook-signature"].startswith("v1a,")
        verify_by_hand(session, call)
    assert len({call.headers["webhook-id"] for call in calls}) == 2


def test_failure_and_cancellation_send_webhooks(
    session: HireSession, receiver: Receiver, tmp_path: Path
) -> None:
    """A failure has its own event, with the error and no deliverables; so has a cancel."""
    _, body = session.done("broken", {}, webhook={"url": receiver.url()})
    payload = receiver.wait(1)[0].payload
    assert (payload["event"], payload["status"], payload["deliverables"]) == ("task_failed", "failed", [])
    assert payload["error"]["code"] == body["error"]["code"] == "NO_IDEA"
    assert payload["sequence"] == body["sequence"]
    contract = session.contract("gated", webhook={"url": receiver.url("/cancelled")})
    input = {"gate": str(tmp_path / "never")}
    task = session.buy(contract, input, Prefer="respond-async").json()["task_id"]
    session.http.delete(f"{session.url}/tasks/{task}", headers={"X-Contract-ID": contract})
    payload = next(c for c in receiver.wait(2) if c.path == "/cancelled").payload
    assert (payload["event"], payload["error"]["code"]) == ("task_failed", "CANCELLED")


def test_partial_deliverable_sends_a_sealed_webhook(
    session: HireSession, receiver: Receiver, tmp_path: Path
) -> None:
    """A closed deliverable is announced during the work: sealed, and never as the end."""
    gate = tmp_path / "gate"
    contract = session.contract("gated", webhook={"url": receiver.url()})
    task = session.buy(contract, {"gate": str(gate)}, Prefer="respond-async").json()["task_id"]
    payload = receiver.wait(1)[0].payload
    assert (payload["event"], payload["type"], payload["task_id"]) == ("task_partial", "task.partial", task)
    assert [(each["name"], each["sealed"]) for each in payload["deliverables"]] == [("draft.txt", True)]
    gate.touch()
    done = session.ended(contract, task)
    last = receiver.wait(2)[1].payload
    assert last["event"] == "task_completed" and last["deliverables"] == done["deliverables"]
    assert payload["sequence"] < last["sequence"]


def test_retryable_failure_sends_a_webhook(session: HireSession, receiver: Receiver, tmp_path: Path) -> None:
    """A receiver that only listens learns that a free retry is available, and later of the end."""
    contract = session.contract("shaky", sla={"retry_policy": 1}, webhook={"url": receiver.url()})
    input = {"gate": str(tmp_path / "tries"), "failures": 1}
    session.buy(contract, input)
    payload = receiver.wait(1)[0].payload
    assert payload["event"] == "task_failed" and payload["error"]["details"]["retryable"] is True
    assert session.execute(contract, input).status_code == 200
    assert receiver.wait(2)[1].payload["event"] == "task_completed"


def test_failed_deliveries_are_retried_on_schedule(session: HireSession, receiver: Receiver) -> None:
    """A failing receiver is retried on schedule, with the same id and body."""
    receiver.answers = [500, (503, {"Retry-After": "40"}), 200]
    _, body = session.done("text", {"text": "x"}, webhook={"url": receiver.url()})
    receiver.wait(1)
    session.move_clock(6)
    receiver.wait(2)
    time.sleep(1.5)
    assert len(receiver.calls) == 2
    session.move_clock(400)
    first, *others = receiver.wait(3)
    for other in others:
        assert other.headers["webhook-id"] == first.headers["webhook-id"]
        assert other.body == first.body
        assert other.headers["webhook-timestamp"] > first.headers["webhook-timestamp"]
    session.move_clock(90_000)
    assert len(receiver.calls) == 3
    shown = cli(session, "list", body["task_id"])
    assert shown.returncode == 0, shown.stderr
    assert [line.split("  ")[2] for line in shown.stdout.splitlines() if line.startswith("  ")] == [
        "status 500",
        "status 503",
        "status 200",
    ]
    assert body["contract_id"] not in shown.stdout


def test_410_stops_a_webhook_until_resent_by_hand(
    session: HireSession, receiver: Receiver, tmp_path: Path
) -> None:
    """After a 410 a webhook gets no more calls until the operator resends one by hand."""
    receiver.answers = [410]
    gate = tmp_path / "gate"
    contract = session.contract("gated", webhook={"url": receiver.url()})
    task = session.buy(contract, {"gate": str(gate)}, Prefer="respond-async").json()["task_id"]
    receiver.wait(1)
    gate.touch()
    session.ended(contract, task)
    session.move_clock(90_000)
    assert len(receiver.calls) == 1
    assert cli(session, "resend", task, "completed", "0").returncode == 0
    assert receiver.wait(2)[1].payload["event"] == "task_completed"
    assert cli(session, "resend", task, "completed", "7").returncode == 1
    assert cli(session, "resend", "nobody", "completed", "0").returncode == 1


def test_redirects_are_not_followed(session: HireSession, receiver: Receiver) -> None:
    """A redirect counts as a failure, and its target is not called."""
    receiver.answers = [(302, {"Location": receiver.url("/elsewhere")})]
    session.done("text", {"text": "x"}, webhook={"url": receiver.url("/first")})
    receiver.wait(1)
    session.move_clock(6)
    assert [call.path for call in receiver.wait(2)] == ["/first", "/first"]


def test_host_that_keeps_failing_gets_one_attempt_per_task(session: HireSession, receiver: Receiver) -> None:
    """After five days of failures a host gets one attempt per task, and the operator sees it."""
    receiver.answers = [500] * 1_000

    def own(path: str) -> str:
        """A URL whose host no other test's late webhooks use."""
        return receiver.url(path).replace("127.0.0.1", "localhost")

    def last_failure() -> int:
        failing_since: Any = session.store.hget(session.keys.failing_hosts, "localhost")
        return int(failing_since.split()[1]) if failing_since else 0

    def failed_after(earlier: int) -> None:
        """Waits for the recorded failure before the clock moves: a host not called for long starts afresh."""
        eventually(lambda: last_failure() > earlier, description="a failed call written down")

    def calls_of_late() -> int:
        return [call.path for call in receiver.calls].count("/late")

    for day in range(1, 9):
        earlier = last_failure()
        session.done("text", {"text": str(day)}, webhook={"url": own(f"/{day}")})
        failed_after(earlier)
        session.move_clock(70_000)
    hosts = cli(session, "hosts")
    assert "localhost  " in hosts.stdout, hosts.stdout + hosts.stderr
    _, late = session.done("text", {"text": "late"}, webhook={"url": own("/late")})
    eventually(calls_of_late, description="a call")
    session.move_clock(6)
    session.move_clock(400)
    assert calls_of_late() == 1
    assert "given up" in cli(session, "list", late["task_id"]).stdout
    receiver.answers.clear()
    assert cli(session, "resend", late["task_id"], "completed", "0").returncode == 0
    eventually(lambda: calls_of_late() == 2, description="the call that the operator asked for")
    eventually(lambda: not last_failure(), description="a host that does not fail any more")
    assert "localhost" not in cli(session, "hosts").stdout


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        ({"url": "http://127.0.0.1:1/", "token": "a\nb"}, "webhook"),
        ({"url": "http://127.0.0.1:1/", "secret": "whsec_short"}, "secret"),
        ({"url": "http://127.0.0.1:1/", "authentication": {"scheme": "é"}}, "webhook.authentication"),
        ({"url": "ftp://127.0.0.1/"}, "webhook.url"),
        ({"url": "http://10.0.0.1/"}, "webhook"),
        ({"url": "http://[::127.0.0.1]/"}, "webhook"),
        ({"url": "http://user:pass@127.0.0.1/"}, "webhook"),
    ],
)
def test_invalid_webhook_url_is_refused_before_payment(
    session: HireSession, webhook: dict[str, Any], field: str
) -> None:
    """A webhook that would not be called is refused before payment, signed or not."""
    drafted = session.http.post(f"{session.url}/contracts", json=session.draft("text", webhook=webhook))
    if drafted.status_code == 201:
        reply = session.execute(session.contract("text", webhook=webhook), {"text": "x"})
    else:
        reply = drafted
    assert reply.status_code in (400, 422), reply.text
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert reply.json()["error"]["details"].get("field") == field


def test_webhook_url_from_the_header_is_checked_too(session: HireSession) -> None:
    """A forbidden address is refused wherever it was given."""
    contract = session.contract("text")
    reply = session.execute(contract, {"text": "x"}, X_Webhook_URL="http://169.254.169.254/latest")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "URL_REFUSED")
    assert reply.json()["error"]["details"]["field"] == "X-Webhook-URL"
    assert session.execute(contract, {"text": "x"}).status_code == 402

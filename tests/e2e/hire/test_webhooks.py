"""Webhooks over real HTTP: what is sent, how it is signed, when it is tried again, and when no more."""

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

from tests.e2e.hire.exchange import Shop
from tests.e2e.hire.receiver import Call, Receiver
from tests.e2e.tree import PYTHON, ROOT

SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def verify_by_hand(shop: Shop, call: Call) -> None:
    """The asymmetric signature, with the key that the manifest publishes."""
    text = shop.http.get(f"{shop.url}/manifest").json()["metadata"]["webhook_public_key"]
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix("whpk_")))
    signed = f"{call.headers['webhook-id']}.{call.headers['webhook-timestamp']}.".encode() + call.body
    signature = next(part for part in call.headers["webhook-signature"].split(" ") if part.startswith("v1a,"))
    key.verify(base64.b64decode(signature.removeprefix("v1a,")), signed)


def cli(shop: Shop, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, "worker", "webhooks", *words, "--state", str(shop.local.state)],
        cwd=ROOT,
        env={**shop.local.environ, "WORKER_ENV": "test"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_completed(shop: Shop, receiver: Receiver) -> None:
    """The contract's webhook gets the document's body, and the official library accepts its signature."""
    hook = {
        "url": receiver.url("/from-contract"),
        "secret": SECRET,
        "token": "tok-1",
        "authentication": {"scheme": "Bearer", "credentials": "abc"},
    }
    contract, body = shop.done("text", {"text": "x"}, webhook=hook)
    call = receiver.wait(1)[0]
    told = call.told
    assert call.path == "/from-contract"
    assert told["event"] == "task_completed"
    assert (told["contract_id"], told["task_id"]) == (contract, body["task_id"])
    assert told["deliverables"] == body["deliverables"] and told["output"] == body["output"]
    assert told["type"] == "task.completed" and told["data"] == {"task_id": body["task_id"]}
    assert call.headers["x-webhook-token"] == "tok-1" and call.headers["authorization"] == "Bearer abc"
    assert Webhook(SECRET).verify(call.body, call.headers) is not None
    verify_by_hand(shop, call)
    with pytest.raises(Exception):  # noqa: B017 - any refusal will do
        Webhook(SECRET).verify(call.body + b" ", call.headers)


def test_without_a_secret(shop: Shop, receiver: Receiver) -> None:
    """The header's webhook is signed with the manifest's key alone, and both hooks are called once each."""
    contract = shop.contract("text", webhook={"url": receiver.url("/one")})
    shop.buy(contract, {"text": "x"}, X_Webhook_URL=receiver.url("/two"))
    calls = receiver.wait(2)
    time.sleep(1.5)
    assert sorted(call.path for call in receiver.calls) == ["/one", "/two"]
    for call in calls:
        assert call.headers["webhook-signature"].startswith("v1a,")
        verify_by_hand(shop, call)
    assert len({call.headers["webhook-id"] for call in calls}) == 2


def test_failed_and_cancelled(shop: Shop, receiver: Receiver, tmp_path: Path) -> None:
    """A failure has an event of its own, with the error and no deliverables; a cancel too."""
    _, body = shop.done("broken", {}, webhook={"url": receiver.url()})
    told = receiver.wait(1)[0].told
    assert (told["event"], told["status"], told["deliverables"]) == ("task_failed", "failed", [])
    assert told["error"]["code"] == body["error"]["code"] == "NO_IDEA"
    assert told["sequence"] == body["sequence"]
    contract = shop.contract("gated", webhook={"url": receiver.url("/cancelled")})
    given = {"gate": str(tmp_path / "never")}
    task = shop.buy(contract, given, Prefer="respond-async").json()["task_id"]
    shop.http.delete(f"{shop.url}/tasks/{task}", headers={"X-Contract-ID": contract})
    told = next(c for c in receiver.wait(2) if c.path == "/cancelled").told
    assert (told["event"], told["error"]["code"]) == ("task_failed", "CANCELLED")


def test_partial(shop: Shop, receiver: Receiver, tmp_path: Path) -> None:
    """A closed deliverable is told while the work goes on: sealed, and never as the end."""
    gate = tmp_path / "gate"
    contract = shop.contract("gated", webhook={"url": receiver.url()})
    task = shop.buy(contract, {"gate": str(gate)}, Prefer="respond-async").json()["task_id"]
    told = receiver.wait(1)[0].told
    assert (told["event"], told["type"], told["task_id"]) == ("task_partial", "task.partial", task)
    assert [(each["name"], each["sealed"]) for each in told["deliverables"]] == [("draft.txt", True)]
    gate.touch()
    done = shop.ended(contract, task)
    last = receiver.wait(2)[1].told
    assert last["event"] == "task_completed" and last["deliverables"] == done["deliverables"]
    assert told["sequence"] < last["sequence"]


def test_a_failure_that_may_be_retried_is_told(shop: Shop, receiver: Receiver, tmp_path: Path) -> None:
    """Somebody who only listens learns that the next try is theirs to ask for, and of the end after it."""
    contract = shop.contract("shaky", sla={"retry_policy": 1}, webhook={"url": receiver.url()})
    given = {"gate": str(tmp_path / "tries"), "failures": 1}
    shop.buy(contract, given)
    told = receiver.wait(1)[0].told
    assert told["event"] == "task_failed" and told["error"]["details"]["retryable"] is True
    assert shop.execute(contract, given).status_code == 200
    assert receiver.wait(2)[1].told["event"] == "task_completed"


def test_retries(shop: Shop, receiver: Receiver) -> None:
    """A receiver that fails is tried again on the schedule, with the same id and body."""
    receiver.answers = [500, (503, {"Retry-After": "40"}), 200]
    _, body = shop.done("text", {"text": "x"}, webhook={"url": receiver.url()})
    receiver.wait(1)
    shop.move_clock(6)
    receiver.wait(2)
    time.sleep(1.5)
    assert len(receiver.calls) == 2
    shop.move_clock(400)
    first, *others = receiver.wait(3)
    for other in others:
        assert other.headers["webhook-id"] == first.headers["webhook-id"]
        assert other.body == first.body
        assert other.headers["webhook-timestamp"] > first.headers["webhook-timestamp"]
    shop.move_clock(90_000)
    assert len(receiver.calls) == 3
    shown = cli(shop, "list", body["task_id"])
    assert shown.returncode == 0, shown.stderr
    assert [line.split("  ")[2] for line in shown.stdout.splitlines() if line.startswith("  ")] == [
        "status 500",
        "status 503",
        "status 200",
    ]
    assert body["contract_id"] not in shown.stdout


def test_gone_means_gone(shop: Shop, receiver: Receiver, tmp_path: Path) -> None:
    """After a 410 a webhook is told nothing more, until the operator sends it again by hand."""
    receiver.answers = [410]
    gate = tmp_path / "gate"
    contract = shop.contract("gated", webhook={"url": receiver.url()})
    task = shop.buy(contract, {"gate": str(gate)}, Prefer="respond-async").json()["task_id"]
    receiver.wait(1)
    gate.touch()
    shop.ended(contract, task)
    shop.move_clock(90_000)
    assert len(receiver.calls) == 1
    assert cli(shop, "resend", task, "completed", "0").returncode == 0
    assert receiver.wait(2)[1].told["event"] == "task_completed"
    assert cli(shop, "resend", task, "completed", "7").returncode == 1
    assert cli(shop, "resend", "nobody", "completed", "0").returncode == 1


def test_redirects_are_not_followed(shop: Shop, receiver: Receiver) -> None:
    """A redirect counts as a failure, and where it points to is not called."""
    receiver.answers = [(302, {"Location": receiver.url("/elsewhere")})]
    shop.done("text", {"text": "x"}, webhook={"url": receiver.url("/first")})
    receiver.wait(1)
    shop.move_clock(6)
    assert [call.path for call in receiver.wait(2)] == ["/first", "/first"]


def test_a_host_that_keeps_failing_is_given_up(shop: Shop, receiver: Receiver) -> None:
    """After five days of failures a host is tried once for each task, and the operator sees it."""
    receiver.answers = [500] * 1_000

    def own(path: str) -> str:
        """A host that no other test's late webhooks reach."""
        return receiver.url(path).replace("127.0.0.1", "localhost")

    _, first = shop.done("text", {"text": "1"}, webhook={"url": own("/1")})
    receiver.wait(1)
    for day in range(2, 9):
        shop.move_clock(70_000)
        shop.done("text", {"text": str(day)}, webhook={"url": own(f"/{day}")})
        receiver.wait(len(receiver.calls) + 1) if len(receiver.calls) < day else None
    hosts = cli(shop, "hosts")
    assert "localhost  " in hosts.stdout, hosts.stdout + hosts.stderr
    calls = [call.path for call in receiver.calls]
    _, late = shop.done("text", {"text": "late"}, webhook={"url": own("/late")})
    receiver.wait(len(calls) + 1)
    shop.move_clock(6)
    shop.move_clock(400)
    assert [call.path for call in receiver.calls].count("/late") == 1
    assert "given up" in cli(shop, "list", late["task_id"]).stdout
    receiver.answers.clear()
    before = len(receiver.calls)
    assert cli(shop, "resend", late["task_id"], "completed", "0").returncode == 0
    receiver.wait(before + 1)
    time.sleep(0.5)
    assert "localhost" not in cli(shop, "hosts").stdout


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
def test_a_webhook_that_cannot_be_one(shop: Shop, webhook: dict[str, Any], field: str) -> None:
    """A webhook that would not be called is refused before any money is mentioned, signed or not."""
    drafted = shop.http.post(f"{shop.url}/contracts", json=shop.draft("text", webhook=webhook))
    if drafted.status_code == 201:
        reply = shop.execute(shop.contract("text", webhook=webhook), {"text": "x"})
    else:
        reply = drafted
    assert reply.status_code in (400, 422), reply.text
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert reply.json()["error"]["details"].get("field") == field


def test_the_headers_webhook_is_looked_at_too(shop: Shop) -> None:
    """An address that we would not call is refused wherever it was named."""
    contract = shop.contract("text")
    reply = shop.execute(contract, {"text": "x"}, X_Webhook_URL="http://169.254.169.254/latest")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "URL_REFUSED")
    assert reply.json()["error"]["details"]["field"] == "X-Webhook-URL"
    assert shop.execute(contract, {"text": "x"}).status_code == 402

"""Partial results: streams, polls and webhooks show the same log, as far as it is paid for."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.hire.hire_session import HireSession, frames
from tests.e2e.hire.webhook_receiver import Receiver

BEFORE = {"settlement": "before_work"}
LINES = [f"line {number}\n" for number in range(6)]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["payload"]["text"] for event in events if event["type"] == "output.chunk")


def in_background(
    session: HireSession, url: str, **headers: str
) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """Reads a stream in a thread; returns the thread and the events read so far."""
    found: list[dict[str, Any]] = []

    def read() -> None:
        with requests.get(url, headers=headers, stream=True, timeout=30) as reply:
            found.extend(json.loads(line[6:]) for line in reply.iter_lines() if line.startswith(b"data: "))

    thread = threading.Thread(target=read)
    thread.start()
    return thread, found


def test_partial_file_is_sealed_until_payment_settles(session: HireSession, tmp_path: Path) -> None:
    """A closed file is listed during the work; contents, size and digest stay sealed until settlement."""
    gate = tmp_path / "gate"
    contract, task = session.begin("gated", {"gate": str(gate)})
    body = session.until(contract, task, lambda body: body["status"] == "partial")
    assert [each["name"] for each in body["deliverables"]] == ["draft.txt"]
    ready = body["deliverables"][0]
    assert ready["sealed"] is True and ready["mime"] == "text/plain"
    assert not {"size", "checksum"} & {*ready}, "of a short text they tell what it is"
    closed = requests.get(ready["url"], timeout=10)
    assert (closed.status_code, closed.json()["error"]["code"]) == (403, "SEALED")
    assert b"the draft" not in closed.content
    assert requests.head(ready["url"], timeout=10).status_code == 403
    gate.touch()
    done = session.ended(contract, task)
    assert [each["name"] for each in done["deliverables"]] == ["draft.txt", "loose.txt", "output.json"]
    assert done["deliverables"][0]["checksum"].startswith("sha256:")
    assert requests.get(ready["url"], timeout=10).content == b"the draft\n"


def test_partial_file_is_readable_when_prepaid(session: HireSession, tmp_path: Path) -> None:
    """If the payment settled before the work, a closed file is readable while the rest is made."""
    gate = tmp_path / "gate"
    contract, task = session.begin("gated-before", {"gate": str(gate)}, terms=BEFORE)
    body = session.until(contract, task, lambda body: body["status"] == "partial")
    assert session.charges(task) == 1
    ready = body["deliverables"][0]
    assert ready["sealed"] is False
    assert requests.get(ready["url"], timeout=10).content == b"the draft\n"
    gate.touch()
    session.ended(contract, task)


def test_files_of_failed_work_are_never_released(session: HireSession, tmp_path: Path) -> None:
    """Files closed before a cancel are never released."""
    contract, task = session.begin("gated", {"gate": str(tmp_path / "never")})
    body = session.until(contract, task, lambda body: body["status"] == "partial")
    session.http.delete(f"{session.url}/tasks/{task}", headers={"X-Contract-ID": contract})
    assert requests.get(body["deliverables"][0]["url"], timeout=10).status_code == 403


def test_sealed_stream_shows_progress_first_and_text_after_settlement(
    session: HireSession, tmp_path: Path
) -> None:
    """Under after_work the text is held back until the payment settles, then sent in order."""
    gate = tmp_path / "gate"
    contract, task = session.begin("gated", {"gate": str(gate)})
    url = f"{session.url}/stream/{task}"
    reader, live = in_background(session, url, **{"X-Contract-ID": contract})
    session.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    early = frames(session, url, most=5, X_Contract_ID=contract)
    assert not {"output.chunk", "file.written"} & {*kinds(early)}
    gate.touch()
    done = session.ended(contract, task)
    reader.join(20)
    whole = frames(session, url, X_Contract_ID=contract)
    assert said(whole) == said(live) == "a secret word\n"
    assert kinds(live)[-1] == kinds(whole)[-1] == "execution.completed"
    assert [event["sequence"] for event in whole] == list(range(1, done["sequence"] + 1))
    assert sorted(event["sequence"] for event in live) == list(range(1, done["sequence"] + 1))


def test_resumed_sealed_stream_loses_no_text(session: HireSession, tmp_path: Path) -> None:
    """A client that left after a progress event still gets the text held back before it."""
    gate = tmp_path / "gate"
    contract, task = session.begin("gated", {"gate": str(gate)})
    url = f"{session.url}/stream/{task}"
    session.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    first = frames(session, url, most=5, X_Contract_ID=contract)
    gate.touch()
    session.ended(contract, task)
    last = str(first[-1]["sequence"])
    rest = frames(session, url, X_Contract_ID=contract, Last_Event_ID=last)
    assert said(rest) == "a secret word\n"
    chunk = next(event["sequence"] for event in rest if event["type"] == "output.chunk")
    assert chunk < first[-1]["sequence"]
    # A client that has the text does not get it again.
    again = frames(session, f"{url}?after_sequence={chunk}", X_Contract_ID=contract)
    assert said(again) == "" and again[0]["sequence"] == chunk + 1


def test_refundable_stream_is_not_live(session: HireSession, tmp_path: Path) -> None:
    """With a schema in the contract, a mismatch is refunded: no text before the end."""
    schema = {"output_schema": {"type": "string"}}
    contract, task = session.begin("story", {"gate": str(tmp_path / "gate")}, task=schema, terms=BEFORE)
    url = f"{session.url}/stream/{task}"
    session.until(contract, task, lambda body: body.get("progress", {}).get("message") == "line 2")
    assert "output.chunk" not in kinds(frames(session, url, most=5, X_Contract_ID=contract))
    (tmp_path / "gate").touch()
    assert session.ended(contract, task)["error"]["code"] == "OUTPUT_SCHEMA_INVALID"
    whole = frames(session, url, X_Contract_ID=contract)
    assert kinds(whole)[-1] == "execution.failed" and "output.chunk" not in kinds(whole)


def test_prepaid_stream_is_live(session: HireSession, tmp_path: Path) -> None:
    """A streaming capability sends its lines during the work, after settlement, and can be resumed."""
    gate = tmp_path / "gate"
    contract, task = session.begin("story", {"gate": str(gate)}, terms=BEFORE)
    body = session.poll(contract, task).json()
    output = body["output"]
    assert output["type"] == "stream" and output["format"] == "sse"
    assert output["url"].startswith(f"{session.url}/stream/{task}?token=")
    first: list[dict[str, Any]] = []
    for most in range(4, 20):
        first = frames(session, output["url"], most=most)
        if said(first) == "".join(LINES[:3]):
            break
    assert said(first) == "".join(LINES[:3])
    assert kinds(first).index("payment.settled") < kinds(first).index("output.chunk")
    gate.touch()
    rest = frames(session, output["url"], Last_Event_ID=str(first[-1]["sequence"]))
    assert said(first) + said(rest) == "".join(LINES)
    assert kinds(rest)[-1] == "execution.completed"
    done = session.ended(contract, task)
    assert done["output"]["type"] == "stream"
    text = next(each for each in done["deliverables"] if each["name"] == "output.txt")
    assert requests.get(text["url"], timeout=10).text == "".join(LINES)


def test_stream_replays_the_log_and_closes_after_the_end(session: HireSession) -> None:
    """After the end a stream sends the whole log and closes; past the last event it closes at once."""
    contract, body = session.done("text", {"text": "x"})
    url = f"{session.url}/stream/{body['task_id']}"
    whole = frames(session, url, X_Contract_ID=contract)
    assert [event["sequence"] for event in whole] == list(range(1, body["sequence"] + 1))
    assert frames(session, url, X_Contract_ID=contract, Last_Event_ID="999") == []
    assert len(frames(session, url, X_Contract_ID=contract, Last_Event_ID="nonsense")) == body["sequence"]


@pytest.mark.parametrize("token", ["", "x", "é", "0" * 32])
def test_stream_requires_its_token_or_contract(session: HireSession, token: str) -> None:
    """A wrong token opens nothing."""
    _, body = session.done("text", {"text": "x"})
    reply = requests.get(f"{session.url}/stream/{body['task_id']}", params={"token": token}, timeout=10)
    assert reply.status_code == 404


def test_response_poll_replay_webhook_and_stream_agree(session: HireSession, receiver: Receiver) -> None:
    """Response, poll, replay, webhook and stream of an execution show the same deliverables and numbers."""
    contract = session.contract("logos")
    asked = session.execute(contract, {}, X_Webhook_URL=receiver.url())
    answer = session.execute(contract, {}, payment=session.sign(asked), X_Webhook_URL=receiver.url())
    body = answer.json()
    assert session.poll(contract, body["task_id"]).json() == body
    assert session.execute(contract, {}).json() == body
    payload = receiver.wait(1)[0].payload
    for name in ("deliverables", "output", "metadata", "sequence", "contract_id", "task_id"):
        assert payload[name] == body[name], name
    events = frames(session, f"{session.url}/stream/{body['task_id']}", X_Contract_ID=contract)
    assert events[-1]["sequence"] == body["sequence"]
    files = [(each["name"], f"sha256:{each['sha256']}") for each in events[-1]["payload"]["files"]]
    assert files == [(each["name"], each["checksum"]) for each in body["deliverables"][:2]]

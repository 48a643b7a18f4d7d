"""One log, many views: partial results, streams, polls and webhooks tell the same, as far as it is paid."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.hire.exchange import Shop, frames
from tests.e2e.hire.receiver import Receiver

BEFORE = {"settlement": "before_work"}
LINES = [f"line {number}\n" for number in range(6)]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["payload"]["text"] for event in events if event["type"] == "output.chunk")


def in_background(shop: Shop, url: str, **headers: str) -> tuple[threading.Thread, list[dict[str, Any]]]:
    """A reader of a stream, and what it has read so far."""
    found: list[dict[str, Any]] = []

    def read() -> None:
        with requests.get(url, headers=headers, stream=True, timeout=30) as reply:
            found.extend(json.loads(line[6:]) for line in reply.iter_lines() if line.startswith(b"data: "))

    thread = threading.Thread(target=read)
    thread.start()
    return thread, found


def test_partial_is_sealed_until_it_is_paid(shop: Shop, tmp_path: Path) -> None:
    """A closed file is shown with size and checksum while the work goes on, and opens when it is paid."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated", {"gate": str(gate)})
    body = shop.until(contract, task, lambda body: body["status"] == "partial")
    assert [each["name"] for each in body["deliverables"]] == ["draft.txt"]
    ready = body["deliverables"][0]
    assert ready["sealed"] is True and ready["size"] == 10 and ready["mime"] == "text/plain"
    closed = requests.get(ready["url"], timeout=10)
    assert (closed.status_code, closed.json()["error"]["code"]) == (403, "SEALED")
    assert b"the draft" not in closed.content
    assert requests.head(ready["url"], timeout=10).status_code == 403
    gate.touch()
    done = shop.ended(contract, task)
    assert [each["name"] for each in done["deliverables"]] == ["draft.txt", "loose.txt", "output.json"]
    assert done["deliverables"][0]["checksum"] == ready["checksum"]
    assert requests.get(ready["url"], timeout=10).content == b"the draft\n"


def test_partial_is_open_when_it_was_paid_first(shop: Shop, tmp_path: Path) -> None:
    """Where the money came before the work, a closed file may be read while the rest is made."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated-before", {"gate": str(gate)}, terms=BEFORE)
    body = shop.until(contract, task, lambda body: body["status"] == "partial")
    assert shop.charges(task) == 1
    ready = body["deliverables"][0]
    assert ready["sealed"] is False
    assert requests.get(ready["url"], timeout=10).content == b"the draft\n"
    gate.touch()
    shop.ended(contract, task)


def test_files_of_failed_work_stay_closed(shop: Shop, tmp_path: Path) -> None:
    """What was closed before a cancel is never given away."""
    contract, task = shop.begin("gated", {"gate": str(tmp_path / "never")})
    body = shop.until(contract, task, lambda body: body["status"] == "partial")
    shop.http.delete(f"{shop.url}/tasks/{task}", headers={"X-Contract-ID": contract})
    assert requests.get(body["deliverables"][0]["url"], timeout=10).status_code == 403


def test_a_sealed_stream_shows_progress_and_then_everything(shop: Shop, tmp_path: Path) -> None:
    """Under after_work the text is held back until the money has settled, then comes in its order."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated", {"gate": str(gate)})
    url = f"{shop.url}/stream/{task}"
    reader, live = in_background(shop, url, **{"X-Contract-ID": contract})
    shop.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    early = frames(shop, url, most=5, X_Contract_ID=contract)
    assert "output.chunk" not in kinds(early)
    assert "file.written" in kinds(frames(shop, url, most=7, X_Contract_ID=contract))
    gate.touch()
    done = shop.ended(contract, task)
    reader.join(20)
    whole = frames(shop, url, X_Contract_ID=contract)
    assert said(whole) == said(live) == "a secret word\n"
    assert kinds(live)[-1] == kinds(whole)[-1] == "execution.completed"
    assert [event["sequence"] for event in whole] == list(range(1, done["sequence"] + 1))
    assert sorted(event["sequence"] for event in live) == list(range(1, done["sequence"] + 1))


def test_a_sealed_stream_resumed_after_the_end_loses_nothing(shop: Shop, tmp_path: Path) -> None:
    """Whoever left after a piece of progress still gets the text that had been held back before it."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated", {"gate": str(gate)})
    url = f"{shop.url}/stream/{task}"
    shop.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    first = frames(shop, url, most=7, X_Contract_ID=contract)
    gate.touch()
    shop.ended(contract, task)
    last = str(first[-1]["sequence"])
    rest = frames(shop, url, X_Contract_ID=contract, Last_Event_ID=last)
    assert said(rest) == "a secret word\n"
    chunk = next(event["sequence"] for event in rest if event["type"] == "output.chunk")
    assert chunk < first[-1]["sequence"]
    # Whoever has the text does not get it again.
    again = frames(shop, f"{url}?after_sequence={chunk}", X_Contract_ID=contract)
    assert said(again) == "" and again[0]["sequence"] == chunk + 1


def test_a_stream_that_was_paid_first_is_live(shop: Shop, tmp_path: Path) -> None:
    """A streaming capability gives its lines while it works, after the settlement, and can be resumed."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("story", {"gate": str(gate)}, terms=BEFORE)
    body = shop.poll(contract, task).json()
    output = body["output"]
    assert output["type"] == "stream" and output["format"] == "sse"
    assert output["url"].startswith(f"{shop.url}/stream/{task}?token=")
    first: list[dict[str, Any]] = []
    for most in range(4, 20):
        first = frames(shop, output["url"], most=most)
        if said(first) == "".join(LINES[:3]):
            break
    assert said(first) == "".join(LINES[:3])
    assert kinds(first).index("payment.settled") < kinds(first).index("output.chunk")
    gate.touch()
    rest = frames(shop, output["url"], Last_Event_ID=str(first[-1]["sequence"]))
    assert said(first) + said(rest) == "".join(LINES)
    assert kinds(rest)[-1] == "execution.completed"
    done = shop.ended(contract, task)
    assert done["output"]["type"] == "stream"
    text = next(each for each in done["deliverables"] if each["name"] == "output.txt")
    assert requests.get(text["url"], timeout=10).text == "".join(LINES)


def test_a_stream_ends_for_late_readers_too(shop: Shop) -> None:
    """After the end a stream gives the whole log and closes; beyond the end it closes at once."""
    contract, body = shop.done("text", {"text": "x"})
    url = f"{shop.url}/stream/{body['task_id']}"
    whole = frames(shop, url, X_Contract_ID=contract)
    assert [event["sequence"] for event in whole] == list(range(1, body["sequence"] + 1))
    assert frames(shop, url, X_Contract_ID=contract, Last_Event_ID="999") == []
    assert len(frames(shop, url, X_Contract_ID=contract, Last_Event_ID="nonsense")) == body["sequence"]


@pytest.mark.parametrize("token", ["", "x", "é", "0" * 32])
def test_a_stream_needs_its_token_or_its_contract(shop: Shop, token: str) -> None:
    """A token that is not the stream's opens nothing."""
    _, body = shop.done("text", {"text": "x"})
    reply = requests.get(f"{shop.url}/stream/{body['task_id']}", params={"token": token}, timeout=10)
    assert reply.status_code == 404


def test_all_views_agree(shop: Shop, receiver: Receiver) -> None:
    """Answer, poll, replay, webhook and stream of one execution carry the same deliverables and numbers."""
    contract = shop.contract("logos")
    asked = shop.execute(contract, {}, X_Webhook_URL=receiver.url())
    answer = shop.execute(contract, {}, payment=shop.sign(asked), X_Webhook_URL=receiver.url())
    body = answer.json()
    assert shop.poll(contract, body["task_id"]).json() == body
    assert shop.execute(contract, {}).json() == body
    told = receiver.wait(1)[0].told
    for name in ("deliverables", "output", "metadata", "sequence", "contract_id", "task_id"):
        assert told[name] == body[name], name
    events = frames(shop, f"{shop.url}/stream/{body['task_id']}", X_Contract_ID=contract)
    assert events[-1]["sequence"] == body["sequence"]
    files = [(each["name"], f"sha256:{each['sha256']}") for each in events[-1]["payload"]["files"]]
    assert files == [(each["name"], each["checksum"]) for each in body["deliverables"][:2]]

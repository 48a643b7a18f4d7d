"""Hires and purchases that are answered without Flask get the answers that they would get from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from gunicorn.http.errors import NoMoreData
from werkzeug.test import EnvironBuilder, run_wsgi_app

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer, Hired, Seeker, decoded
from worker.doors.bodies import TooSlow
from worker.doors.contract_bodies import expect_json
from worker.doors.direct import DirectRoutes
from worker.doors.limits import BODY_BYTES
from worker.x402.sign_in import SIGN_IN

BODY = {"do": "ok", "text": "wörld"}


class TwoWayDoor:
    """The application of this process, with its direct routes or by Flask alone."""

    def __init__(self, app: Flask) -> None:
        direct: Any = app.wsgi_app
        assert isinstance(direct, DirectRoutes)
        self._ways = {"direct": direct, "flask": direct._app}
        self._app = app
        self.way = "direct"
        self.changes: dict[str, Any] = {}

    @contextmanager
    def by(self, way: str) -> Iterator[None]:
        self.way = way
        try:
            yield
        finally:
            self.way = "direct"

    def __call__(self, method: str, path: str, body: Any = None, headers: Any = None) -> DoorAnswer:
        sent = {"Content-Type": "application/json", "X-Request-Id": "asked", **(headers or {})}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        environ = EnvironBuilder(path, method=method, headers=sent, data=data).get_environ()
        # As gunicorn: the server ends the body.
        environ["wsgi.input_terminated"] = True
        environ.update(self.changes)
        chunks, status, answered = run_wsgi_app(self._ways[self.way], environ, buffered=True)
        names = [name for name, _ in answered]
        assert len(names) == len({name.lower() for name in names})
        return DoorAnswer(int(status.split()[0]), dict(sorted(answered)), b"".join(chunks))


@pytest.fixture(name="door")
def _door(paid_worker: PaidWorker) -> TwoWayDoor:
    return TwoWayDoor(paid_worker.app)


def both(door: TwoWayDoor, path: str, body: Any, headers: dict[str, str]) -> DoorAnswer:
    """The answer, which both ways have in common: again if a second has begun between them."""
    for _ in range(5):
        answers = []
        for way in ("direct", "flask"):
            with door.by(way):
                answers.append(door("POST", path, body, headers))
        if comparable(answers[0]) == comparable(answers[1]):
            break
    assert comparable(answers[0]) == comparable(answers[1])
    return answers[0]


def comparable(answer: DoorAnswer) -> Any:
    """All of it except a sign-in challenge, which is drawn anew for each answer."""
    headers, name = dict(answer.headers), "PAYMENT-REQUIRED"
    if name in headers:
        offered = decoded(headers[name])
        offered.get("extensions", {}).get(SIGN_IN, {}).pop("info", None)
        headers[name] = offered
    return answer.status, headers, answer.content


@pytest.fixture(name="hired")
def _hired(paid_worker: PaidWorker, door: TwoWayDoor) -> Hired:
    return Seeker(door, now=paid_worker.now).hire()


def test_requests_are_answered_without_flask(
    hired: Hired, paid_worker: PaidWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hire, a purchase, their 402s and replays: none of them reaches Flask."""
    reached: list[Any] = []
    offer = hired.offer(BODY)
    door: Any = hired.seeker.door
    direct = door._ways["direct"]
    monkeypatch.setattr(direct, "_app", lambda environ, start: reached.append(environ["PATH_INFO"]))
    payment = hired.sign(offer)
    answers = [hired.execute(BODY), hired.execute(BODY, payment), hired.execute(BODY)]
    assert [answer.status for answer in answers] == [402, 200, 200]
    assert answers[2].content == answers[1].content and answers[2].header("Idempotent-Replayed") == "true"
    buyer = PlainBuyer(hired.seeker)
    payment = buyer.sign(BODY)
    assert buyer.send(BODY, payment).status == 200
    assert reached == [] and paid_worker.settles(hired.seeker.wallet) == 2


@pytest.mark.parametrize("door_path", ["/execute", "/buy/echo"])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (BODY, {}),
        (b"", {}),
        (b"null", {}),
        (b"{", {}),
        (b"\xff", {}),
        (b"[" * 300 + b"]" * 300, {}),
        (["a", "list"], {}),
        (BODY, {"Content-Type": "text/plain"}),
        (BODY, {"Content-Type": "Application/JSON ; charset=utf-8"}),
        (BODY, {"Content-Type": ""}),
        (b"", {"Content-Type": "text/plain"}),
        (BODY, {"PAYMENT-SIGNATURE": "?"}),
        (BODY, {"PAYMENT-SIGNATURE": "e30="}),
        (BODY, {"X-PAYMENT": "e30="}),
        (b"{", {"PAYMENT-SIGNATURE": "e30="}),
        (BODY, {"X-Webhook-URL": "http://127.0.0.1/"}),
        (BODY, {"X-Webhook-URL": "x"}),
        (BODY, {"Prefer": "respond-async, wait=0"}),
        (BODY, {"X-Contract-ID": "unknown"}),
        (BODY, {"X-Contract-ID": "unknown", "PAYMENT-SIGNATURE": "e30="}),
        (BODY, {"X-Contract-ID": "\xe9" * 200}),
        (BODY, {"X-Contract-ID": ""}),
        (BODY, {"X-Long": "x" * 20_000}),
        (BODY, {"Origin": "https://example.com"}),
    ],
)
def test_unpaid_requests_get_the_same_answer(
    hired: Hired, door: TwoWayDoor, door_path: str, body: Any, headers: dict[str, str]
) -> None:
    """Offers and refusals are Flask's: status, headers and body."""
    answer = both(door, door_path, body, {"X-Contract-ID": hired.id, **headers})
    assert answer.status >= 400 and answer.header("X-Request-Id") == "asked"
    assert answer.header("Access-Control-Expose-Headers") and answer.header("Cache-Control")


class BrokenBody:
    """A body that ends early, or fails."""

    def __init__(self, content: bytes | Exception) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        if isinstance(self._content, Exception):
            raise self._content
        return self._content


PAYING = {"PAYMENT-SIGNATURE": "e30="}


@pytest.mark.parametrize("door_path", ["/execute", "/buy/echo"])
@pytest.mark.parametrize("headers", [{}, PAYING])
@pytest.mark.parametrize(
    "changes",
    [
        {"wsgi.input": BrokenBody(b"{")},
        {"wsgi.input": BrokenBody(ConnectionResetError())},
        {"wsgi.input": BrokenBody(NoMoreData(b""))},
        {"wsgi.input": BrokenBody(TooSlow())},
        {"CONTENT_LENGTH": str(BODY_BYTES + 1)},
    ],
)
def test_unreadable_bodies_get_the_same_answer(
    hired: Hired, door: TwoWayDoor, door_path: str, headers: dict[str, str], changes: dict[str, Any]
) -> None:
    """With a payment, which an earlier request may have brought too, no charge is ruled out."""
    door.changes = changes
    answer = both(door, door_path, BODY, {"X-Contract-ID": hired.id, **headers})
    assert answer.status in (400, 408, 413)
    assert answer.json["error"]["details"]["charged"] is (None if headers else False)


@pytest.mark.parametrize("door_path", ["/execute", "/buy/echo"])
@pytest.mark.parametrize("headers", [{}, PAYING])
@pytest.mark.parametrize(
    "changes",
    [
        {"CONTENT_LENGTH": str(BODY_BYTES), "wsgi.input": BrokenBody(b"x" * BODY_BYTES)},
        {"CONTENT_LENGTH": ""},
        {"HTTP_HOST": "a:99999"},
        {"HTTP_HOST": "a b"},
        {"HTTP_UPGRADE": "h2c"},
    ],
)
def test_odd_requests_get_the_same_answer(
    hired: Hired, door: TwoWayDoor, door_path: str, headers: dict[str, str], changes: dict[str, Any]
) -> None:
    """The largest body, one of unknown length, and hosts that Flask is asked about."""
    door.changes = changes
    assert both(door, door_path, BODY, {"X-Contract-ID": hired.id, **headers}).status >= 400


@pytest.mark.parametrize(
    "path", ["/buy/", "/buy/nothing", "/buy/echo/", "/buy//echo", "/buy/%C3%A9", "/buy/a/b"]
)
def test_odd_capabilities_get_the_same_answer(door: TwoWayDoor, path: str) -> None:
    assert both(door, path, BODY, {}).status in (402, 404)


@pytest.mark.parametrize("wrong", [{"value": 1}, {"valid_before": 5}, {"signature": "0x" + "11" * 65}])
def test_wrong_payments_get_the_same_answer(hired: Hired, door: TwoWayDoor, wrong: dict[str, Any]) -> None:
    """A 402 that says what is wrong with the payment that was sent."""
    offer = hired.offer(BODY)
    headers = {"X-Contract-ID": hired.id, "PAYMENT-SIGNATURE": hired.sign(offer, **wrong)}
    answer = both(door, "/execute", BODY, headers)
    assert answer.status == 402 and answer.header("PAYMENT-RESPONSE")


@pytest.mark.parametrize("do", ["ok", "fail", "invalid"])
def test_ended_tasks_get_the_same_answer(hired: Hired, door: TwoWayDoor, do: str) -> None:
    """Whether it was paid for or failed; another input is a conflict that says what was charged."""
    body = {"do": do}
    hired.pay(body)
    headers = {"X-Contract-ID": hired.id}
    answer = both(door, "/execute", body, headers)
    assert (answer.status == 200) == (do == "ok")
    assert both(door, "/execute", {"do": "other"}, headers).status == 409


def test_pending_tasks_get_the_same_answer(paid_worker: PaidWorker, door: TwoWayDoor) -> None:
    """A 202 names where to look, and when, with both ways of answering."""
    shown: list[DoorAnswer] = []
    for way in ("direct", "flask"):
        hired = Seeker(door, now=paid_worker.now).hire()
        payment = hired.sign()
        with door.by(way):
            shown.append(hired.execute({"do": "sleep", "seconds": 0.5}, payment, Prefer="respond-async"))
        task = shown[-1].json["task_id"]
        assert (shown[-1].header("Location") or "").endswith(f"/tasks/{task}")
        hired.ended(task)
    assert [answer.status for answer in shown] == [202, 202]
    assert shown[0].headers.keys() == shown[1].headers.keys()
    assert shown[0].header("Preference-Applied") == "respond-async"


def test_a_bug_is_answered_by_flask(hired: Hired, door: TwoWayDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is asked once, and its error is the answer, with what is known of the charge."""
    asked: list[Any] = []

    def execute(*args: Any) -> Any:
        asked.append(args)
        raise ValueError("bug")

    monkeypatch.setattr("worker.hiring.service.Hiring.execute", execute)
    answer = both(door, "/execute", BODY, {"X-Contract-ID": hired.id, "PAYMENT-SIGNATURE": "e30="})
    assert answer.status == 500 and answer.json["error"]["details"]["charged"] is None and len(asked) == 2
    assert answer.json["contract_id"] == hired.id


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "A/B;c", " application/json\t", ";", "application/json;;x=y"]
)
def test_media_types_are_read_as_flask_reads_them(app: Flask, content_type: str) -> None:
    with app.test_request_context(headers={"Content-Type": content_type}) as context:
        kind, refused = context.request.mimetype, False
        try:
            expect_json(context.request.environ)
        except Exception as error:
            assert getattr(error, "details", {})["received"] == kind
            refused = True
        assert refused == (kind not in ("", "application/json"))


@pytest.fixture(name="app")
def _app(paid_worker: PaidWorker) -> Flask:
    return paid_worker.app

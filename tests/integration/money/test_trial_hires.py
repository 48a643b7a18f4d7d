"""Hires from the pages with the worker's own test dollars, and the page of a task."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_worker import PaidWorker
from tests.fakes.plain_buyer import PlainBuyer
from tests.waiting import eventually
from tests.web_app import application
from worker.contracts.signatures import address_of
from worker.doors.pages import MOST_OUTPUT
from worker.engine.listing import Filter
from worker.hiring.task import AWAITING

BROWSER = {"Accept": "text/html"}
DAILY = 10_000_000


@dataclass
class Visitor:
    """A browser without scripts on a worker that lends test dollars from a wallet of its own."""

    client: FlaskClient
    wallet: str

    def hire(
        self, capability: str = "echo", headers: dict[str, str] | None = None, **form: str
    ) -> TestResponse:
        return self.client.post(f"/c/{capability}/hire", data=form, headers={**BROWSER, **(headers or {})})

    def read(self, address: str) -> str:
        return self.client.get(address, headers=BROWSER).get_data(as_text=True)

    def read_until(self, address: str, wanted: str) -> str:
        found: list[str] = []

        def shown() -> bool:
            found.append(self.read(address))
            return wanted in found[-1]

        eventually(shown, 30, f"a page that says {wanted}")
        return found[-1]


@pytest.fixture(name="visitor")
def _visitor(paid_worker: PaidWorker) -> Iterator[Visitor]:
    with lending(paid_worker, DAILY) as visitor:
        yield visitor


@contextmanager
def lending(paid_worker: PaidWorker, daily: int) -> Iterator[Visitor]:
    """A worker that lends this much a day, and its visitor."""
    key = "0x" + secrets.token_hex(32)
    settings = replace(paid_worker.settings, try_key=key, try_daily=daily)
    wallet = address_of(key).lower()
    with application(settings) as app:
        yield Visitor(app.test_client(), wallet)
    # A hire is followed in the background until it has ended.
    eventually(lambda: _all_ended(paid_worker, wallet), 30, "the end of the visitor's hires")


def _all_ended(paid_worker: PaidWorker, wallet: str) -> bool:
    filter = Filter(door="buy", labels=(("payer", wallet),))
    page = paid_worker.parts.executions.page(filter)
    return all(each.state.terminal or each.phase in AWAITING for each in page.executions)


def task_address(answer: TestResponse) -> str:
    assert answer.status_code == 303, answer.get_data(as_text=True)
    return answer.headers["Location"]


def test_a_form_hires_and_its_page_shows_what_came(paid_worker: PaidWorker, visitor: Visitor) -> None:
    """The wallet pays the price once; the page shows input, result, payment, token and proof."""
    address = task_address(visitor.hire(**{"field.do": "ok"}))
    page = visitor.read_until(address, "Delivered</span></p>")
    assert paid_worker.settles(visitor.wallet) == 1 and paid_worker.charged(visitor.wallet) == 10_000
    for shown in (
        "<h3>Input</h3>",
        "<dt>Do</dt><dd>ok</dd>",
        "What came",
        "<dt>Run</dt>",
        ">settled</span>",
        "Signed receipt",
        "tok_",
    ):
        assert shown in page, shown
    evidence = visitor.client.get(f"{address}/evidence.json").get_json()
    assert evidence["terms"]["task"]["capability"] == "echo"


def test_the_token_is_in_a_cookie_of_this_page_only(visitor: Visitor) -> None:
    """No address contains it, scripts cannot read it, and another task's page does not get it."""
    answer = visitor.hire(**{"field.do": "ok"})
    address, cookie = task_address(answer), answer.headers["Set-Cookie"]
    assert "tok_" not in address and cookie.startswith("task=tok_")
    assert f"Path={address};" in cookie and "HttpOnly" in cookie and "SameSite=Lax" in cookie
    other = task_address(visitor.hire(**{"field.do": "ok", "field.text": "2"}))
    visitor.client.delete_cookie("task", path=other)
    assert "Open a task" in visitor.read(other) and "Your order" in visitor.read(address)


def test_a_task_opens_with_its_token_and_nothing_else(paid_worker: PaidWorker, visitor: Visitor) -> None:
    """A purchase made by any client opens with the token it got; a wrong or foreign one finds nothing."""
    plain = PlainBuyer(paid_worker.seeker())
    bought = plain.buy({"do": "ok", "text": secrets.token_hex(4)}).json
    address = f"/t/{bought['task_id']}"
    assert "Open a task" in visitor.read(address)
    for wrong in ("", "tok_" + "0" * 40, bought["task_id"]):
        refused = visitor.client.post(address, data={"token": wrong})
        assert refused.status_code == 404 and "Set-Cookie" not in refused.headers
    opened = visitor.client.post(address, data={"token": bought["task_token"]})
    assert "Your order" in visitor.read(task_address(opened))


def test_a_contracts_task_opens_with_its_id_in_the_header(paid_worker: PaidWorker, visitor: Visitor) -> None:
    """The cookie then has a token of the page: the contract's id is neither there nor on the page."""
    hired = paid_worker.seeker().hire()
    done = hired.pay({"do": "ok"}).json
    answer = visitor.client.post(f"/t/{done['task_id']}", headers={"X-Contract-ID": hired.id})
    page = visitor.read_until(task_address(answer), "Delivered")
    assert "Signed receipt" in page
    assert hired.id not in page + answer.headers["Set-Cookie"]


def test_a_page_stays_small_whatever_was_ordered(paid_worker: PaidWorker, visitor: Visitor) -> None:
    """Rows with a column of their own each are listed, and a long result is a file to download."""
    plain = PlainBuyer(paid_worker.seeker())
    rows = [{f"column {number}": number} for number in range(2_000)]
    bought = plain.buy({"do": "ok", "text": "x" * MOST_OUTPUT, "rows": [*rows, "no row"]}).json
    opened = visitor.client.post(f"/t/{bought['task_id']}", data={"token": bought["task_token"]})
    page = visitor.read_until(task_address(opened), "Delivered</span></p>")
    assert "Column 1999" in page and "no row" in page and len(page) < 1_000_000
    assert ">output.json</a>" in page and "<dt>Run</dt>" not in page


def test_the_days_test_dollars_end(paid_worker: PaidWorker) -> None:
    """Beyond the day's sum the form is refused with what the visitor wrote; the next day it works again."""
    with lending(paid_worker, 60_000) as visitor:
        for number in ("1", "2"):
            address = task_address(visitor.hire("long", **{"field.do": "ok", "field.text": number}))
            visitor.read_until(address, "Delivered</span></p>")
        refused = visitor.hire("long", **{"field.do": "what the visitor wrote"})
        text = refused.get_data(as_text=True)
        assert refused.status_code == 429 and "Retry-After" in refused.headers
        assert "test dollars for this capability are spent" in text and "what the visitor wrote" in text
        paid_worker.jump(86_400)
        task_address(visitor.hire("long", **{"field.do": "ok"}))


def test_nothing_unpaid_is_shown(paid_worker: PaidWorker, visitor: Visitor) -> None:
    """Where the settlement is refused, the page says so and has no part of the result."""
    paid_worker.fault("settle", visitor.wallet, faults.refuse("insufficient_funds"))
    address = task_address(visitor.hire(**{"field.do": "ok"}))
    page = visitor.read_until(address, "Payment refused")
    assert "What came" not in page and "<dt>Run</dt>" not in page and "not charged" in page


@pytest.mark.parametrize(
    ("origin", "status"), [("https://elsewhere.example", 403), ("null", 403), ("http://localhost", 303)]
)
def test_forms_of_other_sites_are_refused(visitor: Visitor, origin: str, status: int) -> None:
    """A page elsewhere cannot spend the visitors' test dollars."""
    answer = visitor.hire(headers={"Origin": origin}, **{"field.do": "ok"})
    assert answer.status_code == status


def test_without_a_wallet_nothing_is_lent(paid_worker: PaidWorker) -> None:
    """The pages offer no trial, and its address finds nothing."""
    client = paid_worker.app.test_client()
    assert b"test dollars</button>" not in client.get("/c/echo", headers=BROWSER).data
    assert client.post("/c/echo/hire", data={"field.do": "ok"}).status_code == 404


def test_home_has_two_forms(paid_worker: PaidWorker) -> None:
    """Browsers get the page, all other clients the manifest as ever."""
    client = paid_worker.app.test_client()
    manifest: Any = client.get("/manifest").get_json()
    for accept in ("", "*/*", "application/json"):
        answer = client.get("/", headers={"Accept": accept})
        assert answer.get_json() == manifest and answer.headers["Vary"] == "Accept"
    page = client.get("/", headers=BROWSER)
    assert page.mimetype == "text/html" and b"Echo" in page.data
    again = client.get("/", headers={**BROWSER, "If-None-Match": page.headers["ETag"]})
    assert again.status_code == 304


def test_pages_leave_nothing_in_the_store_and_ask_it_seldom(paid_worker: PaidWorker) -> None:
    """Ten visits to the pages cost the store fewer commands than visits."""
    client = paid_worker.app.test_client()
    client.get("/", headers=BROWSER)

    def commands() -> int:
        return sum(
            each["calls"]
            for name, each in paid_worker.client.info("commandstats").items()
            if name.removeprefix("cmdstat_") == "hgetall"
        )

    before = commands()
    for _ in range(10):
        assert client.get("/", headers=BROWSER).status_code == 200
    assert commands() - before < 10

"""Listings: the facilitator's reports are stored and shown, and never disturb a payment."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import redis

from worker.cli.listing_checks import ListingCheck, check_endpoint
from worker.payments.facilitator import HttpFacilitator
from worker.payments.facilitator_call import Answered
from worker.payments.listings import DAY_US, ListeningFacilitator, ListingBook
from worker.seeker.http import ConnectionDropped, HttpAnswer
from worker.store.data_model import Keys
from worker.x402.bazaar import BAZAAR, Described, bazaar_extension
from worker.x402.facilitator_answers import CatalogStatus, FacilitatorAnswer, read_catalog_status
from worker.x402.headers import encode

URL = "https://worker.example/buy/"
PAID = {"resource": {"url": f"{URL}words"}}
SUCCESS = FacilitatorAnswer(200, {"success": True}, catalog=CatalogStatus("success"))


class Plan:
    """A facilitator that returns the planned response."""

    def __init__(self, answer: FacilitatorAnswer) -> None:
        self.answer = answer

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self.answer

    settle = verify

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answered:
        return Answered(self.answer)

    begin_settle = begin_verify

    def supported(self) -> FacilitatorAnswer:
        return self.answer


class Clocks:
    """The clocks of store and process, moved by the test."""

    def __init__(self) -> None:
        self.now_us, self.monotonic = 1_800_000_000_000_000, 0.0


def at_once(work: Callable[[], object]) -> None:
    work()


def capability_at(url: str) -> str | None:
    return url.removeprefix(URL) if url.startswith(URL) else None


@pytest.fixture(name="clocks")
def _clocks() -> Clocks:
    return Clocks()


@pytest.fixture(name="book")
def _book(client: redis.Redis, clocks: Clocks) -> ListingBook:
    return ListingBook(client, Keys(), lambda: clocks.now_us)


def listening(book: ListingBook, clocks: Clocks, answer: FacilitatorAnswer) -> ListeningFacilitator:
    return ListeningFacilitator(Plan(answer), book, capability_at, at_once, lambda: clocks.monotonic)


def test_a_listing_and_its_last_settlement_are_kept(book: ListingBook, clocks: Clocks) -> None:
    """After a settlement the capability is listed with its last payment; other addresses are ignored."""
    facilitator = listening(book, clocks, SUCCESS)
    assert facilitator.begin_settle(PAID, {}).answer() is SUCCESS
    facilitator.settle({"resource": {"url": "https://worker.example/execute"}}, {})
    facilitator.settle({}, {})
    found = book.all()
    assert [*found] == ["words"]
    assert (found["words"].level, found["words"].settled) == (1, clocks.now_us)
    assert book.warnings() == []


@pytest.mark.parametrize("begun", [False, True])
def test_a_verification_is_no_settlement(book: ListingBook, clocks: Clocks, begun: bool) -> None:
    """Only settled payments keep a listing alive."""
    facilitator = listening(book, clocks, SUCCESS)
    if begun:
        call = facilitator.begin_verify(PAID, {})
        assert call is not None and book.all() == {}
        assert call.answer_within(1) is SUCCESS
    else:
        facilitator.verify(PAID, {})
    assert (book.all()["words"].level, book.all()["words"].settled) == (1, 0)


def test_a_rejection_is_warned_of_with_its_reason(book: ListingBook, clocks: Clocks) -> None:
    """The operator reads the reason until the catalog reports another status."""
    refused = FacilitatorAnswer(200, {"isValid": True}, catalog=CatalogStatus("rejected", "schema mismatch"))
    listening(book, clocks, refused).verify(PAID, {})
    assert book.warnings() == ["words was rejected by the catalog: schema mismatch"]
    listening(book, clocks, SUCCESS).settle(PAID, {})
    assert book.warnings() == []


def test_a_listing_without_payments_is_warned_of_before_it_lapses(book: ListingBook, clocks: Clocks) -> None:
    """The operator is warned five days before the catalog's thirty are over; then it is reported gone."""
    listening(book, clocks, SUCCESS).settle(PAID, {})
    clocks.now_us += 25 * DAY_US
    assert book.warnings() == []
    clocks.now_us += 1
    assert book.warnings() == ["words was last paid for 25 days ago; catalogs drop it after 30"]
    clocks.now_us += 5 * DAY_US
    assert book.warnings() == ["words was last paid for 30 days ago; catalogs have dropped it"]


def test_the_same_news_is_written_every_ten_minutes_only(book: ListingBook, clocks: Clocks) -> None:
    """A busy worker does not write with every payment, but writes a changed status immediately."""
    facilitator = listening(book, clocks, SUCCESS)
    facilitator.settle(PAID, {})
    first = clocks.now_us
    clocks.now_us += 1_000_000
    facilitator.settle(PAID, {})
    assert book.all()["words"].settled == first
    facilitator.inner = Plan(FacilitatorAnswer(200, {}, catalog=CatalogStatus("processing")))
    facilitator.verify(PAID, {})
    facilitator.inner = Plan(SUCCESS)
    facilitator.verify(PAID, {})
    assert book.all()["words"].status == "success"
    clocks.monotonic += 601
    facilitator.settle(PAID, {})
    assert book.all()["words"].settled == clocks.now_us


@pytest.fixture(name="server")
def _server() -> Iterator[tuple[str, dict[str, str]]]:
    """An HTTP facilitator whose extra response headers are set by a test."""
    headers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b'{"isValid":true}')

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}", headers
        served.shutdown()


def encoded(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (encoded({"bazaar": {"status": "success"}}), CatalogStatus("success")),
        (
            encoded({"bazaar": {"status": "rejected", "rejectedReason": "a\x1b[2Jb" + "x" * 500}}),
            CatalogStatus("rejected", ("a [2Jb" + "x" * 500)[:200]),
        ),
        (encoded({"bazaar": {"status": "rejected", "rejectedReason": {}}}), CatalogStatus("rejected")),
        (encoded({"bazaar": {"status": "sold"}}), None),
        (encoded({"bazaar": []}), None),
        (encoded({"other": {}}), None),
        ("%%%", None),
        ("", None),
    ],
)
def test_the_header_is_read_and_anything_else_is_ignored(
    server: tuple[str, dict[str, str]], header: str, status: CatalogStatus | None
) -> None:
    """EXTENSION-RESPONSES is read from a real response; junk in it changes nothing."""
    url, headers = server
    headers["Extension-Responses"] = header
    answer = HttpFacilitator(url).verify({}, {})
    assert answer.body == {"isValid": True} and answer.catalog == status
    assert read_catalog_status(header) == status


class Endpoint:
    """A transport with a fixed response."""

    def __init__(self, status: int = 402, **changes: Any) -> None:
        document = {
            "x402Version": 2,
            "resource": {"url": f"{URL}words", "description": "Counts.", "serviceName": "Words"},
            "accepts": [{}],
            "extensions": {BAZAAR: bazaar_extension(Described(None, None, {"text": "a"}))},
        }
        self.answer = HttpAnswer(status, {"payment-required": encode(document | changes)})

    def send(self, method: str, url: str, **_: Any) -> HttpAnswer:
        return self.answer


def faults(checks: list[ListingCheck]) -> dict[str, str]:
    return {each.name: each.fault for each in checks if each.fault}


def test_checks_of_an_endpoint_find_what_a_catalog_would_find() -> None:
    """A valid 402 passes; each fault is named by its check."""
    assert faults(check_endpoint(Endpoint(), f"{URL}words")) == {}
    assert faults(check_endpoint(Endpoint(415), f"{URL}words")) == {"returns_402": "status 415"}
    assert [*faults(check_endpoint(Endpoint(extensions={}), f"{URL}words"))] == ["has_bazaar_extension"]
    broken = {BAZAAR: {"info": {}, "schema": {"type": "object", "required": ["input"]}}}
    assert [*faults(check_endpoint(Endpoint(extensions=broken), f"{URL}words"))] == ["schema_holds"]
    other = {"url": "https://other.example/", "description": "d" * 501, "serviceName": "x" * 33}
    found = faults(check_endpoint(Endpoint(resource=other), f"{URL}words"))
    assert [*found] == ["resource_url", "description", "metadata"]
    assert "public_address" in faults(check_endpoint(Endpoint(), "http://127.0.0.1/buy/words"))


def test_an_unreachable_endpoint_is_reported() -> None:
    """A failed connection is a finding, not a crash."""

    class Dropped:
        def send(self, *_: Any, **__: Any) -> HttpAnswer:
            raise ConnectionDropped("refused")

    assert "reachable" in faults(check_endpoint(Dropped(), f"{URL}words"))

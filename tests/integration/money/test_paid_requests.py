"""Payments through the HIRE door: copies, mismatches, malformed ones and changed input."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_worker import PaidWorker, in_threads
from tests.fakes.seeker import DoorAnswer, Hired, Seeker, decoded, encoded
from tests.waiting import eventually

PRICE = 10_000


def test_paid_request_returns_receipt_headers(paid_worker: PaidWorker) -> None:
    """200 with V2 and V1 PAYMENT-RESPONSE headers, and exactly the price moved."""
    hired = paid_worker.seeker().hire()
    answer = hired.pay()
    assert answer.status == 200 and paid_worker.charged(hired.seeker.wallet) == PRICE
    response = answer.payment_response
    assert response is not None
    assert (response["success"], response["network"]) == (True, "eip155:84532")
    legacy = json.loads(base64.b64decode(answer.header("X-PAYMENT-RESPONSE") or ""))
    assert (legacy["network"], legacy["transaction"]) == ("base-sepolia", response["transaction"])


def test_identical_resend_gets_the_stored_response(paid_worker: PaidWorker) -> None:
    """The same request, with or without its payment, gets the stored bytes and PAYMENT-RESPONSE."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    first = hired.execute(None, header)
    for again in (hired.execute(None, header), hired.execute()):
        assert (again.status, again.content) == (200, first.content)
        assert again.header("Idempotent-Replayed") == "true"
        assert again.payment_response == first.payment_response
    assert paid_worker.settles(hired.seeker.wallet) == 1


def test_copies_of_two_payments_are_charged_once(paid_worker: PaidWorker) -> None:
    """One run, one settlement, equal responses; the second payment is not used, and the response says so."""
    hired = paid_worker.seeker().hire()
    body = {"do": "sleep", "seconds": 0.4}
    offer = hired.offer(body)
    one, other = hired.sign(offer), hired.sign(offer)
    calls: list[Callable[[], DoorAnswer]] = [lambda: hired.execute(body, one)] * 12
    calls += [lambda: hired.execute(body, other)] * 12
    answers = in_threads(*calls)
    assert {answer.status for answer in answers} <= {200, 202}
    done = [answer for answer in answers if answer.status == 200]
    id = answers[0].json["task_id"]
    assert {answer.json["task_id"] for answer in answers} == {id}
    last = hired.execute(body, other)
    assert {answer.content for answer in [*done, last]} == {last.content}
    assert last.header("X-Payment-Status") == "already_paid"
    wallet = hired.seeker.wallet
    assert (paid_worker.runs(id), paid_worker.settles(wallet), paid_worker.charged(wallet)) == (1, 1, PRICE)
    assert len(paid_worker.calls("verify", wallet)) == 1, "a second payment was shown to the facilitator"
    waiting = [answer for answer in answers if answer.status == 202]
    assert all(answer.header("X-Payment-Status") in ("being_paid", "already_paid") for answer in waiting)


def test_second_payment_while_one_is_open_is_not_taken(paid_worker: PaidWorker) -> None:
    """While the work runs, another payment gets 202 with being_paid and is neither verified nor settled."""
    hired = paid_worker.seeker().hire()
    body = {"do": "sleep", "seconds": 1.0}
    offer = hired.offer(body)
    first = hired.execute(body, hired.sign(offer), Prefer="respond-async")
    assert first.status == 202 and first.header("X-Payment-Status") is None
    second = hired.execute(body, hired.sign(offer), Prefer="respond-async")
    assert (second.status, second.json["payment"]) == (202, "being_paid")
    assert second.header("X-Payment-Status") == "being_paid"
    hired.ended(first.json["task_id"])
    assert len(paid_worker.calls("verify", hired.seeker.wallet)) == 1
    assert paid_worker.charged(hired.seeker.wallet) == PRICE


def test_only_eight_copies_of_a_request_wait(paid_worker: PaidWorker) -> None:
    """Beyond eight waiting copies of a request the answer is 202 immediately."""
    hired = paid_worker.seeker().hire()
    body = {"do": "sleep", "seconds": 2.0}
    header = hired.sign(hired.offer(body))
    first = hired.execute(body, header, Prefer="respond-async")
    id = first.json["task_id"]
    eventually(lambda: paid_worker.execution(id).state == "running", description="work under way")
    answers = in_threads(*[lambda: hired.execute(body, header)] * 14)
    statuses = [answer.status for answer in answers]
    assert (statuses.count(200), statuses.count(202)) == (8, 6)
    assert paid_worker.runs(id) == 1


def test_twenty_concurrent_payments_are_one_charge(paid_worker: PaidWorker) -> None:
    """Of twenty different valid payments sent at once, one is claimed and the others are not used."""
    hired = paid_worker.seeker().hire()
    offer = hired.offer()
    headers = [hired.sign(offer) for _ in range(20)]
    answers = in_threads(*[lambda header=header: hired.execute(None, header) for header in headers])  # type: ignore[misc]
    assert {answer.status for answer in answers} <= {200, 202}
    assert paid_worker.charged(hired.seeker.wallet) == PRICE and paid_worker.settles(hired.seeker.wallet) == 1


def test_one_payment_buys_one_contract(paid_worker: PaidWorker) -> None:
    """A settled or claimed payment is 409 for another contract, without a 402."""
    seeker = paid_worker.seeker()
    one, other = seeker.hire(), seeker.hire()
    header = one.sign()
    assert one.execute(None, header).status == 200
    for _ in range(2):
        response = other.execute(None, header)
        assert (response.status, response.code) == (409, "PAYMENT_USED")
        assert response.header("PAYMENT-REQUIRED") is None
    assert paid_worker.charged(seeker.wallet) == PRICE
    assert other.pay().status == 200


def test_payment_identifier_belongs_to_one_payment(paid_worker: PaidWorker) -> None:
    """An identifier with its own payment replays the response; with another payment it is 409."""
    hired = paid_worker.seeker().hire()
    offer = hired.offer()
    name = "pay_" + "0" * 32
    header = hired.sign(offer, identifier=name)
    paid_worker.fault("verify", hired.seeker.wallet, faults.refuse("insufficient_funds"))
    assert hired.execute(None, header).status == 402
    response = hired.execute(None, hired.sign(offer, identifier=name))
    assert (response.status, response.code) == (409, "PAYMENT_IDENTIFIER_USED")
    assert hired.execute(None, hired.sign(offer, identifier="pay_" + "1" * 32)).status == 200


WRONG = {
    "another wallet": lambda hired, offer: _by_stranger(hired, offer),
    "less": lambda hired, offer: hired.sign(offer, value=PRICE - 1),
    "more": lambda hired, offer: hired.sign(offer, value=PRICE + 1),
    "another amount accepted": lambda hired, offer: hired.sign(offer, amount="1"),
    "another receiver": lambda hired, offer: hired.sign(offer, to="0x" + "12" * 20),
    "another receiver accepted": lambda hired, offer: hired.sign(offer, payTo="0x" + "12" * 20),
    "another asset": lambda hired, offer: hired.sign(offer, asset="0x" + "12" * 20),
    "another network": lambda hired, offer: hired.sign(offer, network="eip155:1"),
    "ended": lambda hired, offer: hired.sign(offer, valid_before=int(hired.seeker.now()) - 1),
    "too short": lambda hired, offer: hired.sign(offer, valid_before=int(hired.seeker.now()) + 30),
    "not yet": lambda hired, offer: hired.sign(offer, valid_after=int(hired.seeker.now()) + 60),
    "a forged signature": lambda hired, offer: hired.sign(offer, signature="0x" + "11" * 64 + "1b"),
}


def _by_stranger(hired: Hired, offer: dict[str, object]) -> str:
    stranger = Seeker(hired.seeker.door, now=hired.seeker.now)
    return Hired(stranger, hired.document).sign(offer)


@pytest.mark.parametrize("wrong", WRONG)
def test_mismatched_payment_gets_402_with_the_field(paid_worker: PaidWorker, wrong: str) -> None:
    """A mismatch with the offer is 402 naming the field, before any facilitator call; nothing is claimed."""
    hired = paid_worker.seeker().hire()
    offer = hired.offer()
    before = len(paid_worker.facilitator.calls())
    header = WRONG[wrong](hired, offer)
    answer = hired.execute(None, header)
    assert answer.status == 402, answer.content
    assert answer.json["details"]["field"] and answer.payment_required["accepts"] == offer["accepts"]
    response = answer.payment_response
    assert response is not None and response["success"] is False and response["transaction"] == ""
    assert len(paid_worker.facilitator.calls()) == before
    assert hired.pay().status == 200


def _changed(header: str, change: Callable[[dict[str, object]], object]) -> str:
    document = decoded(header)
    change(document)
    return encoded(document)


MALFORMED: dict[str, Callable[[str], str]] = {
    "empty": lambda header: "",
    "not base64": lambda header: "%%%",
    "cut short": lambda header: header[:-7],
    "not JSON": lambda header: base64.b64encode(b"{").decode(),
    "a list": lambda header: encoded([1, 2]),
    "duplicate keys": lambda header: base64.b64encode(b'{"x402Version":2,"x402Version":2}').decode(),
    "another version": lambda header: _changed(header, lambda d: d.update(x402Version=3)),
    "no payload": lambda header: _changed(header, lambda d: d.pop("payload")),
    "a number for an amount": lambda header: _changed(header, lambda d: d["accepted"].update(amount=10000)),  # type: ignore[attr-defined]
    "a short nonce": lambda header: _changed(
        header,
        lambda d: d["payload"]["authorization"].update(nonce="0x00"),  # type: ignore[index]
    ),
    "a negative value": lambda header: _changed(
        header,
        lambda d: d["payload"]["authorization"].update(value="-1"),  # type: ignore[index]
    ),
    "permit2": lambda header: _changed(header, lambda d: d["payload"].update(permit2Authorization={})),  # type: ignore[attr-defined]
    "too long": lambda header: "A" * 20_000,
    "nested too deep": lambda header: base64.b64encode(b"[" * 5000 + b"]" * 5000).decode(),
}


@pytest.mark.parametrize("broken", MALFORMED)
def test_malformed_payment_gets_400_and_claims_nothing(paid_worker: PaidWorker, broken: str) -> None:
    """Junk is not treated as a missing payment: 400 PAYMENT_INVALID, and the contract stays unpaid."""
    hired = paid_worker.seeker().hire()
    header = MALFORMED[broken](hired.sign())
    response = hired.execute(None, header)
    refused = (400, "PAYMENT_INVALID")
    assert (response.status, response.code) == refused, response.content
    assert hired.seeker.door("GET", "/contracts", None, {"X-Contract-ID": hired.id}).json["state"] == "SIGNED"
    assert hired.pay().status == 200


def test_malformed_header_after_payment_gets_the_stored_result(paid_worker: PaidWorker) -> None:
    """The record is checked first: junk sent with a finished contract gets the stored result."""
    hired = paid_worker.seeker().hire()
    first = hired.pay()
    assert hired.execute(None, "%%%").content == first.content


def test_different_input_in_each_phase(paid_worker: PaidWorker) -> None:
    """Before payment any input is accepted; after the claim another input is 409 and not charged."""
    hired = paid_worker.seeker().hire()
    this, that = {"do": "sleep", "seconds": 0.8}, {"do": "ok", "other": 1}
    offer = hired.offer(that)
    assert hired.execute(this).status == 402
    wallet = hired.seeker.wallet
    paid_worker.fault("verify", wallet, faults.hang(10))
    task = hired.execute(this, hired.sign(offer), Prefer="respond-async").json["task_id"]
    eventually(lambda: paid_worker.calls("verify", wallet), description="the call")
    for phase in ("verifying", "working", "done"):
        eventually(lambda phase=phase: paid_worker.execution(task).phase == phase, description=phase)  # type: ignore[misc]
        for header in (None, hired.sign(offer)):
            response = hired.execute(that, header)
            assert (response.status, response.code) == (409, "IDEMPOTENCY_CONFLICT"), phase
        paid_worker.facilitator.release()
    assert paid_worker.charged(wallet) == PRICE and paid_worker.runs(task) == 1
    assert hired.execute({"seconds": 0.8, "do": "sleep"}).status == 200, "the order of keys does not matter"


def test_different_input_after_a_refused_payment(paid_worker: PaidWorker) -> None:
    """After a refusal nothing is owed, so the next payment may bring another input."""
    hired = paid_worker.seeker().hire()
    paid_worker.fault("verify", hired.seeker.wallet, faults.refuse("insufficient_funds", status=400))
    assert hired.pay({"do": "ok", "n": 1}).status == 402
    response = hired.pay({"do": "ok", "n": 2})
    assert response.status == 200 and response.json["output"]["content"]["asked"]["n"] == 2


@pytest.mark.parametrize("phase", ["verifying", "running", "settling", "done"])
def test_cancelling_in_each_phase(paid_worker: PaidWorker, phase: str) -> None:
    """Before the seal a cancel ends the work uncharged; after it, 409, and only the settlement decides."""
    hired = paid_worker.seeker().hire()
    wallet = hired.seeker.wallet
    body = {"do": "sleep", "seconds": 5.0 if phase == "running" else 0.0}
    offer = hired.offer(body)
    if phase == "verifying":
        paid_worker.fault("verify", wallet, faults.hang(10))
    if phase == "settling":
        paid_worker.fault("settle", wallet, faults.hang(10))
    answer: list[DoorAnswer] = []
    request = threading.Thread(
        target=lambda: answer.append(hired.execute(body, hired.sign(offer))), daemon=True
    )
    request.start()
    ref = lambda: paid_worker.parts.book.find(hired.id)  # noqa: E731
    id = eventually(lambda: (ref() and ref().execution) or "", description="a claim")  # type: ignore[union-attr]
    eventually(
        lambda: phase in (paid_worker.execution(id).phase, paid_worker.execution(id).state), description=phase
    )
    for operation in ({"verifying": ["verify"], "settling": ["settle"]}).get(phase, []):
        eventually(lambda operation=operation: paid_worker.calls(operation, wallet), description="the call")  # type: ignore[misc]
    response = hired.cancel(id)
    paid_worker.facilitator.release()
    request.join(20)
    if phase in ("verifying", "running"):
        assert response.status == 200 and response.json["error"]["code"] == "CANCELLED"
        assert paid_worker.charged(wallet) == 0 and paid_worker.payment(id).state == "released"
        assert hired.execute(body, hired.sign(offer)).code == "CANCELLED"
        assert paid_worker.charged(wallet) == 0 and paid_worker.settles(wallet) == 0
    else:
        assert response.status == 409
        assert hired.ended(id).json["status"] == "completed" and paid_worker.charged(wallet) == PRICE


def test_dropped_connection_after_paying_loses_nothing(paid_worker: PaidWorker) -> None:
    """A seeker that disconnects and returns without its payment gets the result it paid for."""
    hired = paid_worker.seeker().hire()
    body = {"do": "sleep", "seconds": 0.3}
    header = hired.sign(hired.offer(body))
    # Nobody waits for the response, which to the worker equals a dropped connection.
    response = hired.execute(body, header, Prefer="respond-async")
    assert response.status == 202
    id = response.json["task_id"]
    eventually(lambda: paid_worker.execution(id).state.terminal, description="the end")
    back = hired.execute(body)
    assert (back.status, back.header("Idempotent-Replayed")) == (200, "true")
    assert back.payment_response is not None and paid_worker.charged(hired.seeker.wallet) == PRICE


def test_slow_verification_outlives_its_request(paid_worker: PaidWorker) -> None:
    """A slow verification does not delay the response; the work continues in the background."""
    hired = paid_worker.seeker().hire()
    paid_worker.fault("verify", hired.seeker.wallet, faults.hang(10))
    response = hired.pay(Prefer="respond-async")
    assert (response.status, response.json["phase"]) == (202, "verifying")
    eventually(lambda: paid_worker.calls("verify", hired.seeker.wallet), description="the call")
    paid_worker.facilitator.release()
    done = hired.ended(response.json["task_id"])
    assert done.json["status"] == "completed" and paid_worker.charged(hired.seeker.wallet) == PRICE


def test_result_stays_available_after_the_capability_is_withdrawn(paid_worker: PaidWorker) -> None:
    """A paid contract keeps its result when the capability is no longer offered."""
    hired = paid_worker.seeker().hire()
    first = hired.pay()
    catalogs = paid_worker.parts.keys.catalogs
    described = paid_worker.client.hgetall(catalogs)
    try:
        paid_worker.client.hset(catalogs, mapping=dict.fromkeys(described, b"0 []"))
        eventually(
            lambda: not paid_worker.seeker().door("GET", "/manifest").json["capabilities"],
            description="withdrawn",
        )
        assert hired.execute().content == first.content
        assert hired.poll(first.json["task_id"]).json["status"] == "completed"
    finally:
        paid_worker.client.hset(catalogs, mapping=described)
    eventually(
        lambda: paid_worker.seeker().door("GET", "/manifest").json["capabilities"],
        description="on offer again",
    )

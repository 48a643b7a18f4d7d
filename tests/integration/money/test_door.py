"""Payments as they come through the door: copies, strangers, malformed ones, and a change of mind."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.seeker import Hired, Said, Seeker, decoded, encoded
from tests.fakes.shop import Shop, in_threads
from tests.waiting import eventually

PRICE = 10_000


def test_a_paid_contract_answers_with_receipt_and_network(shop: Shop) -> None:
    """200 with PAYMENT-RESPONSE of the V2 network, the V1 one beside it, and exactly the price moved."""
    hired = shop.seeker().hire()
    said = hired.pay()
    assert said.status == 200 and shop.charged(hired.seeker.wallet) == PRICE
    response = said.payment_response
    assert response is not None
    assert (response["success"], response["network"]) == (True, "eip155:84532")
    legacy = json.loads(base64.b64decode(said.header("X-PAYMENT-RESPONSE") or ""))
    assert (legacy["network"], legacy["transaction"]) == ("base-sepolia", response["transaction"])


def test_an_identical_resend_is_the_same_answer(shop: Shop) -> None:
    """The same request, with its payment or without, gets the stored bytes and their PAYMENT-RESPONSE."""
    hired = shop.seeker().hire()
    header = hired.sign()
    first = hired.execute(None, header)
    for again in (hired.execute(None, header), hired.execute()):
        assert (again.status, again.content) == (200, first.content)
        assert again.header("Idempotent-Replayed") == "true"
        assert again.payment_response == first.payment_response
    assert shop.settles(hired.seeker.wallet) == 1


def test_twelve_copies_of_one_payment_and_of_a_second_one(shop: Shop) -> None:
    """One run and one settlement; equal answers; the second payment is left alone, and the answer says so."""
    hired = shop.seeker().hire()
    body = {"do": "sleep", "seconds": 0.4}
    offer = hired.offer(body)
    one, other = hired.sign(offer), hired.sign(offer)
    calls: list[Callable[[], Said]] = [lambda: hired.execute(body, one)] * 12
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
    assert (shop.runs(id), shop.settles(wallet), shop.charged(wallet)) == (1, 1, PRICE)
    assert len(shop.calls("verify", wallet)) == 1, "a second payment was shown to the facilitator"
    waiting = [answer for answer in answers if answer.status == 202]
    assert all(answer.header("X-Payment-Status") in ("being_paid", "already_paid") for answer in waiting)


def test_a_second_payment_while_one_is_under_way_is_told_so(shop: Shop) -> None:
    """While work goes on another payment gets 202 with being_paid, and is never verified or settled."""
    hired = shop.seeker().hire()
    body = {"do": "sleep", "seconds": 1.0}
    offer = hired.offer(body)
    first = hired.execute(body, hired.sign(offer), Prefer="respond-async")
    assert first.status == 202 and first.header("X-Payment-Status") is None
    second = hired.execute(body, hired.sign(offer), Prefer="respond-async")
    assert (second.status, second.json["payment"]) == (202, "being_paid")
    assert second.header("X-Payment-Status") == "being_paid"
    hired.ended(first.json["task_id"])
    assert len(shop.calls("verify", hired.seeker.wallet)) == 1
    assert shop.charged(hired.seeker.wallet) == PRICE


def test_eight_copies_wait_and_the_rest_are_told_at_once(shop: Shop) -> None:
    """Beyond eight waiting copies of a request the answer is 202 immediately."""
    hired = shop.seeker().hire()
    body = {"do": "sleep", "seconds": 2.0}
    header = hired.sign(hired.offer(body))
    first = hired.execute(body, header, Prefer="respond-async")
    id = first.json["task_id"]
    eventually(lambda: shop.execution(id).state == "running", what="work under way")
    answers = in_threads(*[lambda: hired.execute(body, header)] * 14)
    statuses = [answer.status for answer in answers]
    assert (statuses.count(200), statuses.count(202)) == (8, 6)
    assert shop.runs(id) == 1


def test_twenty_different_payments_at_once_are_one_charge(shop: Shop) -> None:
    """Twenty different valid payments at the same moment: one is claimed, the others are left alone."""
    hired = shop.seeker().hire()
    offer = hired.offer()
    headers = [hired.sign(offer) for _ in range(20)]
    answers = in_threads(*[lambda header=header: hired.execute(None, header) for header in headers])  # type: ignore[misc]
    assert {answer.status for answer in answers} <= {200, 202}
    assert shop.charged(hired.seeker.wallet) == PRICE and shop.settles(hired.seeker.wallet) == 1


def test_one_payment_buys_one_contract(shop: Shop) -> None:
    """A payment that was settled, or that only was claimed, is 409 for another contract, without a 402."""
    seeker = shop.seeker()
    one, other = seeker.hire(), seeker.hire()
    header = one.sign()
    assert one.execute(None, header).status == 200
    for _ in range(2):
        said = other.execute(None, header)
        assert (said.status, said.code) == (409, "PAYMENT_USED")
        assert said.header("PAYMENT-REQUIRED") is None
    assert shop.charged(seeker.wallet) == PRICE
    assert other.pay().status == 200


def test_a_payment_identifier_is_an_alias_of_its_payment(shop: Shop) -> None:
    """The same identifier with the same payment answers again; with another payment it is 409."""
    hired = shop.seeker().hire()
    offer = hired.offer()
    name = "pay_" + "0" * 32
    header = hired.sign(offer, identifier=name)
    shop.fault("verify", hired.seeker.wallet, faults.refuse("insufficient_funds"))
    assert hired.execute(None, header).status == 402
    said = hired.execute(None, hired.sign(offer, identifier=name))
    assert (said.status, said.code) == (409, "PAYMENT_IDENTIFIER_USED")
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
def test_a_payment_that_is_not_ours_is_asked_for_again(shop: Shop, wrong: str) -> None:
    """Whatever differs from the offer is 402 with the field, before anybody is asked; nothing is claimed."""
    hired = shop.seeker().hire()
    offer = hired.offer()
    before = len(shop.facilitator.calls())
    header = WRONG[wrong](hired, offer)
    said = hired.execute(None, header)
    assert said.status == 402, said.content
    assert said.json["details"]["field"] and said.payment_required["accepts"] == offer["accepts"]
    response = said.payment_response
    assert response is not None and response["success"] is False and response["transaction"] == ""
    assert len(shop.facilitator.calls()) == before
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
    "a number for an amount": lambda header: _changed(header, lambda d: d["accepted"].update(amount=10000)),  # type: ignore[index]
    "a short nonce": lambda header: _changed(
        header,
        lambda d: d["payload"]["authorization"].update(nonce="0x00"),  # type: ignore[index]
    ),
    "a negative value": lambda header: _changed(
        header,
        lambda d: d["payload"]["authorization"].update(value="-1"),  # type: ignore[index]
    ),
    "permit2": lambda header: _changed(header, lambda d: d["payload"].update(permit2Authorization={})),  # type: ignore[index]
    "too long": lambda header: "A" * 20_000,
    "nested too deep": lambda header: base64.b64encode(b"[" * 5000 + b"]" * 5000).decode(),
}


@pytest.mark.parametrize("broken", MALFORMED)
def test_a_malformed_payment_is_400_and_claims_nothing(shop: Shop, broken: str) -> None:
    """Junk is never taken for "no payment": 400 with PAYMENT_INVALID, and the contract stays unpaid."""
    hired = shop.seeker().hire()
    header = MALFORMED[broken](hired.sign())
    said = hired.execute(None, header)
    refused = (400, "PAYMENT_INVALID")
    assert (said.status, said.code) == refused, said.content
    assert hired.seeker.door("GET", "/contracts", None, {"X-Contract-ID": hired.id}).json["state"] == "SIGNED"
    assert hired.pay().status == 200


def test_after_payment_a_malformed_header_changes_nothing(shop: Shop) -> None:
    """The record answers first: junk beside a finished contract gets the stored result."""
    hired = shop.seeker().hire()
    first = hired.pay()
    assert hired.execute(None, "%%%").content == first.content


def test_another_input_in_each_phase(shop: Shop) -> None:
    """Before a payment any input may come; from the claim on another one is 409 and costs nothing."""
    hired = shop.seeker().hire()
    this, that = {"do": "sleep", "seconds": 0.8}, {"do": "ok", "other": 1}
    offer = hired.offer(that)
    assert hired.execute(this).status == 402
    wallet = hired.seeker.wallet
    shop.fault("verify", wallet, faults.hang(10))
    task = hired.execute(this, hired.sign(offer), Prefer="respond-async").json["task_id"]
    eventually(lambda: shop.calls("verify", wallet), what="the call")
    for phase in ("verifying", "working", "done"):
        eventually(lambda phase=phase: shop.execution(task).phase == phase, what=phase)  # type: ignore[misc]
        for header in (None, hired.sign(offer)):
            said = hired.execute(that, header)
            assert (said.status, said.code) == (409, "IDEMPOTENCY_CONFLICT"), phase
        shop.facilitator.release()
    assert shop.charged(wallet) == PRICE and shop.runs(task) == 1
    assert hired.execute({"seconds": 0.8, "do": "sleep"}).status == 200, "the order of keys does not matter"


def test_another_input_after_a_refused_payment(shop: Shop) -> None:
    """Nothing is owed after a refusal, so another input may come with the next payment."""
    hired = shop.seeker().hire()
    shop.fault("verify", hired.seeker.wallet, faults.refuse("insufficient_funds", status=400))
    assert hired.pay({"do": "ok", "n": 1}).status == 402
    said = hired.pay({"do": "ok", "n": 2})
    assert said.status == 200 and said.json["output"]["content"]["asked"]["n"] == 2


@pytest.mark.parametrize("phase", ["verifying", "running", "settling", "done"])
def test_cancelling_in_each_phase(shop: Shop, phase: str) -> None:
    """Until the seal a cancel ends the work uncharged; from the seal on it is 409 and the money decides."""
    hired = shop.seeker().hire()
    wallet = hired.seeker.wallet
    body = {"do": "sleep", "seconds": 5.0 if phase == "running" else 0.0}
    offer = hired.offer(body)
    if phase == "verifying":
        shop.fault("verify", wallet, faults.hang(10))
    if phase == "settling":
        shop.fault("settle", wallet, faults.hang(10))
    answer: list[Said] = []
    request = threading.Thread(
        target=lambda: answer.append(hired.execute(body, hired.sign(offer))), daemon=True
    )
    request.start()
    ref = lambda: shop.parts.book.find(hired.id)  # noqa: E731
    id = eventually(lambda: (ref() and ref().execution) or "", what="a claim")  # type: ignore[union-attr]
    eventually(lambda: phase in (shop.execution(id).phase, shop.execution(id).state), what=phase)
    for operation in ({"verifying": ["verify"], "settling": ["settle"]}).get(phase, []):
        eventually(lambda operation=operation: shop.calls(operation, wallet), what="the call")  # type: ignore[misc]
    said = hired.cancel(id)
    shop.facilitator.release()
    request.join(20)
    if phase in ("verifying", "running"):
        assert said.status == 200 and said.json["error"]["code"] == "CANCELLED"
        assert shop.charged(wallet) == 0 and shop.payment(id).state == "released"
        assert hired.execute(body, hired.sign(offer)).code == "CANCELLED"
        assert shop.charged(wallet) == 0 and shop.settles(wallet) == 0
    else:
        assert said.status == 409
        assert hired.ended(id).json["status"] == "completed" and shop.charged(wallet) == PRICE


def test_a_dropped_connection_right_after_paying_loses_nothing(shop: Shop) -> None:
    """A seeker that goes away and comes back without its payment gets the result it paid for."""
    hired = shop.seeker().hire()
    body = {"do": "sleep", "seconds": 0.3}
    header = hired.sign(hired.offer(body))
    # Nobody waits for the answer: for the worker that is what a dropped connection is.
    said = hired.execute(body, header, Prefer="respond-async")
    assert said.status == 202
    id = said.json["task_id"]
    eventually(lambda: shop.execution(id).state.terminal, what="the end")
    back = hired.execute(body)
    assert (back.status, back.header("Idempotent-Replayed")) == (200, "true")
    assert back.payment_response is not None and shop.charged(hired.seeker.wallet) == PRICE


def test_verifying_outlives_its_request(shop: Shop) -> None:
    """A facilitator that is slow to verify does not hold the answer; the work goes on by itself."""
    hired = shop.seeker().hire()
    shop.fault("verify", hired.seeker.wallet, faults.hang(10))
    said = hired.pay(Prefer="respond-async")
    assert (said.status, said.json["phase"]) == (202, "verifying")
    eventually(lambda: shop.calls("verify", hired.seeker.wallet), what="the call")
    shop.facilitator.release()
    done = hired.ended(said.json["task_id"])
    assert done.json["status"] == "completed" and shop.charged(hired.seeker.wallet) == PRICE


def test_what_was_sold_answers_after_it_is_withdrawn(shop: Shop) -> None:
    """A paid contract keeps its result when the capability is not on offer any more."""
    hired = shop.seeker().hire()
    first = hired.pay()
    catalog = shop.client.get(shop.parts.keys.catalog)
    try:
        shop.client.set(shop.parts.keys.catalog, b"[]")
        eventually(lambda: not shop.seeker().door("GET", "/manifest").json["capabilities"], what="withdrawn")
        assert hired.execute().content == first.content
        assert hired.poll(first.json["task_id"]).json["status"] == "completed"
    finally:
        shop.client.set(shop.parts.keys.catalog, catalog or b"")
    eventually(lambda: shop.seeker().door("GET", "/manifest").json["capabilities"], what="on offer again")

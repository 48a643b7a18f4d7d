"""Paying for a resource without a contract: once, within the cap, and never on a doubtful word."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.seller import SEEKER_KEY, TRANSACTION, URL, Got, Seller, answer, drop, lower, status
from worker.payments.headers import response_headers
from worker.payments.networks import BASE
from worker.payments.receipts import failed_response
from worker.seeker import Drawer, Limits, Paid, Seeker, Wallet, pay
from worker.seeker.drawer import Purchase
from worker.seeker.http import Answer
from worker.seeker.problems import (
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    SpendCapReached,
    WorkerUnreachable,
)

RESOURCE = f"{URL}/execute"


def seeker_of(seller: Seller, directory: Path, **limits: Any) -> Seeker:
    given = Limits(**{"most": 1_000_000, "patience_s": 60.0, **limits})
    return Seeker(
        Wallet(SEEKER_KEY), Drawer(directory / "drawer"), given, http=seller, sleep=lambda seconds: None
    )


def buy(seller: Seller, directory: Path, **limits: Any) -> Paid:
    return pay(seeker_of(seller, directory, **limits), RESOURCE, method="POST", body="{}")


def v1_only(seller: Seller) -> Any:
    def step(got: Got) -> Answer:
        asked = seller.ask(got)
        return replace(asked, headers={})

    return step


def error_only(seller: Seller, code: str) -> Any:
    """A server that refuses at verification: a fresh demand whose error is the code, nothing else."""
    return lambda got: answer(402, {}, seller.offer().headers(code))


def bare_refusal(code: str) -> Any:
    """A server that refuses at settlement: no demand at all."""
    said = failed_response(code, "eip155:84532")
    return lambda got: Answer(402, lower(response_headers(said)), b"{}")


def test_a_resource_that_asks_is_paid(tmp_path: Path) -> None:
    """The answer comes with the transaction, and the next call is another purchase."""
    seller = Seller()
    paid = buy(seller, tmp_path)
    assert (paid.answer.status, paid.transaction, paid.amount) == (200, TRANSACTION, 500_000)
    buy(seller, tmp_path)
    assert len(set(seller.payments)) == 2


def test_a_resource_that_asks_for_nothing_is_free(tmp_path: Path) -> None:
    """Any answer but 402 is handed over as it is; nothing is signed."""
    for number in (200, 404, 500):
        seller = Seller(plan=deque([status(number)]))
        assert buy(seller, tmp_path).answer.status == number
        assert seller.payments == []


def test_a_server_of_the_first_version_is_paid_in_its_dialect(tmp_path: Path) -> None:
    """Where the offer stands in the body, the payment goes into X-PAYMENT."""
    seller = Seller()
    seller.plan = deque([v1_only(seller)])
    assert buy(seller, tmp_path).transaction == TRANSACTION
    assert "x-payment" in seller.executes[-1].headers
    assert "payment-signature" not in seller.executes[-1].headers


@pytest.mark.parametrize("fault", [drop, status(500), status(503), status(429)])
def test_without_an_answer_the_identical_payment_goes_out_again(tmp_path: Path, fault: Any) -> None:
    """The same bytes are sent until there is an answer."""
    seller = Seller()
    seller.plan = deque([seller.ask, fault, fault])
    assert buy(seller, tmp_path).transaction == TRANSACTION
    assert len(seller.payments) == 3
    assert len(set(seller.payments)) == 1


@pytest.mark.parametrize("shape", [error_only, lambda seller, code: bare_refusal(code)])
def test_a_sure_refusal_is_told_and_the_next_call_signs_anew(tmp_path: Path, shape: Any) -> None:
    """A first answer with a code of the closed list means that nothing moved."""
    seller = Seller()
    seller.plan = deque([seller.ask, shape(seller, "insufficient_funds")])
    with pytest.raises(PaymentRefused):
        buy(seller, tmp_path)
    assert len(seller.payments) == 1
    assert buy(seller, tmp_path).transaction == TRANSACTION
    assert len(set(seller.payments)) == 2


def test_refused_payments_still_count_against_the_cap(tmp_path: Path) -> None:
    """What was refused may be taken until its window ends."""
    seller = Seller()
    seller.plan = deque([seller.ask, bare_refusal("insufficient_funds"), seller.ask])
    with pytest.raises(PaymentRefused):
        buy(seller, tmp_path, most=500_000)
    with pytest.raises(SpendCapReached):
        buy(seller, tmp_path, most=500_000)
    assert len(set(seller.payments)) == 1


def test_after_silence_no_refusal_is_believed(tmp_path: Path) -> None:
    """A dropped answer may hide a transfer that emptied the wallet: the refusal after it proves nothing."""
    seller = Seller()
    seller.plan = deque([seller.ask, drop, *[bare_refusal("insufficient_funds")] * 20])
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path)
    seller.plan = deque([bare_refusal("insufficient_funds")] * 20)
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path)
    assert len(set(seller.payments)) == 1


@pytest.mark.parametrize(
    "code", ["invalid_exact_evm_nonce_already_used", "settlement_pending", "Server disconnected", ""]
)
def test_refusals_off_the_list_are_not_believed(tmp_path: Path, code: str) -> None:
    """Stock servers report a lost facilitator as a refusal, although the money may have moved."""
    seller = Seller()
    seller.plan = deque([seller.ask, *[bare_refusal(code)] * 20])
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path)
    assert len(set(seller.payments)) == 1


def test_the_next_call_sends_what_is_out(tmp_path: Path) -> None:
    """A process that died after keeping a payment is followed by one that sends it first."""
    seller = Seller()
    seeker = seeker_of(seller, tmp_path)
    seller.plan = deque([seller.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        pay(seeker, RESOURCE, method="POST", body="{}")
    assert pay(seeker, RESOURCE, method="POST", body="{}").transaction == TRANSACTION
    assert len(seller.payments) == 2
    assert len(set(seller.payments)) == 1


def test_another_request_is_another_purchase(tmp_path: Path) -> None:
    """A payment that is out for one body is not sent with another."""
    seller = Seller()
    seeker = seeker_of(seller, tmp_path)
    seller.plan = deque([seller.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        pay(seeker, RESOURCE, method="POST", body="{}")
    assert pay(seeker, RESOURCE, method="POST", body='{"other":1}').transaction == TRANSACTION
    assert len(set(seller.payments)) == 2


def test_the_payment_is_kept_before_it_is_sent(tmp_path: Path) -> None:
    """The file is there when the payment arrives."""
    kept: list[Purchase] = []

    def look(got: Got) -> None:
        if got.payment:
            kept.extend(Drawer(tmp_path / "drawer").unfinished())

    seller = Seller(watch=look)
    buy(seller, tmp_path)
    assert [each.payments[0].signed.value for each in kept] == seller.payments


@pytest.mark.parametrize(
    ("lie", "field"),
    [
        ({"price": "1.000001"}, "amount"),
        ({"resource_url": "https://elsewhere.example/"}, "resource.url"),
        ({"max_timeout_s": 3_601}, "maxTimeoutSeconds"),
        ({"network": replace(BASE, asset="0x" + "99" * 20)}, "asset"),
    ],
)
def test_what_is_dear_long_or_strange_is_not_signed(tmp_path: Path, lie: dict[str, Any], field: str) -> None:
    """Without a contract the cap, the window, the host and the table of networks still hold."""
    seller = Seller(offered=lambda offer: replace(offer, **lie))
    with pytest.raises((OfferRefused, SpendCapReached)) as raised:
        buy(seller, tmp_path)
    assert raised.value.details["field"] == field
    assert seller.payments == []


def test_a_network_can_be_insisted_on(tmp_path: Path) -> None:
    """Real money is not taken where only test money was meant."""
    from worker.payments.networks import BASE_SEPOLIA

    seller = Seller(network=BASE)
    with pytest.raises(OfferRefused):
        buy(seller, tmp_path, network=BASE_SEPOLIA)
    assert buy(seller, tmp_path).transaction == TRANSACTION


def test_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    """A request without a payment is not repeated: it might not be harmless."""
    seller = Seller(plan=deque([drop, drop]))
    with pytest.raises(WorkerUnreachable):
        buy(seller, tmp_path)
    assert len(seller.executes) == 1


def _killed(got: Got) -> Any:
    raise KeyboardInterrupt

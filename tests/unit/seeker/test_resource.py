"""Paying for a resource without a contract: once, within the cap, never on an uncertain answer."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import (
    SEEKER_KEY,
    TRANSACTION,
    URL,
    FakeWorker,
    ReceivedRequest,
    answer,
    drop,
    lower,
    status,
)
from worker.seeker import PaidAnswer, PurchaseStore, Seeker, SpendLimits, Wallet, pay
from worker.seeker.http import HttpAnswer
from worker.seeker.problems import (
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    SpendCapReached,
    WorkerUnreachable,
)
from worker.seeker.purchases import Purchase
from worker.seeker.resource import MOST_MOVES
from worker.x402.headers import response_headers
from worker.x402.networks import BASE
from worker.x402.receipts import failed_response

RESOURCE = f"{URL}/execute"


def seeker_of(fake_worker: FakeWorker, directory: Path, **limits: Any) -> Seeker:
    spend_limits = SpendLimits(**{"most": 1_000_000, "patience_s": 60.0, **limits})
    return Seeker(
        Wallet(SEEKER_KEY),
        PurchaseStore(directory / "purchases"),
        spend_limits,
        http=fake_worker,
        sleep=lambda seconds: None,
    )


def buy(fake_worker: FakeWorker, directory: Path, **limits: Any) -> PaidAnswer:
    return pay(seeker_of(fake_worker, directory, **limits), RESOURCE, method="POST", body="{}")


def v1_only(fake_worker: FakeWorker) -> Any:
    def step(got: ReceivedRequest) -> HttpAnswer:
        asked = fake_worker.ask(got)
        return replace(asked, headers={})

    return step


def error_only(fake_worker: FakeWorker, code: str) -> Any:
    """A server that refuses at verification: a new demand whose error is the code, nothing else."""
    return lambda got: answer(402, {}, fake_worker.offer().headers(code))


def bare_refusal(code: str) -> Any:
    """A server that refuses at settlement: no demand at all."""
    refusal = failed_response(code, "eip155:84532")
    return lambda got: HttpAnswer(402, lower(response_headers(refusal)), b"{}")


def test_resource_with_a_402_is_paid(tmp_path: Path) -> None:
    """The answer includes the transaction, and the next call is another purchase."""
    fake_worker = FakeWorker()
    paid = buy(fake_worker, tmp_path)
    assert (paid.answer.status, paid.transaction, paid.amount) == (200, TRANSACTION, 500_000)
    buy(fake_worker, tmp_path)
    assert len(set(fake_worker.payments)) == 2


def test_free_resource_costs_nothing(tmp_path: Path) -> None:
    """Any answer except 402 is returned unchanged; nothing is signed."""
    for number in (200, 404, 500):
        fake_worker = FakeWorker(plan=deque([status(number)]))
        assert buy(fake_worker, tmp_path).answer.status == number
        assert fake_worker.payments == []


def test_v1_server_is_paid_in_v1(tmp_path: Path) -> None:
    """If the offer is in the body, the payment goes into X-PAYMENT."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([v1_only(fake_worker)])
    assert buy(fake_worker, tmp_path).transaction == TRANSACTION
    assert "x-payment" in fake_worker.executes[-1].headers
    assert "payment-signature" not in fake_worker.executes[-1].headers


@pytest.mark.parametrize("fault", [drop, status(500), status(503), status(429)])
def test_lost_answer_resends_the_identical_payment(tmp_path: Path, fault: Any) -> None:
    """The same bytes are resent until there is an answer."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fault, fault])
    assert buy(fake_worker, tmp_path).transaction == TRANSACTION
    assert len(fake_worker.payments) == 3
    assert len(set(fake_worker.payments)) == 1


@pytest.mark.parametrize("shape", [error_only, lambda fake_worker, code: bare_refusal(code)])
def test_certain_refusal_allows_a_new_payment(tmp_path: Path, shape: Any) -> None:
    """A first answer with a listed refusal code means that no money moved."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, shape(fake_worker, "insufficient_funds")])
    with pytest.raises(PaymentRefused):
        buy(fake_worker, tmp_path)
    assert len(fake_worker.payments) == 1
    assert buy(fake_worker, tmp_path).transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 2


def test_refused_payments_still_count_against_the_cap(tmp_path: Path) -> None:
    """A refused payment may still be taken until its window ends."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, bare_refusal("insufficient_funds"), fake_worker.ask])
    with pytest.raises(PaymentRefused):
        buy(fake_worker, tmp_path, most=500_000)
    with pytest.raises(SpendCapReached):
        buy(fake_worker, tmp_path, most=500_000)
    assert len(set(fake_worker.payments)) == 1


def test_refusal_after_silence_is_not_believed(tmp_path: Path) -> None:
    """A dropped answer may hide a settled transfer, so a later refusal proves nothing."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, drop, *[bare_refusal("insufficient_funds")] * 20])
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path)
    fake_worker.plan = deque([bare_refusal("insufficient_funds")] * 20)
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path)
    assert len(set(fake_worker.payments)) == 1


@pytest.mark.parametrize(
    "code", ["invalid_exact_evm_nonce_already_used", "settlement_pending", "Server disconnected", ""]
)
def test_unlisted_refusal_is_not_believed(tmp_path: Path, code: str) -> None:
    """Stock servers report a lost facilitator as a refusal, although the money may have moved."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, *[bare_refusal(code)] * 20])
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path)
    assert len(set(fake_worker.payments)) == 1


def test_next_call_resends_the_open_payment(tmp_path: Path) -> None:
    """After a crash between saving and sending, the next call sends the saved payment first."""
    fake_worker = FakeWorker()
    seeker = seeker_of(fake_worker, tmp_path)
    fake_worker.plan = deque([fake_worker.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        pay(seeker, RESOURCE, method="POST", body="{}")
    assert pay(seeker, RESOURCE, method="POST", body="{}").transaction == TRANSACTION
    assert len(fake_worker.payments) == 2
    assert len(set(fake_worker.payments)) == 1


def test_different_request_is_a_new_purchase(tmp_path: Path) -> None:
    """A payment sent for one body is not sent with another."""
    fake_worker = FakeWorker()
    seeker = seeker_of(fake_worker, tmp_path)
    fake_worker.plan = deque([fake_worker.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        pay(seeker, RESOURCE, method="POST", body="{}")
    assert pay(seeker, RESOURCE, method="POST", body='{"other":1}').transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 2


def test_payment_is_saved_before_it_is_sent(tmp_path: Path) -> None:
    """The file exists when the payment arrives."""
    purchases: list[Purchase] = []

    def look(got: ReceivedRequest) -> None:
        if got.payment:
            purchases.extend(PurchaseStore(tmp_path / "purchases").unfinished())

    fake_worker = FakeWorker(watch=look)
    buy(fake_worker, tmp_path)
    assert [each.payments[0].signed.value for each in purchases] == fake_worker.payments


@pytest.mark.parametrize(
    ("lie", "field"),
    [
        ({"price": "1.000001"}, "amount"),
        ({"resource_url": "https://elsewhere.example/"}, "resource.url"),
        ({"max_timeout_s": 3_601}, "maxTimeoutSeconds"),
        ({"network": replace(BASE, asset="0x" + "99" * 20)}, "asset"),
    ],
)
def test_unacceptable_offer_is_not_signed(tmp_path: Path, lie: dict[str, Any], field: str) -> None:
    """Without a contract the cap, window, host and network table are still checked."""
    fake_worker = FakeWorker(offered=lambda offer: replace(offer, **lie))
    with pytest.raises((OfferRefused, SpendCapReached)) as raised:
        buy(fake_worker, tmp_path)
    assert raised.value.details["field"] == field
    assert fake_worker.payments == []


def test_required_network_is_enforced(tmp_path: Path) -> None:
    """If only a test network is allowed, a demand on a main network is refused."""
    from worker.x402.networks import BASE_SEPOLIA

    fake_worker = FakeWorker(network=BASE)
    with pytest.raises(OfferRefused):
        buy(fake_worker, tmp_path, network=BASE_SEPOLIA)
    assert buy(fake_worker, tmp_path).transaction == TRANSACTION


def test_unreachable_server_is_reported_at_once(tmp_path: Path) -> None:
    """A request without a payment is not repeated, because it might not be idempotent."""
    fake_worker = FakeWorker(plan=deque([drop, drop]))
    with pytest.raises(WorkerUnreachable):
        buy(fake_worker, tmp_path)
    assert len(fake_worker.executes) == 1


@pytest.mark.parametrize("moved", [307, 308])
def test_redirect_within_the_sellers_address_is_followed(tmp_path: Path, moved: int) -> None:
    """A resource that has moved is paid at its new address, and a paid request goes nowhere else."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([status(moved, location="/execute?v=2"), fake_worker.ask, drop])
    sent: list[str] = []
    send = fake_worker.send
    fake_worker.send = lambda method, url, **request: (sent.append(url), send(method, url, **request))[1]  # type: ignore[method-assign]
    assert buy(fake_worker, tmp_path).transaction == TRANSACTION
    assert sent == [RESOURCE, *[f"{RESOURCE}?v=2"] * 3]
    assert len(set(fake_worker.payments)) == 1


@pytest.mark.parametrize(
    ("number", "location"),
    [
        (307, "https://elsewhere.example/execute"),
        (307, f"{URL}:8443/execute"),
        (308, URL.replace("https", "http") + "/execute"),
        (302, "/execute?v=2"),
        (307, ""),
    ],
    ids=["another host", "another port", "unencrypted", "as a GET", "nowhere"],
)
def test_other_redirects_are_the_answer(tmp_path: Path, number: int, location: str) -> None:
    """A redirect that leaves the address, or changes the method, is not followed; nothing is signed."""
    fake_worker = FakeWorker(plan=deque([status(number, location=location)] * 20))
    assert buy(fake_worker, tmp_path).answer.status == number
    assert fake_worker.payments == [] and len(fake_worker.executes) == 1


def test_redirects_end(tmp_path: Path) -> None:
    """A resource that redirects to itself is asked a few times."""
    fake_worker = FakeWorker(plan=deque([status(308, location="/execute")] * 20))
    assert buy(fake_worker, tmp_path).answer.status == 308
    assert len(fake_worker.executes) == MOST_MOVES + 1


def test_redirect_of_a_paid_request_is_not_followed(tmp_path: Path) -> None:
    """The payment is sent to no second address."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, status(307, location="/execute?v=2")])
    assert buy(fake_worker, tmp_path).answer.status == 307
    assert len(fake_worker.payments) == 1


def _killed(got: ReceivedRequest) -> Any:
    raise KeyboardInterrupt

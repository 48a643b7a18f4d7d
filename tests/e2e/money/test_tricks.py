"""What a seeker may try with its wallet and its connection, on a real chain."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from eth_account import Account

from tests.fakes.dollar import (
    CANCEL_BY_BYTES,
    DOLLAR,
    Authorization,
    calldata,
    cancellation,
)
from tests.fakes.house import House
from tests.fakes.seeker import Hired, Said, decoded, nonce_of
from tests.fakes.shop import in_threads
from tests.waiting import eventually

PRICE = 10_000
SLOW = {"do": "sleep", "seconds": 0.8}
ELSEWHERE = Account.create()


class Order:
    """A payment that was sent, and whose answer comes beside what the test does meanwhile."""

    def __init__(self, house: House, hired: Hired, body: Any = SLOW) -> None:
        self.house, self.hired, self.body = house, hired, body
        self.header = hired.sign(hired.offer(body))
        self.answers: list[Said] = []
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()
        eventually(lambda: self.id and house.execution(self.id).state == "running", what="work under way")

    def _send(self) -> None:
        self.answers.append(self.hired.execute(self.body, self.header, Prefer="wait=3"))

    @property
    def id(self) -> str:
        return self.house.execution_of(self.hired.id) or ""

    def answer(self) -> Said:
        self._thread.join(40)
        (said,) = self.answers
        return said


def send(house: House, account: Any, data: str) -> None:
    receipt = house.rpc.receipt(house.rpc.send(account, DOLLAR, data))
    assert receipt["status"] == "0x1"


def drained(house: House, account: Any, left: int = 0) -> None:
    amount = house.dollars(account.address) - left
    send(house, account, calldata("transfer(address,uint256)", ELSEWHERE.address, amount))


def test_cancelling_the_nonce_gets_nothing(house: House) -> None:
    """An authorization cancelled during the work is refused by the chain; another buys the result."""
    hired = house.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    house.rpc("test_fund", account.address, 10**18)
    order = Order(house, hired)
    send(house, account, calldata(CANCEL_BY_BYTES, *cancellation(account, nonce_of(order.header))))
    said = order.answer()
    assert said.status in (202, 402) and b"run" not in said.content
    eventually(lambda: house.execution(order.id).phase == "payment_due", what="the chain's word")
    asked = hired.execute(SLOW)
    assert asked.status == 402 and house.dollars(account.address) == 1_000_000
    assert hired.execute(SLOW, order.header).code == "PAYMENT_SETTLEMENT_FAILED"
    paid = hired.execute(SLOW, hired.sign(asked.payment_required))
    assert paid.status == 200 and house.runs(order.id) == 1
    assert house.dollars(account.address) == 1_000_000 - PRICE


def test_diverting_the_nonce_gets_nothing(house: House) -> None:
    """The nonce spent on a transfer to somebody else proves nothing: no result until the money is here."""
    hired = house.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    house.rpc("test_fund", account.address, 10**18)
    order = Order(house, hired)
    # The house's clock is ahead of ours: other tests moved it.
    soon = int(house.now()) + 300
    other = Authorization(
        account.address, ELSEWHERE.address, PRICE, valid_before=soon, nonce=nonce_of(order.header)
    )
    send(house, account, other.signed_by(account).by_bytes())
    said = order.answer()
    assert said.status == 202 and said.json["phase"] == "settling"
    for _ in range(3):
        again = hired.execute(SLOW, Prefer="respond-async")
        assert again.status == 202 and b'"run"' not in again.content
    valid_before = house.payment(order.id).valid_before_s
    house.jump(valid_before + 602 - int(house.now()))
    eventually(lambda: house.execution(order.id).phase == "payment_due", what="the end of the authorization")
    paid = hired.pay(SLOW)
    assert paid.status == 200 and house.runs(order.id) == 1
    assert house.dollars(account.address) == 1_000_000 - 2 * PRICE


def test_sending_the_authorization_oneself_is_paying(house: House) -> None:
    """A seeker that puts its own authorization on the chain first is served, and charged once."""
    hired = house.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    house.rpc("test_fund", account.address, 10**18)
    order = Order(house, hired)
    wire = decoded(order.header)["payload"]
    authorization = Authorization(
        account.address,
        house.wallet,
        PRICE,
        valid_before=int(wire["authorization"]["validBefore"]),
        nonce=wire["authorization"]["nonce"],
        signature=wire["signature"],
    )
    send(house, account, authorization.by_bytes())
    said = order.answer()
    done = said if said.status == 200 else hired.ended(order.id)
    assert done.json["status"] == "completed" and house.payment(order.id).how == "chain"
    assert house.dollars(account.address) == 1_000_000 - PRICE


def test_an_empty_wallet_at_settlement_waits_for_money(house: House) -> None:
    """A balance drained after the verification: 402, the result stays sealed, a later payment releases it."""
    hired = house.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    house.rpc("test_fund", account.address, 10**18)
    order = Order(house, hired)
    drained(house, account)
    said = order.answer()
    assert (said.status, said.code) == (402, "PAYMENT_SETTLEMENT_FAILED")
    assert said.payment_response is not None
    assert said.payment_response["errorReason"] == "invalid_exact_evm_insufficient_balance"
    assert hired.pay(SLOW).status == 402, "still empty"
    house.rpc("test_mint", account.address, PRICE)
    paid = hired.pay(SLOW)
    assert paid.status == 200 and house.runs(order.id) == 1 and house.dollars(account.address) == 0


def test_one_balance_behind_ten_contracts(house: House) -> None:
    """Ten authorizations over the price of one: one result, nine unpaid, and no more credit."""
    seeker = house.seeker(PRICE)
    contracts = [seeker.hire() for _ in range(10)]
    before = house.dollars(house.wallet)
    headers = [hired.sign() for hired in contracts]

    def buy(hired: Hired, header: str) -> Said:
        said = hired.execute(None, header)
        id = house.execution_of(hired.id)
        if said.status == 202:
            assert id is not None
            eventually(lambda: house.execution(id).phase in ("payment_due", "offered", "done"), what="an end")
            said = hired.execute(None)
        return said

    answers = in_threads(
        *[lambda pair=pair: buy(*pair) for pair in zip(contracts, headers, strict=True)]  # type: ignore[misc]
    )
    statuses = sorted(answer.status for answer in answers)
    assert statuses.count(200) == 1 and set(statuses) <= {200, 402, 503}
    assert house.dollars(seeker.wallet) == 0
    gained = house.dollars(house.wallet) - before
    assert 0 < gained <= PRICE, "the platform fee may have gone out already"
    house.rpc("test_mint", seeker.wallet, PRICE)
    refused = seeker.hire().pay()
    assert (refused.status, refused.code) == (503, "UNPAID_WORK_LIMIT")
    unpaid = next(h for h, a in zip(contracts, answers, strict=True) if a.status == 402)
    assert unpaid.pay().status == 200, "work that is done can be paid for all the same"


def test_an_old_payment_on_a_new_contract(house: House) -> None:
    """A payment that is on the chain already is 409 for every other contract."""
    seeker = house.seeker()
    first = seeker.hire()
    header = first.sign()
    assert first.execute(None, header).status == 200
    second = seeker.hire()
    said = second.execute(None, header)
    assert (said.status, said.code) == (409, "PAYMENT_USED")
    assert house.dollars(seeker.wallet) == 1_000_000 - PRICE


def test_a_connection_that_ends_right_after_the_request(house: House) -> None:
    """A seeker that hangs up after paying finds its result when it comes back, without paying again."""
    hired = house.seeker().hire()
    header = hired.sign(hired.offer(SLOW))
    body = json.dumps(SLOW).encode()
    request = (
        f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"X-Contract-ID: {hired.id}\r\nPAYMENT-SIGNATURE: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", house.port)) as link:
        link.sendall(request.encode() + body)
    id = eventually(lambda: house.execution_of(hired.id) or "", what="a claim")
    assert hired.ended(id).json["status"] == "completed"
    back = hired.execute(SLOW)
    assert (back.status, back.header("Idempotent-Replayed")) == (200, "true")
    assert back.payment_response is not None
    assert house.dollars(hired.seeker.wallet) == 1_000_000 - PRICE and house.runs(id) == 1

"""Seekers that try to get work without paying, or lose their connection, on a real chain."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from eth_account import Account

from tests.fakes.dollar import CANCEL_BY_BYTES, DOLLAR, SignedAuthorization, calldata, cancellation
from tests.fakes.paid_worker import in_threads
from tests.fakes.seeker import DoorAnswer, Hired, decoded, nonce_of
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PRICE = 10_000
SLOW = {"do": "sleep", "seconds": 0.8}
LONG = {"do": "sleep", "seconds": 3.0}
ELSEWHERE = Account.create()


class OpenRequest:
    """A paid request in flight: its response arrives while the test goes on."""

    def __init__(self, processes: WorkerProcesses, hired: Hired, body: Any = SLOW) -> None:
        self.processes, self.hired, self.body = processes, hired, body
        self.header = hired.sign(hired.offer(body))
        self.answers: list[DoorAnswer] = []
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()
        eventually(
            lambda: self.id and processes.execution(self.id).state == "running", description="work under way"
        )

    def _send(self) -> None:
        self.answers.append(self.hired.execute(self.body, self.header, Prefer="wait=3"))

    @property
    def id(self) -> str:
        return self.processes.execution_of(self.hired.id) or ""

    def answer(self) -> DoorAnswer:
        self._thread.join(40)
        (response,) = self.answers
        return response


def send(processes: WorkerProcesses, account: Any, data: str) -> None:
    receipt = processes.rpc.receipt(processes.rpc.send(account, DOLLAR, data))
    assert receipt["status"] == "0x1"


def drained(processes: WorkerProcesses, account: Any, left: int = 0) -> None:
    amount = processes.dollars(account.address) - left
    send(processes, account, calldata("transfer(address,uint256)", ELSEWHERE.address, amount))


def test_cancelled_nonce_delivers_nothing(processes: WorkerProcesses) -> None:
    """The chain refuses an authorization cancelled during the work; another payment buys the result."""
    hired = processes.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    processes.rpc("test_fund", account.address, 10**18)
    order = OpenRequest(processes, hired)
    send(processes, account, calldata(CANCEL_BY_BYTES, *cancellation(account, nonce_of(order.header))))
    response = order.answer()
    assert response.status in (202, 402) and b'"run"' not in response.content
    eventually(lambda: processes.execution(order.id).phase == "payment_due", description="the chain's word")
    asked = hired.execute(SLOW)
    assert asked.status == 402 and processes.dollars(account.address) == 1_000_000
    assert hired.execute(SLOW, order.header).code == "PAYMENT_SETTLEMENT_FAILED"
    paid = hired.execute(SLOW, hired.sign(asked.payment_required))
    assert paid.status == 200 and processes.runs(order.id) == 1
    assert processes.dollars(account.address) == 1_000_000 - PRICE


def test_nonce_spent_elsewhere_delivers_nothing(processes: WorkerProcesses) -> None:
    """A nonce spent on a transfer to a third party proves nothing: no result until the payment arrives."""
    hired = processes.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    processes.rpc("test_fund", account.address, 10**18)
    order = OpenRequest(processes, hired)
    # Earlier tests moved the worker's clock ahead of ours.
    soon = int(processes.now()) + 300
    other = SignedAuthorization(
        account.address, ELSEWHERE.address, PRICE, valid_before=soon, nonce=nonce_of(order.header)
    )
    send(processes, account, other.signed_by(account).by_bytes())
    response = order.answer()
    assert response.status == 202 and response.json["phase"] == "settling"
    for _ in range(3):
        again = hired.execute(SLOW, Prefer="respond-async")
        assert again.status == 202 and b'"run"' not in again.content
    valid_before = processes.payment(order.id).valid_before_s
    processes.jump(valid_before + 602 - int(processes.now()))
    eventually(
        lambda: processes.execution(order.id).phase == "payment_due",
        description="the end of the authorization",
    )
    paid = hired.pay(SLOW)
    assert paid.status == 200 and processes.runs(order.id) == 1
    assert processes.dollars(account.address) == 1_000_000 - 2 * PRICE


def test_self_submitted_authorization_counts_as_payment(processes: WorkerProcesses) -> None:
    """A seeker that submits its own authorization to the chain first is served and charged once."""
    hired = processes.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    processes.rpc("test_fund", account.address, 10**18)
    order = OpenRequest(processes, hired)
    wire = decoded(order.header)["payload"]
    authorization = SignedAuthorization(
        account.address,
        processes.wallet,
        PRICE,
        valid_before=int(wire["authorization"]["validBefore"]),
        nonce=wire["authorization"]["nonce"],
        signature=wire["signature"],
    )
    send(processes, account, authorization.by_bytes())
    response = order.answer()
    done = response if response.status == 200 else hired.ended(order.id)
    assert done.json["status"] == "completed" and processes.payment(order.id).how == "chain"
    assert processes.dollars(account.address) == 1_000_000 - PRICE


def test_drained_wallet_leaves_the_result_sealed(processes: WorkerProcesses) -> None:
    """A wallet drained after verification gets a 402; the result stays sealed until a later payment."""
    hired = processes.seeker().hire()
    account = Account.from_key(hired.seeker.key)
    processes.rpc("test_fund", account.address, 10**18)
    order = OpenRequest(processes, hired)
    drained(processes, account)
    response = order.answer()
    if response.status == 202:  # a slow machine: the request's patience ended before the facilitator refused
        eventually(lambda: processes.execution(order.id).phase == "payment_due", description="a refusal")
        response = hired.execute(SLOW, order.header)
    assert (response.status, response.code) == (402, "PAYMENT_SETTLEMENT_FAILED")
    assert response.payment_response is not None
    assert response.payment_response["errorReason"] == "invalid_exact_evm_insufficient_balance"
    assert hired.pay(SLOW).status == 402, "still empty"
    processes.rpc("test_mint", account.address, PRICE)
    paid = hired.pay(SLOW)
    assert paid.status == 200 and processes.runs(order.id) == 1 and processes.dollars(account.address) == 0


def test_ten_contracts_over_one_balance_buy_one_result(processes: WorkerProcesses) -> None:
    """Ten payments against one balance: a new wallet gets three runs, one is paid, the others stay sealed."""
    seeker = processes.seeker(PRICE)
    contracts = [seeker.hire() for _ in range(10)]
    before = processes.dollars(processes.wallet)
    headers = [hired.sign(hired.offer(LONG)) for hired in contracts]

    def buy(hired: Hired, header: str) -> DoorAnswer:
        response = hired.execute(LONG, header)
        id = processes.execution_of(hired.id)
        if response.status == 202:
            assert id is not None
            eventually(
                lambda: processes.execution(id).phase in ("payment_due", "offered", "done"),
                description="an end",
            )
            response = hired.execute(LONG)
        return response

    answers = in_threads(
        *[lambda pair=pair: buy(*pair) for pair in zip(contracts, headers, strict=True)]  # type: ignore[misc]
    )
    assert sorted(answer.status for answer in answers) == [200, 402, 402, *[503] * 7]
    assert {answer.code for answer in answers if answer.status == 503} == {"UNPAID_WORK_LIMIT"}
    assert sum(processes.execution_of(hired.id) is not None for hired in contracts) == 3
    assert processes.dollars(seeker.wallet) == 0
    gained = processes.dollars(processes.wallet) - before
    assert 0 < gained <= PRICE, "the platform fee may have gone out already"
    processes.rpc("test_mint", seeker.wallet, PRICE)
    unpaid = next(h for h, a in zip(contracts, answers, strict=True) if a.status == 402)
    assert unpaid.pay(LONG).status == 200, "work that is done can be paid for all the same"


def test_used_payment_is_refused_for_a_new_contract(processes: WorkerProcesses) -> None:
    """A payment already on the chain gets 409 for every other contract."""
    seeker = processes.seeker()
    first = seeker.hire()
    header = first.sign()
    assert first.execute(None, header).status == 200
    second = seeker.hire()
    response = second.execute(None, header)
    assert (response.status, response.code) == (409, "PAYMENT_USED")
    assert processes.dollars(seeker.wallet) == 1_000_000 - PRICE


def test_dropped_connection_after_paying_loses_nothing(processes: WorkerProcesses) -> None:
    """A seeker that disconnects after paying gets its result later without paying again."""
    hired = processes.seeker().hire()
    header = hired.sign(hired.offer(SLOW))
    body = json.dumps(SLOW).encode()
    request = (
        f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"X-Contract-ID: {hired.id}\r\nPAYMENT-SIGNATURE: {header}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", processes.port)) as link:
        link.sendall(request.encode() + body)
    id = eventually(lambda: processes.execution_of(hired.id) or "", description="a claim")
    assert hired.ended(id).json["status"] == "completed"
    back = hired.execute(SLOW)
    assert (back.status, back.header("Idempotent-Replayed")) == (200, "true")
    assert back.payment_response is not None
    assert processes.dollars(hired.seeker.wallet) == 1_000_000 - PRICE and processes.runs(id) == 1

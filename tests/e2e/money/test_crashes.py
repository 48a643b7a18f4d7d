"""kill -9 and SIGSTOP at every crash point of a payment, and store rollbacks; checked on the chain."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from tests.fakes.crash_points import POINTS
from tests.fakes.seeker import FEE_WALLET, DoorAnswer, Hired, Seeker
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually
from worker.queue.checks import LANE as CHECKS

PRICE, EARLY = 10_000, 20_000
RICH = 1_000_000
BODY = {"do": "ok"}
BEFORE = {"terms": {"settlement": "before_work"}}

CLOCK = POINTS[2:]
# Of a wallet that has paid before, which is verified before its payment is claimed.
KNOWN = ("before_verify", "after_verify", "before_claim", "after_claim", "after_settle_begin", "after_settle")
SOAK = pytest.mark.soak
LEGS = (
    pytest.param("before_leg_begin", marks=SOAK),
    "after_leg_begin",
    pytest.param("before_leg_signed", marks=SOAK),
    "after_leg_signed",
    pytest.param("before_leg_settle", marks=SOAK),
    "after_leg_settle",
    "before_leg_settled",
    pytest.param("after_leg_outcome", marks=SOAK),
)


def tried(call: Callable[[], DoorAnswer]) -> DoorAnswer | None:
    """The response, or None when the process died during the request."""
    with contextlib.suppress(requests.RequestException):
        return call()
    return None


def insist(processes: WorkerProcesses, hired: Hired, header: str, body: Any = BODY) -> DoorAnswer:
    """Retries the identical request, as a careful seeker does, until the response is final."""
    until = time.monotonic() + 40
    while time.monotonic() < until:
        response = tried(lambda: hired.execute(body, header, Prefer="wait=1"))
        if response is not None and response.status not in (202, 503):
            return response
        assert response is None or response.header("PAYMENT-REQUIRED") is None, "a second payment was invited"
        processes.jump(7)
    raise AssertionError(processes.logs())


def died(processes: WorkerProcesses, file: Any) -> None:
    """Waits until the process has reached its crash point."""
    eventually(lambda: not file.exists(), 20, f"{file.name} was not reached")


def check(processes: WorkerProcesses, hired: Hired, response: DoorAnswer, price: int = PRICE) -> None:
    """Checks for one charge on the chain, one result and a consistent ledger."""
    assert response.status == 200, response.content
    assert processes.dollars(hired.seeker.wallet) == RICH - price
    id = processes.execution_of(hired.id)
    assert id is not None
    states = [str(each.state) for each in processes.money(id).payments]
    assert states == ["settled"], states
    second = hired.execute(BODY, hired.sign(hired.seeker.hire().offer()), Prefer="respond-async")
    assert second.content == response.content and second.header("X-Payment-Status") == "already_paid"
    assert processes.dollars(hired.seeker.wallet) == RICH - price
    processes.check_books()


@pytest.mark.parametrize("point", POINTS)
def test_killed_web_process_charges_once(processes: WorkerProcesses, point: str) -> None:
    """The web process is killed at each crash point; the seeker retries and is charged once."""
    web_dies(processes, point, early=False)


@SOAK
@pytest.mark.parametrize("point", POINTS[4:])
def test_killed_web_process_charges_once_when_prepaid(processes: WorkerProcesses, point: str) -> None:
    """The same when payment settles before the work."""
    web_dies(processes, point, early=True)


@pytest.mark.parametrize("point", KNOWN)
def test_killed_web_process_charges_a_known_payer_once(processes: WorkerProcesses, point: str) -> None:
    """The same for the second payment of a wallet."""
    seeker = processes.seeker()
    assert seeker.hire().pay(BODY).status == 200
    web_dies(processes, point, early=False, seeker=seeker)


def web_dies(processes: WorkerProcesses, point: str, *, early: bool, seeker: Seeker | None = None) -> None:
    """`seeker`: one that has paid once."""
    terms: tuple[str, str] = ("early", "0.02") if early else ("echo", "0.01")
    hired = (seeker or processes.seeker()).hire(*terms, **BEFORE if early else {})
    header = hired.sign()
    file = processes.arm("web", point)
    pid = processes.web_pid()
    tried(lambda: hired.execute(BODY, header))
    died(processes, file)
    eventually(lambda: tried(lambda: processes.door("GET", "/manifest")), description="a new web process")
    eventually(lambda: processes.web_pid() != pid, description="another process")
    price = EARLY if early else PRICE
    check(processes, hired, insist(processes, hired, header), 2 * price if seeker else price)


@pytest.mark.parametrize("point", CLOCK)
def test_killed_clock_charges_once(processes: WorkerProcesses, point: str) -> None:
    """The web process dies, then the clock that takes over: another clock finishes the payment."""
    hired = processes.seeker().hire()
    header = hired.sign()
    verifying = CLOCK.index(point) < 3
    if verifying:
        gone = processes.arm("web", "after_claim")
        tried(lambda: hired.execute(BODY, header))
        died(processes, gone)
        file = processes.arm("clock", point)
        processes.jump(21)
    else:
        # Nobody waits for the response, so only the clock settles.
        file = processes.arm("clock", point)
        response = hired.execute(BODY, header, Prefer="respond-async")
        assert response.status == 202
    died(processes, file)
    check(processes, hired, insist(processes, hired, header))


def test_work_that_comes_to_a_frozen_process_is_done_by_another(processes: WorkerProcesses) -> None:
    """It waits, so the store hands it the work: that costs time, and no last attempt."""
    sold = [processes.seeker().hire(name) for name in ("echo", "thrice")]
    paid = [each.sign() for each in sold]
    for pid in processes.takers("express"):
        os.kill(pid, signal.SIGSTOP)
    asked = [
        each.execute(BODY, payment, Prefer="respond-async") for each, payment in zip(sold, paid, strict=True)
    ]
    for each, answer in zip(sold, asked, strict=True):
        done = each.ended(answer.json["task_id"], 60)
        assert done.json["status"] == "completed", done.content
        assert processes.dollars(each.seeker.wallet) == RICH - PRICE
    processes.check_books()


def test_killed_work_process_is_retried_and_charged_once(processes: WorkerProcesses) -> None:
    """A killed warm process loses its attempt, not the payment: the next attempt runs and is charged once."""
    hired = processes.seeker().hire("long", "0.03")
    body = {"do": "sleep", "seconds": 1.5}
    header = hired.sign(hired.offer(body))
    response = hired.execute(body, header, Prefer="respond-async")
    id = response.json["task_id"]
    eventually(lambda: processes.execution(id).state == "running", description="work under way")
    os.kill(int(processes.execution(id).worker.rpartition("-")[2]), signal.SIGKILL)
    done = hired.ended(id, 30)
    assert done.json["status"] in ("completed", "failed")
    charged = RICH - processes.dollars(hired.seeker.wallet)
    assert charged == (30_000 if done.json["status"] == "completed" else 0)


def test_second_payment_after_a_crash_is_not_taken(processes: WorkerProcesses) -> None:
    """The seeker signs a second payment after a crash: the first one counts and the second is not used."""
    hired = processes.seeker().hire()
    offer = hired.offer()
    file = processes.arm("web", "before_settled")
    tried(lambda: hired.execute(BODY, hired.sign(offer)))
    died(processes, file)
    eventually(lambda: tried(lambda: processes.door("GET", "/manifest")), description="a new web process")
    response = insist(processes, hired, hired.sign(offer))
    assert response.header("X-Payment-Status") in ("being_paid", "already_paid")
    check(processes, hired, response)


def refund_due(processes: WorkerProcesses) -> tuple[Hired, str]:
    """Prepaid work that failed, so that a refund is due."""
    hired = processes.seeker().hire("early", "0.02", **BEFORE)
    response = hired.pay({"do": "fail"})
    assert response.status == 500 and response.json["error"]["details"]["refund"]["amount"] == EARLY
    id = processes.execution_of(hired.id)
    assert id is not None
    return hired, id


@pytest.mark.parametrize("point", LEGS)
def test_killed_clock_pays_a_leg_once(processes: WorkerProcesses, point: str) -> None:
    """A refund interrupted at any point is paid once: the seeker gets back all its money and no more."""
    file = processes.arm("clock", point)
    hired, id = refund_due(processes)
    died(processes, file)

    def refunded() -> bool:
        processes.jump(7)
        return processes.payment(id).refund == "settled"

    eventually(refunded, 40, "the refund")
    processes.jump(7)
    time.sleep(1.2)
    assert processes.dollars(hired.seeker.wallet) == RICH
    sums = processes.parts.ledger.sums()
    assert sums["settled"] >= EARLY
    processes.check_books()


@pytest.mark.parametrize("role", ["web", "clock"])
def test_process_frozen_during_settle_charges_once(processes: WorkerProcesses, role: str) -> None:
    """SIGSTOP in the settle call past the lease: another process calls; the first resumes with success."""
    hired = processes.seeker().hire()
    header = hired.sign()
    answers: list[DoorAnswer | None] = []
    clock = clock_pid(processes)
    with processes.block_time(60):
        wanted = "wait=20" if role == "web" else "respond-async"
        request = threading.Thread(
            target=lambda: answers.append(tried(lambda: hired.execute(BODY, header, Prefer=wanted))),
            daemon=True,
        )
        # On a busy machine the clock may come before the web process.
        with frozen_process(clock) if role == "web" else contextlib.nullcontext():
            request.start()
            id = eventually(lambda: processes.execution_of(hired.id) or "", description="a claim")
            eventually(lambda: processes.payment(id).calls == 1, description="the first call")
        time.sleep(0.5)
        frozen = processes.web_pid() if role == "web" else clock
        os.kill(frozen, signal.SIGSTOP)
        try:
            if role == "web":
                processes.jump(6)
                eventually(lambda: processes.payment(id).calls == 2, description="the second call")
            else:
                # The only clock is frozen; a waiting request makes the call instead.
                processes.leap(6)
                threading.Thread(
                    target=lambda: tried(lambda: hired.execute(BODY, None, Prefer="wait=20")), daemon=True
                ).start()
                eventually(lambda: processes.payment(id).calls == 2, description="the second call")
        finally:
            os.kill(frozen, signal.SIGCONT)
    processes.after_leap()
    request.join(40)
    check(processes, hired, insist(processes, hired, header))
    assert processes.payment(id).how in ("facilitator", "chain")


@contextlib.contextmanager
def frozen_process(pid: int) -> Iterator[None]:
    """Stands still within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def clock_pid(processes: WorkerProcesses) -> int:
    """The pid of the clock: the process of the work tree that takes no work."""
    import psutil

    tree = psutil.Process(processes.programs["work"].pid)
    takers = {pid for lane in ("express", "queue", CHECKS) for pid in processes.takers(lane)}
    (pid,) = [child.pid for child in tree.children() if child.pid not in takers]
    return int(pid)


@pytest.mark.parametrize("point", ["after_settle_begin", "before_settle", "before_settled", "after_verify"])
def test_late_resumed_process_changes_nothing(processes: WorkerProcesses, point: str) -> None:
    """A process frozen past its lease and resumed after the end changes nothing."""
    hired = processes.seeker().hire()
    header = hired.sign()
    file = processes.arm("clock", point, "stop")
    if point == "after_verify":
        gone = processes.arm("web", "after_claim")
        tried(lambda: hired.execute(BODY, header))
        died(processes, gone)
        eventually(lambda: tried(lambda: processes.door("GET", "/manifest")), description="a new web process")
        processes.jump(21)
    else:
        assert hired.execute(BODY, header, Prefer="respond-async").status == 202
    died(processes, file)
    (frozen,) = eventually(processes.stopped, description="a frozen process")
    processes.leap(6)
    if point != "after_verify":
        response = tried(lambda: hired.execute(BODY, header, Prefer="wait=3"))
        assert response is not None and response.status in (200, 202)
    os.kill(frozen, signal.SIGCONT)
    processes.after_leap()
    check(processes, hired, insist(processes, hired, header))


@pytest.mark.parametrize("moment", ["signed", "claimed", "sealed"])
def test_store_rolled_back_before_settlement_charges_once(processes: WorkerProcesses, moment: str) -> None:
    """The store is rolled back to before the settlement: no 402, one charge, and the result."""
    hired = processes.seeker().hire()
    offer = hired.offer()
    header = hired.sign(offer)
    if moment == "signed":
        before = processes.snapshot()
        first = hired.execute(BODY, header)
        assert first.status == 200
    else:
        body_point = "before_verify" if moment == "claimed" else "before_settle"
        processes.arm("web", body_point, "stop")
        request = threading.Thread(target=lambda: tried(lambda: hired.execute(BODY, header)), daemon=True)
        request.start()
        (frozen,) = eventually(processes.stopped, description="a frozen process")
        before = processes.snapshot()
        os.kill(frozen, signal.SIGCONT)
        request.join(30)
    eventually(lambda: processes.dollars(hired.seeker.wallet) == RICH - PRICE, description="the settlement")
    processes.roll_back(before)
    for _ in range(3):
        response = tried(lambda: hired.execute(BODY, Prefer="respond-async"))
        assert response is None or response.header("PAYMENT-REQUIRED") is None, "a second payment was invited"
        time.sleep(0.2)
    response = insist(processes, hired, hired.sign(offer) if moment == "signed" else header)
    check(processes, hired, response)
    assert processes.dollars(FEE_WALLET) >= 0

"""kill -9 at every named point around money, frozen processes, a store put back: checked on the chain."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.fakes.house import House
from tests.fakes.points import POINTS
from tests.fakes.seeker import FEE_WALLET, Hired, Said
from tests.waiting import eventually

PRICE, EARLY = 10_000, 20_000
RICH = 1_000_000
BODY = {"do": "ok"}
BEFORE = {"terms": {"settlement": "before_work"}}

CLOCK = POINTS[2:]
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


def tried(call: Callable[[], Said]) -> Said | None:
    """The answer, or None where the process died under the request."""
    with contextlib.suppress(requests.RequestException):
        return call()
    return None


def insist(house: House, hired: Hired, header: str, body: Any = BODY) -> Said:
    """What a careful seeker does: the identical request again, until it is answered for good."""
    until = time.monotonic() + 40
    while time.monotonic() < until:
        said = tried(lambda: hired.execute(body, header, Prefer="wait=1"))
        if said is not None and said.status not in (202, 503):
            return said
        assert said is None or said.header("PAYMENT-REQUIRED") is None, "a second payment was invited"
        house.jump(7)
    raise AssertionError(house.logs())


def died(house: House, file: Any) -> None:
    """The process came to its point."""
    eventually(lambda: not file.exists(), 20, f"{file.name} was not reached")


def check(house: House, hired: Hired, said: Said, price: int = PRICE) -> None:
    """One charge on the chain, one result, and books that agree."""
    assert said.status == 200, said.content
    assert house.dollars(hired.seeker.wallet) == RICH - price
    id = house.execution_of(hired.id)
    assert id is not None
    states = [str(each.state) for each in house.money(id).payments]
    assert states == ["settled"], states
    second = hired.execute(BODY, hired.sign(hired.seeker.hire().offer()), Prefer="respond-async")
    assert second.content == said.content and second.header("X-Payment-Status") == "already_paid"
    assert house.dollars(hired.seeker.wallet) == RICH - price
    house.check_books()


@pytest.mark.parametrize("point", POINTS)
def test_the_web_process_dies(house: House, point: str) -> None:
    """The request's own process is killed at this point; the seeker comes back and was charged once."""
    web_dies(house, point, early=False)


@SOAK
@pytest.mark.parametrize("point", POINTS[4:])
def test_the_web_process_dies_with_payment_before_the_work(house: House, point: str) -> None:
    """The same where the settlement comes first."""
    web_dies(house, point, early=True)


def web_dies(house: House, point: str, *, early: bool) -> None:
    terms: tuple[str, str] = ("early", "0.02") if early else ("echo", "0.01")
    hired = house.seeker().hire(*terms, **BEFORE if early else {})
    header = hired.sign()
    file = house.arm("web", point)
    pid = house.web_pid()
    tried(lambda: hired.execute(BODY, header))
    died(house, file)
    eventually(lambda: tried(lambda: house.door("GET", "/manifest")), what="a new web process")
    eventually(lambda: house.web_pid() != pid, what="another process")
    check(house, hired, insist(house, hired, header), EARLY if early else PRICE)


@pytest.mark.parametrize("point", CLOCK)
def test_the_clock_dies(house: House, point: str) -> None:
    """The web process is gone and the clock that takes over is killed too: another one finishes it."""
    hired = house.seeker().hire()
    header = hired.sign()
    verifying = CLOCK.index(point) < 3
    if verifying:
        gone = house.arm("web", "after_claim")
        tried(lambda: hired.execute(BODY, header))
        died(house, gone)
        file = house.arm("clock", point)
        house.jump(21)
    else:
        # Nobody waits for the answer, so nobody but the clock settles.
        file = house.arm("clock", point)
        said = hired.execute(BODY, header, Prefer="respond-async")
        assert said.status == 202
    died(house, file)
    check(house, hired, insist(house, hired, header))


def test_the_work_process_dies_during_paid_work(house: House) -> None:
    """A killed warm process loses its attempt, not the payment: the next one runs, and is charged once."""
    hired = house.seeker().hire("long", "0.03")
    body = {"do": "sleep", "seconds": 1.5}
    header = hired.sign(hired.offer(body))
    said = hired.execute(body, header, Prefer="respond-async")
    id = said.json["task_id"]
    eventually(lambda: house.execution(id).state == "running", what="work under way")
    os.kill(int(house.execution(id).worker.rpartition("-")[2]), signal.SIGKILL)
    done = hired.ended(id, 30)
    assert done.json["status"] in ("completed", "failed")
    charged = RICH - house.dollars(hired.seeker.wallet)
    assert charged == (30_000 if done.json["status"] == "completed" else 0)


def test_a_new_payment_after_a_crash_is_not_taken(house: House) -> None:
    """The seeker gave up its payment and signs another: the first one counts, the second is left alone."""
    hired = house.seeker().hire()
    offer = hired.offer()
    file = house.arm("web", "before_settled")
    tried(lambda: hired.execute(BODY, hired.sign(offer)))
    died(house, file)
    eventually(lambda: tried(lambda: house.door("GET", "/manifest")), what="a new web process")
    said = insist(house, hired, hired.sign(offer))
    assert said.header("X-Payment-Status") in ("being_paid", "already_paid")
    check(house, hired, said)


def refund_due(house: House) -> tuple[Hired, str]:
    """Work that was paid for before it, and failed."""
    hired = house.seeker().hire("early", "0.02", **BEFORE)
    said = hired.pay({"do": "fail"})
    assert said.status == 500 and said.json["error"]["details"]["refund"]["amount"] == EARLY
    id = house.execution_of(hired.id)
    assert id is not None
    return hired, id


@pytest.mark.parametrize("point", LEGS)
def test_the_clock_dies_inside_a_leg(house: House, point: str) -> None:
    """A refund that is interrupted anywhere is paid once: the seeker has all its money back, not more."""
    file = house.arm("clock", point)
    hired, id = refund_due(house)
    died(house, file)

    def refunded() -> bool:
        house.jump(7)
        return house.payment(id).refund == "settled"

    eventually(refunded, 40, "the refund")
    house.jump(7)
    time.sleep(1.2)
    assert house.dollars(hired.seeker.wallet) == RICH
    sums = house.parts.ledger.sums()
    assert sums["settled"] >= EARLY
    house.check_books()


@pytest.mark.parametrize("role", ["web", "clock"])
def test_a_process_frozen_inside_its_settle_call(house: House, role: str) -> None:
    """SIGSTOP in the call past the lease: another process calls, the first wakes up with success."""
    hired = house.seeker().hire()
    header = hired.sign()
    answers: list[Said | None] = []
    with house.block_time(60):
        wanted = "wait=20" if role == "web" else "respond-async"
        request = threading.Thread(
            target=lambda: answers.append(tried(lambda: hired.execute(BODY, header, Prefer=wanted))),
            daemon=True,
        )
        request.start()
        id = eventually(lambda: house.execution_of(hired.id) or "", what="a claim")
        eventually(lambda: house.payment(id).calls == 1, what="the first call")
        time.sleep(0.5)
        frozen = house.web_pid() if role == "web" else clock_pid(house)
        os.kill(frozen, signal.SIGSTOP)
        try:
            if role == "web":
                house.jump(6)
                eventually(lambda: house.payment(id).calls == 2, what="the second call")
            else:
                # The only clock is frozen; a request that waits calls in its place.
                house.leap(6)
                threading.Thread(
                    target=lambda: tried(lambda: hired.execute(BODY, None, Prefer="wait=20")), daemon=True
                ).start()
                eventually(lambda: house.payment(id).calls == 2, what="the second call")
        finally:
            os.kill(frozen, signal.SIGCONT)
    request.join(40)
    check(house, hired, insist(house, hired, header))
    assert house.payment(id).how in ("facilitator", "chain")


def clock_pid(house: House) -> int:
    """The process that ticks: the one of the work tree with no lane."""
    import psutil

    tree = psutil.Process(house.programs["work"].pid)
    takers = {
        int(name.decode().rpartition("-")[2])
        for lane in ("express", "queue")
        for name in house.parts.client.zrange(house.parts.keys.takers(lane), 0, -1)
        if name.decode().rpartition("-")[2].isdigit()
    }
    (pid,) = [child.pid for child in tree.children() if child.pid not in takers]
    return int(pid)


@pytest.mark.parametrize("point", ["after_settle_begin", "before_settle", "before_settled", "after_verify"])
def test_a_process_frozen_at_a_point(house: House, point: str) -> None:
    """Frozen past its lease and woken up when everything is over, a process changes nothing."""
    hired = house.seeker().hire()
    header = hired.sign()
    file = house.arm("clock", point, "stop")
    if point == "after_verify":
        gone = house.arm("web", "after_claim")
        tried(lambda: hired.execute(BODY, header))
        died(house, gone)
        eventually(lambda: tried(lambda: house.door("GET", "/manifest")), what="a new web process")
        house.jump(21)
    else:
        assert hired.execute(BODY, header, Prefer="respond-async").status == 202
    died(house, file)
    (frozen,) = eventually(house.stopped, what="a frozen process")
    house.leap(6)
    if point != "after_verify":
        said = tried(lambda: hired.execute(BODY, header, Prefer="wait=3"))
        assert said is not None and said.status in (200, 202)
    os.kill(frozen, signal.SIGCONT)
    check(house, hired, insist(house, hired, header))


@pytest.mark.parametrize("moment", ["signed", "claimed", "sealed"])
def test_a_store_that_forgot_its_last_second(house: House, moment: str) -> None:
    """The store comes back as it was before the settlement: no 402, one charge, and the result."""
    hired = house.seeker().hire()
    offer = hired.offer()
    header = hired.sign(offer)
    if moment == "signed":
        before = house.snapshot()
        first = hired.execute(BODY, header)
        assert first.status == 200
    else:
        body_point = "before_verify" if moment == "claimed" else "before_settle"
        house.arm("web", body_point, "stop")
        request = threading.Thread(target=lambda: tried(lambda: hired.execute(BODY, header)), daemon=True)
        request.start()
        (frozen,) = eventually(house.stopped, what="a frozen process")
        before = house.snapshot()
        os.kill(frozen, signal.SIGCONT)
        request.join(30)
    eventually(lambda: house.dollars(hired.seeker.wallet) == RICH - PRICE, what="the settlement")
    house.roll_back(before)
    for _ in range(3):
        said = tried(lambda: hired.execute(BODY, Prefer="respond-async"))
        assert said is None or said.header("PAYMENT-REQUIRED") is None, "a second payment was invited"
        time.sleep(0.2)
    said = insist(house, hired, hired.sign(offer) if moment == "signed" else header)
    check(house, hired, said)
    assert house.dollars(FEE_WALLET) >= 0

"""The clock's hands for webhooks: nothing twice at once, nobody kept waiting, nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis

from worker.delivery.outbox import Notice
from worker.delivery.postman import MOST_OF_ONE_EXECUTION, Postman


class Desk:
    """Webhooks as the postman sees them; `sending` decides how a call goes."""

    def __init__(self, *notices: Notice) -> None:
        self.waiting = list(notices)
        self.collected: list[int] = []
        self.sent: list[str] = []
        self.open: list[str] = []
        self.most: dict[str, int] = {}
        self.sending: Callable[[Notice], None] = lambda notice: None
        self._lock = threading.Lock()

    @property
    def outbox(self) -> Desk:
        return self

    def due(self, at: int, most: int = 50) -> list[Notice]:
        with self._lock:
            return self.waiting[:most]

    def collect(self, at: int) -> None:
        self.collected.append(at)

    def send(self, notice: Notice) -> None:
        with self._lock:
            self.open.append(str(notice))
            assert self.open.count(str(notice)) == 1, "twice at once"
            of_it = sum(name.startswith(notice.execution) for name in self.open)
            self.most[notice.execution] = max(self.most.get(notice.execution, 0), of_it)
        try:
            self.sending(notice)
        finally:
            with self._lock:
                self.open.remove(str(notice))
                self.sent.append(str(notice))
                if notice in self.waiting:
                    self.waiting.remove(notice)


def notice(execution: str = "x", hook: int = 0) -> Notice:
    return Notice(execution, "completed", hook)


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_a_round_collects_and_sends() -> None:
    """One chore takes in what ended and sends what is due."""
    desk = Desk(notice("a"), notice("b"))
    postman = Postman(desk)
    postman.chore(5)
    until(lambda: sorted(desk.sent) == ["a completed 0", "b completed 0"], "both sent")
    assert desk.collected == [5]
    postman.close(5)


def test_a_slow_receiver_is_not_called_twice_at_once() -> None:
    """While a call is open the same notice is left alone, and others go out."""
    gate = threading.Event()
    desk = Desk(notice("slow"), notice("quick"))
    desk.sending = lambda each: None if each.execution == "quick" else (gate.wait(10), None)[1]
    postman = Postman(desk)
    for at in range(5):
        postman.chore(at)
        time.sleep(0.02)
    until(lambda: desk.sent == ["quick completed 0"], "the quick one")
    assert desk.open == ["slow completed 0"]
    gate.set()
    until(lambda: len(desk.sent) == 2, "the slow one")
    postman.close(5)


def test_one_execution_does_not_hold_all_threads() -> None:
    """However many notices one execution has, others find a thread."""
    gate = threading.Event()
    desk = Desk(*(notice("many", hook) for hook in range(20)), notice("other"))
    desk.sending = lambda each: None if each.execution == "other" else (gate.wait(10), None)[1]
    postman = Postman(desk)
    postman.chore(1)
    until(lambda: "other completed 0" in desk.sent, "the other one")
    assert desk.most["many"] == MOST_OF_ONE_EXECUTION
    gate.set()
    postman.close(5)


@pytest.mark.parametrize("fault", [redis.ConnectionError(), ValueError("bug")])
def test_whatever_goes_wrong_is_tried_again(fault: Exception) -> None:
    """A store that is away or a bug ends one attempt, not the postman."""
    desk = Desk(notice())
    tries = []

    def fail_once(each: Notice) -> None:
        tries.append(each)
        if len(tries) == 1:
            desk.waiting.append(each)
            raise fault

    desk.sending = fail_once
    postman = Postman(desk)
    postman.chore(1)
    until(lambda: len(tries) == 1 and not desk.open, "a first try")
    desk.waiting[:] = [notice()]
    until(lambda: (postman.chore(2), len(tries) >= 2)[1], "a second try")
    postman.close(5)


def test_after_its_end_nothing_is_begun() -> None:
    """A closed postman sends nothing more, and says nothing about it."""
    desk = Desk(notice())
    postman = Postman(desk)
    postman.close(0)
    postman.chore(1)
    assert desk.sent == [] and desk.collected == []

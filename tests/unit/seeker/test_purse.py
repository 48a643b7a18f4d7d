"""Purse: persistent spending caps, approval above a limit, and one payment per key."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import SEEKER_KEY, TRANSACTION, URL, FakeWorker, ReceivedRequest, answer, drop
from worker.core.errors import BadRequest, Problem
from worker.seeker import TOOL_TEXT, Purse, Question, Wallet
from worker.seeker.http import HttpAnswer
from worker.seeker.problems import (
    AlreadyBought,
    HostNotAllowed,
    PaymentUnknown,
    SpendCapReached,
    SpendingDeclined,
)

RESOURCE = f"{URL}/execute"
TOKEN = "tok_" + "a1" * 20
PENDING = {"status": "pending", "task_id": "task-1", "poll_url": f"{URL}/tasks/task-1", "task_token": TOKEN}


class Clock:
    """The clock used by a purse."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def purse_of(fake_worker: FakeWorker, directory: Path, **rules: Any) -> Purse:
    purse = Purse(Wallet(SEEKER_KEY), keep=directory, http=fake_worker, **rules)
    purse._seeker.sleep = lambda seconds: None
    return purse


def test_a_purchase_is_paid_and_counted(tmp_path: Path) -> None:
    """The result has the transaction, and the budget decreases by the price."""
    purse = purse_of(FakeWorker(), tmp_path)
    result = purse.buy(RESOURCE, {"a": 1})
    assert (result.transaction, result.amount) == (TRANSACTION, 500_000)
    assert (purse.budget().spent, purse.budget().left) == ("0.5", "4.5")


def test_the_day_cap_outlives_the_process(tmp_path: Path) -> None:
    """A new purse on the same directory keeps the spent total; a day later the cap is available again."""
    clock = Clock()
    for number in range(2):
        purse_of(FakeWorker(), tmp_path, day="1.20", now=clock).buy(RESOURCE, {"n": number})
    third = purse_of(FakeWorker(), tmp_path, day="1.20", now=clock)
    with pytest.raises(SpendCapReached) as refused:
        third.buy(RESOURCE, {"n": 3})
    assert refused.value.details["expected"] == "at most 0.2"
    clock.now += 86_401
    assert third.buy(RESOURCE, {"n": 3}).transaction == TRANSACTION


def test_a_single_purchase_has_its_cap(tmp_path: Path) -> None:
    """A purchase above `each` is refused and does not count."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path, each="0.40")
    with pytest.raises(SpendCapReached):
        purse.buy(RESOURCE, {})
    assert fake_worker.payments == [] and purse.budget().spent == "0"


def test_hosts_have_their_own_caps(tmp_path: Path) -> None:
    """One host is limited to its share of the day's cap, and unknown hosts get no request at all."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path, host_day="0.70", hosts=["Worker.example"])
    purse.buy(RESOURCE, {})
    with pytest.raises(SpendCapReached):
        purse.buy(RESOURCE, {})
    requests = len(fake_worker.got)
    for call in (
        lambda: purse.buy("https://other.example/buy/x", {}),
        lambda: purse.fetch("https://other.example/"),
        lambda: purse.hire("https://other.example", "logo-design", {}),
    ):
        with pytest.raises(HostNotAllowed):
            call()
    assert len(fake_worker.got) == requests


def test_a_person_is_asked_above_the_limit(tmp_path: Path) -> None:
    """The question names amount and host; without a yes, or without anybody to ask, nothing is signed."""
    asked: list[Question] = []

    def ask(question: Question) -> bool:
        asked.append(question)
        return len(asked) > 1

    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path, ask_above="0.30", ask=ask)
    with pytest.raises(SpendingDeclined):
        purse.buy(RESOURCE, {})
    assert fake_worker.payments == [] and purse.budget().spent == "0"
    assert (asked[0].amount, asked[0].host) == ("0.5", "worker.example")
    assert purse.buy(RESOURCE, {}).transaction == TRANSACTION
    with pytest.raises(SpendingDeclined):
        purse_of(FakeWorker(), tmp_path, ask_above="0.30").buy(RESOURCE, {"b": 1})
    assert purse_of(FakeWorker(), tmp_path, ask_above="0.50").buy(RESOURCE, {"c": 1}).transaction


def test_hiring_under_a_contract_obeys_the_same_rules(tmp_path: Path) -> None:
    """A contract's payment counts too, and is refused above the day's cap."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path, day="0.60")
    purse.hire(URL, "logo-design", {"brief": "b"})
    assert purse.budget().spent == "0.5"
    with pytest.raises(SpendCapReached):
        purse.hire(URL, "logo-design", {"brief": "c"})


def test_the_same_key_is_the_same_purchase(tmp_path: Path) -> None:
    """After success the same key resends the identical request and payment; another key pays again."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path)
    for _ in range(3):
        assert purse.buy(RESOURCE, {}, key="essay-7").answer.status == 200
    assert len(fake_worker.payments) == 3 and len(set(fake_worker.payments)) == 1
    assert purse.budget().spent == "0.5"
    with pytest.raises(BadRequest, match="another input"):
        purse.buy(RESOURCE, {"other": "input"}, key="essay-7")
    purse.buy(RESOURCE, {}, key="essay-8")
    assert len(set(fake_worker.payments)) == 2


def test_a_seller_who_forgets_is_not_paid_twice(tmp_path: Path) -> None:
    """A seller that asks again for a paid key is not paid."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path)
    purse.buy(RESOURCE, {}, key="k")
    fake_worker.plan = deque([fake_worker.ask])
    with pytest.raises(AlreadyBought):
        purse.buy(RESOURCE, {}, key="k")
    assert len(set(fake_worker.payments)) == 1


def test_a_lost_answer_is_asked_for_again_with_the_same_payment(tmp_path: Path) -> None:
    """Whatever answers are lost, and across a restart, only one payment is sent."""
    fake_worker = FakeWorker()
    purse = purse_of(fake_worker, tmp_path)
    purse._seeker.limits = purse._seeker.limits.__class__(most=1_000_000, patience_s=-1)
    fake_worker.plan = deque([fake_worker.ask, drop])
    with pytest.raises(PaymentUnknown):
        purse.buy(RESOURCE, {}, key="k")
    assert purse_of(fake_worker, tmp_path).buy(RESOURCE, {}, key="k").transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 1


def accepted(fake_worker: FakeWorker, **changes: Any) -> deque[Any]:
    return deque([fake_worker.ask, lambda got: answer(202, PENDING | changes)])


def test_long_work_is_polled_with_its_token(tmp_path: Path) -> None:
    """A 202 is polled for free; the token goes in a header and the payment is not resent."""
    fake_worker = FakeWorker()
    fake_worker.plan = accepted(fake_worker)
    fake_worker.polls = deque([lambda got: answer(200, PENDING), drop, fake_worker.done])
    result = purse_of(fake_worker, tmp_path).buy(RESOURCE, {}, key="k")
    assert result.body["status"] == "completed" and result.transaction == TRANSACTION
    polls = [each for each in fake_worker.got if each.path == "/tasks/task-1"]
    assert len(polls) == 3
    assert all(each.headers["authorization"] == f"Bearer {TOKEN}" for each in polls)
    assert all(each.payment is None for each in polls)


def test_a_token_is_never_sent_elsewhere(tmp_path: Path) -> None:
    """A poll URL on another host is not followed."""
    fake_worker = FakeWorker()
    fake_worker.plan = accepted(fake_worker, poll_url="https://thief.example/tasks/1")
    result = purse_of(fake_worker, tmp_path).buy(RESOURCE, {})
    assert result.answer.status == 202
    assert {each.path for each in fake_worker.got} == {"/execute"}


def test_a_restart_goes_on_with_long_work(tmp_path: Path) -> None:
    """A program that ended while polling resends the identical payment, never another one."""
    fake_worker = FakeWorker()
    fake_worker.plan = accepted(fake_worker)

    def crash(got: ReceivedRequest) -> HttpAnswer:
        raise KeyboardInterrupt

    fake_worker.polls = deque([crash])
    with pytest.raises(KeyboardInterrupt):
        purse_of(fake_worker, tmp_path).buy(RESOURCE, {})
    result = purse_of(fake_worker, tmp_path).buy(RESOURCE, {})
    assert result.transaction == TRANSACTION
    assert len(fake_worker.payments) == 2 and len(set(fake_worker.payments)) == 1


@pytest.mark.parametrize("number", [200, 500])
def test_failed_work_that_cost_nothing_may_be_bought_again(tmp_path: Path, number: int) -> None:
    """An uncharged failure ends the purchase; if charged or unsure, the key counts as paid."""
    for charged, payments in ((False, 2), (None, 1)):
        fake_worker = FakeWorker()
        details = {"charged": charged, "retryable": False}
        error = {"code": "EXECUTION_FAILED", "message": "m", "details": details}
        failed = {"status": "failed", "task_id": "task-1", "error": error}
        fake_worker.plan = deque([fake_worker.ask, lambda got, failed=failed: answer(number, failed)])
        purse = purse_of(fake_worker, tmp_path / str(charged))
        assert purse.buy(RESOURCE, {}, key="k").body["status"] == "failed"
        purse.buy(RESOURCE, {}, key="k")
        assert len(set(fake_worker.payments)) == payments


def test_a_damaged_journal_stops_spending(tmp_path: Path) -> None:
    """An unreadable journal could hide spending: nothing is signed until a person has checked it."""
    fake_worker = FakeWorker()
    (tmp_path / "spending").mkdir()
    (tmp_path / "spending" / "journal.json").write_text("{")
    with pytest.raises(BadRequest):
        purse_of(fake_worker, tmp_path).buy(RESOURCE, {})
    assert fake_worker.payments == []


def test_models_are_told_about_keys() -> None:
    """The text for tools explains keys, and so do the docstrings."""
    assert "same key for every retry of the same purchase" in TOOL_TEXT
    assert "same purchase" in (Purse.buy.__doc__ or "")
    assert issubclass(AlreadyBought, Problem) and AlreadyBought.charged is True

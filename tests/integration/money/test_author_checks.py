"""An author's own input check, run before the 402."""

from __future__ import annotations

from typing import Any

import pytest

from worker.capabilities.declare import Capability
from worker.core.errors import InvalidInput, Unavailable
from worker.hiring.author_check import AuthorCheck
from worker.hiring.task import TaskInput
from worker.queue.checks import CheckOutcome, CheckRequester

CHECKED = Capability(name="checked", checks_input=True)
WALLET = "0x" + "ab" * 20


class FakeChecks:
    """Answers every check with the same result and records the callers."""

    def __init__(self, result: CheckOutcome) -> None:
        self.result = result
        self.callers: list[CheckRequester] = []

    def ask(self, kind: str, input: Any, requester: CheckRequester) -> CheckOutcome:
        self.callers.append(requester)
        return self.result


def test_an_input_that_passed_is_checked_once() -> None:
    """The paid request does not repeat the check."""
    checks = FakeChecks(CheckOutcome(answer={"value": {}}))
    author_check = AuthorCheck(checks, lambda wallet: False)
    for _ in range(2):
        author_check(CHECKED, TaskInput.of({"n": 1}), WALLET)
    assert checks.callers == [CheckRequester(wallet=WALLET, signed=True)]


def test_a_refused_input_names_what_is_wrong() -> None:
    """The seeker gets the author's message and details before any payment."""
    problem = {"error": "odd", "code": "INVALID_INPUT", "details": {"field": "n", "expected": "even"}}
    author_check = AuthorCheck(FakeChecks(CheckOutcome(problem=problem)), lambda wallet: True)
    with pytest.raises(InvalidInput, match="odd") as caught:
        author_check(CHECKED, TaskInput.of({"n": 1}), WALLET)
    assert caught.value.details == {"field": "n", "expected": "even"}


@pytest.mark.parametrize(
    "result",
    [CheckOutcome(), CheckOutcome(too_long=True), CheckOutcome(problem={"code": "INTERNAL_ERROR"})],
    ids=["none", "too long", "a bug"],
)
def test_a_check_without_an_answer_refuses_before_money(result: CheckOutcome) -> None:
    """If the check cannot run, the request is refused before payment and can be retried."""
    author_check = AuthorCheck(FakeChecks(result), lambda wallet: False)
    with pytest.raises(Unavailable) as caught:
        author_check(CHECKED, TaskInput.of({"n": 1}), WALLET)
    assert caught.value.code == "WORKER_BUSY"


def test_a_price_comes_from_the_check_and_is_asked_once() -> None:
    """The author's function sets the price, called once; without an answer the input is refused."""
    priced = Capability(name="priced", price="2.00", prices_input=True)
    checks = FakeChecks(CheckOutcome(answer={"value": {"price": "0.70"}}))
    author_check = AuthorCheck(checks, lambda wallet: False)
    for _ in range(2):
        assert author_check(priced, TaskInput.of({"n": 1}), "", "192.0.2.1") == "0.70"
    assert checks.callers == [CheckRequester(network="192.0.2.1")]
    older = AuthorCheck(FakeChecks(CheckOutcome(answer={"value": {}})), lambda wallet: False)
    with pytest.raises(Unavailable):
        older(priced, TaskInput.of({"n": 1}), "")

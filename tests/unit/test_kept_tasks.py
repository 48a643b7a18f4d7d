"""What a process keeps of contracts and finished tasks is bounded by bytes, and only what cannot change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker.contracts.book import Contract, ContractMemory
from worker.core.states import Lane, Phase, State
from worker.engine.record import Execution
from worker.hiring.finished_tasks import FinishedTasks, is_final
from worker.payments.ledger import Reading
from worker.payments.payment import ExecutionMoney, Payment, PaymentState


def reading(id: str = "x", output: bytes = b"1", **changes: Any) -> Reading:
    options = {"state": State.COMPLETED, "phase": Phase.DONE, **changes}
    numbers = dict.fromkeys(("attempt", "attempts", "fence", "created", "updated", "ends_by"), 1)
    execution = Execution(id, "a", "hire", Lane.EXPRESS, **numbers, **options)
    payment = Payment(1, PaymentState.SETTLED, "0x1", 1, 1)
    money = ExecutionMoney("ref", "after_work", (payment,), current=1, paid=1)
    return Reading(replace(execution, output=output), money, 9)


@pytest.mark.parametrize(
    "changes", [{"state": State.FAILED}, {"state": State.RUNNING}, {"phase": Phase.SETTLING}]
)
def test_only_a_completed_task_is_kept(changes: dict[str, Any]) -> None:
    """Failures may be refunded yet, and what runs changes."""
    tasks = FinishedTasks()
    tasks.add(reading(**changes))
    assert tasks.get("x") is None


def test_a_task_with_two_payments_is_not_final() -> None:
    """A second payment may still be refunded."""
    found = reading()
    twice = replace(found.money, payments=found.money.payments * 2)
    assert is_final(found) and not is_final(replace(found, money=twice))


def test_kept_tasks_are_bounded_by_their_bytes() -> None:
    """The oldest leave first, and one that is larger than the bound is not kept at all."""
    tasks = FinishedTasks(most_bytes=50_000)
    for number in range(20):
        tasks.add(reading(str(number)))
    assert tasks.get("0") is None and tasks.get("19") is not None
    tasks.add(reading("large", b"1" * 60_000))
    assert tasks.get("large") is None and tasks.get("19") is None
    tasks.add(reading("next"))
    assert tasks.get("next") is not None


def test_remembered_contracts_are_bounded_by_their_bytes() -> None:
    """A contract that is read again counts once; a newer state of a forgotten one is not remembered."""
    terms: Any = None
    one, other = (Contract(ref, {"version": "HIRE/1.0"}, terms, ref, 1, None) for ref in ("one", "other"))
    memory = ContractMemory(most_bytes=10)
    for _ in range(3):
        memory.add(one, 6)
    assert memory.get("one") is one
    memory.renew(replace(one, execution="x"))
    renewed = memory.get("one")
    assert renewed is not None and renewed.execution == "x"
    memory.add(other, 6)
    memory.renew(one)
    assert memory.get("one") is None and memory.get("other") is other

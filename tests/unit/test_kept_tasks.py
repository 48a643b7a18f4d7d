"""What a process keeps of contracts and finished tasks is bounded by bytes, and only what cannot change."""

from __future__ import annotations

import json
import secrets
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from worker.contracts.book import Contract, ContractMemory, memory_of
from worker.contracts.terms import parse_terms
from worker.core.states import Lane, Phase, State
from worker.doors.answers import PlainAnswer
from worker.doors.kept_answers import KeptAnswers
from worker.engine.record import Execution
from worker.hiring.finished_tasks import FinishedTasks, is_final
from worker.hiring.task import Task, TaskRecord
from worker.payments.ledger_reader import Reading
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
    """The oldest leave first, and one that is larger than the bound is not kept and drives none out."""
    tasks = FinishedTasks(most_bytes=50_000)
    for number in range(20):
        tasks.add(reading(str(number)))
    assert tasks.get("0") is None and tasks.get("19") is not None
    tasks.add(reading("large", b"1" * 60_000))
    assert tasks.get("large") is None and tasks.get("19") is not None
    tasks.add(reading("next"))
    assert tasks.get("next") is not None


def shown(answers: KeptAnswers, found: Reading, body: bytes = b"1") -> bytes:
    """What is answered about the task, rendered as `body` if no answer is kept."""
    anything: Any = None
    task = Task(found.execution.id, TaskRecord.known(found), anything, anything)
    return answers.get(task, lambda task: PlainAnswer(body, 200, {})).body


def test_an_answer_is_kept_for_one_end_of_its_task() -> None:
    """A task that ended otherwise, or whose payment changed since, is rendered again."""
    answers, found = KeptAnswers(), reading(ended=5)
    assert [shown(answers, found, body) for body in (b"a", b"b")] == [b"a", b"a"]
    later = reading(ended=6)
    assert [shown(answers, later, body) for body in (b"c", b"d")] == [b"c", b"c"]
    proven = replace(later.money.payments[0], transaction="0x2", proof="proven")
    audited = replace(later, money=replace(later.money, payments=(proven,)))
    assert shown(answers, audited, b"e") == b"e"
    assert shown(answers, reading(state=State.RUNNING, phase=Phase.SETTLING), b"f") == b"f"


def test_answers_rendered_at_the_same_time_count_once() -> None:
    """Requests that render one task together leave as much room for others as one."""
    answers, found = KeptAnswers(most_bytes=20_000), reading()

    def together(task: Task) -> PlainAnswer:
        answers.get(task, lambda task: PlainAnswer(b"1", 200, {}))
        return PlainAnswer(b"1", 200, {})

    anything: Any = None
    for number in range(20):
        other = reading(str(number))
        answers.get(Task(str(number), TaskRecord.known(other), anything, anything), together)
    assert [shown(answers, found, body) for body in (b"a", b"b")] == [b"a", b"a"]


def contract(ref: str, document: dict[str, Any]) -> Contract:
    text = json.dumps(document, ensure_ascii=False)
    return Contract(ref, text, parse_terms(document), ref, 1, None)


def test_remembered_contracts_are_bounded_by_their_memory() -> None:
    """A contract that is read again counts once; a newer state of a forgotten one is not remembered."""
    one, other = contract("one", document()), contract("other", document())
    memory = ContractMemory(memory_of(one) + memory_of(other) - 1)
    for _ in range(3):
        memory.add(one)
    assert memory.get("one") is one
    memory.renew(replace(one, execution="x"))
    renewed = memory.get("one")
    assert renewed is not None and renewed.execution == "x"
    memory.add(other)
    memory.renew(one)
    assert memory.get("one") is None and memory.get("other") is other


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"description": "\U0001f600" * 5_000},
        {"input_schema": {"properties": {f"f{at}": {"type": "string"} for at in range(20)}}},
        {"input_schema": {"x": [[] for _ in range(3_000)]}},
        {"input_schema": {"x": [{"a": at} for at in range(3_000)]}},
        {"output_schema": {str(at): at + 1_000 for at in range(3_000)}},
        {"output_schema": {"x": [chr(9_000 + at) * 2 for at in range(3_000)]}},
    ],
    ids=["plain", "emoji", "schema", "lists", "objects", "names", "texts"],
)
def test_a_contract_takes_no_more_memory_than_is_counted(part: dict[str, Any]) -> None:
    """Whatever a seeker writes, the contracts that a process keeps stay within their share."""
    text = json.dumps(document(**part), ensure_ascii=False)
    parse_terms(json.loads(text))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        # As from the store: nothing is shared with other contracts.
        own = text.encode().decode()
        kept = Contract("r" * 60 + str(before), own, parse_terms(json.loads(own)), "h", before, None)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(text) < taken <= memory_of(kept)


def document(**task: Any) -> dict[str, Any]:
    """A contract with these parts of its task."""
    wallet = "0x" + "ab" * 20
    return {
        "version": "HIRE/1.0",
        "contract_id": f"ctr_{secrets.token_hex(13)}",
        "created_at": "2026-01-01T00:10:00Z",
        "parties": {
            "seeker": {"agent_id": "s", "wallet": wallet},
            "worker": {"agent_id": "w", "wallet": wallet},
        },
        "task": {"description": "d", **task},
        "terms": {
            "price": {"amount": "0.01", "currency": "USDC", "network": "base"},
            "deadline": "2026-01-02T00:00:00Z",
            "payment_trigger": "on_delivery",
            "platform_fee": {"percentage": 1, "wallet": wallet},
        },
    }

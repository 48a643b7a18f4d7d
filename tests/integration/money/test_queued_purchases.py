"""Paid work for the queue: its message goes with the record of its verification, and decides nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.fakes.paid_door import PaidDoor
from worker.capabilities.declare import Capability
from worker.payments.ordered_queue import OrderedQueue
from worker.payments.settler import Settler
from worker.store.commands import replies_together
from worker.store.scripts import Scripts

BODY = {"do": "ok"}


@pytest.fixture(name="paid_door")
def _paid_door(paid_door: PaidDoor) -> PaidDoor:
    """A door with work for the queue, and a settler as the web process has it."""
    parts = paid_door.parts
    ordered = OrderedQueue(parts.queue, parts.ledger)
    parts.settler = Settler(
        parts.ledger,
        parts.store,
        paid_door.facilitator,
        sign=lambda digest: b"\x01" * 65,
        push=ordered.push,
        push_verified=ordered.push_verified,
        resource_url=parts.resource_url,
    )
    parts.catalog.publish([Capability("echo", description="e", price="0.01", time_limit=20, attempts=3)])
    return paid_door


def claimed(paid_door: PaidDoor) -> str:
    deal = paid_door.deal()
    return deal.execute(BODY, deal.payment()).execution.id


def verify(paid_door: PaidDoor) -> None:
    """Makes the request's own verification, which has an end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while paid_door.beside:
                paid_door.step()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive() and not errors, errors


def test_a_full_store_refuses_the_message_but_not_the_record(
    paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that has begun to write goes on in a full store; a command after it is refused."""
    send = replies_together
    full = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    def refuse(client: redis.Redis, *commands: tuple[Any, ...]) -> list[Any]:
        if not any(words[0] == "RPUSH" for words in commands):
            return send(client, *commands)
        return [send(client, words)[0] if words[0] == "EVALSHA" else full for words in commands]

    id = claimed(paid_door)
    monkeypatch.setattr("worker.store.scripts.replies_together", refuse)
    verify(paid_door)
    assert (paid_door.execution(id).phase, paid_door.parts.queue.messages()) == ("working", [])
    monkeypatch.undo()
    paid_door.jump(5)
    paid_door.tick()
    assert paid_door.parts.queue.messages() == [id]


def test_a_message_that_cannot_be_written_leaves_the_record(paid_door: PaidDoor) -> None:
    id = claimed(paid_door)
    paid_door.parts.client.set("rq:queues", "of another type")
    verify(paid_door)
    assert paid_door.execution(id).phase == "working"


def test_a_lost_answer_starts_the_work_once(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has recorded and queued it; a second message is harmless."""
    id, send = claimed(paid_door), Scripts.send_each

    def lost(self: Scripts, *parts: Any) -> Any:
        send(self, *parts)
        monkeypatch.undo()
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(Scripts, "send_each", lost)
    verify(paid_door)
    assert set(paid_door.parts.queue.messages()) == {id}
    assert paid_door.take(id) is not None and paid_door.take(id) is None


def test_a_store_without_the_scripts_records_and_queues(paid_door: PaidDoor) -> None:
    id = claimed(paid_door)
    paid_door.parts.client.script_flush()
    verify(paid_door)
    assert (paid_door.execution(id).phase, paid_door.parts.queue.messages()) == ("working", [id])

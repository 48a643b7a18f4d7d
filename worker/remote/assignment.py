"""Assigns executions to remote agents: one queue per agent, connections take turns."""

from __future__ import annotations

import json
from collections import OrderedDict

import structlog

from worker.core.ids import is_id, session_id
from worker.core.json import encode
from worker.engine.answers import CREATE, CreateAnswer
from worker.engine.creation import CreatedExecution, NewExecution
from worker.engine.events import Kind
from worker.engine.step_fields import step_field, step_with_job
from worker.remote.answers import ASSIGN, AssignAnswer
from worker.remote.mail import message_item
from worker.remote.members import epoch_of
from worker.remote.store import Connection, RemoteStore
from worker.store.each import each
from worker.store.scripts import ScriptCall, read_reply

log = structlog.get_logger()

_MOST_GUESSES = 1_000
CRASHED = encode(
    {
        "error": "the agent was lost too often",
        "code": "WORKER_CRASHED",
        "details": {},
        "retryable": True,
    }
)


class Assignment:
    """Assigns waiting executions, requeues those of a lost connection and cleans up after ended ones."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        # Likely next connection, by agent. With a single agent the guess is always right and saves a query.
        self._guesses: OrderedDict[str, str] = OrderedDict()

    def create(self, new: NewExecution, creation: ScriptCall) -> CreatedExecution:
        """Creates and queues the execution, and assigns it if a connection is available."""
        member = self._guesses.get(new.agent)
        guess = None if member is None else self._guess(new, member)
        if guess is None:
            first, last = self._store.create_and_count(creation, new.agent)
        else:
            first, last = self._store.create(creation, guess)
        creates = read_reply(CREATE, first)
        created = int(creates.text(1) or 0)
        if creates.text() != new.id:
            return CreatedExecution(False, creates.text(), created)
        if guess is None:
            assigned = self._assign_queued(new.agent, self._store.queue_head(new.agent)) if last else {}
        elif (tried := read_reply(ASSIGN, last)).answer is AssignAnswer.ASSIGNED:
            assigned = {new.id: int(tried.values[0])}
            self._remember(new.agent, tried.text(2))
            if int(tried.values[1]):
                self.drain(new.agent)
        else:
            self._guesses.pop(new.agent, None)
            assigned = self._assign_queued(new.agent, self._store.queue_head(new.agent))
        is_new = creates.answer is CreateAnswer.CREATED
        return CreatedExecution(is_new, new.id, created, assigned.get(new.id))

    def begin(self, id: str, agent: str) -> None:
        """Queues an execution and assigns it if a connection is available."""
        self._assign_queued(agent, self._store.place_and_read_head(id, agent))

    def drain(self, agent: str) -> None:
        """Assigns all executions queued for this agent."""
        self._assign_queued(agent, self._store.queue_head(agent))

    def lost(self, connection: Connection) -> None:
        """Requeues the executions of a lost connection and offers them to other connections."""
        agents = {connection.name} if connection.name else set()
        for id in self._store.held(connection.epoch):
            agent = self._store.fields(id, "agent")[0]
            if not agent:
                self._store.release(id, connection.epoch)
                continue
            answer = self._store.drop(id, agent, connection.epoch, CRASHED)
            log.info("execution.dropped", execution_id=id, answer=answer)
            agents.add(agent)
        for agent in agents:
            self.drain(agent)

    def attend(self, id: str) -> None:
        """For the clock: queues an execution not yet queued, or reports an end not yet reported."""
        agent, state = self._store.fields(id, "agent", "state")
        if state in ("completed", "failed", "cancelled"):
            self.report_end(id)
        else:
            self.begin(id, agent)

    def report_end(self, id: str) -> None:
        """Notifies the agent that the execution ended and withdraws its runner jobs."""
        agent, session, state, error = self._store.fields(id, "agent", "session", "state", "error")
        steps = self._store.steps(id)
        # The hash also holds signals, files and keys under names chosen by callers.
        sent = (step for name in steps if (step := step_with_job(name)) is not None)
        jobs = [(steps[step_field(step, "tool")].decode(), step) for step in sent if is_id(step)]
        reason = json.loads(error).get("error", "") if error else f"execution {state}"
        cut = dict.fromkeys(steps.get("cut", b"").decode().split())
        before = [_result(id, step, str(reason)) for step in cut if step_field(step, "remote") in steps]
        body = {"execution_id": id, "reason": reason}
        self._store.report_end(
            id, agent, session, message_item(Kind.EXECUTION_CANCELLED, encode(body)), before, jobs
        )

    def heal(self, agents: set[str]) -> None:
        """For the clock: assigns executions that still wait although their agent is connected."""
        each(agents, self._drain_waiting)

    def _drain_waiting(self, agent: str) -> None:
        if self._store.length(agent):
            self.drain(agent)

    def _assign_queued(self, agent: str, head: tuple[str, str] | None) -> dict[str, int]:
        """Assigns in turn until the queue is empty or every connection is full.

        Returns the assigned executions with their assignment times.
        """
        assigned: dict[str, int] = {}
        full: set[str] = set()
        while head is not None:
            id, member = head
            reply = self._store.assign(
                self._store.assignment(id, agent, member, session_id(epoch_of(member)))
            )
            if reply.answer is AssignAnswer.FULL:
                if member in full:
                    break
                full.add(member)
            elif reply.answer is AssignAnswer.ASSIGNED:
                full.clear()
                assigned[id] = int(reply.values[0])
                self._remember(agent, member)
                if not int(reply.values[1]):
                    break
            head = self._store.queue_head(agent)
        return assigned

    def _guess(self, new: NewExecution, member: str) -> ScriptCall:
        session = session_id(epoch_of(member))
        parts = [
            b'"execution_id":%s' % encode(new.id),
            b'"session_id":%s' % encode(session),
            b'"agent_id":%s' % encode(new.agent),
            b'"input":' + new.input,
        ]
        if new.labels:
            parts.append(b'"labels":' + encode(dict(new.labels)))
        # A long input is in a file and is read when the message is sent.
        message = b"" if new.input_ref else message_item(Kind.EXECUTION_ASSIGNED, b"{%s}" % b",".join(parts))
        return self._store.assignment(new.id, new.agent, member, session, message, guess=True)

    def _remember(self, agent: str, member: str) -> None:
        self._guesses[agent] = member
        self._guesses.move_to_end(agent)
        if len(self._guesses) > _MOST_GUESSES:
            self._guesses.popitem(last=False)


def _result(id: str, step: str, reason: str) -> bytes:
    body = {"execution_id": id, "step_id": step, "status": "failed", "error": reason}
    return message_item(Kind.TOOL_RESULT, encode(body))

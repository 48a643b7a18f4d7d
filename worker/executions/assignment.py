"""Who works on what: executions of remote agents wait in a line for each agent and are given out in turn."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from worker.agents.output import encode
from worker.executions.remote_store import Connection, RemoteStore, in_line
from worker.executions.scripts import Call
from worker.executions.store import New
from worker.ids import is_id, session_id

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


@dataclass(frozen=True, slots=True)
class Begun:
    """A new execution: when it was made, and when an agent got it, if one did."""

    made: bool
    id: str
    created: int
    assigned: int | None = None


class Assignment:
    """Gives out what waits, takes back what a lost connection held, and sees to what has ended."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        # Whose turn it may be, by agent: with one agent that is always right, and saves asking.
        self._guesses: OrderedDict[str, str] = OrderedDict()

    def create(self, new: New, creation: Call) -> Begun:
        """Makes the execution; it takes its place in the line, and goes to a connection if there is one."""
        member = self._guesses.get(new.agent)
        guess = None if member is None else self._guess(new, member)
        (made, id, *at), last = self._store.create(creation, new.agent, guess)
        created = int(at[0]) if at else 0
        if id.decode() != new.id:
            return Begun(False, id.decode(), created)
        if guess is None:
            given = self._give(new.agent, in_line(last))
        elif last[0] == b"assigned":
            given = {new.id: int(last[1])}
            self._remember(new.agent, last[3].decode())
            if int(last[2]):
                self.drain(new.agent)
        else:
            self._guesses.pop(new.agent, None)
            given = self._give(new.agent, self._store.line(new.agent))
        return Begun(bool(made), new.id, created, given.get(new.id))

    def begin(self, id: str, agent: str) -> None:
        """An execution takes its place in the line, and goes to a connection if there is one."""
        self._give(agent, self._store.place_and_line(id, agent))

    def drain(self, agent: str) -> None:
        """Gives out all that waits for this agent."""
        self._give(agent, self._store.line(agent))

    def lost(self, connection: Connection) -> None:
        """What a connection held goes back into the line, and to others if there are any."""
        agents = {connection.name} if connection.name else set()
        for id in self._store.held(connection.epoch):
            agent = self._store.fields(id, "agent")[0]
            if not agent:
                self._store.release(id, connection.epoch)
                continue
            what = self._store.drop(id, agent, connection.epoch, CRASHED)
            log.info("execution.dropped", execution_id=id, what=what)
            agents.add(agent)
        for agent in agents:
            self.drain(agent)

    def attend(self, id: str) -> None:
        """For the clock: an execution that nobody has put into its line, or whose end is not told yet."""
        agent, state = self._store.fields(id, "agent", "state")
        if state in ("completed", "failed", "cancelled"):
            self.tidy(id)
        else:
            self.begin(id, agent)

    def tidy(self, id: str) -> None:
        """Tells the agent that its work has ended without it, and takes back the jobs of runners."""
        agent, session, state, error = self._store.fields(id, "agent", "session", "state", "error")
        steps = self._store.steps(id)
        # Signals, files and keys stand there too, under names that strangers chose.
        sent = (name.removesuffix(" job") for name in steps if name.endswith(" job"))
        jobs = [(steps[f"{step} tool"].decode(), step) for step in sent if is_id(step)]
        reason = json.loads(error).get("error", "") if error else f"execution {state}"
        cut = dict.fromkeys(steps.get("cut", b"").decode().split())
        before = [_result(id, step, str(reason)) for step in cut if f"{step} remote" in steps]
        told = {"execution_id": id, "reason": reason}
        self._store.tidy(id, agent, session, b"execution.cancelled " + encode(told), before, jobs)

    def heal(self, agents: set[str]) -> None:
        """For the clock: nobody may wait for an agent that is there."""
        for agent in agents:
            if self._store.length(agent):
                self.drain(agent)

    def _give(self, agent: str, line: tuple[str, str] | None) -> dict[str, int]:
        """Until nobody waits, or no connection has room: each takes its turn, and says when it is full.

        Returns what was given out, and when.
        """
        given: dict[str, int] = {}
        full: set[str] = set()
        while line is not None:
            id, member = line
            reply = self._store.assign(self._store.assignment(id, agent, member, session_id(member[-36:])))
            if reply[0] == b"full":
                if member in full:
                    break
                full.add(member)
            elif reply[0] == b"assigned":
                full.clear()
                given[id] = int(reply[1])
                self._remember(agent, member)
                if not int(reply[2]):
                    break
            line = self._store.line(agent)
        return given

    def _guess(self, new: New, member: str) -> Call:
        session = session_id(member[-36:])
        parts = [
            b'"execution_id":%s' % encode(new.id),
            b'"session_id":%s' % encode(session),
            b'"agent_id":%s' % encode(new.agent),
            b'"input":' + new.input,
        ]
        if new.labels:
            parts.append(b'"labels":' + encode(dict(new.labels)))
        # A long input lies in a file, and is read when the message is written out.
        told = b"" if new.input_ref else b"execution.assigned {%s}" % b",".join(parts)
        return self._store.assignment(new.id, new.agent, member, session, told, guess=True)

    def _remember(self, agent: str, member: str) -> None:
        self._guesses[agent] = member
        self._guesses.move_to_end(agent)
        if len(self._guesses) > _MOST_GUESSES:
            self._guesses.popitem(last=False)


def _result(id: str, step: str, reason: str) -> bytes:
    body = {"execution_id": id, "step_id": step, "status": "failed", "error": reason}
    return b"tool.result " + encode(body)

"""Calls the scripts for remote agents and runners.

One method is one round trip. A connection is identified by its epoch; its messages stay in its mailbox
until its process sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

from worker.core.json import encode
from worker.engine.events import MOST_EVENTS
from worker.engine.step_fields import signal_field, step_field, step_member
from worker.engine.transitions import SHARED
from worker.remote.answers import (
    ASSIGN,
    CONNECT,
    DROP,
    PLACE,
    AssignAnswer,
    ConnectAnswer,
    DropAnswer,
    PlaceAnswer,
)
from worker.remote.members import consumer_member, consumer_of, epoch_of, offer_member
from worker.store.data_model import Keys, short
from worker.store.scripts import Reply, ScriptCall, Scripts, read_reply

# A connection with more messages in its mailbox than this is not reading.
MOST_MESSAGES = 256
# A larger message is stored elsewhere and read when it is sent.
MOST_MESSAGE_BYTES = 8 * 1024
# How long a consumer that ran an execution before has to release it.
LET_GO_US = 250_000

LUA = Path(__file__).parent / "lua"
# Shared functions of these scripts.
LIBRARIES = (SHARED, LUA / "_remote.lua")

Kind = Literal["agent", "runner"]


@dataclass(frozen=True, slots=True)
class Connection:
    """The stream of one agent or runner, in any process."""

    epoch: str
    kind: Kind
    name: str
    consumer: str
    tools: str = "[]"

    @property
    def member(self) -> str:
        """Its member in the list of consumers of its agent or runner."""
        return consumer_member(self.consumer, self.epoch)

    @property
    def offer(self) -> str:
        """Its member in the list of runners of a tool."""
        return offer_member(self.name, self.consumer, self.epoch)

    @property
    def field(self) -> str:
        return short(f"{self.kind}\0{self.name}\0{self.consumer}")


class RemoteStore:
    """Connections, and queues of waiting executions. Jobs of runners: worker/remote/jobs.py."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        hooks: Sequence[Path],
        test_clock: bool = False,
    ) -> None:
        # Any: the library's types do not cover clients that return bytes.
        self.client: Any = client
        self.keys = keys
        self.scripts = Scripts(client, keys, LUA, libraries=[*LIBRARIES, *hooks], test_clock=test_clock)

    # Connections

    def connect(self, connection: Connection, lease_us: int) -> tuple[ConnectAnswer, str]:
        """Returns (NEW, the epoch it replaced or '') or (ADOPTED, the epoch that continues)."""
        c, found = connection, ""
        while True:
            reply = self.scripts.run(
                CONNECT,
                epoch=c.epoch,
                consumer=c.consumer,
                lease=lease_us,
                found=found,
                field=c.field,
                kind=c.kind,
                name=c.name,
                mailbox=found or c.epoch,
            )
            match reply.answer:
                case ConnectAnswer.ADOPTED:
                    return reply.answer, reply.text()
                case ConnectAnswer.NEW:
                    return reply.answer, found
                case ConnectAnswer.OTHER:
                    found = reply.text()

    def renew(self, epochs: Sequence[str], lease_us: int) -> list[str]:
        """Renews the leases; returns the epochs that have ended."""
        found = self.scripts.value("renew_connections", lease=lease_us, connections=epochs)
        return [gone.decode() for gone in found]

    def hand_over(self, connection: Connection, lease_us: int, written: int = 0) -> bool:
        """Hands over the connection; `written` is how many messages of the mailbox have been sent."""
        c = connection
        handed_over = self.scripts.value(
            "hand_over",
            epoch=c.epoch,
            consumer=c.consumer,
            kind=c.kind,
            name=c.name,
            lease=lease_us,
            field=c.field,
            written=written,
        )
        return bool(handed_over)

    def end(self, connection: Connection, *, only_lapsed: bool) -> bool:
        c = connection
        ended = self.scripts.value(
            "end_connection",
            epoch=c.epoch,
            consumer=c.consumer,
            kind=c.kind,
            name=c.name,
            field=c.field,
            lapsed="1" if only_lapsed else "",
        )
        return bool(ended)

    def forget(self, connection: Connection, tools: Sequence[str]) -> bool:
        c = connection
        removed = self.scripts.value(
            "forget",
            epoch=c.epoch,
            kind=c.kind,
            name=c.name,
            member=c.offer,
            turn_of=short(c.name) if c.kind == "agent" else "",
            tools=tools,
            fields=[short(tool) for tool in tools],
        )
        return bool(removed)

    def connection(self, epoch: str) -> Connection | None:
        raw = self.client.hgetall(self.keys.connection(epoch))
        if b"name" not in raw:
            return None
        kind: Kind = "agent" if raw[b"kind"] == b"agent" else "runner"
        text = {name: value.decode() for name, value in raw.items()}
        return Connection(epoch, kind, text[b"name"], text[b"consumer"], text.get(b"tools", "[]"))

    def connections_of(self, kind: Kind, name: str) -> list[str]:
        """Returns the epochs of an agent or runner that can be given work."""
        members = self.client.zrange(self.keys.consumers(kind, name), 0, -1)
        return [epoch_of(member.decode()) for member in members]

    def present(self, kind: Kind, name: str) -> bool:
        """Whether an agent or runner has a connection, including one that is being handed over."""
        if self.connections_of(kind, name):
            return True
        handed_over = (self.connection(epoch.decode()) for epoch in self.client.hvals(self.keys.parted))
        return any(each is not None and (each.kind, each.name) == (kind, name) for each in handed_over)

    def held(self, epoch_or_session: str) -> dict[str, str]:
        """Returns the executions of a connection, with their sessions."""
        found = self.client.hgetall(self.keys.held(epoch_or_session))
        return {id.decode(): session.decode() for id, session in found.items()}

    def release(self, id: str, epoch: str) -> None:
        self.client.hdel(self.keys.held(epoch), id)

    def alive(self, epoch: str) -> bool:
        """Whether the connection has not been ended."""
        return bool(self.client.zscore(self.keys.epochs, epoch))

    def read_mail(self, epoch: str, after: int, most: int) -> list[bytes]:
        """Reads messages after those already sent. They stay until they are dropped."""
        found: list[bytes] = self.client.lrange(self.keys.mail(epoch), after, after + most - 1)
        return found

    def drop_mail(self, epoch: str, written: int, mark: bytes = b"") -> None:
        """Removes sent messages; those who watch the mailbox hear the mark between the messages around it."""
        with self.client.pipeline(transaction=True) as pipe:
            pipe.ltrim(self.keys.mail(epoch), written, -1)
            pipe.publish(self.keys.mail(epoch), mark)
            pipe.execute()

    def lapsed(self, at: int, most: int = 100) -> list[str]:
        """Returns connections that have ended or whose process has gone."""
        return [e.decode() for e in self.client.zrangebyscore(self.keys.epochs, "-inf", at, 0, most)]

    def living(self, at: int) -> list[str]:
        return [epoch.decode() for epoch in self.client.zrangebyscore(self.keys.epochs, f"({at}", "+inf")]

    # Queues of executions

    def queue_head(self, agent: str) -> tuple[str, str] | None:
        """Returns the first execution in an agent's queue and the next connection, if both exist."""
        return read_queue_head(self.scripts.send(self._queue_head(agent)))

    def place(self, id: str, agent: str) -> PlaceAnswer:
        return read_reply(PLACE, self.scripts.send(self._place(id, agent))).answer

    def create(self, creation: ScriptCall, guess: ScriptCall) -> list[Any]:
        """Creates an execution, then tries the guess."""
        return self.scripts.batch([creation, guess])

    def create_and_count(self, creation: ScriptCall, agent: str) -> list[Any]:
        """Creates an execution, then counts the agent's connections. A later one finds it waiting."""
        return self.scripts.send_together(creation, ("ZCARD", self.keys.consumers("agent", agent)))

    def place_and_read_head(self, id: str, agent: str) -> tuple[str, str] | None:
        """Queues an execution and returns the head of the queue."""
        return read_queue_head(self.scripts.batch([self._place(id, agent), self._queue_head(agent)])[1])

    def assign(self, call: ScriptCall) -> Reply[AssignAnswer]:
        return read_reply(ASSIGN, self.scripts.send(call))

    def assignment(
        self, id: str, agent: str, member: str, session: str, message: bytes = b"", *, guess: bool = False
    ) -> ScriptCall:
        """Builds the call that assigns an execution to a connection; `guess` if it may be another's turn."""
        return self.scripts.call(
            "assign",
            id=id,
            kind="agent",
            agent=agent,
            epoch=epoch_of(member),
            member=member,
            session=session,
            name=encode(consumer_of(member)),
            turn_of=short(agent),
            most=MOST_MESSAGES,
            grace=LET_GO_US,
            message=message if len(message) <= MOST_MESSAGE_BYTES else "",
            guess="1" if guess else "",
        )

    def drop(self, id: str, agent: str, epoch: str, failed: bytes) -> DropAnswer:
        return self.scripts.run(
            DROP, id=id, agent=agent, epoch=epoch, payload=failed, most_events=MOST_EVENTS
        ).answer

    def report_end(
        self,
        id: str,
        agent: str,
        session: str,
        message: bytes,
        before: Sequence[bytes],
        jobs: Sequence[tuple[str, str]],
    ) -> None:
        """`jobs` are pairs of a tool and a step."""
        self.scripts.value(
            "report_end",
            id=id,
            agent=agent,
            session=session,
            tools=[tool for tool, _ in jobs],
            most=MOST_MESSAGES,
            message=message,
            before=len(before),
            lines=[*before, *(step_member(id, step) for _, step in jobs)],
        )

    def length(self, agent: str) -> int:
        return int(self.client.zcard(self.keys.waiting(agent)))

    # Signals

    def signal_payload(self, id: str, sequence: int) -> bytes | None:
        """Returns a signal's payload that was too long for its event."""
        found: bytes | None = self.client.hget(self.keys.steps(id), signal_field(sequence))
        return found

    # Reading

    def now(self) -> int:
        return int(self.scripts.value("time"))

    def fields(self, id: str, *names: str) -> list[str]:
        """Returns fields of a record; '' for missing ones."""
        found = self.client.hmget(self.keys.record(id), names)
        return [value.decode() if value else "" for value in found]

    def steps(self, id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.client.hgetall(self.keys.steps(id)).items()}

    def step(self, id: str, step: str, *names: str) -> list[bytes | None]:
        found: list[bytes | None] = self.client.hmget(
            self.keys.steps(id), [step_field(step, name) for name in names]
        )
        return found

    def step_deadline(self, id: str, step: str) -> int:
        return int(self.client.zscore(self.keys.step_deadlines, step_member(id, step)) or 0)

    def _queue_head(self, agent: str) -> ScriptCall:
        return self.scripts.call("queue_head", kind="agent", agent=agent, turn_of=short(agent))

    def _place(self, id: str, agent: str) -> ScriptCall:
        return self.scripts.call("place", id=id, agent=agent)


def read_queue_head(reply: Sequence[bytes]) -> tuple[str, str] | None:
    """Parses the reply of queue_head.lua."""
    return None if len(reply) < 2 else (reply[0].decode(), reply[1].decode())

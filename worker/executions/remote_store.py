"""The scripts that deal with remote agents and runners, and what they are called with.

One method is one round trip. A connection is named by its epoch; messages of a connection lie in its
mailbox until its process writes them out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import redis

from worker.agents.output import encode
from worker.executions.keys import Keys, short
from worker.executions.scripts import Arg, Call, Scripts
from worker.executions.store import MOST_EVENTS

# A mailbox that holds more than this belongs to a connection that does not read.
MOST_MESSAGES = 256
# A message beyond this size is read where it is kept, when it is written out.
MOST_MESSAGE_BYTES = 8 * 1024
# How long a consumer that ran an execution before gets to let go of it.
LET_GO_US = 250_000

Kind = Literal["agent", "runner"]
_SHARED = Path(__file__).parent / "lua" / "_remote.lua"


@dataclass(frozen=True, slots=True)
class Connection:
    """The stream of one agent or runner, wherever its process is."""

    epoch: str
    kind: Kind
    name: str
    consumer: str
    tools: str = "[]"

    @property
    def member(self) -> str:
        """How it stands among the consumers of its agent or runner."""
        return f"{self.consumer}\0{self.epoch}"

    @property
    def offer(self) -> str:
        """How it stands among the runners of a tool."""
        return f"{self.name}\0{self.consumer}\0{self.epoch}"

    @property
    def field(self) -> str:
        return short(f"{self.kind}\0{self.name}\0{self.consumer}")


class RemoteStore:
    """Connections, lines of waiting executions, jobs."""

    def __init__(self, client: redis.Redis, keys: Keys, *, test_clock: bool = False) -> None:
        # Any: what our clients answer is bytes, which the library's types do not know.
        self.client: Any = client
        self.keys = keys
        self.scripts = Scripts(client, test_clock=keys.test_clock if test_clock else None, also=[_SHARED])

    # Connections

    def connect(self, connection: Connection, lease_us: int) -> tuple[str, str]:
        """('new', epoch that was ended for it or '') or ('adopted', the epoch that goes on)."""
        k, c = self.keys, connection
        found = ""
        while True:
            keys = [k.epochs, k.parted, k.consumers(c.kind, c.name), k.connection(c.epoch)]
            keys.append(k.mail(found or c.epoch))
            args: list[Arg] = [c.epoch, c.consumer, lease_us, found, c.field, c.kind, c.name]
            what, *epoch = (part.decode() for part in self.scripts("connect", keys, args))
            if what == "adopted":
                return what, epoch[0]
            if what == "new":
                return what, found
            found = epoch[0]

    def keep(self, epochs: Sequence[str], lease_us: int) -> list[str]:
        """Renews; returns those that have ended."""
        return [gone.decode() for gone in self.scripts("keep", [self.keys.epochs], [lease_us, *epochs])]

    def part(self, connection: Connection, lease_us: int, written: int = 0) -> bool:
        """`written`: how many messages of the mailbox have gone out already."""
        k, c = self.keys, connection
        keys = [k.epochs, k.parted, k.consumers(c.kind, c.name), k.mail(c.epoch)]
        return bool(self.scripts("part", keys, [c.epoch, c.consumer, lease_us, c.field, written]))

    def hang_up(self, connection: Connection, *, only_lapsed: bool) -> bool:
        k, c = self.keys, connection
        keys = [k.epochs, k.parted, k.consumers(c.kind, c.name), k.mail(c.epoch)]
        return bool(self.scripts("hang_up", keys, [c.epoch, c.consumer, c.field, "1" if only_lapsed else ""]))

    def forget(self, connection: Connection, tools: Sequence[str]) -> bool:
        k, c = self.keys, connection
        keys = [k.epochs, k.connection(c.epoch), k.held(c.epoch), k.busy, k.mail(c.epoch), k.turns]
        keys.append(k.consumers(c.kind, c.name))
        args: list[Arg] = [c.epoch, c.offer, short(c.name) if c.kind == "agent" else "", *map(short, tools)]
        return bool(self.scripts("forget", [*keys, *map(k.offers, tools)], args))

    def connection(self, epoch: str) -> Connection | None:
        raw = self.client.hgetall(self.keys.connection(epoch))
        if b"name" not in raw:
            return None
        kind: Kind = "agent" if raw[b"kind"] == b"agent" else "runner"
        text = {name: value.decode() for name, value in raw.items()}
        return Connection(epoch, kind, text[b"name"], text[b"consumer"], text.get(b"tools", "[]"))

    def connections_of(self, kind: Kind, name: str) -> list[str]:
        """The epochs of an agent or runner that may be given something."""
        members = self.client.zrange(self.keys.consumers(kind, name), 0, -1)
        return [member[-36:].decode() for member in members]

    def present(self, kind: Kind, name: str) -> bool:
        """Whether an agent or runner has a connection, be it one whose process has left."""
        if self.connections_of(kind, name):
            return True
        parted = (self.connection(epoch.decode()) for epoch in self.client.hvals(self.keys.parted))
        return any(each is not None and (each.kind, each.name) == (kind, name) for each in parted)

    def held(self, epoch_or_session: str) -> dict[str, str]:
        """The executions of a connection, with their sessions."""
        found = self.client.hgetall(self.keys.held(epoch_or_session))
        return {id.decode(): session.decode() for id, session in found.items()}

    def release(self, id: str, epoch: str) -> None:
        self.client.hdel(self.keys.held(epoch), id)

    def alive(self, epoch: str) -> bool:
        """Whether nobody has ended the connection."""
        return bool(self.client.zscore(self.keys.epochs, epoch))

    def read_mail(self, epoch: str, after: int, most: int) -> list[bytes]:
        """Messages behind those that were written out. They stay until they are dropped."""
        found: list[bytes] = self.client.lrange(self.keys.mail(epoch), after, after + most - 1)
        return found

    def drop_mail(self, epoch: str, written: int) -> None:
        self.client.ltrim(self.keys.mail(epoch), written, -1)

    def lapsed(self, at: int, most: int = 100) -> list[str]:
        """Connections that have ended, or whose process has."""
        return [e.decode() for e in self.client.zrangebyscore(self.keys.epochs, "-inf", at, 0, most)]

    def living(self, at: int) -> list[str]:
        return [epoch.decode() for epoch in self.client.zrangebyscore(self.keys.epochs, f"({at}", "+inf")]

    # Lines of executions

    def line(self, agent: str) -> tuple[str, str] | None:
        """Who is first in an agent's line and the connection whose turn it is, when there are both."""
        return in_line(self.scripts("line", *self._line(agent)))

    def place(self, id: str, agent: str) -> str:
        return str(self._move("place", id, [self.keys.waiting(agent)], [id]).decode())

    def create(self, creation: Call, agent: str, guess: Call | None) -> list[Any]:
        """Makes an execution, and asks who is next in the line, or tries the guess."""
        ask: Call = ("line", *self._line(agent))
        return self.scripts.batch([creation, guess or ask])

    def place_and_line(self, id: str, agent: str) -> tuple[str, str] | None:
        """Puts an execution into its line, and says who is next."""
        place: Call = ("place", [*self.keys.transition(id), self.keys.waiting(agent)], [id])
        return in_line(self.scripts.batch([place, ("line", *self._line(agent))])[1])

    def assign(self, call: Call) -> list[bytes]:
        reply: list[bytes] = self.scripts(*call)
        return reply

    def assignment(
        self, id: str, agent: str, member: str, session: str, message: bytes = b"", *, guess: bool = False
    ) -> Call:
        """How an execution is given to a connection; `guess` when it may be another's turn."""
        k, epoch = self.keys, member[-36:]
        keys = [*k.transition(id), k.epochs, k.turns, k.consumers("agent", agent), k.waiting(agent)]
        args: list[Arg] = [id, member, session, encode(member[:-37]), short(agent), MOST_MESSAGES, LET_GO_US]
        args += [message if len(message) <= MOST_MESSAGE_BYTES else "", "1" if guess else ""]
        return "assign", [*keys, k.mail(epoch), k.held(epoch)], args

    def drop(self, id: str, agent: str, epoch: str, failed: bytes) -> str:
        keys = [self.keys.waiting(agent), self.keys.held(epoch)]
        return str(self._move("drop", id, keys, [id, epoch, failed, MOST_EVENTS]).decode())

    def tidy(
        self,
        id: str,
        agent: str,
        session: str,
        message: bytes,
        before: Sequence[bytes],
        jobs: Sequence[tuple[str, str]],
    ) -> None:
        """`jobs` are pairs of a tool and a step."""
        k = self.keys
        keys = [
            k.epochs,
            k.mail(session),
            k.held(session),
            k.waiting(agent),
            *(k.jobs(tool) for tool, _ in jobs),
        ]
        steps = [f"{id} {step}" for _, step in jobs]
        args: list[Arg] = [id, session, MOST_MESSAGES, message, len(before), *before, *steps]
        self._move("tidy", id, keys, args)

    def length(self, agent: str) -> int:
        return int(self.client.zcard(self.keys.waiting(agent)))

    # Intents

    def session(self, id: str, session: str, caller: str, key: str, digest: str) -> list[bytes]:
        reply: list[bytes] = self._move("session", id, [self.keys.epochs], [id, session, caller, key, digest])
        return reply

    def intent(self, name: str, id: str, keys: Sequence[str], args: Sequence[Arg]) -> list[bytes]:
        """invoke, deny, complete, wait, step_result: each has its arguments in its own file."""
        reply: list[bytes] = self._move(name, id, [self.keys.epochs, *keys], args)
        return reply

    # Jobs of runners

    def offer(self, connection: Connection, leaves: Sequence[str], joins: Sequence[str], tools: str) -> bool:
        k, c = self.keys, connection
        keys = [k.epochs, k.connection(c.epoch), *map(k.offers, leaves), *map(k.offers, joins)]
        return bool(self.scripts("offer", keys, [c.epoch, c.offer, len(leaves), tools]))

    def runner_for(self, tool: str) -> str | None:
        k = self.keys
        found = self.scripts("runner", [k.epochs, k.turns, k.busy, k.offers(tool)], [short(tool)])
        return found.decode() if found else None

    def next_job(self, epoch: str, tools: Sequence[str]) -> tuple[str, str, str] | None:
        """(execution, step, tool) of the job that waits longest for one of these tools."""
        k = self.keys
        reply = self.scripts("next_job", [k.epochs, k.busy, *map(k.jobs, tools)], [epoch])
        if not reply:
            return None
        id, step = reply[0].decode().split(" ")
        return id, step, tools[int(reply[1]) - 1]

    def dispatch(self, id: str, step: str, tool: str, member: str, runner: bytes, *, told: bool) -> str:
        k = self.keys
        keys = [k.epochs, k.turns, k.busy, k.jobs(tool), k.mail(member[-36:])]
        name = member.split("\0")[0]
        args: list[Arg] = [id, step, member, name, runner, short(tool), "1" if told else "", MOST_MESSAGES]
        return str(self._move("dispatch", id, keys, args).decode())

    def job_result(self, id: str, session: str, tool: str, args: Sequence[Arg]) -> tuple[str, str]:
        k = self.keys
        keys = [k.epochs, k.mail(session), k.busy, k.jobs(tool), k.retries]
        what, free = self._move("job_result", id, keys, args)
        return what.decode(), free.decode()

    def lose_job(self, id: str, session: str, tool: str, args: Sequence[Arg]) -> str:
        k = self.keys
        keys = [k.epochs, k.busy, k.jobs(tool), k.mail(session)]
        return str(self._move("lose_job", id, keys, args).decode())

    def started(self, id: str, step: str, payload: bytes, caller: str) -> str:
        return str(self._move("started", id, [], [step, payload, caller]).decode())

    def job_of(self, epoch: str) -> tuple[str, str] | None:
        """(execution, step) that a runner's connection works on."""
        found = self.client.hget(self.keys.busy, epoch)
        if found is None:
            return None
        _, id, step = found.decode().split(" ")
        return id, step

    def free(self, id: str, step: str) -> str | None:
        """Frees the connection that works on a step nobody knows any more."""
        for epoch, job in self.client.hgetall(self.keys.busy).items():
            if job.decode().split(" ")[1:] == [id, step]:
                self.client.hdel(self.keys.busy, epoch)
                return str(epoch.decode())
        return None

    def retries_due(self, at: int, most: int = 100) -> list[tuple[str, str]]:
        found = self.client.zrangebyscore(self.keys.retries, "-inf", at, 0, most)
        return [(member.decode().split(" ")[0], member.decode().split(" ")[1]) for member in found]

    def retry_done(self, id: str, step: str) -> None:
        self.client.zrem(self.keys.retries, f"{id} {step}")

    def publish(self, runner: str, tools: bytes) -> None:
        self.client.hset(self.keys.schemas, runner, tools)

    def unpublish(self, runner: str) -> bool:
        return bool(self.client.hdel(self.keys.schemas, runner))

    def published(self) -> dict[str, dict[str, Any]]:
        found = self.client.hgetall(self.keys.schemas)
        return {runner.decode(): json.loads(tools) for runner, tools in found.items()}

    # Signals

    def signal(self, id: str, session: str, tool: str, args: Sequence[Arg]) -> list[bytes]:
        keys = [self.keys.epochs, self.keys.mail(session), self.keys.jobs(tool)]
        reply: list[bytes] = self._move("signal", id, keys, args)
        return reply

    def signal_payload(self, id: str, sequence: int) -> bytes | None:
        """A signal's payload that was too long for its event."""
        found: bytes | None = self.client.hget(self.keys.steps(id), f"signal {sequence}")
        return found

    def local(self, name: str, id: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """wait_begin, ask, send_job: what a local function asks of others; arguments as in the file."""
        return self._move(name, id, keys, args)

    # Reading

    def now(self) -> int:
        return int(self.scripts("time", [], []))

    def fields(self, id: str, *names: str) -> list[str]:
        """Fields of a record; '' for what is not there."""
        found = self.client.hmget(self.keys.record(id), names)
        return [value.decode() if value else "" for value in found]

    def steps(self, id: str) -> dict[str, bytes]:
        return {name.decode(): value for name, value in self.client.hgetall(self.keys.steps(id)).items()}

    def step(self, id: str, step: str, *names: str) -> list[bytes | None]:
        found: list[bytes | None] = self.client.hmget(
            self.keys.steps(id), [f"{step} {name}" for name in names]
        )
        return found

    def step_deadline(self, id: str, step: str) -> int:
        return int(self.client.zscore(self.keys.step_deadlines, f"{id} {step}") or 0)

    def _line(self, agent: str) -> tuple[list[str], list[Arg]]:
        k = self.keys
        return [k.epochs, k.turns, k.consumers("agent", agent), k.waiting(agent)], [short(agent)]

    def _move(self, name: str, id: str, more: Sequence[str], args: Sequence[Arg]) -> Any:
        return self.scripts(name, [*self.keys.transition(id), *more], args)


def in_line(reply: Sequence[bytes]) -> tuple[str, str] | None:
    """The answer of line.lua."""
    return None if len(reply) < 2 else (reply[0].decode(), reply[1].decode())

"""Hundreds of connections, clients that do not read, and overflowing mailboxes."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.deployment import TOKEN, Deployment
from tests.waiting import eventually


class RawStreams:
    """Many raw streams, read only on demand."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.received: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()

    def open(self, port: int, path: str, *, buffer: int = 0) -> socket.socket:
        link = socket.socket()
        if buffer:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        link.connect(("127.0.0.1", port))
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        link.setblocking(False)
        self.sockets.append(link)
        self.received[link] = bytearray()
        self._selector.register(link, selectors.EVENT_READ)
        return link

    def read(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Reads what arrives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            for key, _ in self._selector.select(0.05):
                link: socket.socket = key.fileobj  # type: ignore[assignment]
                with contextlib.suppress(BlockingIOError):
                    data = link.recv(1 << 20)
                    if not data:
                        self._selector.unregister(link)
                    self.received[link] += data

    def events(self, link: socket.socket, kind: str) -> list[str]:
        """The data of a stream's events of one kind."""
        found = []
        for line in self.received[link].split(b"\n\n"):
            if b"event: " + kind.encode() + b"\n" in line:
                found.append(line.partition(b"data: ")[2].decode())
        return found

    def ignore(self, link: socket.socket) -> None:
        """Stops reading this stream."""
        self._selector.unregister(link)

    def close(self) -> None:
        for link in self.sockets:
            link.close()
        self._selector.close()


@pytest.fixture(name="streams")
def _streams() -> Iterator[RawStreams]:
    streams = RawStreams()
    yield streams
    streams.close()


def agent_path(agent: str, consumer: str) -> str:
    return "/v0/agents/stream?" + urlencode({"agent_id": agent, "consumer_id": consumer})


def test_500_connections_get_their_own_messages(
    own_deployment: Callable[..., Deployment], streams: RawStreams
) -> None:
    """Agents and watchers at two processes; requests are answered, each connection gets its own messages."""
    deployment = own_deployment(AGENT_TIMEOUT="5s").start()
    api = deployment.api(1)
    agents = {}
    for n in range(300):
        agents[n] = streams.open(deployment.ports[n % 2], agent_path(f"crowd-{n}", "c"))
    watched = [api.create("nobody", n)["id"] for n in range(20)]
    watchers = [
        (n, streams.open(deployment.ports[n % 2], f"/v0/executions/{watched[n % 20]}/stream"))
        for n in range(200)
    ]
    streams.read(20, lambda: all(b"retry: 5000" in streams.received[link] for link in streams.sockets))
    assert all(b"retry: 5000" in got for got in streams.received.values())
    eventually(lambda: len(deployment.client().zrange("w:epochs", 0, -1)) == 300, 10)
    for number in (0, 1):
        for _ in range(20):
            assert deployment.api(number).call("GET", "/v0/executions?limit=5").status == 200
    ids = {n: api.create(f"crowd-{n}", n)["id"] for n in range(300)}
    for id in watched:
        api.ok("POST", f"/v0/executions/{id}/cancel")

    def all_told() -> bool:
        assigned = all(streams.events(link, "execution.assigned") for link in agents.values())
        return assigned and all(streams.events(link, "execution.cancelled") for _, link in watchers)

    streams.read(30, all_told)
    for n, link in agents.items():
        [assignment] = streams.events(link, "execution.assigned")
        assert json.loads(assignment)["execution_id"] == ids[n]
    for n, link in watchers:
        events = [json.loads(data) for data in streams.events(link, "execution.cancelled")]
        assert [event["execution_id"] for event in events] == [watched[n % 20]]
    # The connections stay alive: past the lease time nothing was reassigned.
    streams.read(6)
    assert {api.status(id) for id in list(ids.values())[::30]} == {"running"}


def test_slow_readers_work_goes_to_others(deployment: Deployment, callers: Api, streams: RawStreams) -> None:
    """A slow reader gets only what fits into its mailbox; on overflow its connection counts as lost."""
    name, count = "slow-reader", 450
    ids = [callers.create(name)["id"]]
    slow = streams.open(deployment.ports[0], agent_path(name, "a-slow-one"), buffer=4096)
    eventually(lambda: callers.status(ids[0]) == "running")
    body = {"agent_id": name, "input": "x" * 30_000}
    ids += [callers.ok("POST", "/v0/executions", body, 201)["id"] for _ in range(count)]
    assert callers.status(ids[-1]) == "pending"
    other = streams.open(deployment.ports[1], agent_path(name, "b"))
    streams.ignore(slow)
    streams.read(30, lambda: callers.status(ids[-1]) == "running")
    for n in range(200):
        assert callers.signal(ids[0], "news", n).status == 200
    eventually(lambda: "agent.timeout" in callers.kinds(ids[0]))

    def all_there() -> bool:
        data = streams.received[other]
        last = data[data.rfind(b"\n\n") :]
        return data.count(b"event: execution.assigned") > count and b"event:" not in last

    streams.read(60, all_there)
    got = [json.loads(data)["execution_id"] for data in streams.events(other, "execution.assigned")]
    assert len(got) == len(set(got)) and set(got) == set(ids)

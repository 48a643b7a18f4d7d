"""Redis stores that lose data on request: writes since `fall_behind` are lost by `fail`.

Each kind loses them as real stores do: a lagging replica is promoted, manually behind one address or by
a Sentinel, or the server restarts from an older file. Where there are replicas, another one keeps up.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from pathlib import Path
from typing import Any, Protocol

import redis

from tests.replicated import Node
from tests.system import program
from tests.waiting import eventually

PASSWORD = "secret"
NAME = "shop"


class Stores(Protocol):
    def start(self) -> str: ...
    def stop(self) -> None: ...
    def fall_behind(self) -> None: ...
    def fail(self) -> None: ...
    def mend(self) -> None: ...


def client_of(node: Node) -> redis.Redis:
    return redis.Redis(port=node.port, password=PASSWORD, socket_timeout=5)


def answers(node: Node) -> bool:
    try:
        return bool(client_of(node).ping())
    except redis.RedisError:
        return False


class Address:
    """One address that forwards to a selectable port; when one side disconnects, so does the other."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def leads_to(self, port: int) -> None:
        self._to = port

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._carry, args=(self._listener.accept()[0],), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._to), 2)
            server.settimeout(None)
        except OSError:
            client.close()
            return
        threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
        self._copy(client, server)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class OldFile:
    """One server with a file; it crashes and restarts from an older copy of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "server"
        lines = [f"requirepass {PASSWORD}", "appendonly yes", "appendfsync always", 'save ""']
        self._node = Node(program("redis-server"), self._folder, lines)

    def start(self) -> str:
        self._run()
        return f"redis://:{PASSWORD}@127.0.0.1:{self._node.port}/0"

    def _run(self) -> None:
        self._node.start(["--port", str(self._node.port)])
        eventually(lambda: answers(self._node), 30, "a store that answers")

    def stop(self) -> None:
        self._node.stop()

    def fall_behind(self) -> None:
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._folder / "appendonlydir", copy)

    def fail(self) -> None:
        self._node.stop()
        shutil.rmtree(self._folder / "appendonlydir")
        shutil.copytree(self._folder / "copy", self._folder / "appendonlydir")
        self._run()

    def restart(self) -> None:
        """Crashes and restarts with all its data."""
        self._node.stop()
        self._run()

    def mend(self) -> None:
        """Does nothing: there is nothing to repair."""


class Promoted:
    """A primary and two replicas behind one address; the lagging replica is promoted."""

    def __init__(self, folder: Path) -> None:
        lines = [
            f"requirepass {PASSWORD}",
            f"masterauth {PASSWORD}",
            'save ""',
            "repl-diskless-sync-delay 0",
            "repl-ping-replica-period 1",
        ]
        binary = program("redis-server")
        self.primary, self.close, self.behind = (Node(binary, folder / f"n{n}", lines) for n in range(3))

    def start(self) -> str:
        self._begin()
        self._way = Address(self.primary.port)
        return f"redis://:{PASSWORD}@127.0.0.1:{self._way.port}/0"

    def _begin(self) -> None:
        self.primary.start(["--port", str(self.primary.port)])
        for node in (self.close, self.behind):
            self._follow(node)
        eventually(self._in_step, 30, "two replicas in step")

    def _follow(self, node: Node) -> None:
        # A Sentinel makes a server rewrite its configuration file, with the password that fall_behind broke.
        more = ["--masterauth", PASSWORD, "--replicaof", f"127.0.0.1 {self.primary.port}"]
        node.start(["--port", str(node.port), *more])

    def _in_step(self) -> bool:
        return all(self.link(node) == "up" for node in (self.close, self.behind))

    def link(self, node: Node) -> str:
        try:
            found: Any = client_of(node).info("replication")
        except redis.RedisError:
            return "down"
        follows = found.get("master_port") == self.primary.port
        return str(found.get("master_link_status", "down")) if follows else "down"

    def stop(self) -> None:
        self._way.close()
        for node in (self.primary, self.close, self.behind):
            node.stop()

    def fall_behind(self) -> None:
        """Stops replication to one replica; the other one keeps up."""
        client_of(self.behind).config_set("masterauth", "wrong")
        self.cut()
        eventually(lambda: self.link(self.behind) == "down", description="a replica that gets nothing")
        eventually(lambda: self.link(self.close) == "up", description="a replica that keeps up")

    def cut(self) -> None:
        kill: Any = client_of(self.primary).client_kill_filter
        kill(_type="replica")

    def no_replica(self) -> None:
        """Stops replication to both replicas."""
        for node in (self.close, self.behind):
            client_of(node).config_set("masterauth", "wrong")
        self.cut()
        eventually(lambda: self.link(self.close) == self.link(self.behind) == "down")

    def replicas_again(self) -> None:
        for node in (self.close, self.behind):
            client_of(node).config_set("masterauth", PASSWORD)

    def fail(self) -> None:
        self.primary.stop()
        self.take_over()
        self.primary, self.close, self.behind = self.behind, self.close, self.primary

    def take_over(self) -> None:
        client_of(self.behind).replicaof("NO", "ONE")
        self._way.leads_to(self.behind.port)
        client_of(self.close).replicaof("127.0.0.1", self.behind.port)

    def mend(self) -> None:
        """Restarts the dead server as a replica and waits until all are in sync."""
        client_of(self.primary).config_set("masterauth", PASSWORD)
        self._follow(self.behind)
        eventually(self._in_step, 30, "two replicas in step")


class Watched(Promoted):
    """The same with a Sentinel, which may promote only the lagging replica."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        lines = [
            f"sentinel monitor {NAME} 127.0.0.1 {self.primary.port} 1",
            f"sentinel auth-pass {NAME} {PASSWORD}",
            f"sentinel down-after-milliseconds {NAME} 700",
            f"sentinel failover-timeout {NAME} 2000",
        ]
        self._sentinel = Node(program("redis-sentinel"), folder / "sentinel", lines, sentinel=True)

    def start(self) -> str:
        self._begin()
        self._sentinel.start(["--port", str(self._sentinel.port)])
        eventually(self._knows_both, 30, "a Sentinel that knows both replicas")
        return f"redis+sentinel://:{PASSWORD}@127.0.0.1:{self._sentinel.port}/{NAME}/0"

    def _ask(self, *words: str) -> Any:
        with redis.Redis(port=self._sentinel.port) as sentinel:
            return sentinel.execute_command("SENTINEL", *words)

    def _knows_both(self) -> bool:
        try:
            known = self._ask("REPLICAS", NAME)
        except redis.RedisError:
            return False
        return sum(each[b"flags"] == b"slave" for each in known) == 2

    def stop(self) -> None:
        self._sentinel.stop()
        for node in (self.primary, self.close, self.behind):
            node.stop()

    def fall_behind(self) -> None:
        client_of(self.close).config_set("replica-priority", 0)
        client_of(self.behind).config_set("replica-priority", 100)
        super().fall_behind()

    def take_over(self) -> None:
        def chosen() -> bool:
            return int(self._ask("GET-MASTER-ADDR-BY-NAME", NAME)[1]) == self.behind.port

        eventually(chosen, 60, "a Sentinel that has chosen")

    def mend(self) -> None:
        super().mend()
        eventually(self._knows_both, 60, "a Sentinel that knows both replicas")


KINDS = {"promotion": Promoted, "sentinel": Watched, "old file": OldFile}

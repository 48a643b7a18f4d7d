"""A primary, a replica and three Sentinels on this machine, with passwords, and with TLS if asked for."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import redis

from tests.system import program
from tests.waiting import eventually
from worker.local.parent_guard import death_signal
from worker.local.valkey import free_port, valkey_binary

NAME = "shop"
DATA = ("worker", "p@ss/w:rd+1")
WATCH = ("watch", "an+other/pass")


def redis_server() -> str:
    """The system's own Redis."""
    return program("redis-server")


def embedded_server() -> str:
    return str(valkey_binary())


class Node:
    """One server, of data or a Sentinel."""

    def __init__(self, binary: str, folder: Path, lines: list[str], *, sentinel: bool = False) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        self._folder, self._sentinel, self._binary = folder, sentinel, binary
        (folder / "conf").write_text("\n".join([*lines, f"dir {folder}", "bind 127.0.0.1", ""]))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, port: list[str]) -> None:
        with (self._folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [self._binary, "conf", *port, *(["--sentinel"] if self._sentinel else [])],
                cwd=self._folder,
                stdout=output,
                stderr=output,
                preexec_fn=death_signal(),
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Replicated:
    """`url` is its REDIS_URL. TLS takes a folder with `cert.pem`, `key.pem` and `ca.pem`."""

    def __init__(self, binary: str, folder: Path, *, tls: Path | None = None) -> None:
        self._tls = tls
        names = (("tls-cert-file", "cert.pem"), ("tls-key-file", "key.pem"), ("tls-ca-cert-file", "ca.pem"))
        encrypted = [f"{name} {tls / file}" for name, file in names] if tls else []
        encrypted += ["tls-replication yes", "tls-auth-clients no"] if tls else []
        user, password = DATA
        data = [
            *encrypted,
            "appendonly yes",
            f"user {user} on >{password} ~* &* +@all",
            "user default off",
            f"masteruser {user}",
            f"masterauth {password}",
            "repl-diskless-sync-delay 0",
        ]
        self.data = [Node(binary, folder / f"data{number}", data) for number in range(2)]
        watching = [
            *encrypted,
            f"user {WATCH[0]} on >{WATCH[1]} ~* &* +@all",
            "user default off",
            f"sentinel monitor {NAME} 127.0.0.1 {self.data[0].port} 2",
            f"sentinel auth-user {NAME} {user}",
            f"sentinel auth-pass {NAME} {password}",
            f"sentinel down-after-milliseconds {NAME} 700",
            f"sentinel failover-timeout {NAME} 3000",
            f"sentinel sentinel-user {WATCH[0]}",
            f"sentinel sentinel-pass {WATCH[1]}",
        ]
        self.sentinels = [Node(binary, folder / f"s{n}", watching, sentinel=True) for n in range(3)]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.sentinels)
        scheme = "rediss+sentinel" if self._tls else "redis+sentinel"
        watch = "sentinel_username=watch&sentinel_password=an+other%2Fpass"
        return f"{scheme}://worker:p%40ss%2Fw%3Ard+1@{places}/{NAME}/3?{watch}"

    def __enter__(self) -> Replicated:
        primary, replica = self.data
        primary.start(self._port(primary))
        replica.start([*self._port(replica), "--replicaof", f"127.0.0.1 {primary.port}"])
        eventually(lambda: self._answers(lambda: self._synced(self.at(replica))), 30, "a synced replica")
        for node in self.sentinels:
            node.start(self._port(node))
        eventually(lambda: self._answers(self._watched), 30, "Sentinels that know each other")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in (*self.sentinels, *self.data):
            node.stop()

    def _port(self, node: Node) -> list[str]:
        return ["--port", "0", "--tls-port", str(node.port)] if self._tls else ["--port", str(node.port)]

    def at(self, node: Node) -> redis.Redis:
        """A plain client of one server, past everything that is to be tested."""
        user, password = DATA if node in self.data else WATCH
        more: dict[str, Any] = {"ssl": True, "ssl_cert_reqs": "none"} if self._tls else {}
        return redis.Redis(
            port=node.port, username=user, password=password, db=3 if node in self.data else 0, **more
        )

    @property
    def primary(self) -> Node:
        """The one that takes writes now."""
        return next(node for node in self.data if self._answers(partial(self._is_primary, node)))

    def demote(self) -> None:
        """Makes the other one the primary; the old one lives on as its replica."""
        old = self.primary
        self.at(self.sentinels[0]).execute_command("SENTINEL", "FAILOVER", NAME)
        eventually(lambda: self._answers(lambda: not self._is_primary(old)), 30, "a demoted primary")

    def kill(self) -> None:
        """The primary dies without a word."""
        self.primary.signal(signal.SIGKILL)

    def _is_primary(self, node: Node) -> bool:
        role: Any = self.at(node).execute_command("ROLE")
        return bool(role[0] == b"master")

    def _watched(self) -> bool:
        for node in self.sentinels:
            with self.at(node) as client:
                known: Any = client.execute_command("SENTINEL", "CKQUORUM", NAME)
                replicas: Any = client.execute_command("SENTINEL", "REPLICAS", NAME)
                if b"3 usable" not in known or len(replicas) != 1:
                    return False
        return True

    @staticmethod
    def _synced(client: redis.Redis) -> bool:
        return client.info("replication")["master_link_status"] == "up"

    @staticmethod
    def _answers(ask: Callable[[], bool]) -> bool:
        try:
            return ask()
        except redis.RedisError:
            return False

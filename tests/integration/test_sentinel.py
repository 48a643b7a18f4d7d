"""A store behind Sentinels: every client follows the new primary automatically."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from cryptography.hazmat.primitives import serialization

from tests.integration.test_store import certificate, pem
from tests.replicated import NAME, Replicated, embedded_server, redis_server
from tests.waiting import eventually
from worker.cli.doctor import doctor
from worker.cli.doctor_results import CheckResult
from worker.core.settings import Settings
from worker.engine.watch import Watcher
from worker.queue.rq import QueueWorker, RunQueue
from worker.store.client import connect, connect_blocking, unavailable


def encryption(folder: Path) -> Path:
    """A certificate authority and a certificate for this machine's address signed by it."""
    authority = certificate("authority")
    cert, key = certificate("store", host="127.0.0.1", signer=authority)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_text(pem(authority[0]))
    (folder / "cert.pem").write_text(pem(cert))
    (folder / "key.pem").write_bytes(private)
    return folder


@pytest.fixture(name="watched", params=["embedded Valkey", "Redis of the system", "Redis with TLS"])
def _watched(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicated]:
    binary = embedded_server() if request.param == "embedded Valkey" else redis_server()
    tls = encryption(tmp_path) if request.param == "Redis with TLS" else None
    with Replicated(binary, tmp_path / "nodes", tls=tls) as watched:
        yield watched


def settings_for(watched: Replicated, tmp_path: Path) -> Settings:
    authority = {"REDIS_TLS_CA": str(tmp_path / "ca.pem")} if (tmp_path / "ca.pem").exists() else {}
    return Settings.load({"REDIS_URL": watched.url, **authority})


def survives(act: Callable[[], object]) -> bool:
    """Whether the call succeeded; any error not marked retryable fails the test."""
    try:
        act()
    except redis.RedisError as error:
        assert unavailable(error) is not None, error
        return False
    return True


class NotificationCounter:
    """Counts a watcher's notifications on one channel."""

    def __init__(self, watcher: Watcher, channel: str) -> None:
        self.count = 0
        self._watch = watcher.watch(channel)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self._watch:
            while True:
                self.count += self._watch.wait(1.0)


@pytest.mark.parametrize("how", ["killed", "demoted", "frozen"])
def test_clients_follow_the_new_primary(watched: Replicated, tmp_path: Path, how: str) -> None:
    """Commands, scripts, RQ and subscriptions continue on the new primary, with existing clients."""
    settings = settings_for(watched, tmp_path)
    client = connect(settings, role="web")
    script = client.register_script("return redis.call('INCR', KEYS[1])")
    queue, waiting = RunQueue(client), connect_blocking(settings, role="queue", wait=30.0)
    ran: list[str] = []
    worker = QueueWorker(waiting, name="w1", run=ran.append, sign=lambda: None)
    watcher = Watcher(connect_blocking(settings, role="web", wait=30.0))
    heard = NotificationCounter(watcher, "news")
    script(keys=["n"])
    queue.push("before")
    worker.work(burst=True)
    eventually(lambda: client.publish("news", "x") and heard.count)
    assert ran == ["before"] and client.connection_pool.connection_kwargs["db"] == 3
    old = watched.primary

    if how == "demoted":
        watched.demote()
    else:
        old.signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    eventually(lambda: survives(lambda: script(keys=["m"])), 60, "a script at the new primary")
    if how == "frozen":
        old.signal(signal.SIGCONT)

    (new,) = (node for node in watched.data if node is not old)
    assert watched.at(new).get("m") is not None
    began = time.monotonic()
    queue.push("after")
    eventually(lambda: survives(lambda: worker.work(burst=True)) and ran == ["before", "after"], 30, "RQ")
    count_before = heard.count
    eventually(lambda: client.publish("news", "x") and heard.count > count_before + 1, 30, "the subscription")
    assert time.monotonic() - began < 45
    assert all(survives(lambda: script(keys=["n"])) for _ in range(50)), "no connection stayed behind"


def test_unreachable_sentinel_only_costs_time(watched: Replicated, tmp_path: Path) -> None:
    """The first Sentinel that answers is believed, and asked first from then on."""
    watched.sentinels[0].signal(signal.SIGSTOP)
    client = connect(settings_for(watched, tmp_path), role="cli")
    assert client.set("a", 1)
    client.connection_pool.disconnect()
    began = time.monotonic()
    assert client.get("a") == b"1"
    assert time.monotonic() - began < 1.0
    watched.sentinels[0].signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("part", "instead", "error"),
    [
        ("sentinel_password=an", "sentinel_password=no", redis.AuthenticationError),
        (":p%40ss", ":no", redis.AuthenticationError),
        (f"/{NAME}/", "/other/", redis.ConnectionError),
    ],
)
def test_wrong_password_or_name_is_refused(
    tmp_path: Path, part: str, instead: str, error: type[Exception]
) -> None:
    """Either wrong password and an unknown name are refused immediately, as an unreachable store."""
    with Replicated(embedded_server(), tmp_path / "nodes") as watched:
        assert part in watched.url
        settings = Settings.load({"REDIS_URL": watched.url.replace(part, instead)})
        began = time.monotonic()
        with pytest.raises(error) as caught:
            connect(settings, role="cli").ping()
        assert time.monotonic() - began < 3 and unavailable(caught.value) is not None


def test_doctor_checks_the_sentinels(tmp_path: Path) -> None:
    """It reports the primary and any silent Sentinel, and prints no password."""
    with Replicated(embedded_server(), tmp_path / "nodes") as watched:
        settings = Settings.load({"REDIS_URL": watched.url})

        def found() -> CheckResult:
            return next(each for each in doctor(settings) if each.name == "sentinels")

        assert (found().level, found().found) == ("ok", f"3 of 3 name 127.0.0.1:{watched.primary.port}")
        shape = next(each for each in doctor(settings) if each.name == "shape")
        assert shape.level == "ok"
        watched.sentinels[1].stop()
        assert found().level == "warn" and f"{watched.sentinels[1].port} cannot be reached" in found().found
        shown = " ".join(each.found for each in doctor(settings))
        assert "pass" not in shown and f"127.0.0.1:{watched.sentinels[0].port}" in shown
        other = Settings.load({"REDIS_URL": watched.url.replace(f"/{NAME}/", "/other/")})
        levels = {each.name: each.level for each in doctor(other)}
        assert (levels["sentinels"], levels["store"]) == ("wrong", "unreachable")


def test_passwords_are_redacted_from_logs(tmp_path: Path) -> None:
    """Both passwords of the URL are in the log redaction list."""
    watched = Replicated(embedded_server(), tmp_path / "nodes")
    assert {"p@ss/w:rd+1", "an+other/pass"} <= set(Settings.load({"REDIS_URL": watched.url}).secrets())
    assert "pass" not in repr(Settings.load({"REDIS_URL": watched.url}))

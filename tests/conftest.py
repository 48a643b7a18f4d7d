"""Shared fixtures: a real Valkey and a clean store in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import py_ecc  # noqa: F401 - see below
import pytest
import redis
import structlog

from tests.declared_store import undeclared
from tests.engine import Engine
from worker.core.settings import Settings
from worker.engine import watch
from worker.engine.watch import Watcher
from worker.files.store import DiskFiles
from worker.local.valkey import EmbeddedStore
from worker.payments.kept_links import KeptLinks
from worker.store import outage
from worker.store.client import connect, connect_blocking
from worker.store.request_counts import RequestCounts

# Importing the EVM libraries raises the interpreter's recursion limit for the whole process. It is done
# once, here, and undone, so that the order of the tests does not decide what they see.
sys.setrecursionlimit(1000)


@pytest.fixture(scope="session", autouse=True)
def _plain_tracebacks() -> None:
    """Before logs are configured, structlog draws tracebacks with all variables, which takes seconds."""
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, renderer])


@pytest.fixture(scope="session", autouse=True)
def _requests_are_counted_when_asked() -> Iterator[None]:
    """By /metrics: each second, an application that outlives its test would count in another test's store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestCounts, "_loop", lambda counts: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _lost_subscriptions_are_not_logged() -> Iterator[None]:
    """Each half second, an application that outlives its test would write into another test's output."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            watch, "note", lambda error, where: outage.is_outage(error) or outage.note(error, where)
        )
        yield


@pytest.fixture(scope="session", name="kept_links")
def _kept_links() -> Iterator[WeakSet[KeptLinks]]:
    """Those of all facilitators' clients: an application has them for as long as its process lives."""
    made: WeakSet[KeptLinks] = WeakSet()
    begin = KeptLinks.__init__

    def remembered(links: KeptLinks, *args: Any, **options: Any) -> None:
        begin(links, *args, **options)
        made.add(links)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptLinks, "__init__", remembered)
        yield made


@pytest.fixture(autouse=True)
def _links_are_closed(kept_links: WeakSet[KeptLinks]) -> Iterator[None]:
    """Else the sockets of an application that a test leaves behind are closed only as garbage."""
    yield
    for links in list(kept_links):
        links.close()


@pytest.fixture(autouse=True)
def _bugs_are_counted_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a test composes a worker: another test's store, gone by now, would hold up whoever counts."""
    monkeypatch.setattr(outage._bugs, "count", lambda where: None)
    monkeypatch.setattr(outage._bugs, "add", lambda sample: None)


@pytest.fixture(scope="session", name="valkey")
def _valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path_factory.mktemp("valkey"))
    store.start()
    yield store
    store.stop()


@pytest.fixture(name="client")
def _client(valkey: EmbeddedStore) -> Iterator[redis.Redis]:
    """A connection to an empty store; whatever a test leaves in it must be in the data model."""
    client = redis.Redis.from_url(valkey.url)
    client.flushall()
    yield client
    assert undeclared(client) == []
    client.close()


@pytest.fixture(name="state_dir")
def _state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(name="engine")
def _engine(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> Iterator[Engine]:
    """The engine on an empty store, connected as a web process is, with files of its own."""
    settings = Settings(redis_url=valkey.url, worker_env="test")
    own = connect(settings, role="web")
    waiting = connect_blocking(settings, role="web", wait=30.0)
    engine = Engine(own, DiskFiles(tmp_path / "files"), watcher=Watcher(waiting))
    yield engine
    for close in (*engine.closing, own.close):
        close()

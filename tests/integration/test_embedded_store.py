"""The embedded Valkey process: it restarts with its data and never outlives its parent."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.store_crash import answers, crash
from tests.waiting import eventually
from worker.core.settings import BadStart, Settings
from worker.local import valkey
from worker.local.parent_guard import PipeGuard, death_signal
from worker.local.valkey import EmbeddedStore, EmbeddedStoreFailed
from worker.store.client import connect

ROOT = Path(__file__).parents[2]

PARENT = """
import sys, time
from worker.local.valkey import EmbeddedStore
store = EmbeddedStore(sys.argv[1])
print(store.start(), store.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_starts_with_durable_settings(store: EmbeddedStore) -> None:
    """It listens on an address that settings accept, writes before it answers, and evicts nothing."""
    assert Settings.load({"REDIS_URL": store.url}).redis_url == store.url
    link = client(store.url)
    modes = {
        name: link.config_get(name)[name]
        for name in ("appendonly", "appendfsync", "maxmemory-policy", "save")
    }
    assert modes == {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
    }


@pytest.mark.parametrize("set_by_operator", ["", "glibc.malloc.tcache_count=9"])
def test_keeps_freed_memory_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_operator: str
) -> None:
    """The setting of glibc's allocator, unless the operator has another."""
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if set_by_operator:
        monkeypatch.setenv("GLIBC_TUNABLES", set_by_operator)
    with EmbeddedStore(tmp_path) as store:
        environ = psutil.Process(store.pid).environ()
    assert environ["GLIBC_TUNABLES"] == (set_by_operator or valkey.ALLOCATOR)


def test_keeps_data_as_compactly_as_operators_are_told_to(store: EmbeddedStore) -> None:
    """The settings that docs/operators.md recommends for other stores."""
    told = dict(
        re.findall(r"^((?:hash|list)-\S+) (\d+)$", (ROOT / "docs/operators.md").read_text(), re.MULTILINE)
    )
    assert len(told) == 3
    assert {name: client(store.url).config_get(name)[name] for name in told} == told


def test_listens_on_loopback_with_a_password(store: EmbeddedStore) -> None:
    """It listens on loopback and rejects clients without the password."""
    assert client(store.url).config_get("bind") == {"bind": "127.0.0.1"}
    without = "redis://" + store.url.partition("@")[2]
    with pytest.raises(redis.AuthenticationError):
        client(without).get("a")


@pytest.fixture(name="short")
def _short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_listens_on_a_socket_of_this_user(short: Path) -> None:
    """It has the same password as the port, and works again after a kill."""
    with EmbeddedStore(short) as store:
        assert Settings.load({"REDIS_URL": store.socket_url}).redis_url == store.socket_url
        client(store.url).set("a", 1)
        assert client(store.socket_url).get("a") == b"1"
        assert stat.S_IMODE((short / "store" / "socket").stat().st_mode) == 0o700
        with pytest.raises(redis.AuthenticationError):
            client("unix://" + store.socket_url.partition("@")[2]).get("a")
        crash(store)
        assert client(store.socket_url).get("a") == b"1"


@pytest.mark.parametrize("name", ["a b@c?d%20é", "n" * 120])
def test_any_directory_has_a_socket_or_the_port(short: Path, name: str) -> None:
    """Its path may have any characters, and where it is too long for a socket, there is the port."""
    with EmbeddedStore(short / name) as store:
        assert client(store.socket_url).ping() and connect_to(store.socket_url).ping()
        assert (store.socket_url == store.url) == (len(name) > 100)


def connect_to(url: str) -> redis.Redis:
    return connect(Settings.load({"REDIS_URL": url}), role="cli")


def test_files_on_disk_are_private(store: EmbeddedStore, tmp_path: Path) -> None:
    """Only this user can read data and password, and no process argument shows the password."""
    password = store.url.partition("://:")[2].partition("@")[0]
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "store" / "valkey.conf").stat().st_mode) == 0o600
    assert store.pid is not None
    assert password not in " ".join(psutil.Process(store.pid).cmdline())


def test_restarts_with_its_data_after_a_kill(store: EmbeddedStore) -> None:
    """After kill -9 the same address serves everything acknowledged, each time."""
    url = store.url
    for round_number in range(3):
        client(url).rpush("log", round_number)
        crash(store)
    assert client(url).lrange("log", 0, -1) == [b"0", b"1", b"2"]
    assert store.url == url


def test_acknowledged_writes_survive_a_kill(store: EmbeddedStore) -> None:
    """A writer counts acknowledged commands; after a kill the store has at least as many."""
    acknowledged, stop = [0], threading.Event()
    link = connect_to(store.url)

    def write() -> None:
        # A kill between two commands only causes a reconnect, and no caller sees an error.
        with contextlib.suppress(redis.ConnectionError):
            while not stop.is_set():
                link.incr("n")
                acknowledged[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: acknowledged[0] > 200)
    crash(store)
    stop.set()
    writer.join()
    stored = int(client(store.url).get("n") or 0)
    assert acknowledged[0] <= stored <= acknowledged[0] + 1


def test_stop_and_start_keep_the_data(tmp_path: Path) -> None:
    """After stop nothing runs; stop may be repeated; the next start has the data."""
    store = EmbeddedStore(tmp_path)
    store.stop()
    client(store.start()).set("a", 1)
    first = store.pid
    assert first is not None
    store.stop()
    store.stop()
    assert gone(first) and store.pid is None
    with EmbeddedStore(tmp_path) as again:
        assert client(again.url).get("a") == b"1"


def test_stop_during_a_crash_stays_stopped(tmp_path: Path) -> None:
    """A server killed and stopped at the same time does not restart."""
    store = EmbeddedStore(tmp_path)
    store.start()
    for _ in range(3):
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        store.stop()
        assert store.pid is None
        store.start()
    store.stop()


def test_second_start_on_a_directory_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    """The error names the holder immediately, and the first server is undisturbed."""
    client(store.url).set("a", 1)
    began = time.monotonic()
    with pytest.raises(BadStart) as caught:
        EmbeddedStore(tmp_path).start()
    assert time.monotonic() - began < 1
    (problem,) = caught.value.problems
    assert problem.name == "WORKER_STATE_DIR" and str(os.getpid()) in problem.expected
    assert problem.found == str(tmp_path)
    assert client(store.url).get("a") == b"1"


def test_concurrent_starts_leave_one_server(tmp_path: Path) -> None:
    """Concurrent starts on one directory end with one server."""
    stores = [EmbeddedStore(tmp_path) for _ in range(5)]
    won: list[EmbeddedStore] = []

    def start(store: EmbeddedStore) -> None:
        try:
            store.start()
            won.append(store)
        except BadStart:
            pass

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].stop()


def test_two_directories_are_two_stores(tmp_path: Path) -> None:
    """Workers on two state directories have two stores."""
    with EmbeddedStore(tmp_path / "a") as one, EmbeddedStore(tmp_path / "b") as two:
        client(one.url).set("k", 1)
        assert client(two.url).get("k") is None


def parent_of(folder: Path) -> tuple[subprocess.Popen[str], str, int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as said:
        url, pid = said.readline().split()
    return parent, url, int(pid)


def test_server_ends_with_its_killed_parent(tmp_path: Path) -> None:
    """When the worker is killed with -9 the server ends too, and the next start has its data at once."""
    parent, url, pid = parent_of(tmp_path)
    client(url).set("a", 1)
    parent.kill()
    parent.wait()
    with EmbeddedStore(tmp_path) as store:
        assert client(store.url).get("a") == b"1"
        eventually(lambda: gone(pid))
        assert store.pid != pid


def test_start_waits_for_a_lingering_server(tmp_path: Path) -> None:
    """While a dead parent's server still holds the data, no second server opens it."""
    parent, url, pid = parent_of(tmp_path)
    client(url).set("a", 1)
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    threading.Timer(0.7, os.kill, (pid, signal.SIGCONT)).start()
    with EmbeddedStore(tmp_path) as store:
        assert gone(pid)
        assert client(store.url).get("a") == b"1"


def test_start_from_another_process_is_refused(tmp_path: Path) -> None:
    """The error names the process that holds the directory, also across processes."""
    parent, _, _ = parent_of(tmp_path)
    try:
        with pytest.raises(BadStart) as caught:
            EmbeddedStore(tmp_path).start()
        assert str(parent.pid) in str(caught.value)
    finally:
        parent.terminate()
        parent.wait()


def test_server_ignores_the_terminals_interrupt(tmp_path: Path) -> None:
    """Ctrl-C reaches the worker's process group but not the store, which the shutdown still needs."""
    parent, url, pid = parent_of(tmp_path)
    try:
        assert os.getpgid(pid) != os.getpgid(parent.pid)
    finally:
        parent.kill()
        parent.wait()


def test_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The server lives as long as the process, not as the thread that started it."""
    store = EmbeddedStore(tmp_path)
    thread = threading.Thread(target=store.start)
    thread.start()
    thread.join()
    first = store.pid
    time.sleep(0.3)
    assert first is not None and store.pid == first and answers(store.url)
    store.stop()


def test_failed_start_is_reported(tmp_path: Path) -> None:
    """Corrupt data is not deleted: the start fails and names the log."""
    with EmbeddedStore(tmp_path) as store:
        client(store.url).set("a", 1)
    for manifest in (tmp_path / "store").rglob("*.manifest"):
        manifest.write_text("nonsense\n")
    broken = EmbeddedStore(tmp_path)
    with pytest.raises(EmbeddedStoreFailed, match="log"):
        broken.start()
    assert broken.pid is None
    assert (tmp_path / "store" / "log").read_text()
    assert list((tmp_path / "store").rglob("*.aof"))


def test_taken_port_is_skipped(tmp_path: Path) -> None:
    """A port taken between choosing and listening costs one more try."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        offered = [squatter.getsockname()[1], valkey.free_port(), valkey.free_port()]
        with EmbeddedStore(tmp_path, choose_port=lambda: offered.pop(0)) as store:
            assert answers(store.url)
            assert f":{squatter.getsockname()[1]}/" not in store.url


def test_port_is_below_the_ephemeral_range() -> None:
    """The port is below the ephemeral range, so that a restart finds it free."""
    assert valkey.free_port() in valkey.PORTS
    if sys.platform.startswith("linux"):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert valkey.PORTS.stop <= low


def test_shell_guard_ends_the_child_without_its_parent() -> None:
    """Without Linux's parent-death signal, a shell notices the parent's death and ends the child."""
    child = subprocess.Popen(["sleep", "60"])
    code = (
        f"from worker.local.parent_guard import PipeGuard; import os; g = PipeGuard({child.pid}); os._exit(0)"
    )
    try:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=20)
        assert child.wait(timeout=5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_dismissed_guard_signals_nothing() -> None:
    """After dismissal the pid may belong to another process, so nothing is signalled."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        PipeGuard(child.pid).dismiss()
        time.sleep(0.2)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a signal that only Linux has")
def test_parent_death_signal_ends_the_child() -> None:
    """A child started with it ends when its parent is killed."""
    code = """
import subprocess, time
from worker.local.parent_guard import death_signal
child = subprocess.Popen(["sleep", "60"], preexec_fn=death_signal())
print(child.pid, flush=True)
time.sleep(60)
"""
    assert death_signal() is not None
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as said:
        pid = int(said.readline())
    parent.kill()
    parent.wait()
    eventually(lambda: gone(pid))

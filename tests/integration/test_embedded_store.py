"""The embedded Valkey as a process: it comes back with its data, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.waiting import eventually
from worker.local import valkey
from worker.local.lifeline import PipeGuard, death_signal
from worker.local.valkey import EmbeddedStore, EmbeddedStoreFailed
from worker.settings import BadStart, Settings
from worker.store import connect

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


def answers(url: str) -> bool:
    try:
        return bool(client(url).ping())
    except redis.RedisError:
        return False


def test_it_starts_at_once_and_keeps_everything(store: EmbeddedStore) -> None:
    """It answers under an address that settings accept, writes before it answers, and evicts nothing."""
    assert Settings.load({"REDIS_URL": store.url}).redis_url == store.url
    link = client(store.url)
    told = {
        name: link.config_get(name)[name]
        for name in ("appendonly", "appendfsync", "maxmemory-policy", "save")
    }
    assert told == {
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
    }


def test_only_this_machine_and_only_with_the_password(store: EmbeddedStore) -> None:
    """It listens on loopback, and who has no password learns nothing."""
    assert client(store.url).config_get("bind") == {"bind": "127.0.0.1"}
    without = "redis://" + store.url.partition("@")[2]
    with pytest.raises(redis.AuthenticationError):
        client(without).get("a")


def test_what_lies_on_the_disk_is_private(store: EmbeddedStore, tmp_path: Path) -> None:
    """The data and the password are for this user's eyes only, and no argument of the process shows it."""
    password = store.url.partition("://:")[2].partition("@")[0]
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "store" / "valkey.conf").stat().st_mode) == 0o600
    assert store.pid is not None
    assert password not in " ".join(psutil.Process(store.pid).cmdline())


def test_killed_it_is_back_with_its_data(store: EmbeddedStore) -> None:
    """After kill -9 the same address serves everything that was acknowledged, time after time."""
    url = store.url
    for round_number in range(3):
        client(url).rpush("log", round_number)
        victim = store.pid
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        eventually(lambda killed=victim: store.pid not in {None, killed} and answers(url))
    assert client(url).lrange("log", 0, -1) == [b"0", b"1", b"2"]
    assert store.url == url


def test_nothing_acknowledged_is_lost(store: EmbeddedStore) -> None:
    """A writer counts its answered commands; after a kill in the middle the store has at least as many."""
    acknowledged = [0]
    link = connect(Settings.load({"REDIS_URL": store.url}), role="cli")

    def write() -> None:
        try:
            while True:
                link.incr("n")
                acknowledged[0] += 1
        except redis.RedisError:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: acknowledged[0] > 200)
    assert store.pid is not None
    os.kill(store.pid, signal.SIGKILL)
    writer.join()
    eventually(lambda: answers(store.url))
    kept = int(client(store.url).get("n") or 0)
    assert acknowledged[0] <= kept <= acknowledged[0] + 1


def test_a_stop_is_an_end_and_a_start_goes_on(tmp_path: Path) -> None:
    """After stop nothing runs, stop may be repeated, and the next start has the data."""
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


def test_a_stop_while_it_dies_is_still_an_end(tmp_path: Path) -> None:
    """Killed and stopped at the same time, it does not come back."""
    store = EmbeddedStore(tmp_path)
    store.start()
    for _ in range(3):
        assert store.pid is not None
        os.kill(store.pid, signal.SIGKILL)
        store.stop()
        assert store.pid is None
        store.start()
    store.stop()


def test_a_second_start_on_the_same_directory_is_refused(store: EmbeddedStore, tmp_path: Path) -> None:
    """It is told at once who is there, and the first one is not disturbed."""
    client(store.url).set("a", 1)
    began = time.monotonic()
    with pytest.raises(BadStart) as caught:
        EmbeddedStore(tmp_path).start()
    assert time.monotonic() - began < 1
    (problem,) = caught.value.problems
    assert problem.name == "WORKER_STATE_DIR" and str(os.getpid()) in problem.expected
    assert problem.found == str(tmp_path)
    assert client(store.url).get("a") == b"1"


def test_of_many_starts_one_wins(tmp_path: Path) -> None:
    """Starts that race for a directory end with one server."""
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


def test_two_directories_do_not_meet(tmp_path: Path) -> None:
    """Workers on two state directories have two stores."""
    with EmbeddedStore(tmp_path / "a") as one, EmbeddedStore(tmp_path / "b") as two:
        client(one.url).set("k", 1)
        assert client(two.url).get("k") is None


def parent_of(folder: Path) -> tuple[subprocess.Popen[str], str, int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    url, pid = parent.stdout.readline().split()
    return parent, url, int(pid)


def test_a_killed_parent_takes_the_server_along(tmp_path: Path) -> None:
    """When the worker is killed with -9 the server ends too, and the next start has its data at once."""
    parent, url, pid = parent_of(tmp_path)
    client(url).set("a", 1)
    parent.kill()
    parent.wait()
    with EmbeddedStore(tmp_path) as store:
        assert client(store.url).get("a") == b"1"
        eventually(lambda: gone(pid))
        assert store.pid != pid


def test_a_server_that_lingers_is_waited_for(tmp_path: Path) -> None:
    """While a dead parent's server still holds the data, no second server touches it."""
    parent, url, pid = parent_of(tmp_path)
    client(url).set("a", 1)
    os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    threading.Timer(0.7, os.kill, (pid, signal.SIGCONT)).start()
    with EmbeddedStore(tmp_path) as store:
        assert gone(pid)
        assert client(store.url).get("a") == b"1"


def test_another_process_cannot_start_on_it(tmp_path: Path) -> None:
    """The refusal names the process that holds the directory, also across processes."""
    parent, _, _ = parent_of(tmp_path)
    try:
        with pytest.raises(BadStart) as caught:
            EmbeddedStore(tmp_path).start()
        assert str(parent.pid) in str(caught.value)
    finally:
        parent.terminate()
        parent.wait()


def test_ctrl_c_is_the_workers_business(tmp_path: Path) -> None:
    """The terminal's interrupt reaches the worker's group, not the store that its shutdown still needs."""
    parent, url, pid = parent_of(tmp_path)
    try:
        assert os.getpgid(pid) != os.getpgid(parent.pid)
    finally:
        parent.kill()
        parent.wait()


def test_started_from_a_thread_that_ends(tmp_path: Path) -> None:
    """The server lives as long as the process, not as the thread that asked for it."""
    store = EmbeddedStore(tmp_path)
    thread = threading.Thread(target=store.start)
    thread.start()
    thread.join()
    first = store.pid
    time.sleep(0.3)
    assert first is not None and store.pid == first and answers(store.url)
    store.stop()


def test_a_server_that_cannot_start_is_reported(tmp_path: Path) -> None:
    """Broken data is not deleted: the start fails and names the log."""
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


def test_a_taken_port_is_passed_over(tmp_path: Path) -> None:
    """A port that somebody took between choosing and listening costs one more try."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        offered = [squatter.getsockname()[1], valkey.free_port(), valkey.free_port()]
        with EmbeddedStore(tmp_path, choose_port=lambda: offered.pop(0)) as store:
            assert answers(store.url)
            assert f":{squatter.getsockname()[1]}/" not in store.url


def test_ports_are_out_of_the_systems_way() -> None:
    """The port is below those that outgoing connections get, so that a restart finds it free."""
    assert valkey.free_port() in valkey.PORTS
    if sys.platform.startswith("linux"):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert valkey.PORTS.stop <= low


def test_the_fallback_ends_a_child_when_nobody_holds_the_pipe() -> None:
    """Where Linux's signal does not exist, a shell notices the parent's death and ends the child."""
    child = subprocess.Popen(["sleep", "60"])
    code = f"from worker.local.lifeline import PipeGuard; import os; g = PipeGuard({child.pid}); os._exit(0)"
    try:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=20)
        assert child.wait(timeout=5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_a_dismissed_guard_hurts_nobody() -> None:
    """After dismissal the number may be another process's, and nothing is sent to it."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        PipeGuard(child.pid).dismiss()
        time.sleep(0.2)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a signal that only Linux has")
def test_the_signal_is_tied_to_the_parent() -> None:
    """A child started with it ends when its parent is killed."""
    code = """
import subprocess, time
from worker.local.lifeline import death_signal
child = subprocess.Popen(["sleep", "60"], preexec_fn=death_signal())
print(child.pid, flush=True)
time.sleep(60)
"""
    assert death_signal() is not None
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    eventually(lambda: gone(pid))

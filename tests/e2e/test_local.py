"""`worker local`: its process tree starts, recovers and stops as one."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from eth_account import Account

from tests.e2e.conftest import Measure
from tests.e2e.tree import Local, gone, kill
from tests.waiting import eventually
from worker.core.settings import Settings
from worker.local.chain import ETHER, LocalChain
from worker.local.facilitator import LocalFacilitator
from worker.local.httpd import JsonServer, as_json
from worker.local.tree import _ready

Make = Callable[..., Local]
# Fields that other programs rely on; the chain's fields are added with the chain.
NAMES = {"url", "redis", "network", "worker_wallet", "worker_agent_id", "kernel_token", "swarm"}


def _named(local: Local, word: str) -> list[psutil.Process]:
    """Processes of the tree whose command line contains this word, parents first."""
    found: list[tuple[psutil.Process, int]] = []
    for process in local.members():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append((process, process.ppid()))
    pids = {process.pid for process, _ in found}
    return [process for process, parent in sorted(found, key=lambda each: each[1] in pids)]


def _computed(local: Local) -> float:
    """Seconds of CPU time used by the tree so far."""
    total = 0.0
    for process in local.members():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _answers(local: Local, path: str = "/health") -> bool:
    try:
        return local.request("GET", path).status == 200
    except OSError:
        return False


def test_local_json_has_its_published_fields(local: Local) -> None:
    """The published fields are present, their values work, and only the owner can read the file."""
    facts = local.facts
    assert facts.keys() >= NAMES
    assert facts["url"] == f"http://127.0.0.1:{local.port}"
    assert re.fullmatch(r"redis://:\w{32,}@127\.0\.0\.1:\d+/0", facts["redis"])
    assert facts["network"] == "eip155:84532"
    assert re.fullmatch(r"0x[0-9a-fA-F]{40}", facts["worker_wallet"])
    assert facts["worker_agent_id"] == "agent_worker"
    assert facts["swarm"].keys() == {"user", "password"}
    assert all(len(secret) >= 16 for secret in (facts["kernel_token"], facts["swarm"]["password"]))
    assert stat.S_IMODE(local.about.stat().st_mode) == 0o600
    assert not local.about.with_suffix(".new").exists()
    assert local.parts.client.ping()


def test_secrets_stay_out_of_the_log(local: Local) -> None:
    """No secret from local.json appears in the output."""
    facts, log = local.facts, local.log_file.read_text()
    for secret in (facts["kernel_token"], facts["swarm"]["password"], facts["redis"].split("@")[0][9:]):
        assert secret not in log


def test_ready_worker_serves_all_doors_and_lanes(local: Local) -> None:
    """Ready means all doors answer and both lanes work; only the operator gets details."""
    answer = local.request("GET", "/ready")
    assert (answer.status, answer.body["status"]) == (200, "ready")
    assert set(answer.body["checks"].values()) == {"ok"}
    assert local.request("GET", "/health").body == {"status": "ok"}
    assert local.request("GET", "/ready", headers={"Authorization": "Bearer x"}).status == 401
    for agent in ("quick", "quick-queued"):
        created = local.request("POST", "/v0/executions", {"agent_id": agent, "input": {"n": 5}})
        assert created.status == 201
        assert local.output(created.body["id"]) == {"n": 5, "attempt": 1}


def test_process_counts_follow_the_options(local: Local) -> None:
    """`--web 2 --work 2`: a gunicorn with two workers; two trees, each with a clock, two lanes and checks."""
    web, work = _named(local, "gunicorn"), _named(local, "worker work")
    assert len(web) == 1 + 2
    assert len(work) == 2 * (1 + 4)
    assert len(_named(local, "valkey-server")) == 1


def test_killed_processes_are_replaced(local: Local, measure: Measure) -> None:
    """Any killed process is replaced: web process, gunicorn master, warm process, work tree, store."""
    time.sleep(max(0.0, 1.2 - (time.time() - psutil.Process(_pid(local)).create_time())))
    for role, word, at in (
        ("web process", "gunicorn", -1),
        ("gunicorn", "gunicorn", 0),
        ("warm process", "worker work", -1),
        ("work tree", "worker work", 0),
        ("store", "valkey-server", 0),
    ):
        before = {process.pid for process in _named(local, word)}
        victim = _named(local, word)[at]
        family = {victim.pid, *(child.pid for child in victim.children())}
        killed = kill(victim.pid)

        def whole(word: str = word, family: set[int] = family, many: int = len(before)) -> bool:
            pids = {process.pid for process in _named(local, word)}
            return not family & pids and len(pids) == many and _answers(local, "/ready")

        eventually(whole, 12, f"the {role} is replaced: {before}")
        measure(f"kill -9 of {role} -> whole again", time.monotonic() - killed)
    for agent in ("quick", "quick-queued"):
        assert local.output(local.create(agent, n=6)) == {"n": 6, "attempt": 1}


def _pid(local: Local) -> int:
    assert local.program is not None
    return local.program.pid


def test_second_start_on_a_state_directory_is_refused(local: Local) -> None:
    """A second tree on a state directory is refused at once, and the first is not affected."""
    about = local.about.read_bytes()
    second = Local(local.state.parent)
    second.log_file = local.state.parent / "second.log"
    program = second.launch()
    assert program.ends(8) == 2
    assert "WORKER_STATE_DIR" in program.log
    assert f"process {_pid(local)} uses this one" in program.log
    assert "Traceback" not in program.log
    assert local.about.read_bytes() == about
    assert _answers(local, "/ready")


def test_a_taken_port_is_refused(local: Local, own: Make) -> None:
    """A port in use is named in the error, before any process is left running."""
    other = own()
    other.port = local.port
    program = other.launch()
    assert program.ends(15) == 2
    assert "PORT" in program.log and str(local.port) in program.log
    assert "Traceback" not in program.log
    assert not other.about.exists()
    assert not other.members()
    assert _answers(local, "/ready")


def test_ready_on_an_idle_chain(own: Make, tmp_path: Path) -> None:
    """A chain that mines on demand has no new blocks; the worker still becomes ready."""
    gas = Account.create()
    chain = LocalChain(tmp_path / "chain", idle_seconds=10**9, ether={gas.address: ETHER})
    with chain, LocalFacilitator(chain.url, "0x" + bytes(gas.key).hex()) as facilitator:
        local = own(FACILITATOR_URL=facilitator.url, RPC_URL=chain.url)
        for _ in range(2):  # the second time with a store that is older than its server
            local.start()
            answer = local.request("GET", "/ready")
            assert (answer.status, answer.body["checks"]["books"]) == (200, "ok")
            local.program.process.terminate()  # type: ignore[union-attr]
            assert local.program is not None and local.program.ends(40) == 0


def test_unready_message_names_the_reasons() -> None:
    """The message gives the reasons from /ready, not only the status."""
    readiness = {
        "status": "failing",
        "checks": {"store": "ok", "books": "being compared"},
        "failing": ["books"],
    }
    for body, message in ((readiness, "not ready: books: being compared"), ([], "not ready: HTTP 503")):
        server = JsonServer(lambda *_, body=body: as_json(503, body))  # type: ignore[misc]
        server.start()
        assert _ready(Settings.load({"PORT": str(server.port)})) == message
        server.close()


def test_sigterm_ends_all_processes(own: Make, measure: Measure) -> None:
    """No process is left and local.json is gone; a second start is quick and keeps its data."""
    local = own(FACILITATOR_URL="")
    cold = local.start()
    for name in ("rpc", "facilitator"):
        with socket.create_connection(("127.0.0.1", urlsplit(local.facts[name]).port), 1):
            pass  # ready means that these answer too
    members = local.members()
    assert len(members) >= 10
    id = local.create("quick", n=7)
    assert local.output(id) == {"n": 7, "attempt": 1}
    before = local.facts
    asked = local.program.signal(signal.SIGTERM)  # type: ignore[union-attr]
    assert local.program.ends(10) == 0  # type: ignore[union-attr]
    measure("SIGTERM -> worker local gone", time.monotonic() - asked)
    assert [process for process in members if not gone(process.pid)] == []
    assert local.members() == []
    assert not local.about.exists()
    warm, computed = local.start(), _computed(local)
    measure("worker local, first start", cold)
    measure("worker local, second start", warm)
    measure("worker local, second start, processor time of all its processes", computed)
    # On a shared machine elapsed time is unreliable; CPU time is the worker's own.
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert warm < 3 or (busy and computed < 5 and warm < 15)
    assert local.output(id) == {"n": 7, "attempt": 1}
    assert local.kinds(id)[-1] == "execution.completed"
    same = ("url", "worker_wallet", "kernel_token", "swarm")
    assert {name: local.facts[name] for name in same} == {name: before[name] for name in same}
    assert "Traceback" not in local.log_file.read_text()


def test_open_stream_does_not_delay_shutdown(own: Make, measure: Measure) -> None:
    """A follower gets a clean end and can resume; idle connections are closed."""
    local = own(HANDBACK_GRACE="0")
    local.start()
    id = local.create("nap", seconds=60)
    local.began(id)
    link = http.client.HTTPConnection("127.0.0.1", local.port, timeout=15)
    token = local.facts["kernel_token"]
    link.request("GET", f"/v0/executions/{id}/stream", headers={"Authorization": f"Bearer {token}"})
    stream = link.getresponse()
    assert b"retry" in stream.readline()
    connection = http.client.HTTPConnection("127.0.0.1", local.port, timeout=15)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    silent = socket.create_connection(("127.0.0.1", local.port))
    asked = local.program.signal(signal.SIGTERM)  # type: ignore[union-attr]
    assert local.program.ends(10) == 0  # type: ignore[union-attr]
    measure("SIGTERM -> worker local gone, with a stream open", time.monotonic() - asked)
    assert time.monotonic() - asked < 8
    assert b"event: execution.started" in stream.read()
    for each in (link, connection, silent):
        each.close()


def test_worker_ends_with_its_parent(own: Make, measure: Measure) -> None:
    """kill -9 of its parent process ends the whole tree, including chain and facilitator."""
    local = own(FACILITATOR_URL="")
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    local.start(sys.executable, "-c", parent)
    members = [process.pid for process in local.members()]
    killed = kill(_pid(local))
    eventually(lambda: not local.members(), 10, f"no process is left: {members}")
    measure("kill -9 of its parent -> worker local gone", time.monotonic() - killed)
    assert local.program is not None and "local.parent_ended" in local.program.log
    assert not local.about.exists()


def test_children_end_with_the_worker(own: Make, measure: Measure) -> None:
    """kill -9 of `worker local` itself ends its children too, and a new one can start at once."""
    local = own()
    local.start()
    id = local.create("quick", n=8)
    assert local.output(id) == {"n": 8, "attempt": 1}
    old = {process.pid for process in local.members()}
    kill(_pid(local))
    local.program.ends(5)  # type: ignore[union-attr]
    measure("worker local, start right after kill -9 of the last", local.start())
    eventually(lambda: not old & {process.pid for process in local.members()}, 5, "the old tree is gone")
    assert local.output(id) == {"n": 8, "attempt": 1}


def test_stop_during_start_leaves_nothing(own: Make) -> None:
    """SIGTERM at any moment of the start ends every process, and no local.json is left."""
    for delay in (0.25, 0.5, 0.7):
        local = own()
        program = local.launch()
        time.sleep(delay)
        if local.about.exists():
            break
        program.signal(signal.SIGTERM)
        assert program.ends(10) in (0, -signal.SIGTERM)
        assert not local.members()
        assert not local.about.exists()


def test_environment_overrides_defaults_unless_empty(own: Make) -> None:
    """Settings with a value are used, empty ones ignored: an empty token does not open a door."""
    local = own(WEB_CONCURRENCY="2", KERNEL_TOKEN=" ", SWARM_KEYS="", WORKER_AGENT_ID="agent_mine")
    local.start()
    assert len(_named(local, "gunicorn")) == 1 + 2
    assert local.facts["worker_agent_id"] == "agent_mine"
    assert len(local.facts["kernel_token"]) >= 16
    assert local.request("GET", "/v0/executions", headers={"Authorization": "Bearer "}).status == 401


def test_invalid_settings_fail_the_start_cleanly(own: Make) -> None:
    """All wrong settings, and agents that cannot be loaded, are listed together; nothing is started."""
    local, other = own(EXECUTION_TIMEOUT="soon", NETWORK="mars"), own(WORKER_AGENTS="no_such_module")
    programs = local.launch(), other.launch()
    assert [program.ends(15) for program in programs] == [2, 2]
    assert "EXECUTION_TIMEOUT" in programs[0].log and "NETWORK" in programs[0].log
    assert "WORKER_AGENTS  no module no_such_module" in programs[1].log
    for program in programs:
        assert "Traceback" not in program.log and len(program.log.splitlines()) < 10
    for each in (local, other):
        assert not each.members()
        assert not each.about.exists()


def test_sigint_shuts_down_gracefully(own: Make, measure: Measure) -> None:
    """^C reaches only `worker local`, which stops its children: running work still gets its grace period."""
    local = own(HANDBACK_GRACE="5")
    local.start()
    id = local.create("nap", seconds=1.0)
    local.began(id)
    members, asked = local.members(), time.monotonic()
    os.killpg(_pid(local), signal.SIGINT)
    assert local.program.ends(10) == 0  # type: ignore[union-attr]
    measure("SIGINT with a second of work left -> worker local gone", time.monotonic() - asked)
    assert [process for process in members if not gone(process.pid)] == []
    assert not local.about.exists()
    assert [trace.attempt for trace in local.traces(id, "end")] == [1]
    assert f"execution_id={id} outcome=completed status=ok" in local.program.log  # type: ignore[union-attr]

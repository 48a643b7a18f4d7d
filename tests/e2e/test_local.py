"""`worker local`: one command whose whole tree comes up, heals and goes away together."""

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
from urllib.parse import urlsplit

import psutil

from tests.e2e.conftest import Measure
from tests.e2e.tree import Local, gone, kill
from tests.waiting import eventually

Make = Callable[..., Local]
# What other programs rely on; the chain's part of it comes with the chain.
NAMES = {"url", "redis", "network", "worker_wallet", "worker_agent_id", "kernel_token", "swarm"}


def _named(local: Local, word: str) -> list[psutil.Process]:
    """Members of the tree whose command line has this word, parents first."""
    found: list[tuple[psutil.Process, int]] = []
    for process in local.members():
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append((process, process.ppid()))
    pids = {process.pid for process, _ in found}
    return [process for process, parent in sorted(found, key=lambda each: each[1] in pids)]


def _computed(local: Local) -> float:
    """Seconds of processor time that the tree has used so far."""
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


def test_local_json_says_what_others_need(local: Local) -> None:
    """Its names are as published, its values work, and nobody else may read it."""
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


def test_secrets_are_not_in_the_log(local: Local) -> None:
    """What the file holds is told to nobody who reads the output."""
    facts, log = local.facts, local.log_file.read_text()
    for secret in (facts["kernel_token"], facts["swarm"]["password"], facts["redis"].split("@")[0][9:]):
        assert secret not in log


def test_everything_is_ready(local: Local) -> None:
    """Ready means ready: all doors answer, both lanes work, and only the operator is told more."""
    answer = local.request("GET", "/ready")
    assert (answer.status, answer.body["status"]) == (200, "ready")
    assert set(answer.body["checks"].values()) == {"ok"}
    assert local.request("GET", "/health").body == {"status": "ok"}
    assert local.request("GET", "/ready", headers={"Authorization": "Bearer x"}).status == 401
    for agent in ("quick", "quick-queued"):
        made = local.request("POST", "/v0/executions", {"agent_id": agent, "input": {"n": 5}})
        assert made.status == 201
        assert local.output(made.body["id"]) == {"n": 5, "attempt": 1}


def test_it_has_the_processes_that_were_asked_for(local: Local) -> None:
    """`--web 2 --work 2`: a gunicorn with two workers, two trees with a clock and two lanes each."""
    web, work = _named(local, "gunicorn"), _named(local, "worker work")
    assert len(web) == 1 + 2
    assert len(work) == 2 * (1 + 3)
    assert len(_named(local, "valkey-server")) == 1


def test_killed_processes_are_replaced(local: Local, measure: Measure) -> None:
    """Whatever is killed comes back: a web process, its master, a warm process, a work tree, the store."""
    time.sleep(max(0.0, 1.2 - (time.time() - psutil.Process(_pid(local)).create_time())))
    for what, word, at in (
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

        eventually(whole, 12, f"the {what} is replaced: {before}")
        measure(f"kill -9 of {what} -> whole again", time.monotonic() - killed)
    for agent in ("quick", "quick-queued"):
        assert local.output(local.create(agent, n=6)) == {"n": 6, "attempt": 1}


def _pid(local: Local) -> int:
    assert local.program is not None
    return local.program.pid


def test_a_second_start_on_its_directory_is_refused(local: Local) -> None:
    """Two trees on one state directory: the second says so at once, and the first does not notice."""
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
    """A port where somebody else listens is named, before anything is left running."""
    other = own()
    other.port = local.port
    program = other.launch()
    assert program.ends(15) == 2
    assert "PORT" in program.log and str(local.port) in program.log
    assert "Traceback" not in program.log
    assert not other.about.exists()
    assert not other.members()
    assert _answers(local, "/ready")


def test_sigterm_ends_the_whole_tree(own: Make, measure: Measure) -> None:
    """No process is left and nobody is told of a tree; a second start is quick, and knows what was known."""
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
    # On a machine that others use, the time that it takes is theirs; what it computes is ours.
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert warm < 3 or (busy and computed < 5 and warm < 15)
    assert local.output(id) == {"n": 7, "attempt": 1}
    assert local.kinds(id)[-1] == "execution.completed"
    same = ("url", "worker_wallet", "kernel_token", "swarm")
    assert {name: local.facts[name] for name in same} == {name: before[name] for name in same}
    assert "Traceback" not in local.log_file.read_text()


def test_an_open_stream_does_not_hold_it_up(own: Make, measure: Measure) -> None:
    """A follower gets a clean end and may come back for the rest; idle connections are let go."""
    local = own(HANDBACK_GRACE="0")
    local.start()
    id = local.create("nap", seconds=60)
    local.began(id)
    link = http.client.HTTPConnection("127.0.0.1", local.port, timeout=15)
    token = local.facts["kernel_token"]
    link.request("GET", f"/v0/executions/{id}/stream", headers={"Authorization": f"Bearer {token}"})
    stream = link.getresponse()
    assert b"retry" in stream.readline()
    kept = http.client.HTTPConnection("127.0.0.1", local.port, timeout=15)
    kept.request("GET", "/health")
    assert kept.getresponse().read()
    silent = socket.create_connection(("127.0.0.1", local.port))
    asked = local.program.signal(signal.SIGTERM)  # type: ignore[union-attr]
    assert local.program.ends(10) == 0  # type: ignore[union-attr]
    measure("SIGTERM -> worker local gone, with a stream open", time.monotonic() - asked)
    assert time.monotonic() - asked < 8
    assert b"event: execution.started" in stream.read()
    for each in (link, kept, silent):
        each.close()


def test_it_ends_with_its_parent(own: Make, measure: Measure) -> None:
    """kill -9 of whoever started it: the whole tree goes, the chain and the facilitator too."""
    local = own(FACILITATOR_URL="")
    parent = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    local.start(sys.executable, "-c", parent)
    members = [process.pid for process in local.members()]
    killed = kill(_pid(local))
    eventually(lambda: not local.members(), 10, f"no process is left: {members}")
    measure("kill -9 of its parent -> worker local gone", time.monotonic() - killed)
    assert local.program is not None and "local.parent_ended" in local.program.log
    assert not local.about.exists()


def test_its_children_end_with_it(own: Make, measure: Measure) -> None:
    """kill -9 of `worker local` itself: its children go too, and a new one can start at once."""
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


def test_it_can_be_stopped_while_it_starts(own: Make) -> None:
    """SIGTERM at any moment of the start ends all of it, and nobody is told of a tree that never was."""
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


def test_the_environment_wins_over_defaults_unless_it_is_empty(own: Make) -> None:
    """Settings given are taken, settings given as nothing are not: no door is open for want of a token."""
    local = own(WEB_CONCURRENCY="2", KERNEL_TOKEN=" ", SWARM_KEYS="", WORKER_AGENT_ID="agent_mine")
    local.start()
    assert len(_named(local, "gunicorn")) == 1 + 2
    assert local.facts["worker_agent_id"] == "agent_mine"
    assert len(local.facts["kernel_token"]) >= 16
    assert local.request("GET", "/v0/executions", headers={"Authorization": "Bearer "}).status == 401


def test_a_bad_start_is_told_and_leaves_nothing(own: Make) -> None:
    """Wrong settings are listed together; agents that cannot be loaded end the start."""
    local, other = own(EXECUTION_TIMEOUT="soon", NETWORK="mars"), own(WORKER_AGENTS="no_such_module")
    programs = local.launch(), other.launch()
    assert [program.ends(15) for program in programs] == [2, 1]
    assert "EXECUTION_TIMEOUT" in programs[0].log and "NETWORK" in programs[0].log
    assert "Traceback" not in programs[0].log
    assert "no_such_module" in programs[1].log and "work ended" in programs[1].log
    for each in (local, other):
        assert not each.members()
        assert not each.about.exists()


def test_sigint_ends_it_in_order(own: Make, measure: Measure) -> None:
    """^C reaches only `worker local`, which ends its children: running work still gets its grace."""
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

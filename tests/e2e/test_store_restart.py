"""The store is killed under load: callers are told to retry, and everything recovers by itself."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Measure
from tests.e2e.tree import PYTHON, ROOT, Answer, Local, check_log, kill
from tests.waiting import eventually

AWAY = 1.5
LINES = 40
TEXT = "".join(f"line {number}\n" for number in range(LINES))


@contextmanager
def store_away(local: Local, seconds: float = AWAY) -> Iterator[None]:
    """Kills the store and occupies its port, so that none restarts; closes every incoming connection."""
    port = urlsplit(local.facts["redis"]).port
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until = time.monotonic() + 10
        while True:
            pid = local.store_pid()
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    kill(pid)
            try:
                squatter.bind(("127.0.0.1", port))
                squatter.listen()
                break
            except OSError:
                assert time.monotonic() < until, "the store's port is not to be had"
                time.sleep(0.001)
        threading.Thread(target=_cut_off, args=(squatter,), daemon=True).start()
        began = time.monotonic()
        yield
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        squatter.shutdown(socket.SHUT_RDWR)


def _cut_off(squatter: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            link, _ = squatter.accept()
            link.close()


def _restart(local: Local) -> None:
    """Kills the store once; it restarts at once."""
    before = local.store_pid()
    dead = kill(before)
    eventually(lambda: local.store_pid() not in (0, before), 5, f"a new store since {dead}")


def _back(local: Local) -> None:
    eventually(lambda: local.request("GET", "/ready").status == 200, 15, "ready again")


def _shell(local: Local, agent: str, **input: object) -> subprocess.Popen[bytes]:
    words = ["worker", "run", agent, "--state", str(local.state), "--input", json.dumps(input)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*PYTHON, *words], cwd=ROOT, env=local.environ, **pipes)  # type: ignore[call-overload, no-any-return]


class Follower(threading.Thread):
    """Reads an execution's stream over HTTP as a patient client does, resuming where it stopped."""

    def __init__(self, local: Local, id: str) -> None:
        super().__init__()
        self.local, self.id = local, id
        self.sequences: list[int] = []
        self.kinds: list[str] = []
        self.seen_at: list[float] = []
        self.refused: list[tuple[int, str | None]] = []
        self.torn = 0

    def run(self) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until and not self.ended:
            try:
                self._read()
            except (OSError, http.client.HTTPException):
                self.torn += 1
            time.sleep(0.1)

    @property
    def ended(self) -> bool:
        return bool(self.kinds) and self.kinds[-1] in ("execution.completed", "execution.failed")

    def _read(self) -> None:
        link = http.client.HTTPConnection("127.0.0.1", self.local.port, timeout=10)
        try:
            last = str(self.sequences[-1] if self.sequences else 0)
            headers = {"Authorization": f"Bearer {self.local.facts['kernel_token']}", "Last-Event-ID": last}
            link.request("GET", f"/v0/executions/{self.id}/stream", headers=headers)
            answer = link.getresponse()
            if answer.status != 200:
                self.refused.append((answer.status, answer.headers["Retry-After"]))
                answer.read()
                return
            for line in answer:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    self.sequences.append(event["sequence"])
                    self.kinds.append(event["type"])
                    self.seen_at.append(time.monotonic())
        finally:
            link.close()


def test_executions_finish_after_a_store_restart(local: Local, measure: Measure) -> None:
    """Running and waiting work on both lanes completes: each event and each run once."""
    busy = {"express": local.create("nap", seconds=1.0), "queued": local.create("nap-queued", seconds=3.0)}
    more = [local.create(agent, seconds=1.0) for agent in ("nap", "nap-queued")]
    for id in [*busy.values(), *more]:
        local.began(id)
    waiting = {"express": local.create("quick", n=1), "queued": local.create("quick-queued", n=2)}
    with store_away(local):
        pass
    back = time.monotonic()
    _back(local)
    measure(f"store away for {AWAY} s -> ready again, from its end", time.monotonic() - back)
    for lane, id in waiting.items():
        run = local.began(id)
        measure(f"store away for {AWAY} s -> waiting work begins ({lane}), from its end", run.at - back)
    for id in [*busy.values(), *more, *waiting.values()]:
        execution = local.ended(id, 20)
        assert (execution.state, execution.attempt) == ("completed", 1)
        assert len(local.traces(id)) == 1
        check_log(local.log(id))


def test_streams_are_complete_after_a_store_restart(local: Local, measure: Measure) -> None:
    """Followers over HTTP and `worker run` see every event of a story exactly once."""
    shell = _shell(local, "story-queued", lines=LINES, pause=0.1)
    id = local.create("story", lines=LINES, pause=0.1)
    followers = [Follower(local, id) for _ in range(3)]
    for follower in followers:
        follower.start()
    eventually(lambda: all(len(each.sequences) > 4 for each in followers), 10, "they read")
    running = local.parts.keys.by_state("running")
    eventually(lambda: local.parts.store.count(running) == 2, 10, "the shell's story is under way")
    with store_away(local):
        pass
    back = time.monotonic()
    assert local.ended(id, 20).attempt == 1
    for follower in followers:
        follower.join(5)
        assert follower.ended, (follower.kinds[-3:], follower.refused)
        assert follower.sequences == list(range(1, len(local.log(id)) + 1))
        assert (follower.torn, follower.refused) == (0, []), "its stream outlived the store's absence"
    next_seen = [min(at for at in each.seen_at if at > back) - back for each in followers]
    measure(f"store away for {AWAY} s -> next event reaches a follower, from its end", max(next_seen))
    check_log(local.log(id))
    assert "".join(e.data()["text"] for e in local.log(id) if e.kind == "output.chunk") == TEXT
    out, err = shell.communicate(timeout=30)
    assert shell.returncode == 0, err.decode()
    assert out.decode() == TEXT
    assert b"Traceback" not in err


def test_acknowledged_requests_survive_an_outage_and_others_get_503(local: Local, measure: Measure) -> None:
    """During the outage requests soon get 503 with Retry-After; all work that got a 201 survives and ends."""
    answers: list[tuple[float, Answer]] = []
    over = threading.Event()

    def caller(agent: str) -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            began = time.monotonic()
            answer = local.request("POST", "/v0/executions", {"agent_id": agent, "input": {"n": number}})
            answers.append((time.monotonic() - began, answer))

    threads = [threading.Thread(target=caller, args=(agent,)) for agent in ("quick", "quick-queued") * 2]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            time.sleep(0.3)
            _restart(local)
        with store_away(local, 1.5):
            health = local.request("GET", "/health")
            unready = [local.request("GET", path) for path in ("/ready", "/v0/ready")]
        _back(local)
        time.sleep(0.3)
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert health.status == 200, "alive, whatever the store does"
    assert [answer.status for answer in unready] == [503, 503]
    assert "store" in unready[0].body["failing"]
    assert {answer.status for _, answer in answers} == {201, 503}
    refused = [(took, answer) for took, answer in answers if answer.status == 503]
    for _, answer in [*refused, *((0.0, answer) for answer in unready)]:
        assert int(answer.headers["Retry-After"]) > 0
    assert {answer.body["code"] for _, answer in refused} == {"SERVICE_UNAVAILABLE"}
    slowest = max(took for took, _ in refused)
    measure(f"store away -> 503, the slowest of {len(refused)}", slowest)
    assert slowest < 8
    created = [
        (answer.body["id"], answer.body["input"]["n"]) for _, answer in answers if answer.status == 201
    ]
    assert len(created) > 40
    for id, number in created:
        assert local.output(id)["n"] == number
        check_log(local.log(id))


@pytest.mark.soak
def test_run_command_ends_when_the_store_stays_away(own: Callable[..., Local]) -> None:
    """`worker run` whose worker disappears exits after a while with a message and no traceback."""
    tree = own(HANDBACK_GRACE="0")
    tree.start()
    shell = _shell(tree, "nap", seconds=60)
    eventually(lambda: tree.parts.store.count(tree.parts.keys.by_state("running")), 10, "it runs")
    assert tree.program is not None
    tree.program.signal(signal.SIGTERM)
    tree.program.ends(10)
    out, err = shell.communicate(timeout=45)
    assert (shell.returncode, out) == (1, b"")
    assert b"STORE_UNAVAILABLE" in err
    assert b"Traceback" not in err

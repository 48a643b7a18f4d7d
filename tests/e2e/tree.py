"""Real processes for tests: a complete `worker local`, or single parts around one store.

Every process that a test starts carries a mark in its environment, so that all of them, including
orphans, can be found and ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import redis

from tests.waiting import eventually
from worker.core.settings import Settings
from worker.engine.events import TERMINAL_KINDS, Event
from worker.engine.record import Execution
from worker.local.valkey import EmbeddedStore, free_port
from worker.parts import Parts

ROOT = Path(__file__).parents[2]
MARK = "E2E_MARK"
NOWHERE = "http://127.0.0.1:9"
PYTHON = [sys.executable, "-m"]


def environment(mark: str, trace: Path, **settings: str) -> dict[str, str]:
    """A child's environment: none of the caller's settings, the agents for tests, a mark."""
    inherited = {name: value for name, value in os.environ.items() if name not in Settings.names()}
    return inherited | {
        "PYTHONPATH": str(Path(__file__).parent),
        "WORKER_AGENTS": "agents_for_tests",
        "E2E_TRACE": str(trace),
        MARK: mark,
        **settings,
    }


def marked(mark: str, directory: Path) -> list[psutil.Process]:
    """All living processes with the mark or this working directory (servers hide their environment)."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == mark or Path(process.cwd()).is_relative_to(directory):
                found.append(process)
    return found


def kill_all(mark: str, directory: Path) -> None:
    """Kills all remaining processes, including ones that start meanwhile."""
    until = time.monotonic() + 10
    while (left := marked(mark, directory)) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
    assert not left, f"cannot be ended: {left}"


def kill(pid: int) -> float:
    """kill -9; returns the time of the kill."""
    assert pid > 1, "that would be a whole group, or everybody"
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass(frozen=True)
class Trace:
    """A line that an agent wrote about a run."""

    id: str
    attempt: int
    pid: int
    at: float
    word: str


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


class Engine:
    """Creates and reads executions directly in the store; shared by both kinds of tree."""

    trace_file: Path
    parts: Parts

    def create(self, agent: str, **input: Any) -> str:
        _, id = self.parts.executions.create(agent, input, door="test")
        return id

    def ended(self, id: str, seconds: float = 20.0) -> Execution:
        """Waits for the execution's end and returns the execution."""
        assert self.parts.executions.wait(id, seconds), f"{id} did not end: {self.kinds(id)}"
        return self.parts.executions.get(id)

    def output(self, id: str, seconds: float = 20.0) -> Any:
        execution = self.ended(id, seconds)
        assert execution.state == "completed", execution.error
        return self.parts.executions.output(execution)

    def log(self, id: str) -> list[Event]:
        return self.parts.store.events(id, 0, 10_000)

    def kinds(self, id: str) -> list[str]:
        return [str(event.kind) for event in self.log(id)]

    def traces(self, id: str, word: str = "begin") -> list[Trace]:
        """The trace lines of an execution's runs, oldest first."""
        return self.all_traces(word)[id]

    def all_traces(self, word: str = "begin") -> dict[str, list[Trace]]:
        """The same for all executions."""
        found: dict[str, list[Trace]] = defaultdict(list)
        for line in self.trace_file.read_text().splitlines() if self.trace_file.exists() else ():
            id, attempt, pid, at, rest = line.split(" ", 4)
            if rest.startswith(word):
                found[id].append(Trace(id, int(attempt), int(pid), float(at), rest))
        return found

    def began(self, id: str, attempt: int = 1, seconds: float = 20.0) -> Trace:
        """Waits for a run's first trace line."""

        def find() -> Trace | None:
            return next((each for each in self.traces(id) if each.attempt == attempt), None)

        found = eventually(find, seconds, f"attempt {attempt} of {id}: {self.kinds(id)}")
        assert found is not None
        return found


def check_log(events: list[Event]) -> None:
    """Checks every log: one terminal event, in last place; no attempt starts during another's lease."""
    kinds = [str(event.kind) for event in events]
    assert kinds[0] == "execution.created", kinds
    assert [kind in TERMINAL_KINDS for kind in kinds] == [False] * (len(kinds) - 1) + [True], kinds
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert all(a.at <= b.at for a, b in zip(events, events[1:], strict=False)), "time ran backwards"
    free = True
    for event in events:
        if event.kind == "execution.started":
            assert free, f"two attempts in one lease: {kinds}"
            free = False
        elif event.kind == "execution.reset":
            assert not free, f"given up twice: {kinds}"
            free = True
    for at, event in enumerate(events):
        if event.kind == "agent.timeout":
            assert kinds[at + 1] in ("execution.reset", "execution.failed", "step.cancelled"), kinds


class Program:
    """One process started by a test, with its log. Its descendants are found by the mark."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path, cwd: Path = ROOT) -> None:
        self.log_file = log
        self.started = time.monotonic()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def family(self) -> list[int]:
        """The process and all its descendants."""
        try:
            parent = psutil.Process(self.pid)
            return [self.pid, *(child.pid for child in parent.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def kill_family(self) -> float:
        """kill -9 of all of them at once."""
        family, at = self.family(), time.monotonic()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        return at

    def signal(self, number: int) -> float:
        at = time.monotonic()
        self.process.send_signal(number)
        return at

    def ends(self, seconds: float = 30.0) -> int:
        """Waits for its end and returns the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:g} s:\n{self.log}") from None


class Local(Engine):
    """A `worker local` on a free port; without a chain, unless FACILITATOR_URL is given as empty."""

    def __init__(self, home: Path, *options: str, **settings: str) -> None:
        self.state = home / "state"
        self.trace_file = home / "trace"
        self.mark = secrets.token_hex(8)
        self.port = free_port()
        self.options = options
        self.environ = environment(self.mark, self.trace_file, **({"FACILITATOR_URL": NOWHERE} | settings))
        self.log_file = home / "log"
        self.program: Program | None = None

    @property
    def command(self) -> list[str]:
        at = ["--port", str(self.port), "--state", str(self.state)]
        return [*PYTHON, "worker", "local", *at, *self.options]

    @property
    def about(self) -> Path:
        return self.state / "local.json"

    def launch(self, *prefix: str) -> Program:
        """Starts it, under a parent of the caller's if `prefix` is given, and does not wait."""
        self.__dict__.pop("parts", None)
        self.program = Program([*prefix, *self.command], self.environ, self.log_file)
        return self.program

    def start(self, *prefix: str) -> float:
        """Starts it and waits until it is ready; returns the seconds taken."""
        stale = self._stamp()  # left by a killed one
        program = self.launch(*prefix)
        until = program.started + 30
        while self._stamp() in (0, stale):
            assert program.process.poll() is None, f"ended:\n{program.log}"
            assert time.monotonic() < until, f"not ready:\n{program.log}"
            time.sleep(0.01)
        return time.monotonic() - program.started

    def _stamp(self) -> int:
        try:
            return self.about.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.about.read_text())
        return found

    @cached_property
    def parts(self) -> Parts:  # type: ignore[override]
        facts = self.facts
        return Parts(Settings.load({"REDIS_URL": facts["redis"], "WORKER_STATE_DIR": str(self.state)}), "cli")

    def store_pid(self) -> int:
        """The pid of the embedded store; 0 if there is none."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                if "valkey-server" in process.name():
                    return process.pid
        return 0

    def members(self) -> list[psutil.Process]:
        return marked(self.mark, self.state)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Sends a request as the operator; raises OSError when there is no response."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            token = {"Authorization": f"Bearer {self._token}"}
            raw = None if body is None else json.dumps(body).encode()
            link.request(method, path, raw, {**token, **(headers or {})})
            answer = link.getresponse()
            content = answer.read()
            return Answer(answer.status, dict(answer.headers), json.loads(content) if content else None)
        finally:
            link.close()

    @cached_property
    def _token(self) -> str:
        token: str = self.facts["kernel_token"]
        return token

    def close(self) -> None:
        kill_all(self.mark, self.state)
        if self.program is not None:
            self.program.process.wait(5)


class WorkTrees(Engine):
    """One embedded store in the test's process, and `worker work` trees that use it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.trace_file = home / "trace"
        self.mark = secrets.token_hex(8)
        self.store = EmbeddedStore(home / "state")
        self.url = self.store.start()
        self.trees: list[Work] = []
        self.parts = Parts(Settings.load(self._settings()), "cli")

    def _settings(self) -> dict[str, str]:
        return {"REDIS_URL": self.url, "WORKER_STATE_DIR": str(self.home / "state")}

    @property
    def client(self) -> redis.Redis:
        return self.parts.client

    def work(self, *, ready: bool = True, **settings: str) -> Work:
        """Starts a tree and waits until both its lanes take work."""
        environ = environment(self.mark, self.trace_file, **(self._settings() | settings))
        tree = Work(environ, self.home / f"work-{len(self.trees)}.log")
        self.trees.append(tree)
        if ready:
            eventually(lambda: self.taking(tree), 20, f"both lanes of a tree\n{tree.log}")
        return tree

    def taking(self, tree: Work) -> bool:
        return all(self.processes(tree, lane) for lane in ("express", "queue"))

    def processes(self, tree: Work, lane: str) -> list[int]:
        """The living warm processes of a lane, by their registrations."""
        names = self.client.zrange(self.parts.keys.takers(lane), 0, -1)
        found = [name.decode().split("-") for name in names]
        pids = [int(parts[-1]) for parts in found if parts[-3] == str(tree.pid)]
        return [pid for pid in pids if not gone(pid)]

    def end_trees(self) -> None:
        """Ends all work trees, but not the store."""
        for tree in self.trees:
            tree.kill_family()
        self.trees.clear()
        kill_all(self.mark, self.home / "nowhere")

    def close(self) -> None:
        try:
            self.end_trees()
        finally:
            self.store.stop()


class Work(Program):
    """A `worker work`."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        super().__init__([*PYTHON, "worker", "work"], environ, log)

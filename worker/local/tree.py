"""`worker local`: store, web and work started as in production, supervised, and stopped together."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, TextIO

import structlog

from worker.core.local_secrets import local_secrets
from worker.core.logs import configure
from worker.core.processes import web_command
from worker.core.settings import BadSetting, BadStart, Settings
from worker.core.values import address_of
from worker.local.parent_guard import death_signal
from worker.local.valkey import EmbeddedStore, EmbeddedStoreFailed, free_port
from worker.x402.networks import resolve_network

log = structlog.get_logger()

READY_SECONDS = 60.0
GAS_WEI = 10**21
SEEKER_DOLLARS = 1_000_000_000
STOP_SECONDS = 30.0
# Log file while a proof is shown, and how many of its lines are printed if the proof fails.
LOG, LOG_LINES = "worker.log", 30
PORT_SECONDS = 2.0
_RESTART_AFTER = 1.0
WORKING = (sys.executable, "-m", "worker", "work")
RELOADING = (sys.executable, "-m", "worker.local.reload")


@dataclass
class Program:
    """One child of the tree; `start` runs it again when it dies."""

    name: str
    command: list[str]
    environ: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    log: IO[str] | None = None

    def start(self) -> None:
        self.started = time.monotonic()
        # In its own session: a terminal's ^C reaches the tree, which stops its children in order.
        self.process = subprocess.Popen(
            self.command,
            env=dict(self.environ),
            preexec_fn=death_signal(),
            start_new_session=True,
            stdout=self.log,
            stderr=self.log,
        )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class NotReady(Exception):
    """The tree did not come up in time."""


@dataclass
class LocalTree:
    """Starts every program that the environment does not already name."""

    environ: dict[str, str]
    work_trees: int = 1
    work_command: Sequence[str] = WORKING
    programs: list[Program] = field(default_factory=list)
    _ports: list[tuple[str, int]] = field(default_factory=list)
    _stop: bool = False
    _stop_seconds: float = STOP_SECONDS
    _proving: bool = False
    _log: TextIO | None = None
    _parent: int = field(default_factory=os.getppid)

    def run(
        self,
        *,
        once: bool = False,
        prove: Callable[[dict[str, Any]], int] | None = None,
        log_to_file: bool = False,
    ) -> int:
        """Run until SIGTERM, SIGINT or the end of the parent; with `once` until the proof is done."""
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._on_stop)
        state = Path(self.environ.get("WORKER_STATE_DIR") or "var").resolve()
        state.mkdir(parents=True, exist_ok=True)
        with _alone(state), ExitStack() as closing:
            if log_to_file:
                self._log = closing.enter_context((state / LOG).open("w"))
            return self._run(state, once, prove)

    def _run(self, state: Path, once: bool, prove: Callable[[dict[str, Any]], int] | None) -> int:
        about = state / "local.json"
        about.unlink(missing_ok=True)
        environ = {**local_secrets(state), **_given(self.environ), "WORKER_STATE_DIR": str(state)}
        if not _usable(environ):
            return 2
        store = None if environ.get("REDIS_URL") else EmbeddedStore(state)
        try:
            if store is not None:
                store.start()
                environ["REDIS_URL"] = store.socket_url
            if not environ.get("FACILITATOR_URL"):
                self._start_chain(environ, state)
            settings = Settings.load(environ)
            configure(settings, self._log)
            self._stop_seconds = max(STOP_SECONDS, settings.handback_grace + 10)
            self._wait_for_port(settings.port)
            self._start(environ)
            self._wait(settings)
            if self._over:
                return 0
            # Not every client takes a socket's URL.
            facts = _facts(settings, environ, store.url if store is not None else settings.redis_url)
            _write(about, facts)
            log.info("local.ready", url=facts["url"], state=str(state))
            status = self._prove(prove, facts) if prove is not None else 0
            if once or status:
                return status
            self._watch()
            if not self._stop:
                log.warning("local.parent_ended", parent=self._parent, note="it ends with whoever started it")
            return 0
        except NotReady as why:
            log.error("local.not_ready", missing=str(why))
            self._show_log(state)
            return 1
        except EmbeddedStoreFailed as why:
            log.error("local.store_failed", reason=str(why))
            self._show_log(state)
            return 1
        finally:
            about.unlink(missing_ok=True)
            self._end()
            if store is not None:
                store.stop()

    def _show_log(self, state: Path) -> None:
        """The end of the log file, if there is one: it says why the worker did not start."""
        if self._log is None or self._stop:
            return
        self._log.flush()
        lines = (state / LOG).read_text(errors="replace").splitlines()
        print(
            "\n".join(["The worker did not start. The end of its log:", "", *lines[-LOG_LINES:]]), flush=True
        )

    def _prove(self, prove: Callable[[dict[str, Any]], int], facts: dict[str, Any]) -> int:
        """A proof waits for responses, so ending the tree meanwhile must end the proof too."""
        self._proving = not self._stop
        try:
            return prove(facts) if self._proving else 0
        finally:
            self._proving = False

    @property
    def _over(self) -> bool:
        """Asked to stop, or the parent is gone: checked, as a death signal follows its thread, not it."""
        return self._stop or os.getppid() != self._parent

    def _wait_for_port(self, port: int) -> None:
        """Wait for the web process of a killed tree to end; refuse a port that another program holds."""
        until = time.monotonic() + PORT_SECONDS
        while not self._over:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    return probe.bind(("127.0.0.1", port))
                except OSError as taken:
                    if time.monotonic() > until:
                        raise BadStart(
                            [BadSetting("PORT", str(port), "a port where nobody listens yet")]
                        ) from taken
            time.sleep(0.1)

    def _start_chain(self, environ: dict[str, str], state: Path) -> None:
        """Start a chain with a test dollar, and a facilitator on it."""
        rpc, facilitator = free_port(), free_port()
        environ["RPC_URL"] = f"http://127.0.0.1:{rpc}"
        environ["FACILITATOR_URL"] = f"http://127.0.0.1:{facilitator}"
        environ["FACILITATOR_GAS_KEY"] = environ["LOCAL_GAS_KEY"]
        # Visitors of the pages hire with the buyer's test dollars.
        environ.setdefault("TRY_KEY", environ["LOCAL_SEEKER_KEY"])
        seeker, gas = address_of(environ["LOCAL_SEEKER_KEY"]), address_of(environ["LOCAL_GAS_KEY"])
        python = [sys.executable, "-m"]
        chain = [*python, "worker.local.chain", "--state", str(state / "chain"), "--port", str(rpc)]
        chain += ["--ether", f"{gas}={GAS_WEI}", "--dollars", f"{seeker}={SEEKER_DOLLARS}"]
        settling = [
            *python,
            "worker.local.facilitator",
            "--rpc",
            environ["RPC_URL"],
            "--port",
            str(facilitator),
        ]
        for name, command, port in (("chain", chain, rpc), ("facilitator", settling, facilitator)):
            self.programs.append(Program(name, command, environ, log=self._log))
            self.programs[-1].start()
            self._ports.append((name, port))

    def _start(self, environ: dict[str, str]) -> None:
        work = list(self.work_command)
        begun = [Program("web", web_command(), environ, log=self._log)]
        begun += [Program("work", work, environ, log=self._log) for _ in range(self.work_trees)]
        for program in begun:
            program.start()
        self.programs += begun

    def _wait(self, settings: Settings) -> None:
        until = time.monotonic() + READY_SECONDS
        answer = "no answer"
        while not self._over:
            silent = [name for name, port in self._ports if not _listens(port)]
            answer = f"{silent[0]} does not listen" if silent else _ready(settings)
            if answer == "ready":
                return
            ended = [program.name for program in self.programs if not program.alive]
            if ended or time.monotonic() > until:
                raise NotReady(f"{', '.join(ended)} ended" if ended else answer)
            time.sleep(0.03)

    def _watch(self) -> None:
        while not self._over:
            for program in self.programs:
                if not program.alive and time.monotonic() - program.started > _RESTART_AFTER:
                    log.warning("local.restarting", program=program.name)
                    program.start()
            time.sleep(0.1)

    def _end(self) -> None:
        until = time.monotonic() + self._stop_seconds
        for program in reversed(self.programs):
            if program.process is not None and program.alive:
                program.process.terminate()
        for program in self.programs:
            if program.process is None:
                continue
            try:
                program.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop = True
        if self._proving:
            self._proving = False
            raise NotReady("the proof, which was interrupted")


def _given(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without empty settings, which count as absent."""
    known = set(Settings.names())
    return {name: value for name, value in environ.items() if value.strip() or name not in known}


def _usable(environ: Mapping[str, str]) -> bool:
    """Whether agents and configuration are usable. Runs in a separate process, which prints every mistake."""
    return subprocess.run([sys.executable, "-m", "worker", "check", "--quiet"], env=environ).returncode == 0


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Lock a state directory; a second tree must not overwrite the first one's description."""
    with (state / "local.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as held:
            lock.seek(0)
            expected = f"a directory that no other worker uses; process {lock.read(20)} uses this one"
            raise BadStart([BadSetting("WORKER_STATE_DIR", str(state), expected)]) from held
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _ready(settings: Settings) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{settings.port}/ready")
    request.add_header("Authorization", f"Bearer {settings.kernel_token}")
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return str(json.load(answer)["status"])
    except urllib.error.HTTPError as refused:
        with refused:
            return _why_not(refused)
    except (OSError, ValueError) as error:
        return f"not ready: {type(error).__name__}"


def _why_not(refused: urllib.error.HTTPError) -> str:
    """The reasons from /ready, by subject."""
    try:
        readiness = json.load(refused)
        reasons = [f"{name}: {readiness['checks'][name]}" for name in readiness["failing"]]
    except (OSError, ValueError, LookupError, TypeError):
        return f"not ready: HTTP {refused.code}"
    return f"not ready: {'; '.join(reasons)}"


def _facts(settings: Settings, environ: Mapping[str, str], store: str | None) -> dict[str, Any]:
    """What `local.json` tells other programs; `store` is the store's URL."""
    user, password = settings.swarm_keys[0]
    return {
        "url": settings.public_url,
        "facilitator": settings.facilitator_url,
        "rpc": settings.rpc_url,
        "redis": store,
        "network": settings.network,
        "asset": resolve_network(settings.network).asset,
        "worker_wallet": settings.worker_wallet,
        "worker_agent_id": settings.worker_agent_id,
        "seeker_key": environ["LOCAL_SEEKER_KEY"],
        "seeker_wallet": address_of(environ["LOCAL_SEEKER_KEY"]),
        "kernel_token": settings.kernel_token,
        "swarm": {"user": user, "password": password},
    }


def _write(path: Path, facts: dict[str, Any]) -> None:
    """Write atomically, readable by the owner only: the file contains secrets."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(facts, file, indent=2)
        file.write("\n")
    fresh.replace(path)

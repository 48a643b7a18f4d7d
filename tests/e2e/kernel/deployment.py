"""A complete deployment: a store, two web processes on two ports, one work tree."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import redis

from tests.e2e.kernel.client import Api
from tests.waiting import eventually
from worker.core.settings import Settings
from worker.local.parent_guard import death_signal
from worker.local.valkey import EmbeddedStore, free_port

ROOT = Path(__file__).parents[3]
TOKEN = "operator-token-for-tests"
AGENT_KEYS = {
    "keyed-agent": "key-of-the-agent-xx",
    "keyed-runner": "key-of-the-runner-x",
    "old-entry": "key-of-before-roles",
}
# The tools that the keyed runner may offer.
KEYED_TOOLS = ("deploy.remote", "keyed.one", "keyed.two", "remote.double", "remote.shaky")


class Program:
    """One process of the deployment, in its own session."""

    def __init__(self, name: str, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.name, self.command, self.environ, self.log = name, command, environ, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=death_signal(),
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the process and all its children."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)

    def ends(self, seconds: float = 30.0) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.signal(signal.SIGTERM)
        try:
            self.ends(10)
        except subprocess.TimeoutExpired:
            self.kill()


class Deployment:
    """Starts and stops its processes one by one, so that tests can restart each of them."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.store = EmbeddedStore(home / "state")
        self.url = self.store.start()
        self.settings = settings
        self.tag = ""
        self.ports = [free_port(), free_port()]
        self.web = [self._web(number) for number in (0, 1)]
        self.work = Program(
            "work", [sys.executable, "-m", "worker", "work"], self.environ(), home / "work.log"
        )

    def environ(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in Settings.names()}
        return {
            **inherited,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
            "REDIS_URL": self.url,
            "WORKER_STATE_DIR": str(self.home / "state"),
            "KERNEL_TOKEN": TOKEN,
            "AGENT_KEYS": ",".join(
                [
                    f"agent:keyed-agent:{AGENT_KEYS['keyed-agent']}",
                    f"runner:keyed-runner:{AGENT_KEYS['keyed-runner']}:{'|'.join(KEYED_TOOLS)}",
                    f"old-entry:{AGENT_KEYS['old-entry']}",
                ]
            ),
            "AGENT_TIMEOUT": "3s",
            "LOG_FORMAT": "json",
            "WORKER_AGENTS": "local_agents",
            **self.settings,
            **more,
        }

    def _web(self, number: int) -> Program:
        command = [sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py"]
        environ = self.environ(PORT=str(self.ports[number]))
        return Program(f"web-{number}", command, environ, self.home / f"web-{number}.log")

    def start(self) -> Deployment:
        for program in (*self.web, self.work):
            program.start()
        self.wait()
        return self

    def wait(self) -> None:
        """Waits until every process is ready."""
        for port in self.ports:
            eventually(lambda port=port: self._ready(port), 30, f"web on {port}: {self.logs()}")  # type: ignore[misc]

    def _ready(self, port: int) -> bool:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/ready")
        request.add_header("Authorization", f"Bearer {self.settings.get('KERNEL_TOKEN', TOKEN)}")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def api(self, number: int, token: str | None = TOKEN) -> Api:
        """An operator's client for one of the two web processes."""
        return Api(self.ports[number], token)

    def name(self, of: str) -> str:
        """A name unique to the current test."""
        return f"{of}-{self.tag}"

    def address(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number]}"

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def restart_store(self) -> None:
        """Restarts only the store, with its data on disk and at the same address."""
        before = self.store.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        eventually(lambda: self.store.pid not in (None, before) and self._store_answers(), 20, "the store")

    def _store_answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def logs(self) -> str:
        found = [*sorted(self.home.glob("*.log"))]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def close(self) -> None:
        for program in (*self.web, self.work):
            with contextlib.suppress(Exception):
                program.signal(signal.SIGTERM)
        until = time.monotonic() + 8
        for program in (*self.web, self.work):
            if program.process is not None:
                try:
                    program.ends(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    program.kill()
        self.store.stop()

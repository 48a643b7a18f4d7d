"""A worker in real processes with the swarm door enabled, and clients that behave like kernels."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from worker.core.settings import Settings
from worker.local.valkey import free_port
from worker.parts import Parts

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PASSWORDS = {"alpha": "alpha-password-1", "beta": "beta:password:2", "gamma": "gamma-password-3"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Kernel:
    """A standard kernel's client: Basic from the base URL, five tries on transport errors only."""

    base: str
    name: str | None = "alpha"
    timeout: float = 30.0
    tries: int = 5
    posted: list[float] = field(default_factory=list)

    def once(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Sends one request; raises OSError or HTTPException when no response arrives."""
        parts = urlsplit(self.base)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", "accept": "*/*"}
        if self.name is not None:
            shown = base64.b64encode(f"{self.name}:{PASSWORDS[self.name]}".encode()).decode()
            sent["authorization"] = f"Basic {shown}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        assert parts.hostname is not None
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout)
        try:
            link.request(method, parts.path.rstrip("/") + path, raw, sent)
            answer = link.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        finally:
            link.close()

    def post(self, path: str, body: Any) -> Answer:
        """Posts as a kernel does: the same bytes again after a transport error, with growing pauses."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        for attempt in range(self.tries):
            self.posted.append(time.monotonic())
            try:
                return self.once("POST", path, raw)
            except (OSError, http.client.HTTPException):
                if attempt + 1 == self.tries:
                    raise
                time.sleep(0.05 * (attempt + 1))
        raise AssertionError("no tries")

    def run(self, task: dict[str, Any]) -> Answer:
        return self.post("/execute", task)


@dataclass
class Runtime:
    """A `worker local` without a chain, and further web processes on its store."""

    home: Path
    settings: dict[str, str]
    port: int = field(default_factory=free_port)
    tree: subprocess.Popen[bytes] | None = None
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "local.json").read_text())
        return found

    def environ(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in Settings.names()}
        return {
            **inherited,
            "PYTHONPATH": str(HERE),
            "WORKER_AGENTS": "worker.shipped,swarm_agents",
            "WORKER_CONFIG": str(HERE / "swarm.toml"),
            "WORKER_STATE_DIR": str(self.state),
            "PUBLIC_URL": self.url,
            # Nothing is paid here: an unused facilitator address prevents the chain from starting.
            "FACILITATOR_URL": "http://127.0.0.1:9",
            "LOG_FORMAT": "json",
            **self.settings,
            **more,
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "worker", "local", "--port", str(self.port)]
        self.tree = self._popen([*command, "--state", str(self.state)], self.environ())
        until = time.monotonic() + 30
        while not (self.state / "local.json").exists():
            assert self.tree.poll() is None and time.monotonic() < until, self.log
            time.sleep(0.02)

    def stop(self) -> None:
        if self.tree is not None:
            self.tree.send_signal(signal.SIGTERM)
            self.tree.wait(30)

    def another_web(self, **more: str) -> str:
        """Starts one more web process on its own port; returns its base URL."""
        port = free_port()
        environ = self.environ(PORT=str(port), REDIS_URL=self.facts["redis"], **more)
        self.others.append(
            self._popen([sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py"], environ)
        )
        kernel = Kernel(f"http://127.0.0.1:{port}", timeout=2)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if kernel.once("GET", "/health").status == 200:
                    return kernel.base
            time.sleep(0.02)
        raise AssertionError(self.log)

    def close(self) -> None:
        for process in self.others:
            process.terminate()
            process.wait(30)
        self.stop()

    def parts(self) -> Parts:
        """The engine's parts, for inspection."""
        redis_url = self.facts["redis"]
        return Parts(Settings.load({"REDIS_URL": redis_url, "WORKER_STATE_DIR": str(self.state)}), "cli")

    def _popen(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.home / "log").open("ab") as output:
            return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)

"""A complete local worker for a test: its own store, chain and facilitator, and a seeker that pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.core.amounts import to_atomic, to_text
from worker.core.settings import Settings
from worker.local.demo import balances
from worker.local.valkey import free_port
from worker.seeker import Order, PurchaseStore, Seeker, SpendLimits, Wallet
from worker.testing.result import RunFile
from worker.x402.networks import resolve_network

START_SECONDS = 90.0
STOP_SECONDS = 40.0
_LOG_LINES = 40


class NotStarted(AssertionError):
    """The local worker did not start; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Hire:
    """A paid hire: the delivered output, and the price paid in USDC."""

    output: Any
    files: dict[str, RunFile]
    charge: str
    transaction: str
    body: Mapping[str, Any]


class LocalWorker:
    """A running `worker local` with its own directory and port; it ends with the test."""

    def __init__(self, state: Path, environ: Mapping[str, str] | None = None) -> None:
        self.state = state
        self.log_file = state / "worker.log"
        inherited = {name: value for name, value in os.environ.items() if name not in _PLACES}
        self._environ = {**inherited, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._bought = 0
        self.facts: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return str(self.facts["url"])

    @property
    def log(self) -> str:
        """The worker's output so far: its log, and the agents' prints."""
        return self.log_file.read_text(errors="replace")

    def start(self) -> None:
        """Starts it in the current directory, with the agents configured there."""
        self.state.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "worker", "local", "--state", str(self.state)]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(free_port())], env=self._environ, stdout=log, stderr=log
            )
        about, until = self.state / "local.json", time.monotonic() + START_SECONDS
        while not about.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise NotStarted(
                    "\n".join(["the worker did not start:", *self.log.splitlines()[-_LOG_LINES:]])
                )
            time.sleep(0.05)
        self.facts = json.loads(about.read_text())

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def hire(self, capability: str, input: Any, *, most: str = "100") -> Hire:
        """Hires the capability, pays for it in test dollars, and checks the receipt."""
        limits = SpendLimits(
            most=to_atomic(most, field="most"),
            network=resolve_network(self.facts["network"]),
            plain_http=True,
        )
        seeker = Seeker(Wallet(self.facts["seeker_key"]), PurchaseStore(self.state / "purchases"), limits)
        before = balances(self.facts).worker
        result = seeker.hire(self.url, Order(capability), input)
        self._bought += 1
        saved = seeker.collect(result, self.state / f"hired-{self._bought}")
        if result.doubt is not None:
            raise AssertionError(f"the receipt proves nothing: {result.doubt.message}")
        files = {each.name: RunFile(each.name, each.mime, each.path.read_bytes()) for each in saved}
        charge = to_text(balances(self.facts).worker - before)
        return Hire(_output(files), files, charge, result.transaction, result.body)

    def __enter__(self) -> LocalWorker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


# Settings that would lead to another worker's store, money or address.
_PLACES = frozenset(Settings.names()) - {"WORKER_AGENTS", "WORKER_CONFIG", "POLICY", "SETTLE"}


def _output(files: Mapping[str, RunFile]) -> Any:
    """The value that the agent returned, which is delivered as a file."""
    if "output.json" in files:
        return files["output.json"].json
    return files["output.txt"].text if "output.txt" in files else None

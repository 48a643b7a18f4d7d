"""What an author's function sees of its execution.

Everything a job does goes into the log under the fence of its lease. After a crash the function runs
again from its first line: what it had said, shown and written is swallowed, finished steps answer from
the record, and `once` gives the value of the first run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import IO, Any, TypeVar

from worker.agents.blobs import FILE, ONCE, described, pack, unpack
from worker.agents.declare import Capability, Tool
from worker.agents.hold import Hold
from worker.agents.output import encode
from worker.agents.speech import Speech
from worker.agents.steps import Decide, Steps
from worker.agents.waits import Waits
from worker.delivery.files import FileRef, Files
from worker.delivery.names import safe_name
from worker.errors import Failed
from worker.executions.events import Kind
from worker.executions.others import Others
from worker.executions.record import Execution
from worker.executions.store import ExecutionStore

T = TypeVar("T")


class Job:
    """The hands of one attempt at one execution."""

    def __init__(
        self,
        execution: Execution,
        capability: Capability,
        *,
        store: ExecutionStore,
        files: Files,
        tools: Mapping[str, Tool],
        decide: Decide,
        at: int,
        lease_us: int,
        step_timeout_us: int,
        input: Any = None,
        nudge: Callable[[], None] = lambda: None,
        others: Others | None = None,
    ) -> None:
        context = execution.context
        self.id = execution.id
        self.input = input
        self.attempt = execution.attempt
        self.labels = execution.labels
        self.terms: dict[str, Any] | None = context.get("terms")
        self.profile: str = context.get("profile", "default")
        self.settings = {**capability.settings, **capability.profiles.get(self.profile, {})}
        self.stage: str | None = context.get("stage")
        self.seed: dict[str, Any] | None = context.get("seed")
        self.swarm: dict[str, Any] | None = context.get("swarm")
        self.output_schema: dict[str, Any] | None = context.get("output_schema")
        self.step_key: str | None = None
        self.files: list[FileRef] = []
        self._port = files
        self._until = time.monotonic() + (execution.run_until - at) / 1e6
        self._hold = Hold(execution, store, lease_us=lease_us)
        self._speech = Speech(self._hold, nudge)
        self._waits = Waits(self._hold, others)
        self._steps = Steps(
            self._hold,
            self._waits,
            tools=tools,
            files=files,
            decide=decide,
            at=at,
            timeout_us=step_timeout_us,
        )

    # What an author calls

    def seconds_left(self) -> float:
        """How long this attempt may still run."""
        return max(0.0, self._until - time.monotonic())

    def progress(self, fraction: float, message: str = "") -> None:
        """Tell whoever watches how far the work is, from 0 to 1."""
        self._hold.check()
        self._speech.progress(fraction, message)

    def say(self, text: str) -> None:
        """Give a chunk of text to whoever streams."""
        self._hold.check()
        self._speech.say(text)

    def file(
        self,
        name: str,
        data: bytes | str | Iterable[bytes],
        *,
        mime: str = "application/octet-stream",
        ready: bool = False,
    ) -> FileRef:
        """Deliver a file. `ready=True`: it is finished, and may be shown while the work goes on."""
        self._hold.check()
        name = safe_name(name)
        if any(ref.name == name for ref in self.files):
            raise Failed("DUPLICATE_FILE", "two deliverables have the same name", field=name)
        known = self._hold.remembered.get(f"{FILE}{name}")
        if known is None:
            ref = self._port.put(data.encode() if isinstance(data, str) else data, name=name, mime=mime)
            self._speech.flush()
            told = encode({**described(ref), "ready": ready})
            known = self._hold.keep(
                f"{FILE}{name}", encode(asdict(ref)), kind=Kind.FILE_WRITTEN, payload=told
            )
        self.files.append(FileRef(**json.loads(known)))
        return self.files[-1]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The value `make` gave the first time, also after a crash: for time, randomness, outside reads."""
        self._hold.check()
        known = self._hold.remembered.get(f"{ONCE}{name}")
        if known is None:
            value = pack(self._port, encode(make()), name="once.json")
            known = self._hold.keep(f"{ONCE}{name}", value)
        return unpack(self._port, known)

    def tool(self, tool: str, /, *, key: str | None = None, remote: bool = False, **arguments: Any) -> Any:
        """Call a tool: decided by policy, recorded, tried again after passing faults.

        `remote=True`: a runner runs it. Where the policy asks for approval, the function stops here, its
        process is freed, and once somebody has decided it runs again from its first line.
        """
        self._hold.check()
        self._speech.flush()
        return self._steps.call(self, tool, key, arguments, remote=remote)

    def wait(self, signal_type: str, *, timeout: float | None = None, key: str | None = None) -> Any:
        """Wait for a signal, as long as it takes; returns its payload.

        The function stops here and its process is freed. When the signal comes it runs again from its
        first line, with steps and waits answered from the record. WaitExpired after `timeout` seconds,
        or when after the wait there would be no time left for a run and its payment.
        """
        self._hold.check()
        self._speech.flush()
        return self._waits.wait(signal_type, key, timeout)

    # What the runner and the keeper call

    @property
    def stopped(self) -> str | None:
        """Why the lease is gone, if it is."""
        return self._hold.stopped

    def stop(self, reason: str) -> None:
        """The lease is gone: the function learns it at its next call."""
        self._hold.stop(reason)

    def insist(self, call: Callable[[], T]) -> T:
        """Writes through a store that is away for a moment."""
        return self._hold.insist(call)

    def flush(self) -> None:
        """Writes what was said and shown into the log."""
        self._speech.flush()

    def flush_when_old(self) -> float | None:
        """For the keeper: writes what has waited long enough; seconds until something will have."""
        return self._speech.flush_when_old()

    def stream(self, chunks: Iterable[Any]) -> None:
        """Runs a generator to its end."""
        for chunk in chunks:
            self.say(chunk)

    @property
    def overflowed(self) -> bool:
        """Whether the log could not take all that was said."""
        return self._speech.overflowed

    def said(self) -> IO[bytes]:
        """All that was said, as a file to read from its beginning."""
        return self._speech.whole()

    def close(self) -> None:
        self._speech.close()

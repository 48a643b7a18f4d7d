"""The job: what an author's function receives, its view of the execution.

Everything a job does is logged under the fence of its lease. After a crash the function runs again from
its first line: output, progress and files already logged are skipped, finished steps answer from the
record, and `once` returns the value of the first run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import IO, Any, TypeVar

from worker.agents.causes import FailureCause
from worker.agents.lease import Lease
from worker.agents.output_buffer import OutputBuffer
from worker.agents.steps import Decide, Steps
from worker.agents.waits import Waits
from worker.capabilities.declare import Capability, Tool
from worker.core.errors import Failed, Problem, Unavailable
from worker.core.json import encode
from worker.engine.events import Kind
from worker.engine.record import Execution
from worker.engine.step_fields import cause_field, file_field, once_field
from worker.engine.transitions import ExecutionStore
from worker.files.blobs import described, pack, unpack
from worker.files.names import safe_name
from worker.files.store import FileRef, Files
from worker.remote.external_calls import ExternalCalls

T = TypeVar("T")


class Job:
    """One attempt at one execution."""

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
        external_calls: ExternalCalls | None = None,
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
        self.attempt_id: str | None = context.get("swarm_request", {}).get("attempt_id")
        self.seed: dict[str, Any] | None = context.get("seed")
        self.swarm: dict[str, Any] | None = context.get("swarm")
        self.output_schema: dict[str, Any] | None = context.get("output_schema")
        self.step_key: str | None = None
        self.files: list[FileRef] = []
        self._port = files
        self._until = time.monotonic() + (execution.run_until - at) / 1e6
        self._lease = Lease(execution, store, lease_us=lease_us)
        self._output = OutputBuffer(self._lease, nudge)
        self._waits = Waits(self._lease, external_calls)
        self._steps = Steps(
            self._lease,
            self._waits,
            tools=tools,
            files=files,
            decide=decide,
            at=at,
            timeout_us=step_timeout_us,
        )

    # Called by authors

    def seconds_left(self) -> float:
        """How long this attempt may still run, in seconds."""
        return max(0.0, self._until - time.monotonic())

    def progress(self, fraction: float, message: str = "") -> None:
        """Report how far the work is, from 0 to 1."""
        self._lease.check()
        self._output.progress(fraction, message)

    def say(self, text: str) -> None:
        """Stream a chunk of text."""
        self._lease.check()
        self._output.say(text)

    def file(
        self,
        name: str,
        data: bytes | str | Iterable[bytes],
        *,
        mime: str = "application/octet-stream",
        ready: bool = False,
    ) -> FileRef:
        """Deliver a file. `ready=True`: it is finished and may be shown while the work goes on."""
        self._lease.check()
        name = safe_name(name)
        if any(ref.name == name for ref in self.files):
            raise Failed("DUPLICATE_FILE", "two deliverables have the same name", field=name)
        known = self._lease.remembered.get(file_field(name))
        if known is None:
            ref = self._put(data.encode() if isinstance(data, str) else data, name, mime)
            self._output.flush()
            payload = encode({**described(ref), "ready": ready})
            known = self._lease.keep(
                file_field(name), encode(asdict(ref)), kind=Kind.FILE_WRITTEN, payload=payload
            )
        self.files.append(FileRef(**json.loads(known)))
        return self.files[-1]

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return `make`'s first value, also after a crash: for time, randomness, outside reads."""
        self._lease.check()
        known = self._lease.remembered.get(once_field(name))
        if known is None:
            value = pack(self._port, encode(make()), name="once.json")
            known = self._lease.keep(once_field(name), value)
        return unpack(self._port, known)

    def tool(self, tool: str, /, *, key: str | None = None, remote: bool = False, **arguments: Any) -> Any:
        """Call a tool: decided by policy, recorded, retried after transient faults.

        `remote=True`: a runner runs it. If the policy asks for approval, the function stops here and its
        process is freed; after the decision the function runs again from its first line.
        """
        self._lease.check()
        self._output.flush()
        return self._steps.call(self, tool, key, arguments, remote=remote)

    def wait(self, signal_type: str, *, timeout: float | None = None, key: str | None = None) -> Any:
        """Wait for a signal, as long as it takes; return its payload.

        The function stops here and its process is freed. When the signal comes it runs again from its
        first line, with steps and waits answered from the record. Raises WaitExpired after `timeout` seconds,
        or if no time would be left after the wait for a run and its payment.
        """
        self._lease.check()
        self._output.flush()
        return self._waits.wait(signal_type, key, timeout)

    def _put(self, data: bytes | Iterable[bytes], name: str, mime: str) -> FileRef:
        try:
            return self._port.put(data, name=name, mime=mime)
        except Unavailable:
            raise
        except Problem as wrong:
            # The author's mistake; the sender of the input cannot fix it.
            raise Failed("OUTPUT_INVALID", wrong.message, **wrong.details) from None

    # Called by the runner and the lease keeper

    @property
    def stopped(self) -> str | None:
        """Why the lease was lost, or None."""
        return self._lease.stopped

    def stop(self, reason: str) -> None:
        """Marks the lease as lost; the function stops at its next call."""
        self._lease.stop(reason)

    def insist(self, call: Callable[[], T]) -> T:
        """Retries a write through short outages of the store."""
        return self._lease.insist(call)

    def flush(self) -> None:
        """Writes buffered text and progress to the log."""
        self._output.flush()

    def flush_when_old(self) -> float | None:
        """For the keeper: flushes output that is old enough; returns seconds until the next flush is due."""
        return self._output.flush_when_old()

    def stream(self, chunks: Iterable[Any]) -> None:
        """Consumes a generator to its end and streams its chunks."""
        for chunk in chunks:
            self.say(chunk)

    @property
    def overflowed(self) -> bool:
        """Whether the log could not take all of the text."""
        return self._output.overflowed

    def streamed_text(self) -> IO[bytes]:
        """All of the text, as a file positioned at its start."""
        return self._output.whole()

    def explain(self, cause: FailureCause) -> None:
        """Records why this attempt failed, for the author."""
        self._lease.keep(cause_field(self._lease.execution.fence), cause.packed())

    def close(self) -> None:
        self._output.close()

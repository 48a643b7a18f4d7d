"""What is written to a connection: its mailbox, with contents read from where they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from worker.agents.blobs import read, unpack
from worker.agents.output import encode
from worker.delivery.files import FileRef, Files
from worker.executions.events import Event, Kind, iso, one_line
from worker.executions.record import Execution
from worker.executions.remote_store import RemoteStore
from worker.executions.store import ExecutionStore

MOST_HISTORY = 50
MOST_HISTORY_BYTES = 512 * 1024
_ENDS: dict[str, str] = {
    Kind.STEP_COMPLETED: "succeeded",
    Kind.STEP_FAILED: "failed",
    Kind.STEP_TIMED_OUT: "timed_out",
    Kind.STEP_CANCELLED: "cancelled",
}

Message = tuple[str, bytes]


class Messages:
    """Reads messages; None where there is nothing to say any more."""

    def __init__(self, store: ExecutionStore, remote: RemoteStore, files: Files) -> None:
        self._store = store
        self._remote = remote
        self._files = files

    def read(self, item: bytes) -> Message | None:
        if not item.startswith(b"@"):
            event, _, data = item.partition(b" ")
            return event.decode(), data
        what, id, about = item[1:].decode().split(" ")
        match what:
            case "assigned":
                return self._assigned(id, about)
            case "signal":
                return self._signal(id, int(about))
            case "result":
                return self._result(id, about)
            case "job":
                return self._job(id, about)
        raise AssertionError(what)

    def _assigned(self, id: str, session: str) -> Message | None:
        execution = self._store.get(id)
        if execution is None or execution.session != session:
            return None
        parts = [
            b'"execution_id":%s' % encode(id),
            b'"session_id":%s' % encode(session),
            b'"agent_id":%s' % encode(execution.agent),
            b'"input":' + self._input(execution),
        ]
        if execution.labels:
            parts.append(b'"labels":' + encode(execution.labels))
        if execution.fence > 1:
            steps = history(self._store.events(id, 0, 10_000), lambda step: self._value(id, step))
            if steps:
                parts.append(b'"history":' + encode(steps))
        return Kind.EXECUTION_ASSIGNED, b"{" + b",".join(parts) + b"}"

    def _value(self, id: str, step: str) -> Any:
        """A step's result, wherever it is kept."""
        value = self._remote.step(id, step, "value")[0]
        return unpack(self._files, value) if value else None

    def _input(self, execution: Execution) -> bytes:
        ref = execution.raw.get("input_ref")
        return read(self._files, FileRef(**json.loads(ref))) if ref else execution.input

    def _signal(self, id: str, sequence: int) -> Message | None:
        found = self._store.events(id, sequence - 1, 1)
        if not found:
            return None
        told = b'{"execution_id":%s,' % encode(id) + found[0].payload[1:]
        if b'"payload_file":' in told:
            kept = self._remote.signal_payload(id, sequence)
            kind = found[0].data()["signal_type"]
            told = encode(
                {"execution_id": id, "signal_type": kind, "payload": unpack(self._files, kept or b"null")}
            )
        return Kind.SIGNAL_RECEIVED, told

    def _result(self, id: str, step: str) -> Message | None:
        status, value = self._remote.step(id, step, "status", "value")
        if status is None or value is None:
            return None
        body = {"execution_id": id, "step_id": step, "status": status.decode()}
        key = "result" if status == b"succeeded" else "error"
        return Kind.TOOL_RESULT, encode({**body, key: unpack(self._files, value)})

    def _job(self, id: str, step: str) -> Message | None:
        job, attempt, tool, arguments = self._remote.step(id, step, "job", "attempt", "tool", "args")
        if job is None or attempt is None or tool is None:
            return None
        body = {
            "id": job.decode(),
            "execution_id": id,
            "step_id": step,
            "attempt": int(attempt),
            "tool_id": tool.decode(),
            "tool_version": 0,
            "arguments": unpack(self._files, arguments) if arguments else None,
            "deadline": iso(self._remote.step_deadline(id, step)),
            "not_before": "0001-01-01T00:00:00Z",
        }
        return Kind.JOB_ASSIGNED, encode(body)


def history(events: Iterable[Event], value: Callable[[str], Any]) -> list[dict[str, Any]]:
    """The finished steps of earlier runs, oldest first; the latest, where they are too many.

    `value` reads a result that is too long for its event.
    """
    begun: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    long: set[str] = set()
    for event in events:
        data = event.data() if event.step_id else {}
        if event.kind == Kind.STEP_CREATED:
            begun[event.step_id] = data
        status = _ENDS.get(event.kind) if event.step_id in begun else None
        if status is None or data.get("retryable"):
            continue
        created = begun.pop(event.step_id)
        entry = {"step_id": event.step_id, "tool_id": created["tool_id"], "status": status}
        if created.get("arguments") is not None:
            entry["arguments"] = created["arguments"]
        entry |= {name: data[name] for name in ("result", "error") if data.get(name) is not None}
        found.append({**entry, "completed_at": iso(event.at)})
        if "result_file" in data:
            long.add(event.step_id)
    found = found[-MOST_HISTORY:]
    for entry in found:
        if entry["step_id"] in long:
            entry["result"] = value(entry["step_id"])
    return _fitting(found)


def _fitting(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    size = 0
    for at in range(len(steps) - 1, -1, -1):
        size += len(encode(steps[at])) + 1
        if size > MOST_HISTORY_BYTES:
            return steps[at + 1 :]
    return steps


def frame(message: Message) -> bytes:
    """A message as a server-sent event."""
    return f"event: {message[0]}\ndata: {one_line(message[1].decode())}\n\n".encode()

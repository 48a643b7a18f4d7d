"""Messages of a connection: reads its mailbox items and loads the content they reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from worker.core.json import encode
from worker.engine.events import Event, Kind, iso, one_line
from worker.engine.stored_files import input_of
from worker.engine.transitions import ExecutionStore
from worker.files.blobs import unpack
from worker.files.store import Files
from worker.remote.mail import MailReference, read_item
from worker.remote.store import RemoteStore

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
    """Reads messages; returns None for a message that is no longer relevant."""

    def __init__(self, store: ExecutionStore, remote: RemoteStore, files: Files) -> None:
        self._store = store
        self._remote = remote
        self._files = files

    def read(self, item: bytes) -> Message | None:
        mail = read_item(item)
        if not isinstance(mail, MailReference):
            return mail
        id, about = mail.execution_id, mail.about
        match mail.kind:
            case "assigned":
                return self._assigned(id, about)
            case "signal":
                return self._signal(id, int(about))
            case "result":
                return self._result(id, about)
            case "job":
                return self._job(id, about)
        raise AssertionError(mail.kind)

    def _assigned(self, id: str, session: str) -> Message | None:
        execution = self._store.get(id)
        if execution is None or execution.session != session:
            return None
        parts = [
            b'"execution_id":%s' % encode(id),
            b'"session_id":%s' % encode(session),
            b'"agent_id":%s' % encode(execution.agent),
            b'"input":' + input_of(self._files, execution),
        ]
        if execution.labels:
            parts.append(b'"labels":' + encode(execution.labels))
        if execution.fence > 1:
            events = self._store.events(id, 0, 10_000)
            steps = history(events, lambda step, name: self._stored_value(id, step, name))
            if steps:
                parts.append(b'"history":' + encode(steps))
        return Kind.EXECUTION_ASSIGNED, b"{" + b",".join(parts) + b"}"

    def _stored_value(self, id: str, step: str, name: str) -> Any:
        """Reads a step's result (`value`) or arguments (`args`) from the record or a file."""
        value = self._remote.step(id, step, name)[0]
        return unpack(self._files, value) if value else None

    def _signal(self, id: str, sequence: int) -> Message | None:
        found = self._store.events(id, sequence - 1, 1)
        if not found:
            return None
        payload = b'{"execution_id":%s,' % encode(id) + found[0].payload[1:]
        if b'"payload_file":' in payload:
            stored = self._remote.signal_payload(id, sequence)
            kind = found[0].data()["signal_type"]
            payload = encode(
                {"execution_id": id, "signal_type": kind, "payload": unpack(self._files, stored or b"null")}
            )
        return Kind.SIGNAL_RECEIVED, payload

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


def history(events: Iterable[Event], read_value: Callable[[str, str], Any]) -> list[dict[str, Any]]:
    """Returns the finished steps of earlier runs, oldest first; only the latest if there are too many.

    `read_value` reads a step's `value` or `args` that is too long for its event.
    """
    begun: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    long: set[tuple[str, str]] = set()
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
        if "arguments_omitted" in created:
            long.add((event.step_id, "args"))
        entry |= {name: data[name] for name in ("result", "error") if data.get(name) is not None}
        found.append({**entry, "completed_at": iso(event.at)})
        if "result_file" in data:
            long.add((event.step_id, "value"))
    found = found[-MOST_HISTORY:]
    for entry in found:
        for name, kind in (("result", "value"), ("arguments", "args")):
            value = read_value(entry["step_id"], kind) if (entry["step_id"], kind) in long else None
            if value is not None:
                entry[name] = value
    return _fitting(found)


def _fitting(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    size = 0
    for at in range(len(steps) - 1, -1, -1):
        size += len(encode(steps[at])) + 1
        if size > MOST_HISTORY_BYTES:
            return steps[at + 1 :]
    return steps


def frame(message: Message) -> bytes:
    """Formats a message as a server-sent event."""
    return f"event: {message[0]}\ndata: {one_line(message[1].decode())}\n\n".encode()

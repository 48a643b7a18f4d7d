"""Signals from outside: they answer waits, and approve or deny a step that waits for somebody's word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.agents.blobs import described, discard, pack, reference
from worker.agents.output import encode, short
from worker.delivery.files import Files
from worker.errors import BadRequest, Conflict, NotFound
from worker.executions.payloads import MOST_ERROR, shown_error, waits
from worker.executions.refusals import ended
from worker.executions.remote_store import MOST_MESSAGES, RemoteStore
from worker.executions.runners import Runners
from worker.executions.scripts import Arg
from worker.executions.store import MOST_EVENTS, MOST_LOG_BYTES
from worker.ids import new_id

STEP_APPROVE = "step.approve"
# The document's own example: it names no step, and means the one that is blocked.
APPROVAL = "approval"
DENIED = "approval denied by human"


class Signals:
    """Sends signals to executions, wherever these run."""

    def __init__(
        self,
        store: RemoteStore,
        runners: Runners,
        files: Files,
        *,
        push: Callable[[str], None],
        step_timeout_us: int,
    ) -> None:
        self._store = store
        self._files = files
        self._runners = runners
        self._push = push
        self._step_timeout_us = step_timeout_us

    def send(self, id: str, kind: str, payload: Any) -> None:
        """Writes the signal down and does what it decides."""
        verdict, step, reason = _verdict(kind, payload)
        packed = pack(self._files, encode(payload), name="signal.json")
        ref = reference(packed)
        event, kept = b'{"signal_type":%s,"payload":%s}' % (encode(kind), packed), b""
        if ref is not None:
            event = encode({"signal_type": kind, "payload": None, "payload_file": described(ref)})
            kept = packed
        while True:
            session, blocked, on, lane = self._store.fields(id, "session", "ref", "blocked_on", "lane")
            session = session if lane == "remote" else ""
            tool = self._store.step(id, blocked, "tool")[0] if on == "approval" else None
            told = {
                "execution_id": id,
                "step_id": blocked,
                "approved": verdict == "yes",
                "session_id": session,
            }
            args: list[Arg] = [
                id,
                session,
                blocked,
                kind,
                event,
                waits(kind)[2],
                verdict,
                step,
                shown_error(reason),
                encode(reason),
                b"approval.resolved " + encode(told),
                new_id(),
                self._step_timeout_us,
                MOST_MESSAGES,
                MOST_EVENTS,
                MOST_LOG_BYTES,
                kept,
            ]
            name = tool.decode() if tool else ""
            what, *more = (part.decode() for part in self._store.signal(id, session, name, args))
            if what == "moved":
                continue
            if what != "ok":
                discard(self._files, packed)
            match what:
                case "unknown":
                    raise NotFound(f"execution {id}")
                case "terminal":
                    raise ended(id, more[0])
                case "mismatch":
                    raise BadRequest(f'approval step_id "{step}" does not match blocked ref "{more[0]}"')
                case "full":
                    raise Conflict(f"the log of execution {id} is full")
            wanted, queued = more
            if wanted:
                self._runners.offer(id, wanted, name, told=True)
            if queued == "queue":
                self._push(id)
            return


def _verdict(kind: str, payload: Any) -> tuple[str, str, str]:
    """'yes', 'no' or '' (it decides nothing), the step it names or '*', and the reason for a denial."""
    said = payload if isinstance(payload, dict) else {}
    approved, step, reason = said.get("approved"), said.get("step_id"), said.get("reason")
    named = step if isinstance(step, str) else ""
    if kind == STEP_APPROVE:
        if approved is not None and not isinstance(approved, bool):
            raise BadRequest("approved must be true or false", field="payload.approved")
    elif kind == APPROVAL and isinstance(approved, bool):
        named = "*" if step is None else named
    else:
        return "", "", DENIED
    return "yes" if approved else "no", named, _reason(reason)


def _reason(given: Any) -> str:
    return short(given, MOST_ERROR) if isinstance(given, str) and given else DENIED

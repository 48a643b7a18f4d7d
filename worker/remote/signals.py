"""Signals from outside: they answer waits, and approve or deny a step that waits for approval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.core.errors import BadRequest, Conflict, NotFound, Problem
from worker.core.ids import new_id
from worker.core.json import encode, short
from worker.engine.events import MOST_EVENTS, MOST_LOG_BYTES, Kind
from worker.engine.refusals import already_ended
from worker.files.blobs import described, discard, pack, reference
from worker.files.store import Files
from worker.remote.answers import SIGNAL, SignalAnswer
from worker.remote.mail import message_item
from worker.remote.payloads import MOST_ERROR, shown_error, waits
from worker.remote.runners import Runners
from worker.remote.store import MOST_MESSAGES, RemoteStore
from worker.store.scripts import Reply

STEP_APPROVE = "step.approve"
# The example in the API reference names no step; it means the blocked one.
APPROVAL = "approval"
DENIED = "approval denied by human"
# A decision without a step id applies to the only step that waits.
ANY_STEP = "*"


class Signals:
    """Sends signals to executions, wherever they run."""

    def __init__(
        self,
        store: RemoteStore,
        runners: Runners,
        files: Files,
        *,
        push: Callable[[str], None],
        step_timeout_us: int,
        agent_timeout_us: int,
    ) -> None:
        self._store = store
        self._files = files
        self._runners = runners
        self._push = push
        self._step_timeout_us = step_timeout_us
        self._agent_timeout_us = agent_timeout_us

    def send(self, id: str, kind: str, payload: Any) -> None:
        """Records the signal and applies its decision."""
        verdict, step, reason = _verdict(kind, payload)
        packed = pack(self._files, encode(payload), name="signal.json")
        ref = reference(packed)
        event, stored = b'{"signal_type":%s,"payload":%s}' % (encode(kind), packed), b""
        if ref is not None:
            event = encode({"signal_type": kind, "payload": None, "payload_file": described(ref)})
            stored = packed
        while True:
            session, blocked, on, lane = self._store.fields(id, "session", "ref", "blocked_on", "lane")
            session = session if lane == "remote" else ""
            decided = blocked if step == ANY_STEP else step
            tool = self._store.step(id, decided, "tool")[0] if on == "approval" else None
            resolution = {
                "execution_id": id,
                "step_id": decided,
                "approved": verdict == "yes",
                "session_id": session,
            }
            name = tool.decode() if tool else ""
            reply = self._store.scripts.run(
                SIGNAL,
                id=id,
                session_seen=session,
                ref_seen=blocked,
                tool=name,
                kind=kind,
                received=event,
                resumed=waits(kind)[2],
                verdict=verdict,
                about=step,
                failed=shown_error(reason),
                value=encode(reason),
                message=message_item(Kind.APPROVAL_RESOLVED, encode(resolution)),
                job=new_id(),
                timeout=self._step_timeout_us,
                most=MOST_MESSAGES,
                most_events=MOST_EVENTS,
                most_bytes=MOST_LOG_BYTES,
                stored=stored,
                away=self._agent_timeout_us,
            )
            if reply.answer is SignalAnswer.MOVED:
                continue
            if reply.answer is not SignalAnswer.OK:
                discard(self._files, packed)
                raise _refused(reply, id, step)
            wanted, queued = reply.text(0), reply.text(1)
            if wanted:
                self._runners.offer(id, wanted, name, announced=True)
            if queued == "queue":
                self._push(id)
            return


def _verdict(kind: str, payload: Any) -> tuple[str, str, str]:
    """Returns 'yes', 'no' or '' (no decision), the step named or '*', and the reason for a denial."""
    body = payload if isinstance(payload, dict) else {}
    approved, step, reason = body.get("approved"), body.get("step_id"), body.get("reason")
    named = step if isinstance(step, str) else ""
    if kind == STEP_APPROVE:
        if approved is not None and not isinstance(approved, bool):
            raise BadRequest("approved must be true or false", field="payload.approved")
    elif kind == APPROVAL and isinstance(approved, bool):
        named = ANY_STEP if step is None else named
    else:
        return "", "", DENIED
    return "yes" if approved else "no", named, _reason(reason)


def _refused(reply: Reply[SignalAnswer], id: str, step: str) -> Problem:
    match reply.answer:
        case SignalAnswer.UNKNOWN:
            return NotFound(f"execution {id}")
        case SignalAnswer.TERMINAL:
            return already_ended(id, reply.text())
        case SignalAnswer.MISMATCH:
            return _mismatch(step, reply.text())
        case SignalAnswer.FULL:
            return Conflict(f"the log of execution {id} is full")
        case SignalAnswer.OK | SignalAnswer.MOVED:
            raise AssertionError(reply.answer)


def _mismatch(step: str, waiting: str) -> BadRequest:
    if step != ANY_STEP:
        return BadRequest(f'approval step_id "{step}" does not match blocked ref "{waiting}"')
    return BadRequest("several steps wait for approval", field="payload.step_id", expected=waiting.split())


def _reason(value: Any) -> str:
    return short(value, MOST_ERROR) if isinstance(value, str) and value else DENIED

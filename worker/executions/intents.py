"""What a remote agent wants: call a tool, wait, end. Checked, decided by policy, written down once."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker.agents.blobs import discard, measured, pack
from worker.agents.output import encode
from worker.delivery.files import Files
from worker.errors import BadRequest
from worker.executions.outcomes import INVALID, Outcome, Outcomes
from worker.executions.payloads import ToolCall, digest, shown_error, shown_value, waits
from worker.executions.policy import Call, Decision
from worker.executions.refusals import refuse, step_unknown
from worker.executions.remote_store import MOST_MESSAGES, RemoteStore
from worker.executions.runners import Runners, result_message
from worker.executions.scripts import Arg
from worker.executions.store import MOST_EVENTS, MOST_LOG_BYTES, SETTLE_GRACE_US
from worker.ids import new_id

# A runner's job is tried so often; what was approved is tried once.
MOST_ATTEMPTS = 3
_ROOM = (MOST_EVENTS, MOST_LOG_BYTES)

Decide = Callable[[Call], Decision]


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent as it came. `caller` is the only agent that the caller may act for, or ''."""

    id: str
    session: str
    type: str
    tool: str = ""
    arguments: Any = None
    has_arguments: bool = False
    key: str = ""
    signal_type: str = ""
    output: Any = None
    error: str = ""
    remote: bool = False
    caller: str = ""

    @property
    def digest(self) -> str:
        """Two intents under one key are the same intent when this is equal."""
        about = [self.type, self.tool, self.arguments, self.signal_type, self.output, self.error, self.remote]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def hidden_key(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()[:40] if self.key else ""


class _Unchecked(Exception):
    """The output may have been promised a shape."""


class Intents:
    """The agents' side of the kernel."""

    def __init__(
        self,
        store: RemoteStore,
        runners: Runners,
        outcomes: Outcomes,
        files: Files,
        *,
        decide: Decide,
        step_timeout_us: int,
        timed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._runners = runners
        self._outcomes = outcomes
        self._files = files
        self._decide = decide
        self._step_timeout_us = step_timeout_us
        self._timed = timed

    def submit(self, intent: Intent) -> bytes:
        """The answer to an intent, as JSON."""
        problem = _content(intent)
        if problem is not None:
            self._check(intent)
            raise problem
        match intent.type:
            case "invoke_tool":
                return self._invoke(intent)
            case "wait":
                return self._wait(intent)
            case _:
                return self._end(intent)

    def step_result(
        self, id: str, session: str, step: str, *, success: bool, data: Any, error: str, caller: str
    ) -> None:
        """What became of a tool that the agent ran itself."""
        outcome = "succeeded" if success else "failed"
        value = pack(self._files, encode(data if success else error), name="step.json")
        told = shown_value(value) if success else shown_error(error)
        message = result_message(id, step, outcome, data, error)
        args: list[Arg] = [id, session, caller, step, outcome, value, told]
        args += [digest(success, data, error), message, MOST_MESSAGES]
        reply = self._store.intent("step_result", id, [self._store.keys.mail(session)], args)
        if reply[0] == b"ok":
            return
        discard(self._files, value)
        if reply[0] == b"step":
            raise step_unknown(step)
        if reply[0] != b"again":
            self._refuse(reply, id, session, step)

    # Tools

    def _invoke(self, intent: Intent) -> bytes:
        reply = self._check(intent)
        if reply[0] == b"again":
            return reply[1]
        decision = self._judge(intent, reply)
        if decision.refusal is not None:
            return self._deny(intent, decision)
        asks = decision.kind == "require_approval"
        timeout_us = (decision.timeout_ms or 0) * 1000 or self._step_timeout_us
        step = new_id()
        call = self._call(intent, kept=intent.remote)
        args = self._invocation(intent, call, decision, step, asks=asks, timeout_us=timeout_us)
        reply = self._store.intent("invoke", intent.id, [self._store.keys.jobs(intent.tool)], args)
        if reply[0] != b"new":
            discard(self._files, call.packed or b"")
        if reply[0] == b"denied":
            return self._deny(intent, replace(decision, kind="deny", reason=json.loads(reply[1])))
        if reply[0] == b"new" and reply[2] == b"1":
            self._runners.offer(intent.id, step, intent.tool, told=True)
        return self._answer(reply, intent)

    def _invocation(
        self, intent: Intent, call: ToolCall, decision: Decision, step: str, *, asks: bool, timeout_us: int
    ) -> list[Arg]:
        attempts = MOST_ATTEMPTS if intent.remote and not asks else 1
        return [
            intent.id,
            intent.session,
            intent.hidden_key,
            intent.digest,
            step,
            intent.tool,
            "ask" if asks else "allow",
            "1" if intent.remote else "",
            attempts,
            timeout_us,
            call.accepted(),
            call.created(attempts),
            new_id(),
            call.packed or b"null",
            call.approval_required(decision.reason),
            call.blocked(step),
            encode({"accepted": True, "step_id": step}),
            encode({"accepted": True, "step_id": step, "pending_approval": True}),
            f"approved {digest(intent.tool, intent.arguments)}",
            *_ROOM,
        ]

    def _call(self, intent: Intent, *, kept: bool) -> ToolCall:
        """`kept`: a runner will read the arguments."""
        packed = None
        if intent.has_arguments:
            value, name = encode(intent.arguments), "arguments.json"
            packed = pack(self._files, value, name=name) if kept else measured(value, name=name)
        return ToolCall(intent.tool, packed, intent.remote, intent.key)

    def _judge(self, intent: Intent, reply: list[bytes]) -> Decision:
        _, at, agent, labels, created, steps = reply
        call = Call(
            agent_id=agent.decode(),
            tool_id=intent.tool,
            arguments=intent.arguments,
            labels=json.loads(labels or b"{}"),
            step_count=int(steps),
            age_ms=(int(at) - int(created)) // 1000,
            now_us=int(at),
        )
        began = time.perf_counter()
        decision = self._decide(call)
        self._timed(time.perf_counter() - began)
        return decision

    def _deny(self, intent: Intent, decision: Decision) -> bytes:
        response = encode({"accepted": False, "error": decision.refusal})
        counted = "rate_limited" if decision.rate_limited else "denied"
        args: list[Arg] = [intent.id, intent.session, intent.hidden_key, intent.digest]
        args += [
            self._call(intent, kept=False).denied(decision.reason, decision.rule_id),
            response,
            counted,
            *_ROOM,
        ]
        return self._answer(self._store.intent("deny", intent.id, [], args), intent)

    # Waiting and ending

    def _wait(self, intent: Intent) -> bytes:
        kind = intent.signal_type
        args: list[Arg] = [intent.id, intent.session, intent.caller, intent.hidden_key, intent.digest]
        args += [kind, *waits(kind), encode({"accepted": True}), MOST_MESSAGES, *_ROOM]
        reply = self._store.intent("wait", intent.id, [self._store.keys.mail(intent.session)], args)
        return self._answer(reply, intent)

    def _end(self, intent: Intent) -> bytes:
        if intent.type == "fail":
            return self._seal(intent, self._outcomes.failed(intent.error), {"error": intent.error})
        details, made = {"output": intent.output}, self._outcomes.completed(intent.output)
        try:
            return self._seal(intent, made, details)
        except _Unchecked:
            problem = self._outcomes.problem(intent.id, intent.output)
        if problem is None:
            return self._seal(intent, made, details, checked=True)
        self._outcomes.discard(made)
        return self._seal(intent, self._outcomes.failed(problem, INVALID), details, refused=problem)

    def _seal(
        self,
        intent: Intent,
        outcome: Outcome,
        details: Mapping[str, Any],
        *,
        checked: bool = False,
        refused: str | None = None,
    ) -> bytes:
        accepted = {"accepted": True} if refused is None else {"accepted": False, "error": refused}
        args: list[Arg] = [
            intent.id,
            intent.session,
            intent.caller,
            intent.hidden_key,
            intent.digest,
            outcome.outcome,
            outcome.output,
            outcome.result,
            outcome.error,
            outcome.payload,
            "no_response",
            SETTLE_GRACE_US,
            _bounded({"intent_type": intent.type, "details": details}),
            encode(accepted),
            "1" if checked else "",
        ]
        reply = self._store.intent("complete", intent.id, [self._store.keys.held(intent.session)], args)
        if reply[0] == b"check":
            raise _Unchecked
        if reply[0] != b"new":
            self._outcomes.discard(outcome)
        return self._answer(reply, intent)

    # Refusals

    def _check(self, intent: Intent) -> list[bytes]:
        """Whether the session may act now. Its first answer, if the intent has a key and came before."""
        i = intent
        reply = self._store.session(i.id, i.session, i.caller, i.hidden_key, i.digest)
        if reply[0] not in (b"ok", b"again"):
            self._refuse(reply, intent.id, intent.session)
        return reply

    def _answer(self, reply: list[bytes], intent: Intent) -> bytes:
        if reply[0] in (b"new", b"again"):
            return reply[1]
        self._refuse(reply, intent.id, intent.session)
        raise AssertionError(reply)

    def _refuse(self, reply: list[bytes], id: str, session: str, step: str = "") -> None:
        foreign = reply[0] == b"unknown" and session in self._store.held(session).values()
        refuse(reply, id, session, foreign=foreign, step=step)


def _content(intent: Intent) -> BadRequest | None:
    match intent.type:
        case "invoke_tool":
            missing = "" if intent.tool else "tool_id"
        case "fail":
            missing = "" if intent.error else "error"
        case "wait":
            missing = "" if intent.signal_type else "signal_type"
        case "complete":
            missing = ""
        case _:
            return BadRequest(f"unknown intent type {intent.type[:64]!r}", field="intent.type")
    if missing:
        return BadRequest(f"intent.{missing} is required for {intent.type}", field=f"intent.{missing}")
    return None


def _bounded(body: Mapping[str, Any]) -> bytes:
    """An intent as the log tells it; what is too long for that is told by the terminal event's file."""
    packed = encode(body)
    return packed if len(packed) <= 32 * 1024 else encode({**body, "details": {"omitted": len(packed)}})

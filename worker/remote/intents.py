"""Intents of remote agents: call a tool, wait, end. Validated, decided by policy, recorded once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from worker.core.ids import new_id
from worker.core.json import encode
from worker.engine.events import MOST_EVENTS, MOST_LOG_BYTES
from worker.engine.output import WorkResult
from worker.engine.transitions import SETTLE_GRACE_US
from worker.files.blobs import discard, pack
from worker.files.store import Files
from worker.policy.judge import Decision, PolicyCall
from worker.remote.answers import (
    COMPLETE,
    DENY,
    INVOKE,
    SESSION,
    STEP_RESULT,
    WAIT,
    CompleteAnswer,
    DenyAnswer,
    InvokeAnswer,
    SessionAnswer,
    StepResultAnswer,
    WaitAnswer,
)
from worker.remote.intent import Intent, missing_content, tool_call
from worker.remote.outcomes import INVALID, OUTPUT_UNFIT, RemoteResults
from worker.remote.payloads import SHOWN_ARGUMENTS, ToolCall, digest, shown_error, shown_value, waits
from worker.remote.refusals import refuse, step_unknown
from worker.remote.runners import Runners, result_message
from worker.remote.store import MOST_MESSAGES, RemoteStore
from worker.store.client import as_bytes
from worker.store.scripts import Reply

# Most attempts of a runner's job; an approved call gets only one.
MOST_ATTEMPTS = 3
# Intents still allowed while one of the agent's steps waits for approval.
_WHILE_ASKED = ("invoke_tool", "fail")

Decide = Callable[[PolicyCall], Decision]
# The decision on a tool and its arguments, if the policy need not look at the execution; else None.
Foresee = Callable[[str, Any], Decision | None]


class _Unchecked(Exception):
    """The output must be checked first: a schema may apply to it."""


class Intents:
    """Handles the intents of remote agents."""

    def __init__(
        self,
        store: RemoteStore,
        runners: Runners,
        outcomes: RemoteResults,
        files: Files,
        *,
        decide: Decide,
        foresee: Foresee = lambda tool, arguments: None,
        step_timeout_us: int,
        timed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._store = store
        self._runners = runners
        self._outcomes = outcomes
        self._files = files
        self._decide = decide
        self._foresee = foresee
        self._step_timeout_us = step_timeout_us
        self._timed = timed

    def submit(self, intent: Intent) -> bytes:
        """Handles an intent and returns the response as JSON."""
        problem = missing_content(intent)
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
        """Records the result of a tool that the agent ran itself."""
        outcome = "succeeded" if success else "failed"
        value = pack(self._files, encode(data if success else error), name="step.json")
        payload = shown_value(value) if success else shown_error(error)
        message = result_message(id, step, outcome, data, error)
        reply = self._store.scripts.run(
            STEP_RESULT,
            id=id,
            session=session,
            caller=caller,
            step=step,
            outcome=outcome,
            value=value,
            payload=payload,
            digest=digest(success, data, error),
            message=message,
            most=MOST_MESSAGES,
        )
        if reply.answer is StepResultAnswer.OK:
            return
        discard(self._files, value)
        if reply.answer is StepResultAnswer.STEP:
            raise step_unknown(step)
        if reply.answer is not StepResultAnswer.AGAIN:
            self._refuse(reply, id, session, step)

    # Tools

    def _invoke(self, intent: Intent) -> bytes:
        call, began = tool_call(intent), time.perf_counter()
        # Nothing is stored for a call that is a repeat, or that its session may not make.
        decision = None if call.is_long else self._foresee(intent.tool, intent.arguments)
        if decision is not None:
            self._timed(time.perf_counter() - began)
        else:
            known = self._check(intent)
            if known.answer is SessionAnswer.AGAIN:
                return as_bytes(known.values[0])
            decision = self._judge(intent, known)
        if decision.refusal is not None:
            return self._deny(intent, decision)
        step = new_id()
        call = self._with_stored_arguments(call)
        reply = self._invocation(intent, call, decision, step)
        if reply.answer is not InvokeAnswer.NEW:
            discard(self._files, call.packed)
        if reply.answer is InvokeAnswer.DENIED:
            return self._deny(intent, replace(decision, kind="deny", reason=json.loads(reply.values[0])))
        if reply.answer is InvokeAnswer.NEW and reply.text(1) == "1":
            self._runners.offer(intent.id, step, intent.tool, announced=True)
        return self._answer(reply, intent)

    def _invocation(
        self, intent: Intent, call: ToolCall, decision: Decision, step: str
    ) -> Reply[InvokeAnswer]:
        asks = decision.kind == "require_approval"
        attempts = MOST_ATTEMPTS if intent.remote and not asks else 1
        return self._store.scripts.run(
            INVOKE,
            id=intent.id,
            session=intent.session,
            caller=intent.caller,
            key=intent.hidden_key,
            digest=intent.digest,
            step=step,
            tool=intent.tool,
            decision="ask" if asks else "allow",
            runner="1" if intent.remote else "",
            attempts=attempts,
            timeout=(decision.timeout_ms or 0) * 1000 or self._step_timeout_us,
            accepted=call.accepted(),
            created=call.created(attempts),
            job=new_id() if intent.remote else "",
            arguments=call.packed,
            required=call.approval_required(decision.reason) if asks else b"",
            blocked=call.blocked(step) if asks else b"",
            response=encode({"accepted": True, "step_id": step}),
            asking=encode({"accepted": True, "step_id": step, "pending_approval": True}) if asks else b"",
            approval=f"approved {digest(intent.tool, intent.arguments)}",
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )

    def _with_stored_arguments(self, call: ToolCall) -> ToolCall:
        """Returns the call with its arguments stored for runners and later runs."""
        if call.arguments is None:
            return call
        packed = pack(self._files, call.arguments, name="arguments.json", most=SHOWN_ARGUMENTS)
        return replace(call, packed=packed)

    def _judge(self, intent: Intent, reply: Reply[SessionAnswer]) -> Decision:
        at, agent, labels, created, steps = reply.values
        call = PolicyCall(
            agent_id=agent.decode(),
            tool_id=intent.tool,
            arguments=intent.arguments,
            labels=json.loads(labels or b"{}"),
            step_count=int(steps),
            age_ms=(int(at) - int(created)) // 1000,
            now_us=int(at),
            id=intent.call_id,
        )
        began = time.perf_counter()
        decision = self._decide(call)
        self._timed(time.perf_counter() - began)
        return decision

    def _deny(self, intent: Intent, decision: Decision) -> bytes:
        response = encode({"accepted": False, "error": decision.refusal})
        counted = "rate_limited" if decision.rate_limited else "denied"
        reply = self._store.scripts.run(
            DENY,
            id=intent.id,
            session=intent.session,
            caller=intent.caller,
            key=intent.hidden_key,
            digest=intent.digest,
            payload=tool_call(intent).denied(decision.reason, decision.rule_id),
            response=response,
            decision=counted,
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )
        return self._answer(reply, intent)

    # Waiting and ending

    def _wait(self, intent: Intent) -> bytes:
        accepted, blocked, resumed = waits(intent.signal_type)
        reply = self._store.scripts.run(
            WAIT,
            id=intent.id,
            session=intent.session,
            caller=intent.caller,
            key=intent.hidden_key,
            digest=intent.digest,
            kind=intent.signal_type,
            accepted=accepted,
            blocked=blocked,
            resumed=resumed,
            response=encode({"accepted": True}),
            most=MOST_MESSAGES,
            most_events=MOST_EVENTS,
            most_bytes=MOST_LOG_BYTES,
        )
        return self._answer(reply, intent)

    def _end(self, intent: Intent) -> bytes:
        if intent.type == "fail":
            return self._seal(intent, self._outcomes.failed(intent.error), {"error": intent.error})
        details, result = {"output": intent.output}, self._outcomes.completed(intent.output)
        try:
            return self._seal(intent, result, details)
        except _Unchecked:
            problem = self._outcomes.problem(intent.id, intent.output)
        if problem is None:
            return self._seal(intent, result, details, checked=True)
        self._outcomes.discard(result)
        # The agent learns what is wrong with its own output; the seeker, who does not pay for it, does not.
        return self._seal(intent, self._outcomes.failed(OUTPUT_UNFIT, INVALID), details, refused=problem)

    def _seal(
        self,
        intent: Intent,
        outcome: WorkResult,
        details: Mapping[str, Any],
        *,
        checked: bool = False,
        refused: str | None = None,
    ) -> bytes:
        accepted = {"accepted": True} if refused is None else {"accepted": False, "error": refused}
        reply = self._store.scripts.run(
            COMPLETE,
            id=intent.id,
            session=intent.session,
            caller=intent.caller,
            key=intent.hidden_key,
            digest=intent.digest,
            outcome=outcome.outcome,
            output=outcome.output,
            result=outcome.result,
            problem=outcome.error,
            payload=outcome.payload,
            condition="no_response",
            grace=SETTLE_GRACE_US,
            accepted=_bounded({"intent_type": intent.type, "details": details}),
            response=encode(accepted),
            checked="1" if checked else "",
        )
        if reply.answer is CompleteAnswer.CHECK:
            raise _Unchecked
        if reply.answer is not CompleteAnswer.NEW:
            self._outcomes.discard(outcome)
        return self._answer(reply, intent)

    # Refusals

    def _check(self, intent: Intent) -> Reply[SessionAnswer]:
        """Checks that the session may act now; returns the first answer if the intent is a repeat."""
        reply = self._store.scripts.run(
            SESSION,
            id=intent.id,
            session=intent.session,
            caller=intent.caller,
            key=intent.hidden_key,
            digest=intent.digest,
            goes_along="1" if intent.type in _WHILE_ASKED else "",
        )
        if reply.answer not in (SessionAnswer.OK, SessionAnswer.AGAIN):
            self._refuse(reply, intent.id, intent.session)
        return reply

    def _answer(
        self,
        reply: Reply[InvokeAnswer] | Reply[DenyAnswer] | Reply[WaitAnswer] | Reply[CompleteAnswer],
        intent: Intent,
    ) -> bytes:
        if reply.answer in ("new", "again"):
            return as_bytes(reply.values[0])
        self._refuse(reply, intent.id, intent.session)

    def _refuse(self, reply: Reply[Any], id: str, session: str, step: str = "") -> NoReturn:
        foreign = reply.answer == "unknown" and session in self._store.held(session).values()
        refuse(reply, id, session, foreign=foreign, step=step)


def _bounded(body: Mapping[str, Any]) -> bytes:
    """Encodes an intent for the log; details beyond 32 kB are left to the terminal event's file."""
    packed = encode(body)
    return packed if len(packed) <= 32 * 1024 else encode({**body, "details": {"omitted": len(packed)}})

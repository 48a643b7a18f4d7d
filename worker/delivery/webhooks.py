"""Sends webhooks: the document's body in a Standard Webhooks envelope, signed, to safe addresses only."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.agents.output import encode
from worker.delivery.addresses import Refused
from worker.delivery.deliverables import Deliverables, is_ready
from worker.delivery.failure import failure_of
from worker.delivery.outbound import Outbound, TimedOut, Unreachable, redact
from worker.delivery.outbox import Notice, Outbox
from worker.delivery.schedule import Outcome, Verdict, next_attempt
from worker.delivery.signing import parse_secret, sign
from worker.errors import BadRequest, NotFound
from worker.executions.events import Event, Kind, iso
from worker.executions.record import Execution
from worker.executions.service import Executions
from worker.executions.states import State

log = structlog.get_logger()

MOST_HOOKS = 3
# A host that has failed for so long is not tried again until it, or the operator, says otherwise.
GIVE_UP_US = 5 * 24 * 3600 * 1_000_000
_SMALL = 18_000
# What may stand in a header that we send.
_HEADER = re.compile(r"[ -~]{0,1024}")


@dataclass(frozen=True, slots=True)
class Hook:
    """Where a seeker wants to be called, and what the call is to carry."""

    url: str
    secret: str = ""
    token: str = ""
    authorization: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any], field: str) -> Hook:
        """A hook from a contract's `webhook`; BadRequest for anything that cannot be one."""
        url = given.get("url")
        if not isinstance(url, str):
            raise BadRequest("a webhook has no URL", field=f"{field}.url", expected="an https:// URL")
        secret, token = given.get("secret", ""), given.get("token", "")
        if not isinstance(secret, str) or not isinstance(token, str) or not _HEADER.fullmatch(token):
            raise BadRequest("a webhook's secret and token are plain text", field=field)
        if secret:
            parse_secret(secret)
        return cls(url, secret, token, _authorization(given.get("authentication"), field))

    def stored(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}


def _authorization(given: Any, field: str) -> str:
    if given is None:
        return ""
    scheme, credentials = (
        (given.get("scheme"), given.get("credentials")) if isinstance(given, dict) else (None, None)
    )
    if (
        not isinstance(scheme, str)
        or not isinstance(credentials, str)
        or not _HEADER.fullmatch(f"{scheme} {credentials}")
    ):
        raise BadRequest(
            "a webhook's authentication has a scheme and credentials", field=f"{field}.authentication"
        )
    return f"{scheme} {credentials}"


def _parks(event: Event) -> bool:
    return event.kind == Kind.EXECUTION_RESET and event.data().get("reason") == "parked"


def _overtaken(notice: Notice, execution: Execution) -> bool:
    """What was true for a while and is not any more is not told."""
    if notice.event == "partial":
        return execution.state.terminal
    return notice.sequence > 0 and not execution.raw.get("parked")


def hooks_of(execution: Execution) -> list[Hook]:
    raw = execution.raw.get("hooks")
    return [Hook(**each) for each in json.loads(raw)] if raw else []


@dataclass
class Webhooks:
    """The clock's chore: takes in what ended, sends what is due."""

    outbox: Outbox
    executions: Executions
    deliverables: Deliverables
    outbound: Outbound
    key: Ed25519PrivateKey
    contract_id: Callable[[Execution], str]
    metadata: Callable[[Execution], dict[str, Any]]

    def collect(self, at: int) -> None:
        """What ended since the last look goes into the outbox, and every deliverable closed meanwhile."""
        for ids, until in self.outbox.ended_since_last_look(at):
            for execution in self.executions.many(ids):
                kind = "completed" if execution.state is State.COMPLETED else "failed"
                hooks = range(len(hooks_of(execution)))
                if hooks:
                    self.outbox.add(execution.id, [Notice(execution.id, kind, hook) for hook in hooks])
            self.outbox.looked(until)
        for id, count, looked in self.outbox.at_work():
            self._happened(id, count, looked)

    def _happened(self, id: str, hooks: int, looked: int) -> None:
        """Deliverables that were closed, and failures after which the seeker may ask again."""
        events = self.executions.events(id, looked)
        kinds = [f"partial-{each.sequence}" for each in events if is_ready(each)]
        kinds += [f"failed-{each.sequence}" for each in events if _parks(each)]
        if kinds:
            self.outbox.add(id, [Notice(id, kind, hook) for kind in kinds for hook in range(hooks)])
        if events:
            self.outbox.looked_at(id, events[-1].sequence)

    def send(self, notice: Notice) -> None:
        """One attempt at one notice."""
        leave = self.outbox.begin(notice)
        if leave is None:
            return
        attempt, at = leave
        try:
            execution = self.executions.get(notice.execution)
        except NotFound:
            self.outbox.drop(notice)
            return
        hooks = hooks_of(execution)
        late = _overtaken(notice, execution)
        if late or notice.hook >= len(hooks):
            why = "the work went on" if late else "no such webhook"
            self.outbox.end(notice, next_at=None, line=f"not sent: {why}", host="-", what="dropped")
            return
        hook = hooks[notice.hook]
        outcome, line = self._call(notice, hook, execution, at)
        next_at = next_attempt(attempt, outcome, at, jitter=random.random())
        host = urlsplit(hook.url).hostname or "-"
        # Whoever answers, if only that it wants no more, is not a host that fails.
        what = {Verdict.delivered: "ok", Verdict.gone: "gone"}.get(outcome.verdict, "failed")
        since = self.outbox.end(notice, next_at=next_at, line=line, host=host, what=what)
        if next_at is not None and since and at - since > GIVE_UP_US:
            self.outbox.end(
                notice, next_at=None, line="given up: the host keeps failing", host=host, what="dropped"
            )
        log.info(
            "webhook.attempted",
            execution_id=notice.execution,
            attempt=attempt,
            url=redact(hook.url),
            result=line,
        )

    def body(self, notice: Notice, execution: Execution) -> bytes:
        """The document's four keys, ours beside them, and the envelope of Standard Webhooks."""
        event = notice.event
        shown: dict[str, Any] = {
            "event": f"task_{event}",
            "contract_id": self.contract_id(execution),
            "task_id": execution.id,
            "status": event,
            "sequence": notice.sequence or self.executions.last_sequence(execution.id),
        }
        told = self.executions.events(execution.id, shown["sequence"] - 1, 1)
        if event == "completed":
            result = self.deliverables.shown(execution)
            shown |= {"deliverables": result.deliverables, "metadata": self.metadata(execution)}
            if len(encode(result.output)) < _SMALL:
                shown["output"] = result.output
        elif event == "partial":
            shown["deliverables"] = self.deliverables.ready(execution, until=notice.sequence)
        else:
            shown["deliverables"] = []
            shown["error"] = failure_of(execution)
        at = told[0].at if told else execution.ended
        envelope = {"type": f"task.{event}", "timestamp": iso(at), "data": {"task_id": execution.id}}
        return encode({**shown, **envelope})

    def _call(self, notice: Notice, hook: Hook, execution: Execution, at: int) -> tuple[Outcome, str]:
        body = self.body(notice, execution)
        seconds = at // 1_000_000
        secrets = [parse_secret(hook.secret)] if hook.secret else []
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "hire-worker",
            "webhook-id": notice.message_id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": sign(
                notice.message_id, seconds, body, ed25519_key=self.key, secrets=secrets
            ),
        }
        if hook.token:
            headers["X-Webhook-Token"] = hook.token
        if hook.authorization:
            headers["Authorization"] = hook.authorization
        try:
            answer = self.outbound.call("POST", hook.url, body=body, headers=headers)
        except Refused as refused:
            return Outcome(None), f"refused: {refused.reason}"
        except TimedOut:
            return Outcome(None), "timed out"
        except Unreachable as unreachable:
            return Outcome(None), f"unreachable: {unreachable.reason}"
        return Outcome(answer.status, answer.headers.get("retry-after")), f"status {answer.status}"

"""Sends webhooks: HIRE's body in a signed Standard Webhooks envelope, only to safe addresses."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.core.errors import BadRequest
from worker.core.json import encode
from worker.core.states import State
from worker.delivery.addresses import UrlRefused
from worker.delivery.deliverables import Deliverables, is_ready
from worker.delivery.failure import failure_of
from worker.delivery.outbound import Outbound, TimedOut, Unreachable, redact
from worker.delivery.outbox import AttemptEnd, LeasedNotice, Notice, Outbox, Receiver, kind_of
from worker.delivery.retry_schedule import AttemptResult, RetryDecision, next_attempt
from worker.delivery.webhook_signatures import parse_secret, sign
from worker.engine.events import Event, Kind, iso
from worker.engine.record import Execution
from worker.engine.service import Executions

log = structlog.get_logger()

MOST_HOOKS = 3
# A host that failed for this long is not retried until it answers again or the operator resends.
GIVE_UP_US = 5 * 24 * 3600 * 1_000_000
_SMALL = 18_000
# Values allowed in a header that we send.
_HEADER = re.compile(r"[ -~]{0,1024}")


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A seeker's webhook URL and the credentials that each call carries."""

    url: str
    secret: str = ""
    token: str = ""
    authorization: str = ""

    @classmethod
    def read(cls, form: Mapping[str, Any], field: str) -> WebhookTarget:
        """Parses a contract's `webhook`; raises BadRequest if it is invalid."""
        url = form.get("url")
        if not isinstance(url, str):
            raise BadRequest("a webhook has no URL", field=f"{field}.url", expected="an https:// URL")
        secret, token = form.get("secret", ""), form.get("token", "")
        if not isinstance(secret, str) or not isinstance(token, str) or not _HEADER.fullmatch(token):
            raise BadRequest("a webhook's secret and token are plain text", field=field)
        if secret:
            parse_secret(secret)
        return cls(url, secret, token, _authorization(form.get("authentication"), field))

    def stored(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}


def _authorization(form: Any, field: str) -> str:
    if form is None:
        return ""
    scheme, credentials = (
        (form.get("scheme"), form.get("credentials")) if isinstance(form, dict) else (None, None)
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
    """Whether a later state supersedes the notice."""
    if notice.event == "partial":
        return execution.state.terminal
    return notice.sequence > 0 and not execution.parked


def _of_end(execution: Execution) -> list[Notice]:
    """The notices of an execution that has ended, one for each of its webhooks."""
    kind = "completed" if execution.state is State.COMPLETED else "failed"
    return [Notice(execution.id, kind, hook) for hook in range(len(hooks_of(execution)))]


def hooks_of(execution: Execution) -> list[WebhookTarget]:
    return [WebhookTarget(**each) for each in json.loads(execution.hooks or b"[]")]


@dataclass
class Webhooks:
    """Clock chore: collects notices for ended executions and sends due ones."""

    outbox: Outbox
    executions: Executions
    deliverables: Deliverables
    outbound: Outbound
    key: Ed25519PrivateKey
    contract_id: Callable[[Execution], str]
    metadata: Callable[[Execution], dict[str, Any]]
    # Per execution: its wallet, and whether that wallet has ever paid.
    wallets: Callable[[Sequence[str]], list[tuple[str, bool]]]

    def receivers(self, notices: Sequence[Notice]) -> list[Receiver]:
        """The receiver of each notice, and the buyer who requested it."""
        hosts, wallets = self.outbox.hosts(notices), self.wallets([each.execution for each in notices])
        return [
            Receiver(host, wallet, failing=failing, newcomer=not has_paid)
            for (host, failing), (wallet, has_paid) in zip(hosts, wallets, strict=True)
        ]

    def collect(self, at: int) -> None:
        """Adds notices for executions that ended since the last pass and for deliverables closed since."""
        for ids, until in self.outbox.ended_since_last_look(at):
            ended = self.executions.many(self.outbox.with_hooks(ids))
            self._add([notice for each in ended for notice in _of_end(each)])
            self.outbox.looked(until)
        for id, count, looked in self.outbox.at_work():
            self._happened(id, count, looked)

    def _happened(self, id: str, hooks: int, looked: int) -> None:
        """Adds notices for closed deliverables and for failures after which the seeker may retry."""
        events = self.executions.events(id, looked)
        kinds = [kind_of("partial", each.sequence) for each in events if is_ready(each)]
        kinds += [kind_of("failed", each.sequence) for each in events if _parks(each)]
        self._add([Notice(id, kind, hook) for kind in kinds for hook in range(hooks)])
        if events:
            self.outbox.looked_at(id, events[-1].sequence)

    def _add(self, notices: list[Notice]) -> None:
        if notices:
            self.outbox.add(notices)

    def begin(self, notices: Sequence[Notice]) -> list[LeasedNotice]:
        """Leases those of them that may be sent now."""
        return self.outbox.begin(notices)

    def send(self, leased: LeasedNotice) -> AttemptEnd:
        """Makes one delivery attempt; `end` records how it ended."""
        notice, at = leased.notice, leased.at
        hooks = hooks_of(leased.execution)
        if _overtaken(notice, leased.execution):
            return AttemptEnd(notice, at, "not sent: superseded by a later state")
        if notice.hook >= len(hooks):
            return AttemptEnd(notice, at, "not sent: no such webhook")
        hook = hooks[notice.hook]
        outcome, line = self._call(leased, hook)
        next_at = next_attempt(leased.attempt, outcome, at, jitter=random.random())
        log.info(
            "webhook.attempted",
            execution_id=notice.execution,
            attempt=leased.attempt,
            url=redact(hook.url),
            result=line,
        )
        # A host that answers, even with 410, is not failing.
        state = {RetryDecision.delivered: "ok", RetryDecision.gone: "gone"}.get(outcome.verdict, "failed")
        return AttemptEnd(notice, at, line, urlsplit(hook.url).hostname or "-", state, next_at)

    def end(self, ends: Sequence[AttemptEnd]) -> None:
        """Records attempts, and gives up those whose host has failed for too long."""
        rows = zip(ends, self.outbox.end(ends), strict=True)
        given_up = [
            replace(each, next_at=None, line="given up: the host keeps failing", outcome="dropped")
            for each, since in rows
            if each.next_at is not None and since and each.at - since > GIVE_UP_US
        ]
        if given_up:
            self.outbox.end(given_up)

    def body(self, leased: LeasedNotice) -> bytes:
        """HIRE's four keys, our additional ones, and the Standard Webhooks envelope."""
        execution, event = leased.execution, leased.notice.event
        shown: dict[str, Any] = {
            "event": f"task_{event}",
            "contract_id": self.contract_id(execution),
            "task_id": execution.id,
            "status": event,
            "sequence": leased.sequence,
        }
        if not shown["contract_id"]:  # a plain purchase has none
            del shown["contract_id"]
        if event == "completed":
            result = self.deliverables.shown(execution)
            shown |= {"deliverables": result.deliverables, "metadata": self.metadata(execution)}
            if len(encode(result.output)) < _SMALL:
                shown["output"] = result.output
        elif event == "partial":
            shown["deliverables"] = self.deliverables.ready(execution, until=leased.sequence)
        else:
            shown["deliverables"] = []
            shown["error"] = failure_of(execution)
        at = leased.event.at if leased.event else execution.ended
        envelope = {"type": f"task.{event}", "timestamp": iso(at), "data": {"task_id": execution.id}}
        return encode({**shown, **envelope})

    def _call(self, leased: LeasedNotice, hook: WebhookTarget) -> tuple[AttemptResult, str]:
        notice, body = leased.notice, self.body(leased)
        seconds = leased.at // 1_000_000
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
        except UrlRefused as refused:
            return AttemptResult(None), f"refused: {refused.reason}"
        except TimedOut:
            return AttemptResult(None), "timed out"
        except Unreachable as unreachable:
            return AttemptResult(None), f"unreachable: {unreachable.reason}"
        return AttemptResult(answer.status, answer.headers.get("retry-after")), f"status {answer.status}"

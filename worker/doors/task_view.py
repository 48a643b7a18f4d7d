"""A task as a page shows it to whoever ordered it: where it stands, what came, and the proof."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from worker.core.amounts import to_text
from worker.core.evm import checksum_address
from worker.core.states import Phase, State
from worker.delivery.deliverables import Deliverables
from worker.doors.hire_views import receipt_of
from worker.doors.pages import MOST_OUTPUT
from worker.doors.shop_views import in_words, title_of
from worker.engine.events import Kind, iso
from worker.hiring.task import Task
from worker.hiring.tasks import Tasks
from worker.payments.payment import Payment, PaymentState
from worker.x402.networks import Network

_VERIFY, _WORK, _SETTLE, _DELIVER = "Payment verified", "Work done", "Payment settled", "Delivered"
# The step that is under way in each phase; a task that is done has none.
_AT = {Phase.OFFERED: _VERIFY, Phase.VERIFYING: _VERIFY, Phase.WORKING: _WORK}
_PAYMENT_STATES = {
    PaymentState.SETTLED: "settled",
    PaymentState.REFUSED: "refused, not charged",
    PaymentState.RELEASED: "released, not charged",
    PaymentState.UNKNOWN: "being settled: its outcome is not known yet",
}
_EXPLORERS = {"eip155:8453": "https://basescan.org/tx/", "eip155:84532": "https://sepolia.basescan.org/tx/"}
_VALUE_FILES = ("output.txt", "output.json")
_MOST_TEXT = 64 << 10
_LIVE = " ".join(kind for kind in Kind if kind.startswith(("execution.", "payment.", "progress", "file.")))


@dataclass(frozen=True)
class TaskView:
    """Builds the page's content from the answer that a poll gets. `real`: the chain is a public one."""

    tasks: Tasks
    deliverables: Deliverables
    network: Network
    real: bool

    def of(self, task: Task, body: Mapping[str, Any], stream: str) -> dict[str, Any]:
        """`body`: a poll's answer; `stream`: the address of the task's events."""
        execution = task.execution
        live = task.under_way
        return {
            "id": execution.id,
            "token": task.contract.terms.contract_id if task.contract.is_purchase else "",
            "capability": execution.agent,
            "title": title_of(task.capability),
            "state": _state(task),
            "live": live,
            "stream": path_of(stream) if live else "",
            "events": _LIVE,
            "steps": _steps(task),
            "progress": body.get("progress"),
            "queue_position": body.get("queue_position"),
            "ordered": iso(execution.created),
            "price": task.contract.terms.price_text,
            "input": self.tasks.ordered_input(task),
            "files": self._files(task, body.get("deliverables", ())),
            "output": self._output(task),
            "error": body.get("error"),
            "took": _took(body),
            "payments": [self._payment(each) for each in task.money.payments],
            "receipt": json.dumps(receipt_of(task), indent=2) if receipt_of(task) else "",
            "expires": body.get("expires_at", ""),
        }

    def _files(self, task: Task, listed: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The files that are open, the short texts among them with their content."""
        value = self._output(task) is not None
        shown = [_file(each) for each in listed if not each.get("sealed")]
        for file in shown:
            # A value is offered as a file too.
            file["repeats"] = value and file["name"] in _VALUE_FILES
            short = file["mime"].startswith("text/") and 0 < (file["size"] or 0) <= _MOST_TEXT
            file["text"] = self._text(task, file["url"]) if short and not file["repeats"] else ""
        return shown

    def _text(self, task: Task, path: str) -> str:
        which, token = path.split("/")[-3:-1]
        _, chunks = self.deliverables.open(task.execution.id, which, token, "GET", {})
        return b"".join(chunks).decode("utf-8", "replace")

    def _output(self, task: Task) -> Any:
        """The text or JSON of a completed task; None if it is too long for a page, or only files came."""
        if task.execution.state is not State.COMPLETED or task.execution.output_bytes > MOST_OUTPUT:
            return None
        return self.tasks.executions.output(task.execution)

    def _payment(self, payment: Payment) -> dict[str, str]:
        hash = payment.transaction
        return {
            "amount": to_text(payment.amount),
            "payer": checksum_address(payment.payer),
            "state": _PAYMENT_STATES.get(payment.state, str(payment.state)),
            "good": "good" if payment.state is PaymentState.SETTLED else "",
            "code": payment.code,
            "transaction": hash,
            "explorer": _EXPLORERS.get(self.network.caip2, "") + hash if hash and self.real else "",
            "settled": iso(payment.settled) if payment.settled else "",
            "refund": payment.refund,
            "refund_amount": to_text(payment.refund_amount) if payment.refund else "",
        }


def path_of(url: str) -> str:
    """A link of ours without its origin, so that it stays with the address that the visitor uses."""
    parts = urlsplit(url)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _state(task: Task) -> dict[str, str]:
    state = task.execution.state
    if state is State.COMPLETED:
        return {"label": "Delivered", "look": "good"}
    if state in (State.FAILED, State.CANCELLED) or task.parked:
        return {"label": "Cancelled" if state is State.CANCELLED else "Failed", "look": "bad"}
    if task.unpaid:
        return {"label": "Payment refused", "look": "bad"}
    if state is State.BLOCKED:
        return {"label": "Waiting", "look": "busy"}
    labels = {Phase.VERIFYING: "Verifying payment", Phase.SETTLING: "Settling payment"}
    working = "In the queue" if state is State.PENDING else "Working"
    return {"label": labels.get(task.execution.phase, working), "look": "busy"}


def _steps(task: Task) -> list[dict[str, str]]:
    """The way from order to delivery: each step is done, now, failed or to come."""
    before_work = task.execution.before_work
    names = ["Ordered", _VERIFY, *((_SETTLE, _WORK) if before_work else (_WORK, _SETTLE)), _DELIVER]
    if task.execution.state is State.COMPLETED:
        return [{"name": name, "state": "done"} for name in names]
    now = _SETTLE if task.execution.phase in (Phase.SETTLING, Phase.PAYMENT_DUE) else ""
    now = now or _AT.get(task.execution.phase) or _WORK
    at = names.index(now)
    state = "now" if task.under_way else "failed"
    return [
        {"name": name, "state": "done" if i < at else state if i == at else "next"}
        for i, name in enumerate(names)
    ]


def _file(listed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": listed["name"],
        "url": path_of(listed["url"]),
        "image": listed["mime"].startswith("image/"),
        "mime": listed["mime"],
        "size": listed.get("size"),
        "checksum": listed.get("checksum", ""),
    }


def _took(body: Mapping[str, Any]) -> str:
    metadata = body.get("metadata")
    return in_words(metadata["execution_time_ms"]) if metadata else ""

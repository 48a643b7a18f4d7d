"""What all pages of the dashboard share: who is there, rendering, forms, and changes with their journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flask import Response, g, request
from werkzeug.datastructures import MultiDict

from worker.core.canonical import parse
from worker.core.errors import BadRequest, Problem
from worker.core.ids import is_id
from worker.doors import bodies, pages
from worker.doors.answers import whole
from worker.doors.dashboard_format import Format
from worker.doors.dashboard_session import PATH, Visitor
from worker.doors.services import DashboardServices
from worker.engine.reader import BATCH
from worker.remote.waits import approval_reasons
from worker.store.operator_journal import Change

# Every form and query parameter is shorter than this.
_MOST_TEXT = 32_000
NAV = (
    ("", "Overview"),
    ("/executions", "Executions"),
    ("/money", "Money"),
    ("/contracts", "Contracts"),
    ("/webhooks", "Webhooks"),
    ("/agents", "Agents"),
    ("/policy", "Policy"),
    ("/settings", "Settings"),
    ("/journal", "Journal"),
)


@dataclass(frozen=True)
class DashboardView:
    """One for all views."""

    services: DashboardServices

    @property
    def visitor(self) -> Visitor:
        found: Visitor = g.visitor
        return found

    def page(self, name: str, *, live: str | None = None, status: int = 200, **context: Any) -> Response:
        """Renders `dashboard/<name>.html`; `live` is the stream that says when it changes, '' for none."""
        if live is None:
            live = f"/stream?{urlencode({'seen': g.seen})}"
        change = whole(request.args.get("change", ""), 0)
        return pages.render(
            f"dashboard/{name}.html",
            self.services.settings,
            status,
            nav=NAV,
            base=self.base,
            here=request.path.removeprefix(PATH),
            visitor=g.get("visitor"),
            live=live,
            change=self.services.operator_journal.line(change) if change else None,
            show=Format(self.services.store.now()),
            **context,
        )

    def problem(self, problem: Problem) -> Response:
        """A refusal, as a page of the dashboard."""
        response = pages.render(
            "dashboard/problem.html",
            self.services.settings,
            problem.status,
            nav=NAV,
            base=self.base,
            here="",
            visitor=g.get("visitor"),
            live="",
            change=None,
            problem=problem,
            # A form that was not read is not read now: it may be a stranger's.
            back=self._back(g.form.get("back", "") if "form" in g else ""),
        )
        if problem.retry_after is not None:
            response.headers["Retry-After"] = str(problem.retry_after)
        return response

    @property
    def base(self) -> str:
        """The dashboard's address, under the worker's own path."""
        return pages.root(self.services.settings) + PATH

    def form(self, most: int | None = None) -> MultiDict[str, str]:
        """The form of the request; `most`: its bytes, where a stranger may send it."""
        if "form" not in g:
            g.form = bodies.form(most)
        found: MultiDict[str, str] = g.form
        return found

    def text(self, name: str, *, required: bool = False, most: int = _MOST_TEXT) -> str:
        """A field of the form, without spaces around it."""
        found = self.form().get(name, "").strip()
        if required and not found:
            raise BadRequest(f"{name} is missing", field=name, expected="some text")
        if len(found) > most:
            raise BadRequest(f"{name} is too long", field=name, expected=f"at most {most} characters")
        return found

    @staticmethod
    def json(text: str, name: str) -> Any:
        """The value of a field with JSON; empty is null."""
        try:
            return parse((text or "null").encode())
        except Problem as refused:
            raise BadRequest(
                f"the {name} {'are' if name.endswith('s') else 'is'} not JSON: {refused.message}",
                field=name,
                expected="JSON, such as null or {}",
            ) from refused

    def execution_id(self) -> str:
        id = self.text("execution", required=True, most=64)
        if not is_id(id):
            raise BadRequest("this is no execution's id", field="execution", expected="a UUID")
        return id

    def approvals(self, id: str) -> dict[str, dict[str, object]]:
        """What the end of an execution's log says to whoever approves, by step."""
        executions = self.services.executions
        return approval_reasons(executions.events(id, executions.last_sequence(id) - BATCH))

    @contextmanager
    def change(self, action: str, subject: str, detail: str = "") -> Iterator[Change]:
        """Journals a change by the visitor, with its outcome."""
        address = request.remote_addr or ""
        with self.services.operator_journal.change(
            self.visitor.name, address, action, subject, detail
        ) as change:
            yield change

    def back_with(self, change: Change) -> Response:
        """Returns to where the change was made, which shows its journal line."""
        where = self._back(self.text("back"))
        mark = "&" if "?" in where else "?"
        return self.go(f"{where}{mark}{urlencode({'change': change.number})}")

    def go(self, where: str) -> Response:
        """A redirect within the dashboard, which a form's answer must be."""
        return Response(status=303, headers={"Location": pages.root(self.services.settings) + where})

    def _back(self, wanted: str) -> str:
        """Only an address of our own: anything else would let a form lead elsewhere."""
        path = wanted.partition("?")[0]
        own = path == PATH or path.startswith(f"{PATH}/")
        plain = ".." not in path and "\\" not in wanted and wanted.isprintable()
        return wanted if own and plain else request.path

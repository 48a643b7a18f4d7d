"""HTML pages: templates, the headers that protect them, and whether a request wants a page at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from flask import Request, Response, request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from worker.core.errors import Problem
from worker.core.settings import Settings
from worker.data import PAGES
from worker.doors.assets import assets

# Pages load nothing from elsewhere and contain no inline code or styles.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    # Not `no-referrer`: with that, browsers send `Origin: null` with forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
# The doors whose answers are pages.
DOORS = ("shop", "dashboard")
# Longer outputs are not written into a page: rendering blocks all other requests of the process.
MOST_OUTPUT = 128 << 10
# Cells of a table that may be as empty as it likes.
_SMALL_TABLE = 500
_JSON, _HTML = "application/json", "text/html"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = _address
    environment.filters["columns"] = columns
    environment.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    return environment


@pass_context
def _address(context: Context, name: str) -> str:
    """Where a static file is served, for templates: `{{ asset("base.css") }}`."""
    return f"{context['root']}{assets()[name].address}"


def columns(rows: Sequence[Any]) -> list[str]:
    """The columns of a table of these rows; none where they are no table.

    Strangers choose the rows: with a column of its own for each, a few kilobytes would fill a gigabyte.
    """
    if not all(isinstance(row, Mapping) for row in rows):
        return []
    names = [*dict.fromkeys(name for row in rows for name in row)]
    entries = sum(len(row) for row in rows)
    return names if len(names) * len(rows) <= max(_SMALL_TABLE, 2 * entries) else []


def prefers_page() -> bool:
    """Whether the request's Accept header prefers HTML to JSON, as browsers do; `*/*` does not."""
    return request.accept_mimetypes.best_match([_JSON, _HTML]) == _HTML


def answers(request: Request) -> bool:
    """Whether errors of this request are pages: those of page doors, and a wrong address in a browser."""
    if request.blueprint is None:
        return request.method == "GET" and not request.path.startswith("/v0") and prefers_page()
    # `/` has two forms, and its errors follow the one that was asked for.
    return request.blueprint in DOORS and (request.path != "/" or prefers_page())


def root(settings: Settings) -> str:
    """The path under which the world sees this worker; links begin with it. Usually ''."""
    return urlsplit(settings.public_url).path


def render(template: str, settings: Settings, status: int = 200, **context: Any) -> Response:
    """A page. Callers that allow caching set Cache-Control themselves."""
    page = _environment().get_template(template)
    text = page.render(root=root(settings), worker=settings.worker_agent_id, **context)
    response = Response(text, status, mimetype=_HTML)
    response.headers.update(_HEADERS)
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["Vary"] = "Accept, Cookie"
    return response


def problem_page(problem: Problem, settings: Settings) -> Response:
    """A refusal as a page."""
    response = render("problem.html", settings, problem.status, problem=problem)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    return response

"""The dashboard door, `/dashboard`: pages on which the operator sees what happens and decides what must be.

A cookie stands for the operator's token, or for one of those who may only look. Everything here is also
possible with the command line; the pages work without JavaScript.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, request
from flask.typing import ResponseReturnValue

from worker.core.errors import Forbidden, Problem, Unauthorized
from worker.doors import (
    dashboard_agents,
    dashboard_contracts,
    dashboard_executions,
    dashboard_live,
    dashboard_money,
    dashboard_overview,
    dashboard_policy,
    dashboard_settings,
    dashboard_webhooks,
)
from worker.doors.bodies import SHORT_FORM
from worker.doors.dashboard_session import MOST_NAME, PATH, Sessions
from worker.doors.dashboard_view import DashboardView
from worker.doors.pages import prefers_page
from worker.doors.services import DashboardServices

NAME = "dashboard"
_OPEN = (f"{NAME}.sign_in", f"{NAME}.signed_in")
_SIGN_IN = f"{PATH}/sign-in"


def door(services: DashboardServices) -> Blueprint:
    blueprint = Blueprint(NAME, __name__, url_prefix=PATH)
    view = DashboardView(services)
    sessions = Sessions(services.settings, services.secret, services.wrong_credentials.add)

    @blueprint.before_request
    def authenticate() -> ResponseReturnValue | None:
        changes = request.method not in ("GET", "HEAD")
        if request.endpoint in _OPEN:
            if changes:
                sessions.check_origin(request, must_name=False)
            return None
        g.visitor = sessions.visitor(request)
        if g.visitor is None:
            if not changes and prefers_page():
                return view.go(_SIGN_IN)
            raise Unauthorized(advice=f"Sign in at {_SIGN_IN}, or send KERNEL_TOKEN as a bearer.")
        if changes:
            if g.visitor.by_cookie:
                sessions.check_origin(request)
            if not g.visitor.may_change and request.endpoint != f"{NAME}.sign_out":
                raise Forbidden(
                    "this token only looks", advice="Sign in with KERNEL_TOKEN to change something."
                )
        else:
            # Before the page is made: what changes meanwhile is news.
            g.seen = services.pulse.read()
        return None

    @blueprint.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return view.problem(problem)

    _sessions(blueprint, view, sessions)
    for part in (
        *(dashboard_overview, dashboard_executions, dashboard_money, dashboard_contracts),
        *(dashboard_webhooks, dashboard_agents, dashboard_policy, dashboard_settings, dashboard_live),
    ):
        part.add(blueprint, view)
    return blueprint


def _sessions(blueprint: Blueprint, view: DashboardView, sessions: Sessions) -> None:
    def form(problem: Problem | None = None) -> Response:
        status = problem.status if problem else 200
        response = view.page("sign_in", live="", status=status, problem=problem)
        if problem and problem.retry_after:
            response.headers["Retry-After"] = str(problem.retry_after)
        return response

    @blueprint.get("/sign-in")
    def sign_in() -> Response:
        return form()

    @blueprint.post("/sign-in")
    def signed_in() -> Response:
        try:
            view.form(SHORT_FORM)
            token = view.text("token", required=True, most=1_000)
            visitor = sessions.by_token(request, token, view.text("name", most=MOST_NAME))
        except Problem as problem:
            return form(problem)
        response = view.go(PATH)
        sessions.begin(response, visitor)
        return response

    @blueprint.post("/sign-out")
    def sign_out() -> Any:
        response = view.go(_SIGN_IN)
        sessions.end(response)
        return response

"""Pages of one task, for whoever has its token, which travels in a form and a cookie, never in an address.

A contract's id, which travels in its header only, is exchanged for a token of the page."""

from __future__ import annotations

from flask import Blueprint, Response, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from worker.core.errors import NotFound
from worker.core.ids import is_id
from worker.core.settings import Settings
from worker.doors.answers import json_answer
from worker.doors.bodies import SHORT_FORM, form
from worker.doors.hire import CONTRACT, HireServices
from worker.doors.hire_views import task_body
from worker.doors.pages import render, root
from worker.doors.task_view import TaskView
from worker.hiring.task import Task

_COOKIE = "task"
_DAYS = 30
_MOST_TOKEN = 128


def add_tasks(blueprint: Blueprint, services: HireServices) -> None:
    settings = services.settings
    view = TaskView(services.tasks, services.deliverables, services.network, settings.worker_env != "local")

    @blueprint.get("/t/<task_id>")
    def task(task_id: str) -> Response:
        token = request.cookies.get(_COOKIE, "")
        if not token:
            # Says nothing about whether there is such a task.
            return render("shop/open_task.html", settings, id=task_id if is_id(task_id) else "")
        found = _find(services, task_id, token)
        body = task_body(found, services.deliverables, services.tasks.load)
        stream = services.deliverables.stream_output(found.execution)["url"]
        return render("shop/task.html", settings, task=view.of(found, body, stream))

    @blueprint.post("/t/<task_id>")
    def open_task(task_id: str) -> AnyResponse:
        fields = form(SHORT_FORM)
        if CONTRACT in request.headers:
            found = services.find(task_id)
            token = services.deliverables.page_token(found.execution.id)
        else:
            token = fields.get("token", "").strip()[:_MOST_TOKEN]
            found = _find(services, task_id, token)
        response = redirect(f"{root(settings)}/t/{found.execution.id}", 303)
        remember(response, settings, found.execution.id, token)
        return response

    @blueprint.get("/t/<task_id>/evidence.json")
    def task_evidence(task_id: str) -> Response:
        found = _find(services, task_id, request.cookies.get(_COOKIE, ""))
        name = f'attachment; filename="evidence-{found.execution.id}.json"'
        headers = {"Content-Disposition": name, "Cache-Control": "private, no-store"}
        return json_answer(services.evidence.of(found), headers=headers)


def remember(response: AnyResponse, settings: Settings, id: str, token: str) -> None:
    """Keeps the token for this task's pages only."""
    response.set_cookie(
        _COOKIE,
        token,
        max_age=_DAYS * 24 * 3600,
        path=f"{root(settings)}/t/{id}",
        secure=settings.public_url.startswith("https:"),
        httponly=True,
        samesite="Lax",
    )


def _find(services: HireServices, task_id: str, token: str) -> Task:
    with services.guessing_limited(request.environ):
        if not token:
            raise NotFound("no such task", advice="Open it with its token.")
        if services.deliverables.opens_page(task_id, token):
            return services.tasks.by_id(task_id)
        return services.buying.find(task_id, token, "")

"""Settings in force with what the doctor found, and the journal of changes."""

from __future__ import annotations

from flask import Blueprint, Response, request

from worker.core.errors import BadRequest
from worker.core.shown_settings import shown_settings
from worker.core.version import __version__
from worker.doors.answers import whole
from worker.doors.dashboard_view import DashboardView
from worker.queue.deferred_calls import DOCTOR

_LINES = 100


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/settings")
    def settings() -> Response:
        services = view.services
        memory = services.store.memory()
        return view.page(
            "settings",
            version=__version__,
            environment=services.settings.worker_env,
            shown=[*shown_settings(services.settings)],
            report=services.doctor_record.read(),
            queue=services.queue_status.read(),
            memory=int(memory.get("used_memory", 0)),
        )

    @blueprint.post("/settings")
    def examine() -> Response:
        if view.text("action") != "examine":
            raise BadRequest("this is no action", field="action", expected=["examine"])
        with view.change("examine", "doctor") as change:
            view.services.deferred_calls.schedule(DOCTOR, view.services.store.now(), anew=True)
            change.outcome = "done: a clock examines now"
        return view.back_with(change)

    @blueprint.get("/journal")
    def journal() -> Response:
        lines = view.services.operator_journal.newest(_LINES, before=whole(request.args.get("before", ""), 0))
        return view.page("journal", lines=lines, before=lines[-1].number if len(lines) == _LINES else 0)

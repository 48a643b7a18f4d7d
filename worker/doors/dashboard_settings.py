"""Settings in force with what the doctor found, and the journal of changes."""

from __future__ import annotations

from flask import Blueprint, Response, request

from worker.core.errors import BadRequest
from worker.core.shown_settings import shown_settings
from worker.core.version import __version__
from worker.doors.answers import whole
from worker.doors.dashboard_desk import Desk
from worker.queue.errands import DOCTOR

_LINES = 100


def add(blueprint: Blueprint, desk: Desk) -> None:
    @blueprint.get("/settings")
    def settings() -> Response:
        services = desk.services
        memory = services.store.memory()
        return desk.page(
            "settings",
            version=__version__,
            environment=services.settings.worker_env,
            shown=[*shown_settings(services.settings)],
            report=services.doctor_record.read(),
            queue=services.roll_call.read(),
            memory=int(memory.get("used_memory", 0)),
        )

    @blueprint.post("/settings")
    def examine() -> Response:
        if desk.text("action") != "examine":
            raise BadRequest("this is no action", field="action", expected=["examine"])
        with desk.change("examine", "doctor") as change:
            desk.services.errands.schedule(DOCTOR, desk.services.store.now(), anew=True)
            change.outcome = "done: a clock examines now"
        return desk.back_with(change)

    @blueprint.get("/journal")
    def journal() -> Response:
        lines = desk.services.operator_journal.newest(_LINES, before=whole(request.args.get("before", ""), 0))
        return desk.page("journal", lines=lines, before=lines[-1].number if len(lines) == _LINES else 0)

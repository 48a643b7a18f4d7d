"""The application for comparing both kinds of server: one route with one script call, and one that waits."""

from __future__ import annotations

import os
import time

from flask import Flask

from worker.core.settings import Settings
from worker.parts import Parts


def create_app() -> Flask:
    app = Flask("served", static_folder=None)
    parts = Parts(Settings.load(os.environ), "web")
    seconds = float(os.environ["BENCH_WAIT"])

    @app.get("/script")
    def script() -> str:
        parts.store.sign_on("bench", "served")
        return "done"

    @app.get("/wait")
    def wait() -> str:
        time.sleep(seconds)  # as long as an upstream's response may take
        return "done"

    return app

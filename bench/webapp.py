"""The web application as deployed, plus one route: which modules the process has loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from worker.app import create_app as create

MODULES = "/bench/modules"


def create_app() -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    app = create()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != MODULES:
            return app(environ, start)
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(sorted(sys.modules)).encode()]

    return answer

"""The web application as a test client sees it, on a real store."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from flask import Flask

from worker.app import create_app
from worker.core.settings import Settings

TOKEN = "a-token-of-the-operator"


def settings_for(redis_url: str, directory: Path, **changes: Any) -> Settings:
    environ: dict[str, Any] = {
        "redis_url": redis_url,
        "worker_env": "test",
        "worker_state_dir": str(directory),
        "files_url": str(directory / "files"),
        "worker_config": str(directory / "none.toml"),
    }
    return Settings(**{**environ, **changes})


@contextmanager
def application(settings: Settings) -> Iterator[Flask]:
    """The application; what it does to logging ends with it."""
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield create_app(settings)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)

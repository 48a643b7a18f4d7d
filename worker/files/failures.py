"""File storage errors: the error for callers, and the log entry and metric for the operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from worker.core.errors import NotFound, Unavailable
from worker.store.outage import count_sample

log = structlog.get_logger()

SAMPLE = "worker_storage_errors_total"


def file_not_found() -> NotFound:
    return NotFound("file not found", code="FILE_NOT_FOUND", advice="Check the address, and its end date.")


def storage_unavailable(*, charge_known: bool = False) -> Unavailable:
    return Unavailable("file storage is unavailable", code="STORAGE_UNAVAILABLE", charge_known=charge_known)


def storage_failed(cause: BaseException) -> Unavailable:
    """Logs and counts the failure, and returns the error to raise."""
    log.error("files.storage_failed", error=type(cause).__name__, errno=getattr(cause, "errno", None))
    count_sample(SAMPLE)
    return storage_unavailable()


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turns file system errors into Unavailable; the cause stays on the exception."""
    try:
        yield
    except OSError as error:
        raise storage_failed(error) from error

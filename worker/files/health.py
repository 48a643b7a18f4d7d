"""Checks whether files can be stored: before a 402 is issued, and for /ready."""

from __future__ import annotations

from worker.core.errors import Unavailable
from worker.core.shared_probe import SharedProbe
from worker.files.failures import storage_unavailable
from worker.files.store import OK, Files

BROKEN = "files cannot be stored; the log says why"
# How long one probe's result is reused: a bucket charges for each.
FRESH_SECONDS = 5.0


class StorageHealth:
    """Probes the storage by writing to it."""

    def __init__(self, files: Files, *, fresh_s: float = FRESH_SECONDS) -> None:
        self._files = files
        self._probe = SharedProbe(self._look, name="files-probe", fresh_s=fresh_s)

    def check(self) -> str:
        """Returns 'ok' or the problem."""
        return self._probe.check()

    def require(self) -> None:
        """Refuses work while its result could not be stored."""
        if self.check() != OK:
            raise storage_unavailable(charge_known=True)

    def _look(self) -> str:
        try:
            return self._files.check()
        except Unavailable:
            return BROKEN

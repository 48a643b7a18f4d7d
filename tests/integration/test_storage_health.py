"""A deleted, broken or full files directory: what recovers automatically, and what is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.web_app import application, settings_for
from worker.core.errors import Unavailable
from worker.files.failures import SAMPLE
from worker.files.health import BROKEN, StorageHealth
from worker.files.store import DiskFiles
from worker.store import outage


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> DiskFiles:
    return DiskFiles(tmp_path / "files")


@pytest.fixture(name="counted")
def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The collected samples."""
    counted: list[str] = []
    monkeypatch.setattr(outage._bugs, "add", counted.append)
    return counted


@pytest.mark.parametrize("removed", [".", "tmp"])
def test_removed_directories_are_made_again(files: DiskFiles, removed: str, counted: list[str]) -> None:
    """Deleting the directory loses its files but blocks no later ones."""
    shutil.rmtree(files.directory / removed)
    ref = files.put(b"bytes", name="a", mime="text/plain")
    assert b"".join(files.open(ref.key)) == b"bytes"
    shutil.rmtree(files.directory / removed)
    assert files.sweep(0) == 0 and files.check() == "ok"
    assert not counted


def test_a_directory_that_cannot_be_written_is_logged_and_counted(
    files: DiskFiles, counted: list[str]
) -> None:
    """Each failure is one log line with its reason, and one count in the metrics."""
    shutil.rmtree(files.directory)
    files.directory.write_text("in the way")
    health = StorageHealth(files, fresh_s=0)
    with capture_logs() as logs, pytest.raises(Unavailable) as refusal:
        files.put(b"bytes", name="a", mime="text/plain")
    assert refusal.value.code == "STORAGE_UNAVAILABLE"
    assert [line["event"] for line in logs] == ["files.storage_failed"] and logs[0]["errno"]
    assert counted == [SAMPLE]
    assert health.check() == BROKEN
    with pytest.raises(Unavailable) as refusal:
        health.require()
    assert refusal.value.charged is False and refusal.value.retry_after
    files.directory.unlink()
    assert health.check() == "ok"
    health.require()


def test_ready_names_a_storage_that_fails(tmp_path: Path) -> None:
    """An operator sees the failing check without reading the log."""
    settings = settings_for("redis://127.0.0.1:1/0", tmp_path)
    with application(settings) as app:
        directory = Path(settings.files_url)
        shutil.rmtree(directory)
        directory.write_text("in the way")
        found = app.test_client().get("/ready").get_json()
    assert found["checks"]["files"] == BROKEN and "files" in found["failing"]


def test_a_disk_with_too_little_space_is_full(tmp_path: Path) -> None:
    """The check reports how much space is missing before any write fails."""
    files = DiskFiles(tmp_path / "files", spare_bytes=1 << 60)
    assert StorageHealth(files).check().startswith("the disk is full: ")
    assert files.put(b"bytes", name="a", mime="text/plain").size == 5

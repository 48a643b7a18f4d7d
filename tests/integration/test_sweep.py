"""The clock removes files of killed writers from disk and bucket, and spares running ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from structlog.testing import capture_logs

from tests.engine import SECOND, Engine
from tests.waiting import eventually
from worker.core.errors import Unavailable
from worker.files.s3 import S3Files
from worker.files.store import DiskFiles, Files
from worker.files.sweep import EVERY_US, SPARE_SECONDS, FileSweep
from worker.queue.clock import Clock

LONGEST = 600.0


def clock(engine: Engine, files: Files) -> Clock:
    """The clock of the work tree, with this chore."""
    chores = [FileSweep(files, longest=LONGEST).chore]
    return Clock(engine.store, engine.queue, files=files, tree="t1", retention_us=10**15, chores=chores)


def ticks(clock: Clock, until: Callable[[], bool]) -> None:
    """Ticks for a round of chores and waits for those it started."""
    for _ in range(4):
        clock.tick()
    eventually(until, 10)


def test_part_files_of_killed_writers_are_removed(engine: Engine, tmp_path: Path) -> None:
    """Old ones, in the first round and again an hour later; young ones and finished files stay."""
    files = DiskFiles(tmp_path / "files")
    stored = files.put(b"x", name="a", mime="text/plain")
    parts = files.directory / "tmp"

    def part(name: str, age: float) -> Path:
        part_file = parts / f"{name}.part"
        part_file.write_bytes(b"left")
        os.utime(part_file, (time.time() - age,) * 2)
        return part_file

    old, young = part("old", LONGEST + SPARE_SECONDS + 60), part("young", SPARE_SECONDS)
    ticking = clock(engine, files)
    ticks(ticking, lambda: not old.exists())
    again = part("again", 10 * SPARE_SECONDS)
    for _ in range(8):
        ticking.tick()
    assert young.exists() and again.exists()
    engine.advance(2 * EVERY_US / SECOND)
    ticks(ticking, lambda: not again.exists())
    assert young.exists() and files.stat(stored.key) is not None


def test_part_file_of_a_living_writer_is_kept(engine: Engine, tmp_path: Path) -> None:
    """However old the part file is; when its process is killed, the next round removes it."""
    files = DiskFiles(tmp_path / "files")
    code = (
        "import sys; from worker.files.store import DiskFiles\n"
        f"with DiskFiles({str(files.directory)!r}).writer('a', 'text/plain') as out:\n"
        "    out.write(b'slow'); print(out.key, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdin is not None
    part = files.directory / "tmp" / f"{child.stdout.readline().decode().strip()}.part"
    old = files.directory / "tmp" / "old.part"
    old.write_bytes(b"left")
    for each in (part, old):
        os.utime(each, (0, 0))
    ticking = clock(engine, files)
    ticks(ticking, lambda: not old.exists())
    assert part.exists()
    child.kill()
    child.communicate(timeout=30)
    engine.advance(2 * EVERY_US / SECOND)
    ticks(ticking, lambda: not part.exists())


@pytest.fixture(name="s3")
def _s3() -> Iterator[Any]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    yield client
    client.close()
    server.stop()


def test_unfinished_s3_uploads_are_aborted(engine: Engine, s3: Any) -> None:
    """The test server dates every upload in 2010."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=bucket)
    files = S3Files(bucket, "files", s3)
    stored = files.put(b"x", name="a", mime="text/plain")
    s3.create_multipart_upload(Bucket=bucket, Key="files/dead")
    assert s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    ticks(clock(engine, files), lambda: not s3.list_multipart_uploads(Bucket=bucket).get("Uploads"))
    assert files.stat(stored.key) is not None


@pytest.mark.parametrize("fault", [Unavailable("away"), OSError("a bug")])
def test_unavailable_file_store_does_not_stop_the_clock(fault: Exception) -> None:
    """The error is logged, and the next round tries again."""

    class OutOfReach:
        asked = 0

        def sweep(self, older_than: float) -> int:
            self.asked += 1
            raise fault

    files: Any = OutOfReach()
    sweep = FileSweep(files, longest=LONGEST, every_us=1)
    with capture_logs() as logs:
        for at in (1, 10):
            sweep.chore(at)
            eventually(lambda at=at: len(logs) == (1 if at == 1 else 2), 10)  # type: ignore[misc]
    assert files.asked == 2
    assert {line["event"] for line in logs} <= {"files.sweep_postponed", "files.sweep_failed"}

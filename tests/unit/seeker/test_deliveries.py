"""Fetching deliverables: only verified files are saved, and only from allowed addresses."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import URL, FakeWorker, ReceivedRequest
from worker.seeker.deliveries import Saved, collect
from worker.seeker.http import ConnectionDropped
from worker.seeker.problems import AnswerUnreadable, ChecksumMismatch


def item(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    checksum = "sha256:" + hashlib.sha256(data).hexdigest()
    deliverable = {
        "name": path.rpartition("/")[2],
        "url": URL + path,
        "checksum": checksum,
        "size": len(data),
    }
    return {**deliverable, **changes}


def fetch(fake_worker: FakeWorker, items: list[dict[str, Any]], directory: Path) -> list[Saved]:
    return collect(items, directory, http=fake_worker, worker_host="worker.example")


def test_valid_files_are_saved_and_invalid_ones_refused(tmp_path: Path) -> None:
    """One invalid file fails the collection, but valid files are still saved."""
    fake_worker = FakeWorker(files={"/a": b"aaa", "/b": b"bbb", "/c": b"ccc"})
    with pytest.raises(ChecksumMismatch) as raised:
        fetch(fake_worker, [item("/a", b"aaa"), item("/b", b"BBB"), item("/c", b"ccc")], tmp_path)
    assert "b" in raised.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


def test_corrupted_download_is_retried(tmp_path: Path) -> None:
    """A flipped bit or a lost connection during download is retried."""
    fake_worker = FakeWorker(files={"/a": b"aXa"})
    tries: list[ReceivedRequest] = []

    def mend(got: ReceivedRequest) -> None:
        tries.append(got)
        if len(tries) == 2:
            raise ConnectionDropped("lost")
        if len(tries) == 3:
            fake_worker.files["/a"] = b"aaa"

    fake_worker.watch = mend
    [saved] = fetch(fake_worker, [item("/a", b"aaa")], tmp_path)
    assert saved.path.read_bytes() == b"aaa"
    assert len(tries) == 3


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/etc/passwd", "..", "", "a/b", "a\\b", ".", "a\x00b", "x" * 500, "hire\u202egnp.exe"],
)
def test_file_names_stay_inside_the_directory(tmp_path: Path, name: str) -> None:
    """A file name from the worker cannot escape the directory."""
    fake_worker = FakeWorker(files={"/a": b"aaa"})
    out = tmp_path / "out"
    [saved] = fetch(fake_worker, [item("/a", b"aaa", name=name)], out)
    assert saved.path.parent == out
    assert [path.read_bytes() for path in out.iterdir()] == [b"aaa"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_duplicate_names_do_not_overwrite(tmp_path: Path) -> None:
    """Every file is kept, even if names differ only in case."""
    fake_worker = FakeWorker(files={"/1": b"1", "/2": b"2", "/3": b"3"})
    items = [
        item(f"/{n}", n.encode(), name=name) for n, name in (("1", "a.txt"), ("2", "a.txt"), ("3", "A.txt"))
    ]
    saved = fetch(fake_worker, items, tmp_path)
    assert [each.path.name for each in saved] == ["a.txt", "a-2.txt", "A-3.txt"]
    assert [each.path.read_bytes() for each in saved] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "http://8.8.8.8/",
        "file:///etc/passwd",
        "ftp://worker.example/a",
        "",
        None,
    ],
)
def test_private_network_urls_are_refused(tmp_path: Path, url: Any) -> None:
    """Other hosts must be public and use HTTPS; otherwise nothing is fetched or saved."""
    fake_worker = FakeWorker()
    with pytest.raises(AnswerUnreadable):
        fetch(fake_worker, [item("/a", b"aaa", url=url)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """Any status other than 200 is reported as a missing file."""
    with pytest.raises(AnswerUnreadable) as raised:
        fetch(FakeWorker(files={}), [item("/gone", b"")], tmp_path)
    assert raised.value.details["received"] == 404

"""Fetching deliverables: only what is proven is saved, and only from where it may be fetched."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.seller import URL, Got, Seller
from worker.seeker.deliveries import Saved, collect
from worker.seeker.http import Dropped
from worker.seeker.problems import AnswerUnreadable, ChecksumMismatch


def item(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    checksum = "sha256:" + hashlib.sha256(data).hexdigest()
    made = {"name": path.rpartition("/")[2], "url": URL + path, "checksum": checksum, "size": len(data)}
    return {**made, **changes}


def fetch(seller: Seller, items: list[dict[str, Any]], directory: Path) -> list[Saved]:
    return collect(items, directory, http=seller, worker_host="worker.example")


def test_good_files_are_saved_and_bad_ones_are_not(tmp_path: Path) -> None:
    """One wrong file spoils the collection, but not the files that are right."""
    seller = Seller(files={"/a": b"aaa", "/b": b"bbb", "/c": b"ccc"})
    with pytest.raises(ChecksumMismatch) as raised:
        fetch(seller, [item("/a", b"aaa"), item("/b", b"BBB"), item("/c", b"ccc")], tmp_path)
    assert "b" in raised.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


def test_a_transfer_that_spoiled_a_file_is_tried_again(tmp_path: Path) -> None:
    """A flipped bit or a lost connection on the way is mended by another try."""
    seller = Seller(files={"/a": b"aXa"})
    tries: list[Got] = []

    def mend(got: Got) -> None:
        tries.append(got)
        if len(tries) == 2:
            raise Dropped("lost")
        if len(tries) == 3:
            seller.files["/a"] = b"aaa"

    seller.watch = mend
    [saved] = fetch(seller, [item("/a", b"aaa")], tmp_path)
    assert saved.path.read_bytes() == b"aaa"
    assert len(tries) == 3


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/etc/passwd", "..", "", "a/b", "a\\b", ".", "a\x00b", "x" * 500, "hire\u202egnp.exe"],
)
def test_names_stay_inside_the_directory(tmp_path: Path, name: str) -> None:
    """A worker's name for a file never leads out of the directory."""
    seller = Seller(files={"/a": b"aaa"})
    out = tmp_path / "out"
    [saved] = fetch(seller, [item("/a", b"aaa", name=name)], out)
    assert saved.path.parent == out
    assert [path.read_bytes() for path in out.iterdir()] == [b"aaa"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_equal_names_do_not_hide_each_other(tmp_path: Path) -> None:
    """Every file is kept, also where names differ only in case."""
    seller = Seller(files={"/1": b"1", "/2": b"2", "/3": b"3"})
    items = [
        item(f"/{n}", n.encode(), name=name) for n, name in (("1", "a.txt"), ("2", "a.txt"), ("3", "A.txt"))
    ]
    saved = fetch(seller, items, tmp_path)
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
def test_a_worker_cannot_make_us_look_into_our_own_network(tmp_path: Path, url: Any) -> None:
    """Addresses elsewhere must be public and encrypted; nothing is fetched or saved otherwise."""
    seller = Seller()
    with pytest.raises(AnswerUnreadable):
        fetch(seller, [item("/a", b"aaa", url=url)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Another status than 200 is no file."""
    with pytest.raises(AnswerUnreadable) as raised:
        fetch(Seller(files={}), [item("/gone", b"")], tmp_path)
    assert raised.value.details["received"] == 404

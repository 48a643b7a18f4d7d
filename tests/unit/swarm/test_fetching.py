"""Judging evidence references by reading them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from worker.swarm import fetching
from worker.swarm.fetching import Fetched, Outcome, judge, may_fetch
from worker.swarm.wire import ArtifactRef

DATA = b"evidence"
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()
REF = ArtifactRef("https://files.example/a", DIGEST, len(DATA), "text/plain", 1, "p/m")


class Shelf:
    """Answers by address and remembers what was asked."""

    def __init__(self, **outcomes: Fetched) -> None:
        self.outcomes = outcomes
        self.asked: list[str] = []

    def __call__(self, uri: str, *, max_bytes: int, seconds: float) -> Fetched:
        assert max_bytes > 0
        assert seconds > 0
        self.asked.append(uri)
        return self.outcomes[uri.rsplit("/", 1)[1]]


def always() -> float:
    return 20.0


@pytest.mark.parametrize(
    ("fetched", "codes"),
    [
        (Fetched(Outcome.OK, DATA), ()),
        (Fetched(Outcome.OK, DATA + b"!"), (203,)),
        (Fetched(Outcome.OK), (203,)),
        (Fetched(Outcome.UNREACHABLE), (200,)),
        (Fetched(Outcome.TIMEOUT), (201,)),
        (Fetched(Outcome.AUTH), (202,)),
        (Fetched(Outcome.UNREACHABLE, DATA), (200,)),
    ],
)
def test_each_outcome_has_its_code(fetched: Fetched, codes: tuple[int, ...]) -> None:
    """Right bytes say nothing, everything else one reason code."""
    assert judge([REF], Shelf(a=fetched), ["files.example"], always) == codes


def test_findings_add_up_in_order() -> None:
    """Several references give every code once, sorted."""
    refs = [replace(REF, uri=f"https://files.example/{name}") for name in "abcd"]
    shelf = Shelf(
        a=Fetched(Outcome.OK, b"wrong"),
        b=Fetched(Outcome.TIMEOUT),
        c=Fetched(Outcome.TIMEOUT),
        d=Fetched(Outcome.OK, DATA),
    )
    assert judge(refs, shelf, ["files.example"], always) == (201, 203)


def test_only_listed_origins_are_read() -> None:
    """Without a list nothing is asked, and what is not listed is not judged."""
    shelf = Shelf(a=Fetched(Outcome.UNREACHABLE))
    assert judge([REF], shelf, [], always) == ()
    assert judge([REF], shelf, ["other.example"], always) == ()
    assert shelf.asked == []


def test_unknown_digests_and_repeats_are_not_read() -> None:
    """Only sha256 can be judged, in hex of either case; the same reference is read once."""
    shelf = Shelf(a=Fetched(Outcome.OK, DATA))
    shouted = replace(REF, digest="sha256:" + DIGEST.removeprefix("sha256:").upper())
    refs = [replace(REF, digest="md5:00"), replace(REF, digest="sha256:a3f1d8c2..."), REF, REF, shouted]
    assert judge(refs, shelf, ["files.example"], always) == ()
    assert len(shelf.asked) == 2


def test_what_there_is_no_time_for_counts_as_a_timeout() -> None:
    """When the time is up the remaining references are not asked and the verdict cannot be a pass."""
    left = iter([5.0, 0.0])
    refs = [REF, replace(REF, uri="https://files.example/b")]
    shelf = Shelf(a=Fetched(Outcome.OK, DATA))
    assert judge(refs, shelf, ["files.example"], lambda: next(left)) == (201,)
    assert shelf.asked == [REF.uri]


def test_a_bad_reference_cannot_hide_behind_many_good_ones() -> None:
    """More references than are read count as a timeout too."""
    names = [f"n{i}" for i in range(fetching.MAX_FETCHES + 5)]
    refs = [replace(REF, uri=f"https://files.example/{name}") for name in names]
    shelf = Shelf(**dict.fromkeys(names, Fetched(Outcome.OK, DATA)))
    assert judge(refs, shelf, ["files.example"], always) == (201,)
    assert len(shelf.asked) == fetching.MAX_FETCHES


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("https://files.example/x?y=1", True),
        ("HTTPS://Files.Example:443/x", True),
        ("https://files.example./x", True),
        ("http://127.0.0.1:9000/x", True),
        ("http://files.example/x", False),
        ("https://files.example:8443/x", False),
        ("http://127.0.0.1/x", False),
        ("https://127.0.0.1:9000/x", False),
        ("https://evil.example/files.example", False),
        ("https://files.example.evil.example/", False),
        ("https://sub.files.example/", False),
        ("https://files.example@evil.example/", False),
        ("https://user@files.example/", False),
        ("https://files.example\\@evil.example/", False),
        ("https://evil.example#@files.example/", False),
        ("https://files.example\t/", False),
        ("https://files.example\n.evil.example/", False),
        (" https://files.example/", False),
        ("https://files.exampl\uff45/", False),
        ("https://files.example:99999/", False),
        ("https://files.example:x/", False),
        ("https://[::1/", False),
        ("https:///x", False),
        ("//files.example/x", False),
        ("file:///etc/passwd", False),
        ("ftp://files.example/x", False),
        ("artifact://reference/c1", False),
        ("gopher://127.0.0.1:9000/x", False),
        ("", False),
    ],
)
def test_origins_are_compared_whole(uri: str, allowed: bool) -> None:
    """Scheme, host and port must be a listed origin's; user names, escapes and look-alikes fail."""
    assert may_fetch(uri, ["files.example", "http://127.0.0.1:9000"]) is allowed


def test_an_entry_that_is_no_origin_allows_nothing() -> None:
    """A broken entry of the list matches no address, not even an equally broken one."""
    for entry in ("", "https://", "file://", "a b"):
        for uri in ("", "https://", "file://", "https:///x", "https://a b/"):
            assert not may_fetch(uri, [entry])

"""Verifying evidence references by fetching them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from worker.swarm import fetching
from worker.swarm.fetching import Fetched, FetchOutcome, judge, may_fetch
from worker.swarm.wire import ArtifactRef

DATA = b"evidence"
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()
REF = ArtifactRef("https://files.example/a", DIGEST, len(DATA), "text/plain", 1, "p/m")


class FakeFetch:
    """Returns fixed results by address and records the requests."""

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
        (Fetched(FetchOutcome.OK, DATA), ()),
        (Fetched(FetchOutcome.OK, DATA + b"!"), (203,)),
        (Fetched(FetchOutcome.OK), (203,)),
        (Fetched(FetchOutcome.UNREACHABLE), (200,)),
        (Fetched(FetchOutcome.TIMEOUT), (201,)),
        (Fetched(FetchOutcome.AUTH), (202,)),
        (Fetched(FetchOutcome.UNREACHABLE, DATA), (200,)),
    ],
)
def test_each_fetch_outcome_has_its_code(fetched: Fetched, codes: tuple[int, ...]) -> None:
    """Matching bytes add no code; every other outcome adds one reason code."""
    assert judge([REF], FakeFetch(a=fetched), ["files.example"], always) == codes


def test_findings_are_listed_in_order() -> None:
    """Several references report each code once, sorted."""
    refs = [replace(REF, uri=f"https://files.example/{name}") for name in "abcd"]
    shelf = FakeFetch(
        a=Fetched(FetchOutcome.OK, b"wrong"),
        b=Fetched(FetchOutcome.TIMEOUT),
        c=Fetched(FetchOutcome.TIMEOUT),
        d=Fetched(FetchOutcome.OK, DATA),
    )
    assert judge(refs, shelf, ["files.example"], always) == (201, 203)


def test_only_listed_origins_are_read() -> None:
    """Without an allowlist nothing is fetched, and unlisted references are not judged."""
    shelf = FakeFetch(a=Fetched(FetchOutcome.UNREACHABLE))
    assert judge([REF], shelf, [], always) == ()
    assert judge([REF], shelf, ["other.example"], always) == ()
    assert shelf.asked == []


def test_unknown_digests_and_repeats_are_not_read() -> None:
    """Only sha256 can be checked, in hex of either case; a repeated reference is fetched once."""
    shelf = FakeFetch(a=Fetched(FetchOutcome.OK, DATA))
    shouted = replace(REF, digest="sha256:" + DIGEST.removeprefix("sha256:").upper())
    refs = [replace(REF, digest="md5:00"), replace(REF, digest="sha256:a3f1d8c2..."), REF, REF, shouted]
    assert judge(refs, shelf, ["files.example"], always) == ()
    assert len(shelf.asked) == 2


def test_references_without_remaining_time_time_out() -> None:
    """After the time-out the remaining references are not fetched and the verdict cannot be a pass."""
    left = iter([5.0, 0.0])
    refs = [REF, replace(REF, uri="https://files.example/b")]
    shelf = FakeFetch(a=Fetched(FetchOutcome.OK, DATA))
    assert judge(refs, shelf, ["files.example"], lambda: next(left)) == (201,)
    assert shelf.asked == [REF.uri]


def test_invalid_reference_is_found_among_many_valid_ones() -> None:
    """References beyond the fetch limit count as a time-out too."""
    names = [f"n{i}" for i in range(fetching.MAX_FETCHES + 5)]
    refs = [replace(REF, uri=f"https://files.example/{name}") for name in names]
    shelf = FakeFetch(**dict.fromkeys(names, Fetched(FetchOutcome.OK, DATA)))
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
def test_origins_are_compared_exactly(uri: str, allowed: bool) -> None:
    """Scheme, host and port must match a listed origin; user names, escapes and look-alikes fail."""
    assert may_fetch(uri, ["files.example", "http://127.0.0.1:9000"]) is allowed


def test_invalid_origin_allows_nothing() -> None:
    """A malformed list entry matches no address, not even an equally malformed one."""
    for entry in ("", "https://", "file://", "a b"):
        for uri in ("", "https://", "file://", "https:///x", "https://a b/"):
            assert not may_fetch(uri, [entry])

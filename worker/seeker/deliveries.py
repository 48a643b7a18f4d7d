"""Fetches deliverables: all bytes are compared with the announced checksum before they are saved."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.delivery.outbound import AddressRules, Outbound, TimedOut, Unreachable, UrlRefused
from worker.files.names import safe_name
from worker.seeker.checks import check_bytes
from worker.seeker.http import ConnectionDropped, HttpAnswer, Transport, host_of
from worker.seeker.problems import AnswerUnreadable, ChecksumMismatch, plain

MOST_BYTES = 100 << 20
_ELSEWHERE_SECONDS = 300.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Saved:
    """A deliverable whose bytes match the announcement."""

    name: str
    path: Path
    size: int
    checksum: str
    mime: str


def collect(
    deliverables: Sequence[Mapping[str, Any]], directory: Path, *, http: Transport, worker_host: str
) -> list[Saved]:
    """Save the valid deliverables; try all of them, then raise ChecksumMismatch for the rest."""
    saved: list[Saved] = []
    wrong: ChecksumMismatch | None = None
    taken: set[str] = set()
    for each in deliverables:
        try:
            data = fetch(each, http=http, worker_host=worker_host)
        except ChecksumMismatch as mismatch:
            wrong = wrong or mismatch
            continue
        name = _free(safe_name(str(each.get("name") or "file")), taken)
        path = directory / name
        _write(path, data)
        mime = plain(each.get("mime") or "application/octet-stream", 100)
        saved.append(Saved(name, path, len(data), str(each["checksum"]), mime))
    if wrong is not None:
        raise wrong
    return saved


def fetch(deliverable: Mapping[str, Any], *, http: Transport, worker_host: str) -> bytes:
    """Fetch the bytes of one deliverable; a corrupted transfer is retried."""
    name, url = plain(deliverable.get("name") or "file", 80), deliverable.get("url")
    if not isinstance(url, str):
        raise AnswerUnreadable(f"{name} has no address", field="deliverables.url")
    for tries_left in reversed(range(_TRIES)):
        try:
            data = _get(url, http, worker_host, name)
            check_bytes(data, name=name, checksum=deliverable.get("checksum"), size=deliverable.get("size"))
            return data
        except (ConnectionDropped, ChecksumMismatch) as fault:
            if tries_left:
                continue
            if isinstance(fault, ChecksumMismatch):
                raise
            raise AnswerUnreadable(f"{name} cannot be fetched ({fault.why})") from fault
    raise AssertionError("the last try returns or raises")


def _get(url: str, http: Transport, worker_host: str, name: str) -> bytes:
    """We chose the worker's own address; any other address is untrusted and must be public."""
    if host_of(url) == worker_host:
        answer = http.send("GET", url, headers={"Accept": "*/*"}, most=MOST_BYTES)
    else:
        answer = _elsewhere(url, name)
    if answer.status != 200:
        raise AnswerUnreadable(f"{name} cannot be fetched", expected=200, received=answer.status)
    return answer.body


def _elsewhere(url: str, name: str) -> HttpAnswer:
    caller = Outbound(AddressRules(ports=None), total_seconds=_ELSEWHERE_SECONDS, body_cap=MOST_BYTES)
    try:
        answer = caller.call("GET", url, headers={"Accept": "*/*"})
    except UrlRefused as refused:
        raise AnswerUnreadable(f"{name} has an address that must not be fetched") from refused
    except (Unreachable, TimedOut) as fault:
        raise ConnectionDropped("its host does not answer") from fault
    if answer.truncated:
        raise AnswerUnreadable(f"{name} is too large", expected=f"at most {MOST_BYTES} bytes")
    return HttpAnswer(answer.status, answer.headers, answer.body)


def _free(name: str, taken: set[str]) -> str:
    stem, dot, ending = name.rpartition(".")
    candidate, number = name, 1
    while candidate.lower() in taken:
        number += 1
        candidate = f"{stem}-{number}.{ending}" if dot else f"{name}-{number}"
    taken.add(candidate.lower())
    return candidate


def _write(path: Path, data: bytes) -> None:
    """Write atomically: a file under this name has been checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name[:200] + ".part")
    part.write_bytes(data)
    os.replace(part, path)

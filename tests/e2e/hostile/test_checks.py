"""Schemas and inputs that consume the worker's CPU time before any payment."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests

from tests.e2e.hire.hire_session import HireSession
from tests.fakes.paid_worker import in_threads
from tests.waiting import eventually
from worker.contracts.signatures import sign_text
from worker.queue.checks import CALLER_CPU

# Each `a` doubles the number of ways to match; the capability's example does not.
HANGING = {"type": "string", "pattern": "^(a+)+$"}


def draft(session: HireSession, address: str, schema: Any, **changes: Any) -> requests.Response:
    key = "0x" + secrets.token_hex(32)
    document = session.draft("prose", key=key, task={"output_schema": schema}, **changes)
    sent = {"X-Forwarded-For": address}
    return requests.post(f"{session.url}/contracts", json=document, headers=sent, timeout=60)


@contextmanager
def frozen_checks(session: HireSession) -> Iterator[None]:
    """Suspends the check process, as if a check never ended."""

    def found() -> int:
        names = session.store.zrange(session.keys.takers("check"), -1, -1)
        return int(names[0].decode().rpartition("-")[2]) if names else 0

    pid = eventually(found)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_paid_work_never_waits_behind_a_check(session: HireSession) -> None:
    """While the check process hangs and drafts wait for it, a paid inline hire is not delayed."""
    with frozen_checks(session):
        answers: list[requests.Response] = []

        def attack(n: int) -> None:
            answers.append(draft(session, f"198.51.100.{n}", {**HANGING, "title": str(n)}))

        def hire() -> None:
            eventually(lambda: session.store.llen(session.keys.checks) >= 3)
            contract = session.contract("notes")
            asked = session.execute(contract, {"text": "hello"})
            paid = session.execute(contract, {"text": "hello"}, payment=session.sign(asked))
            assert paid.status_code == 200, paid.text

        in_threads(hire, *(lambda n=n: attack(n) for n in range(4)))  # type: ignore[misc]
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["error"]["code"] for answer in answers} == {"WORKER_BUSY"}
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in answers)


def test_a_schema_that_hangs_is_refused_with_its_field(session: HireSession) -> None:
    """A check may use one second of CPU time."""
    refused = eventually(lambda: _unless_busy(draft(session, "203.0.113.1", HANGING)), 60.0)[0]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (422, "SCHEMA_REFUSED"), refused.text
    assert error["details"]["field"] == "task.output_schema"


def _unless_busy(answer: requests.Response) -> list[requests.Response]:
    """On a busy machine one second of CPU time may exceed a request's time-out."""
    return [] if answer.status_code == 503 else [answer]


def test_one_network_uses_up_its_own_cpu_time(session: HireSession) -> None:
    """A /64 counts as one caller; other networks' contracts are signed meanwhile."""
    statuses = [
        draft(session, f"2001:db8:1:2::{n:x}", {**HANGING, "title": secrets.token_hex(4)}).status_code
        for n in range(1, CALLER_CPU + 3)
    ]
    assert set(statuses) <= {422, 429, 503} and 429 in statuses
    assert len(statuses) - statuses.count(429) <= CALLER_CPU
    last = draft(session, "2001:db8:1:2:ffff::1", {**HANGING, "title": "another"})
    assert (last.status_code, last.json()["error"]["code"]) == (429, "RATE_LIMITED")
    assert 0 < int(last.headers["Retry-After"]) <= 60
    honest = draft(session, "2001:db8:1:3::1", {"type": "string"})
    assert honest.status_code == 201, honest.text


def test_a_draft_leaves_little(session: HireSession) -> None:
    """The document travels with the PUT, so an unsigned draft leaves at most 4 kB and no execution."""
    before, executions = stored_bytes(session), session.store.zcard(session.keys.everything)
    for n in range(5):
        schema = {"type": "string", "description": secrets.token_hex(15_000)}
        answer = draft(session, f"192.0.2.{n}", schema)
        assert answer.status_code == 201, answer.text
    assert stored_bytes(session) - before <= 5 * 4096
    assert session.store.zcard(session.keys.everything) == executions


def stored_bytes(session: HireSession) -> int:
    """Memory used by all keys of the store, except processes' registrations and counters."""
    keys = session.keys
    others = {keys.stats, keys.checks, keys.ticks, keys.catalog}
    found = [key for key in session.store.scan_iter(count=1000) if key.decode() not in others]
    return sum(int(session.store.memory_usage(key) or 0) for key in found)


def test_an_input_check_that_hangs_holds_nobody_up(session: HireSession) -> None:
    """An author's check before the 402 also runs in the check process, and leaves no execution."""
    contract = session.contract("even")
    refused = session.execute(contract, "for ever")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "WORKER_BUSY"), refused.text
    odd = session.execute(contract, {"number": 3})
    assert (odd.status_code, odd.json()["error"]["code"]) == (422, "INVALID_INPUT")
    assert odd.json()["error"]["details"]["field"] == "number"
    assert session.execute(contract, {"number": 4}).status_code == 402
    keys = session.keys
    assert session.store.zcard(keys.by_agent("_input-check")) == 0


def test_a_draft_signed_at_last_is_registered(session: HireSession) -> None:
    """Registering the document needs nothing stored from its draft."""
    document = session.draft("notes")
    signed = session.http.post(f"{session.url}/contracts", json=document).json()
    session.store.delete(*(session.store.keys(f"{session.keys.prefix}:draft*") or ["-"]))
    signed["signatures"]["seeker"] = sign_text(signed["hash"], session.key)
    assert session.http.put(f"{session.url}/contracts", json=signed).status_code == 200

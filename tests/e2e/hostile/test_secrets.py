"""Which of the worker's secrets author code can read, and strangers can guess."""

from __future__ import annotations

import requests

from tests.e2e.hire.hire_session import HireSession


def test_author_code_finds_no_secret_in_an_environment(session: HireSession) -> None:
    """Neither in its own environment, nor in its parent's, nor in the system's view of them."""
    contract = session.contract("spy")
    asked = session.execute(contract, {"text": "hello"})
    paid = session.execute(contract, {"text": "hello"}, payment=session.sign(asked))
    assert paid.status_code == 200, paid.text
    assert paid.json()["output"]["content"]["found"] == []


def test_wrong_swarm_passwords_are_slowed_down(session: HireSession) -> None:
    """After thirty a minute a /64 is refused; the right password and other networks are answered."""

    def answer(address: str, password: str) -> int:
        sent = {"X-Forwarded-For": address}
        url = f"{session.url}/capabilities"
        return requests.get(url, headers=sent, auth=("swarm", password), timeout=30).status_code

    statuses = [answer(f"2001:db8:9:9::{n:x}", f"guess-{n}") for n in range(1, 36)]
    assert set(statuses) == {401, 429} and statuses.count(401) == 30
    assert answer("2001:db8:9:9:ffff::", "another") == 429
    assert answer("2001:db8:9:8::1", "another") == 401
    assert answer("2001:db8:9:9::1", session.facts["swarm"]["password"]) == 200


def test_every_answer_carries_nosniff(session: HireSession) -> None:
    """Responses with a third party's text are never interpreted as another type."""
    urls = ["/manifest", "/health", "/openapi.json", "/nowhere", "/tasks/x", "/v0/executions", "/contracts"]
    for url in urls:
        found = requests.get(session.url + url, timeout=30)
        assert found.headers["X-Content-Type-Options"] == "nosniff", url

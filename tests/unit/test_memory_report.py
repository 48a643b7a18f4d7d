"""The server's memory report is asked for by one of many requests."""

from __future__ import annotations

from typing import Any, cast

import pytest
import redis

from worker.engine.reader import ExecutionReader
from worker.store.data_model import Keys


class Server:
    """Answers INFO; `meanwhile` is what others do until the answer is there."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.reader = ExecutionReader(cast(redis.Redis, self), Keys())
        self.meanwhile: list[Any] = []

    def info(self, section: str) -> dict[str, int]:
        self.asked += 1
        number = self.asked
        if self.asked == 2:
            self.meanwhile = [self.reader.memory() for _ in range(3)]
        if self.error is not None:
            raise self.error
        return {"used_memory": number}


@pytest.fixture(name="now")
def _now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("worker.engine.reader.time.monotonic", lambda: now[0])
    return now


def test_others_get_the_last_report_meanwhile(now: list[float]) -> None:
    """Under load dozens would ask in the same moment of each second."""
    server = Server()
    assert server.reader.memory() == server.reader.memory() == {"used_memory": 1}
    now[0] += 1.5
    assert server.reader.memory() == {"used_memory": 2}
    assert server.meanwhile == [{"used_memory": 1}] * 3 and server.asked == 2


def test_nobody_goes_on_without_a_first_report(now: list[float]) -> None:
    """Until there is one, others ask too: no report would count as room."""
    server = Server()
    server.asked = 1
    assert server.reader.memory() == {"used_memory": 2}
    assert server.meanwhile == [{"used_memory": 3}] * 3


def test_a_failed_report_is_asked_for_again(now: list[float]) -> None:
    server = Server()
    server.reader.memory()
    now[0] += 1.5
    server.error = redis.ConnectionError("away")
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            server.reader.memory()
    server.error = redis.ResponseError("forbidden")
    assert server.reader.memory() == {}

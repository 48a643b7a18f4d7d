"""Every stream bounds its writes, so that a client that stops reading is let go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.fakes.paid_door import PaidDoor
from tests.web_app import TOKEN, application
from worker.doors.hangup import WRITE_SECONDS
from worker.local.valkey import EmbeddedStore


class FakeSocket:
    """A client's socket as gunicorn with gevent passes it on."""

    hub = object()

    def __init__(self) -> None:
        self.timeout: float | None = None

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds


@pytest.mark.parametrize(
    "path",
    [
        "/stream/{id}",
        "/v0/executions/{id}/stream",
        "/v0/agents/stream?agent_id=a&consumer_id=c",
        "/v0/runners/stream?runner_id=r&consumer_id=c&capabilities=t",
    ],
)
def test_a_stream_bounds_its_writes(
    client: redis.Redis, valkey: EmbeddedStore, tmp_path: Path, path: str
) -> None:
    """`test_a_client_that_does_not_read_is_let_go` shows the effect; this shows it for each route."""
    door = PaidDoor(tmp_path, client, valkey.url)
    deal = door.deal()
    id = deal.execute({"do": "ok"}, deal.payment()).execution.id
    headers = {"X-Contract-ID": deal.document["contract_id"], "Authorization": f"Bearer {TOKEN}"}
    socket = FakeSocket()
    with application(replace(door.settings, kernel_token=TOKEN)) as app:
        answer = app.test_client().open(
            path.format(id=id), headers=headers, environ_overrides={"gunicorn.socket": socket}, buffered=False
        )
        assert answer.status_code == 200, answer.data
        answer.close()
    assert socket.timeout == WRITE_SECONDS

"""Open streams: each bounds its writes, and those of wallets that have paid nothing share a part."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest
import redis

from tests.fakes.paid_door import PaidDoor
from tests.web_app import TOKEN, application
from worker.doors.hangup import WRITE_SECONDS
from worker.doors.stream_places import StreamPlaces
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


def test_a_customers_stream_opens_when_newcomers_have_theirs(
    client: redis.Redis, valkey: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no place left for newcomers, a stream opens once its wallet has paid."""
    monkeypatch.setattr(StreamPlaces, "__init__", partialmethod(StreamPlaces.__init__, of_newcomers=0))
    door = PaidDoor(tmp_path, client, valkey.url)
    deal = door.deal()
    id = deal.execute({"do": "ok"}, deal.payment()).execution.id
    headers = {"X-Contract-ID": deal.document["contract_id"]}
    with application(door.settings) as app:
        refused = app.test_client().get(f"/stream/{id}", headers=headers)
        client.hset(door.parts.keys.wallets, f"paid {deal.wallet}", 10_000)
        opened = app.test_client().get(f"/stream/{id}", headers=headers, buffered=False)
        opened.close()
    assert (refused.status_code, refused.get_json()["error"]["details"]["limit"]) == (503, "newcomers")
    assert opened.status_code == 200

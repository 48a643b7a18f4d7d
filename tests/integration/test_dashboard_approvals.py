"""What the dashboard shows of tool calls that wait for the operator's approval."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.engine import Engine
from tests.integration.test_remote_scripts import Kernel
from tests.web_app import application, settings_for
from worker.policy.judge import Decision

TOKEN = "t" * 32


@dataclass(frozen=True)
class Call:
    """A call that waits: its arguments, what its page shows, and whether the overview has a button."""

    arguments: Any
    shown: str
    button: bool
    events_before: int = 0


@pytest.fixture(name="operator")
def _operator(valkey, engine: Engine, tmp_path: Path) -> Iterator[FlaskClient]:
    with application(settings_for(valkey.url, tmp_path, kernel_token=TOKEN, secret_key="s")) as app:
        yield app.test_client()


def page(operator: FlaskClient, path: str = "/") -> str:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
    answer = operator.get(f"/dashboard{path}", headers=headers)
    assert answer.status_code == 200
    return answer.get_data(as_text=True)


@pytest.mark.parametrize(
    "call",
    [
        Call(None, "null", True),
        Call({"path": "/tmp/a"}, "/tmp/a", True),
        Call({"note": "x" * 200, "path": "/etc"}, "/etc", False),
        Call({"note": "x" * 40_000}, "bytes long", False),
        Call({"path": "/late"}, "/late", True, events_before=1_100),
    ],
    ids=["none", "short", "long", "omitted", "after a long log"],
)
def test_nobody_approves_unseen(operator: FlaskClient, engine: Engine, call: Call) -> None:
    """The page shows the arguments, also late in a log; the overview has a button only where it shows all."""
    kernel = Kernel(engine)
    _, id = kernel.working()
    log = engine.keys.log(id)
    for _ in range(call.events_before):
        engine.client.rpushx(log, engine.client.lindex(log, -1))
    kernel.decision = Decision("require_approval", "r", "ask")
    kernel.invoke(id, has_arguments=call.arguments is not None, arguments=call.arguments)
    waiting = page(operator, f"/executions/{id}").partition("waits for your approval")[2]
    assert call.shown in waiting.partition("</section>")[0]
    assert ('name="action" value="approve"' in page(operator)) is call.button

"""`/metrics` on money and latency; alerts and dashboard use only existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
import yaml
from flask.testing import FlaskClient

from tests.engine import Engine
from tests.fakes.ledger_setup import PRICE, LedgerSetup
from tests.fakes.stub_server import StubServer
from tests.integration.test_ops_door import samples
from tests.integration.test_outbox import HOUR, NOTICE, OutboxSetup
from tests.web_app import TOKEN, application, settings_for
from worker.cli import parser_of
from worker.core.states import Lane
from worker.doors.metrics import FAMILIES, HISTOGRAMS
from worker.local.valkey import EmbeddedStore, free_port
from worker.parts.paid import count_facilitator_failure
from worker.payments.facilitator import HttpFacilitator
from worker.payments.gauges import SUMS
from worker.store.request_counts import LATENCIES_US

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "config/monitoring"
NAME = re.compile(r"\bworker_[a-z_]+\b")


@pytest.fixture(name="http")
def _http(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> Iterator[FlaskClient]:
    with application(settings_for(valkey.url, tmp_path, kernel_token=TOKEN)) as app:
        yield app.test_client()


def metrics(http: FlaskClient) -> dict[str, float]:
    answer = http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    return samples(answer.get_data(as_text=True))


def test_money_is_counted_by_what_became_of_it(http: FlaskClient, client: redis.Redis) -> None:
    """Settled, open, unknown, refunds due, and revenue by agent."""
    money = LedgerSetup(client)
    found = metrics(http)
    assert all(found[f'worker_money_units{{kind="{kind}"}}'] == 0 for kind in SUMS)
    money.paid()
    money.owed()
    money.claim()
    found = metrics(http)
    assert found['worker_money_units{kind="claimed"}'] == 3 * PRICE
    assert found['worker_money_units{kind="settled"}'] == 2 * PRICE
    assert found['worker_money_units{kind="open"}'] == PRICE
    assert found['worker_money_units{kind="refunds_due"}'] == PRICE
    assert found["worker_payments_open"] == 1 and found["worker_payments_unknown"] == 0
    revenue = {name: value for name, value in found.items() if name.startswith("worker_revenue")}
    assert sum(revenue.values()) == 2 * PRICE and all('agent="' in name for name in revenue)


def test_a_settlement_without_an_outcome_is_counted(http: FlaskClient, client: redis.Redis) -> None:
    """A lost facilitator response leaves one unknown payment until its outcome is known."""
    money = LedgerSetup(client)
    money.facilitator.plan = ["drop"]
    paid = money.claim()
    money.seal(paid)
    money.settler.settle(paid.id)
    assert money.state(paid) == "unknown"
    found = metrics(http)
    assert (found["worker_payments_open"], found["worker_payments_unknown"]) == (1, 1)


def test_waiting_and_working_are_timed(http: FlaskClient, engine: Engine) -> None:
    """The wait in a lane and a run each fall into one bucket; requests are counted by endpoint."""
    id = engine.new(lane=Lane.EXPRESS, agent="a-slow-one", version="1")
    engine.advance(20)
    assert 20 <= metrics(http)["worker_queue_age_seconds"] < 25
    execution = engine.take(id, lease_us=120_000_000)
    engine.advance(45)
    engine.seal(id, execution.fence)
    http.get("/health")
    metrics(http)
    found = metrics(http)
    assert found["worker_queue_age_seconds"] == 0
    wait = 'worker_queue_wait_seconds_bucket{lane="express",le="%s"}'
    assert (found[wait % "10"], found[wait % "30"], found[wait % "+Inf"]) == (0, 1, 1)
    assert 20 <= found['worker_queue_wait_seconds_sum{lane="express"}'] < 25
    run = 'worker_run_seconds_bucket{agent="a-slow-one",le="%s"}'
    assert (found[run % "30"], found[run % "60"], found[run % "1800"]) == (0, 1, 1)
    assert found['worker_http_request_seconds_count{endpoint="ops.health"}'] == 1
    assert found['worker_http_request_seconds_bucket{endpoint="ops.health",le="+Inf"}'] == 1


def test_facilitator_failures_are_counted_and_refusals_are_not(http: FlaskClient) -> None:
    """No connection and an HTTP error are failures; a refusal is an answer."""
    counted = partial(HttpFacilitator, count_failure=count_facilitator_failure)
    counted(f"http://127.0.0.1:{free_port()}").supported()
    with (
        StubServer(502, b"<html>") as broken,
        StubServer(400, b'{"errorReason":"invalid_scheme"}') as refuses,
    ):
        counted(broken.url).settle({}, {})
        counted(refuses.url).settle({}, {})
    found = metrics(http)
    assert found['worker_facilitator_failures_total{call="supported"}'] == 1
    assert found['worker_facilitator_failures_total{call="settle"}'] == 1


def test_hosts_that_refuse_webhooks_are_counted_for_a_day(http: FlaskClient, client: redis.Redis) -> None:
    """A host counts from its first failure until it takes one, or nothing is sent to it for a day."""
    post = OutboxSetup(client)
    post.outbox.add([NOTICE])
    post.fail()
    assert metrics(http)["worker_webhooks_failing"] == 1
    post.advance(25 * HOUR)
    assert metrics(http)["worker_webhooks_failing"] == 0
    post.fail()
    assert metrics(http)["worker_webhooks_failing"] == 1
    post.fail(outcome="ok")
    assert metrics(http)["worker_webhooks_failing"] == 0


def test_scripts_and_processes_count_in_the_same_buckets() -> None:
    """The bounds are defined once for the engine's scripts and once for Python, and are equal."""
    script = (ROOT / "worker/engine/lua/_engine.lua").read_text()
    found = re.search(r"LATENCIES = \{(.+)\}", script)
    assert found is not None
    assert tuple(round(float(each)) for each in found[1].split(",")) == LATENCIES_US


def expressions() -> dict[str, str]:
    """The expressions of alerts and dashboard, by alert and panel."""
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    found = {each["alert"]: each["expr"] for each in rules}
    for panel in json.loads((MONITORING / "grafana.json").read_text())["panels"]:
        found |= {f"{panel['title']} {each['refId']}": each["expr"] for each in panel["targets"]}
    return found


@pytest.mark.parametrize("where", expressions())
def test_alerts_and_dashboard_ask_for_metrics_that_exist(where: str) -> None:
    """Each name in an expression is one of our metric families, or a part of a histogram."""
    known = {*FAMILIES, *(name + end for name in HISTOGRAMS for end in ("_bucket", "_sum", "_count"))}
    asked = set(NAME.findall(expressions()[where]))
    assert asked <= known and (asked or "up{" in expressions()[where])


def test_every_metric_is_shown_or_watched() -> None:
    """Every metric is used by an alert or a panel."""
    asked = set(NAME.findall(" ".join(expressions().values())))
    assert set(FAMILIES) <= asked | {"worker_http_requests_total"}
    assert {f"{name}_bucket" for name in HISTOGRAMS} <= asked


def test_each_alert_says_what_to_do() -> None:
    """An alert has a severity and a sentence that names a command that exists, a log or what to start."""
    for rule in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "warn")
        told = rule["annotations"]["summary"]
        assert re.search(r"`python -m worker|log|[Ss]tart more", told), rule
        for command in re.findall(r"`python -m worker (.+?)`", told):
            assert parser_of().parse_args(command.split()).handler, rule


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    """Panels have unique ids and positions, and the data source is a variable."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    assert board["templating"]["list"][0]["type"] == "datasource"
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in board["panels"]]
    assert len(set(places)) == len(places)

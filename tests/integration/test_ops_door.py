"""The ops door: health, readiness and metrics."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from flask import Flask
from flask.testing import FlaskClient

from tests.engine import Engine
from tests.waiting import eventually
from tests.web_app import TOKEN, application, settings_for
from worker.core.states import Lane
from worker.local.valkey import EmbeddedStore
from worker.store.request_counts import RequestCounts

DEAD = "redis://:secret@127.0.0.1:1/0"
_SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


@pytest.fixture(name="app", scope="module")
def _app(valkey: EmbeddedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    settings = settings_for(valkey.url, tmp_path_factory.mktemp("ops"), queue_limit=3)
    with application(settings) as app:
        yield app


@pytest.fixture(name="http")
def _http(app: Flask, engine: Engine) -> FlaskClient:
    return app.test_client()


def samples(text: str) -> dict[str, float]:
    """Parses the exposition format strictly: each family described before its samples, and contiguous."""
    found: dict[str, float] = {}
    described: dict[str, str] = {}
    family = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in described, "a family in two places"
            described[family] = ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, kind in ("counter", "gauge", "histogram")) == (family, True)
            described[family] = kind
        else:
            match = _SAMPLE.fullmatch(line)
            assert match, line
            ends = ("_bucket", "_sum", "_count") if described[family] == "histogram" else ("",)
            assert match[1] in [family + end for end in ends] and described[family]
            name = f"{match[1]}{{{match[2]}}}" if match[2] else match[1]
            assert name not in found
            found[name] = float(match[3])
    return found


def metrics(http: FlaskClient) -> dict[str, float]:
    answer = http.get("/metrics")
    assert (answer.status_code, answer.mimetype) == (200, "text/plain")
    return samples(answer.get_data(as_text=True))


def make_ready(engine: Engine) -> None:
    engine.clock().tick()
    for lane in (Lane.EXPRESS, Lane.QUEUE):
        engine.store.sign_on(lane, "w1")


@pytest.mark.parametrize("path", ["/health", "/v0/health"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_health_needs_neither_store_nor_token(tmp_path: Path, path: str, token: str | None) -> None:
    """A running process answers, whatever it cannot reach, without credentials."""
    with application(settings_for(DEAD, tmp_path, kernel_token=token)) as app:
        answer = app.test_client().get(path)
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})


def test_kernel_readiness_checks_the_store_only(http: FlaskClient, tmp_path: Path) -> None:
    """/v0/ready covers the store only, in the protocol's format."""
    answer = http.get("/v0/ready")
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ready"})
    with application(settings_for(DEAD, tmp_path, kernel_token=TOKEN)) as app:
        answer = app.test_client().get("/v0/ready")
    assert answer.status_code == 503 and answer.headers["Retry-After"]
    assert answer.get_json() == {
        "error": "service unavailable: database not reachable",
        "code": "SERVICE_UNAVAILABLE",
        "details": None,
    }


def test_ready_with_clock_and_work_processes(http: FlaskClient, engine: Engine) -> None:
    """With a ticking clock and work processes on both lanes, readiness lists its checks and is 200."""
    make_ready(engine)
    answer = http.get("/ready")
    assert (answer.status_code, answer.get_json()) == (
        200,
        {
            "status": "ready",
            "checks": dict.fromkeys(("store", "queue", "clock", "work", "books", "files"), "ok"),
        },
    )


def test_money_warnings_do_not_affect_readiness(http: FlaskClient, engine: Engine) -> None:
    """A refund that keeps failing and a settlement that never landed appear in /ready and /metrics."""
    make_ready(engine)
    keys = engine.store.keys
    leg = {
        "1 refund state": "unknown",
        "1 refund amount": 10,
        "1 refund failures": 7,
        "1 refund cause": "http_500",
    }
    engine.client.hset(keys.money("e1"), mapping=leg)
    engine.client.zadd(keys.legs, {"refund e1 1": 2**53})
    engine.client.zadd(keys.unproven, {"e2 1": 1})
    answer = http.get("/ready")
    report = answer.get_json()
    assert (answer.status_code, report["status"], set(report["attention"])) == (
        200,
        "ready",
        {"legs", "unproven"},
    )
    assert "refund e1 1" in report["attention"]["legs"] and "http_500" in report["attention"]["legs"]
    found = metrics(http)
    assert (found["worker_legs_failing"], found["worker_settlements_unproven"]) == (1, 1)
    assert found["worker_settlements_to_prove"] == 0


@pytest.mark.parametrize("failing", ["queue", "clock", "work", "clock and work"])
def test_readiness_names_what_is_missing(http: FlaskClient, engine: Engine, failing: str) -> None:
    """503 lists exactly what is missing, each with a short explanation."""
    make_ready(engine)
    if failing == "queue":
        for _ in range(3):
            engine.queue.push(engine.new())
    if "clock" in failing:
        engine.client.delete(engine.keys.ticks)
    if "work" in failing:
        engine.client.delete(engine.keys.takers("queue"))
    answer = http.get("/ready")
    body = answer.get_json()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert body["failing"] == failing.split(" and ")
    assert all((body["checks"][name] == "ok") == (name not in body["failing"]) for name in body["checks"])
    if "work" in failing:
        assert body["checks"]["work"] == "no process takes work from: queue"


def test_stopped_clock_is_unready_after_ten_seconds(http: FlaskClient, engine: Engine) -> None:
    """A tick counts for ten seconds."""
    make_ready(engine)
    engine.advance(9)
    assert http.get("/ready").status_code == 200
    engine.advance(2)
    assert http.get("/ready").get_json()["failing"] == ["clock"]


def test_readiness_without_a_store_reports_unreachable(tmp_path: Path) -> None:
    """Every check that needs the store says unreachable, and the response still arrives."""
    with application(settings_for(DEAD, tmp_path)) as app:
        answer = app.test_client().get("/ready")
        assert app.test_client().get("/metrics").status_code == 503
    assert answer.status_code == 503
    checks = answer.get_json()["checks"]
    assert checks.pop("files") == "ok"
    assert set(checks.values()) == {"unreachable"}


def test_read_only_store_is_not_ready(tmp_path: Path) -> None:
    """A demoted primary answers every ping; both readiness checks notice it, and its return, immediately."""
    with EmbeddedStore(tmp_path / "store") as own, application(settings_for(own.url, tmp_path)) as app:
        http, admin = app.test_client(), redis.Redis.from_url(own.url)
        assert http.get("/v0/ready").status_code == 200
        admin.replicaof("127.0.0.1", 1)
        assert http.get("/v0/ready").status_code == 503
        assert http.get("/ready").get_json()["checks"]["store"] == "refuses writes"
        admin.replicaof("NO", "ONE")
        assert http.get("/v0/ready").status_code == 200
        admin.close()


def test_bug_and_outage_are_reported_separately(
    valkey: EmbeddedStore, engine: Engine, tmp_path: Path
) -> None:
    """An error that no outage explains appears in readiness as broken, and in its own metric."""
    make_ready(engine)
    engine.client.delete(engine.keys.ticks)
    engine.client.set(engine.keys.ticks, "of a wrong type")
    with application(
        settings_for(valkey.url, tmp_path)
    ) as app:  # a process counts in the last store it asked
        http = app.test_client()
        assert http.get("/ready").get_json()["checks"]["clock"] == "broken; see the log"
        engine.client.delete(engine.keys.ticks)
        assert metrics(http)['worker_bugs_total{where="ready"}'] == 1


def test_hanging_store_is_unready_within_two_seconds(tmp_path: Path) -> None:
    """Nobody waits for the connection's own time-out; concurrent requests share one connection."""
    with EmbeddedStore(tmp_path / "store") as own, application(settings_for(own.url, tmp_path)) as app:
        assert app.test_client().get("/v0/ready").status_code == 200
        assert own.pid is not None
        os.kill(own.pid, signal.SIGSTOP)
        began = time.monotonic()
        answer = app.test_client().get("/ready")
        assert time.monotonic() - began < 2.5
        assert answer.get_json()["checks"]["store"] == "does not answer in time"
        os.kill(own.pid, signal.SIGCONT)
        eventually(lambda: app.test_client().get("/v0/ready").status_code == 200)


def test_evicting_store_is_not_ready(tmp_path: Path) -> None:
    """A full store with such a policy would evict payments; the other checks remain accurate."""
    with EmbeddedStore(tmp_path / "store") as own, application(settings_for(own.url, tmp_path)) as app:
        admin = redis.Redis.from_url(own.url)
        admin.config_set("maxmemory-policy", "volatile-lru")
        answer = app.test_client().get("/ready")
        assert "volatile-lru" in answer.get_json()["checks"]["store"]
        assert answer.status_code == 503 and answer.get_json()["checks"]["queue"] == "ok"
        admin.config_set("maxmemory-policy", "noeviction")
        assert "store" not in app.test_client().get("/ready").get_json()["failing"]
        admin.close()


@pytest.mark.parametrize("path", ["/ready", "/metrics"])
def test_detailed_readiness_and_metrics_need_the_token(
    valkey: EmbeddedStore, engine: Engine, tmp_path: Path, path: str
) -> None:
    """With a token set, detailed readiness and metrics require it."""
    with application(settings_for(valkey.url, tmp_path, kernel_token=TOKEN)) as app:
        http = app.test_client()
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"bearer {TOKEN}"}):
            answer = http.get(path, headers=headers)
            assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")
        make_ready(engine)
        assert http.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_metrics_count_transitions_queues_and_requests(http: FlaskClient, engine: Engine) -> None:
    """Transitions, states, queues and requests are counted, and Prometheus can parse the text."""
    make_ready(engine)
    engine.new(lane=Lane.EXPRESS)
    engine.queue.push(engine.new())
    done, failed, cancelled = (engine.running().id for _ in range(3))
    engine.seal(done, 1)
    engine.seal(failed, 1, "failed")
    engine.cancel(cancelled)
    engine.store.requeue(engine.running().id, 1, "handed_back")
    http.get("/health")
    http.get("/nowhere")
    found = metrics(http)
    assert found['worker_executions_total{status="created"}'] == 6
    for status in ("completed", "failed", "cancelled"):
        assert found[f'worker_executions_total{{status="{status}"}}'] == 1
        assert found[f'worker_executions{{state="{status}"}}'] == 1
    assert found['worker_executions{state="pending"}'] == 3
    assert found['worker_resets_total{reason="handed_back"}'] == 1
    assert (found['worker_queue_depth{lane="queue"}'], found['worker_queue_depth{lane="express"}']) == (1, 1)
    assert 0 <= found["worker_clock_age_seconds"] < 10
    assert found['worker_http_requests_total{endpoint="ops.health",status="200"}'] >= 1
    assert found['worker_http_requests_total{endpoint="unknown",status="404"}'] >= 1


def test_metrics_of_an_empty_store(http: FlaskClient) -> None:
    """Gauges exist from the start; without a tick there is no age."""
    found = metrics(http)
    assert found['worker_executions{state="pending"}'] == 0
    assert "worker_clock_age_seconds" not in found


def test_large_counters_are_exact(http: FlaskClient, engine: Engine) -> None:
    """A counter in the millions is shown exactly."""
    engine.client.hset(engine.keys.stats, 'worker_executions_total{status="completed"}', 123_456_789)
    assert "} 123456789\n" in http.get("/metrics").get_data(as_text=True)


def test_request_counts_of_two_processes_are_summed(engine: Engine) -> None:
    """Each process adds its counts; while the store is unreachable they are kept for later."""
    key = engine.keys.stats
    one, other = RequestCounts(engine.client, key), RequestCounts(engine.client, key)
    for counts in (one, other, one):
        counts.count("kernel.get", 200)
    real = engine.client

    class Unavailable:
        def pipeline(self, **options: Any) -> Any:
            import redis

            raise redis.ConnectionError("away")

    one._client = Unavailable()  # type: ignore[assignment]
    one.flush()
    one._client = real
    one.count("kernel.get", 200)
    for counts in (one, other):
        counts.flush()
        counts.flush()
    assert engine.client.hgetall(key) == {
        b'worker_http_requests_total{endpoint="kernel.get",status="200"}': b"4",
    }

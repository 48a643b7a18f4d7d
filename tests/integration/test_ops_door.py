"""The ops door: alive, ready, and in numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.doors import TOKEN, application, settings_for
from tests.engine import Engine
from worker.executions.states import Lane
from worker.local.valkey import EmbeddedStore
from worker.requests_count import RequestCounts

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
    """Reads the exposition format strictly: each family described before its samples, and in one place."""
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
def test_alive_needs_neither_store_nor_token(tmp_path: Path, path: str, token: str | None) -> None:
    """A process that answers is alive, whatever it cannot reach, and anybody may ask."""
    with application(settings_for(DEAD, tmp_path, kernel_token=token)) as app:
        answer = app.test_client().get(path)
    assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})


def test_ready_for_the_kernels_clients(http: FlaskClient, tmp_path: Path) -> None:
    """/v0/ready is about the store alone, in the protocol's words."""
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


def test_ready_when_all_is_there(http: FlaskClient, engine: Engine) -> None:
    """With a ticking clock and work processes on both lanes, readiness lists what was asked and is 200."""
    make_ready(engine)
    answer = http.get("/ready")
    assert (answer.status_code, answer.get_json()) == (
        200,
        {
            "status": "ready",
            "checks": {"store": "ok", "queue": "ok", "clock": "ok", "work": "ok", "books": "ok"},
        },
    )


@pytest.mark.parametrize("failing", ["queue", "clock", "work", "clock and work"])
def test_readiness_names_what_fails(http: FlaskClient, engine: Engine, failing: str) -> None:
    """503 lists exactly what is missing, with a word about it."""
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
        assert body["checks"]["work"] == "nobody takes work from: queue"


def test_a_stopped_clock_is_noticed_after_ten_seconds(http: FlaskClient, engine: Engine) -> None:
    """A tick counts for ten seconds."""
    make_ready(engine)
    engine.advance(9)
    assert http.get("/ready").status_code == 200
    engine.advance(2)
    assert http.get("/ready").get_json()["failing"] == ["clock"]


def test_readiness_without_a_store(tmp_path: Path) -> None:
    """Every check says unreachable, and the answer still comes."""
    with application(settings_for(DEAD, tmp_path)) as app:
        answer = app.test_client().get("/ready")
        assert app.test_client().get("/metrics").status_code == 503
    assert answer.status_code == 503
    assert set(answer.get_json()["checks"].values()) == {"unreachable"}


@pytest.mark.parametrize("path", ["/ready", "/metrics"])
def test_numbers_are_the_operators(valkey: EmbeddedStore, engine: Engine, tmp_path: Path, path: str) -> None:
    """Where a token is set, readiness in detail and metrics need it."""
    with application(settings_for(valkey.url, tmp_path, kernel_token=TOKEN)) as app:
        http = app.test_client()
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"bearer {TOKEN}"}):
            answer = http.get(path, headers=headers)
            assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED")
        make_ready(engine)
        assert http.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_metrics_count_what_happened(http: FlaskClient, engine: Engine) -> None:
    """Transitions, states, queues and requests are counted, and the text is what Prometheus reads."""
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


def test_an_empty_store_has_metrics_too(http: FlaskClient) -> None:
    """Gauges are there from the beginning; without a tick there is no age."""
    found = metrics(http)
    assert found['worker_executions{state="pending"}'] == 0
    assert "worker_clock_age_seconds" not in found


def test_large_numbers_lose_no_digit(http: FlaskClient, engine: Engine) -> None:
    """A counter in the millions is shown exactly."""
    engine.client.hset(engine.keys.stats, 'worker_executions_total{status="completed"}', 123_456_789)
    assert "} 123456789\n" in http.get("/metrics").get_data(as_text=True)


def test_request_counts_of_two_processes_add_up(engine: Engine) -> None:
    """Each process adds what it counted; a store that is away keeps the counts for later."""
    key = engine.keys.stats
    one, other = RequestCounts(engine.client, key), RequestCounts(engine.client, key)
    for counts in (one, other, one):
        counts.count("kernel.get", 200)
    real = engine.client

    class Away:
        def pipeline(self, **options: Any) -> Any:
            import redis

            raise redis.ConnectionError("away")

    one._client = Away()  # type: ignore[assignment]
    one.flush()
    one._client = real
    one.count("kernel.get", 200)
    for counts in (one, other):
        counts.flush()
        counts.flush()
    assert engine.store.stats() == {
        'worker_http_requests_total{endpoint="kernel.get",status="200"}': b"4",
    }

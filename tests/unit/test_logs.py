"""Logs: one line per event, bound fields, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from worker.core import logs
from worker.core.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Logging is global: restore it after every test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def configured(**environ: str) -> tuple[io.StringIO, Any]:
    stream = io.StringIO()
    logs.configure(Settings.load({"LOG_FORMAT": "json", **environ}), stream)
    return stream, structlog.get_logger()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_object_per_line() -> None:
    """Whatever the fields contain, an event is one line with name, level and time."""
    stream, log = configured()
    log.info(
        "execution.completed", text='two\nlines "quoted" \x00 \ud800', amount=5, raw=b"\x01\xff", odd={1, "a"}
    )
    (line,) = lines(stream)
    assert line["event"] == "execution.completed" and line["level"] == "info"
    assert line["at"].endswith("Z") and line["amount"] == 5 and line["raw"] == "01ff"
    assert line["text"].startswith("two\nlines")


def test_production_logs_json_and_local_logs_text() -> None:
    """`auto` selects JSON in production and text locally."""
    stream = io.StringIO()
    logs.configure(Settings(worker_env="production"), stream)
    structlog.get_logger().info("a.b")
    assert lines(stream)[0]["event"] == "a.b"
    stream = io.StringIO()
    logs.configure(Settings(worker_env="local"), stream)
    structlog.get_logger().info("a.b", x="y")
    assert "a.b" in stream.getvalue() and "x=y" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_log_injection_is_prevented() -> None:
    """A line break in a field stays inside the field, in the text format too."""
    stream, log = configured(LOG_FORMAT="text")
    log.info("a.b", name="x\n2026-01-01 [info] execution.completed")
    assert len(stream.getvalue().splitlines()) == 1


def test_debug_logging_is_off() -> None:
    """Debug lines are not written."""
    stream, log = configured()
    log.debug("a.b")
    assert stream.getvalue() == ""


def test_bound_fields_end_with_their_block() -> None:
    """Lines inside the block have the three given ids, those of a request its id, lines outside neither."""
    stream, log = configured()
    logs.begin_request("r1")
    with logs.bound(execution_id="e1", contract_ref="c1", attempt=2):
        log.info("inside")
    log.info("between")
    logs.end_request()
    log.info("outside")
    inside, between, outside = lines(stream)
    assert (inside["request_id"], inside["execution_id"], inside["contract_ref"], inside["attempt"]) == (
        ("r1", "e1", "c1", 2)
    )
    assert between["request_id"] == "r1" and "execution_id" not in between
    assert "request_id" not in outside


def test_bound_fields_do_not_cross_threads() -> None:
    """Fields bound in one thread do not appear in another's lines."""
    stream, log = configured()
    with logs.bound(execution_id="e1"):
        other = threading.Thread(target=lambda: log.info("other"))
        other.start()
        other.join()
    assert "execution_id" not in lines(stream)[0]


def test_bound_fields_do_not_cross_greenlets() -> None:
    """Under gevent each greenlet has its own bound fields, even across a switch."""
    code = """
from gevent import monkey; monkey.patch_all()
import gevent, structlog, sys
from worker.core import logs
from worker.core.settings import Settings
logs.configure(Settings(log_format="json"), sys.stdout)
def work(name):
    with logs.bound(execution_id=name):
        gevent.sleep(0.01)
        structlog.get_logger().info("done", mine=name)
gevent.joinall([gevent.spawn(work, str(n)) for n in range(5)])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(records) == 5 and all(line["execution_id"] == line["mine"] for line in records)


@pytest.mark.parametrize(
    "name",
    [
        "payment_signature",
        "PAYMENT-SIGNATURE",
        "Authorization",
        "Proxy-Authorization",
        "X-Contract-ID",
        "contract_id",
        "cookie",
        "key",
        "worker_key",
        "token",
        "kernel_token",
        "password",
        "secret",
        "webhook_secret",
        "agent_keys",
        "X-PAYMENT",
        "redis_url",
    ],
)
def test_secret_fields_are_redacted_by_name(name: str) -> None:
    """Fields with a secret's name are redacted: top-level, in headers, in lists, at any depth."""
    stream, log = configured()
    log.info("a", **{name: "hunter2"})
    log.info("b", headers={name: "hunter2"})
    log.info("c", deep=[{"x": ({name: ["hunter2"]},)}])
    logging.getLogger("lib").warning("d", extra={"headers": {name: "hunter2"}})
    assert len(lines(stream)) == 4 and "hunter2" not in stream.getvalue()


def test_similar_field_names_are_not_redacted() -> None:
    """Ids that end in _key and are needed for debugging are shown."""
    stream, log = configured()
    log.info("a", step_key="search#1", payment_key="ab12", contract_ref="c1", monkey="m", tokens=3)
    assert {"step_key": "search#1", "payment_key": "ab12", "contract_ref": "c1"}.items() <= lines(stream)[
        0
    ].items()
    assert lines(stream)[0]["monkey"] == "m" and lines(stream)[0]["tokens"] == 3


def test_configured_secrets_are_redacted_in_any_text() -> None:
    """A secret inside a message, an exception or an object's repr is redacted too."""
    token, password = "kernel-token-0123456789", "store-password"
    stream, log = configured(KERNEL_TOKEN=token, REDIS_URL=f"redis://:{password}@h:1/0")

    class Odd:
        def __repr__(self) -> str:
            return f"<Odd {token}>"

    log.info("a", text=f"Bearer {token}", odd=Odd(), many=[f"x{password}"], inner={"t": token})
    logging.getLogger("urllib3").warning("cannot reach redis://:%s@h", password)
    try:
        raise ValueError(f"bad {password}")
    except ValueError:
        log.exception("b")
        logging.getLogger("lib").exception("c")
    assert len(lines(stream)) == 4
    assert token not in stream.getvalue() and password not in stream.getvalue()
    assert "ValueError" in lines(stream)[2]["exception"] and "ValueError" in lines(stream)[3]["exception"]


def test_short_secrets_are_not_redacted() -> None:
    """Redacting a local three-letter password would hide half of every line; only its field is redacted."""
    stream, log = configured(SWARM_KEYS="swarm:abc")
    log.info("a", text="abc def")
    assert lines(stream)[0]["text"] == "abc def"


def test_deep_structures_are_truncated() -> None:
    """A self-referring value does not hang the process."""
    stream, log = configured()
    knot: dict[str, Any] = {}
    knot["knot"] = knot
    log.info("a", knot=knot)
    assert lines(stream)[0]["event"] == "a"


def test_library_logs_use_the_same_format() -> None:
    """A library's line has the logger name as its event and the text as message, once."""
    stream, _ = configured()
    with logs.bound(contract_ref="c1"):
        logging.getLogger("gunicorn.error").info("Booting worker with pid: %s", 5)
    (line,) = lines(stream)
    assert line["event"] == "gunicorn.error" and line["message"] == "Booting worker with pid: 5"
    assert line["contract_ref"] == "c1" and "_record" not in line


def test_gunicorn_and_rq_log_once() -> None:
    """Handlers added by those libraries are removed; a second configure adds none."""
    for name in ("gunicorn.error", "rq.worker"):
        logging.getLogger(name).addHandler(logging.StreamHandler(io.StringIO()))
    stream, _ = configured()
    logs.configure(Settings(log_format="json"), stream)
    logging.getLogger("gunicorn.error").warning("once")
    logging.getLogger("rq.worker").warning("once")
    assert len(lines(stream)) == 2


def test_rq_does_not_add_its_own_handler() -> None:
    """RQ sees an existing handler and does not add its own."""
    from rq.logutils import setup_loghandlers

    stream, _ = configured()
    setup_loghandlers("INFO")
    logging.getLogger("rq.worker").warning("once")
    assert len(lines(stream)) == 1


def test_warnings_are_logged() -> None:
    """Python warnings are logged like any other event."""
    stream, _ = configured()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("something old", UserWarning, stacklevel=1)
        logging.captureWarnings(False)
    assert lines(stream)[0]["event"] == "py.warnings" and "something old" in lines(stream)[0]["message"]


def test_log_goes_to_the_current_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """After stderr is replaced and the old one closed, threads log to the new one."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    logs.configure(Settings(log_format="json"))
    structlog.get_logger().info("a.b")
    first_said = first.getvalue()
    monkeypatch.setattr(sys, "stderr", second)
    first.close()
    structlog.get_logger().info("c.d")
    logging.getLogger("library").warning("e")
    assert [json.loads(line)["event"] for line in first_said.splitlines()] == ["a.b"]
    assert [line["event"] for line in lines(second)] == ["c.d", "library"]

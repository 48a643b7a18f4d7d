"""Without KERNEL_TOKEN only a user of this machine is the operator."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from flask import Flask

from tests.web_app import application, settings_for
from worker.doors.own_machine import asked_from_this_machine, is_own_address
from worker.local.valkey import EmbeddedStore

ROUTES = ["/v0/executions", "/ready", "/metrics"]


@pytest.fixture(name="app")
def _app(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> Iterator[Flask]:
    with application(settings_for(valkey.url, tmp_path, kernel_token=None)) as app:
        yield app


@pytest.mark.parametrize("route", ROUTES)
def test_this_machine_needs_no_token(app: Flask, route: str) -> None:
    """A request from loopback to localhost is the operator's."""
    assert app.test_client().get(route).status_code != 401


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "asked",
    [
        {"environ_base": {"REMOTE_ADDR": "203.0.113.9"}},
        {"environ_base": {"REMOTE_ADDR": ""}},
        {"environ_overrides": {"SERVER_PROTOCOL": "HTTP/1.0"}},
        {"headers": {"X-Forwarded-For": "127.0.0.1"}},
        {"headers": {"Forwarded": "for=127.0.0.1"}},
        {"headers": {"Via": "1.1 router"}},
        {"headers": {"X-Real-IP": "127.0.0.1"}},
        {"headers": {"Host": "rebound.example:8000"}},
        {"headers": {"Origin": "https://page.example"}},
        {"headers": {"Origin": "http://localhost.page.example:8000"}},
        {"headers": {"Origin": "http://localhost@page.example"}},
        {"headers": {"Origin": "null"}},
        {"headers": {"Origin": "http://[::1::1]"}},
        {"headers": {"Origin": ""}},
    ],
)
def test_nobody_else_is_the_operator(app: Flask, route: str, asked: dict[str, dict[str, str]]) -> None:
    """Other machines, proxied requests, DNS-rebinding pages and pages of other sites are refused."""
    answer = app.test_client().get(route, **asked)
    assert answer.status_code == 401
    assert b"KERNEL_TOKEN" in answer.data


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:8000"])
def test_pages_of_this_machine_need_no_token(app: Flask, origin: str) -> None:
    answer = app.test_client().post("/v0/executions", headers={"Origin": origin}, data=b'{"agent_id":"a"}')
    assert answer.status_code == 201


def test_a_page_of_another_site_starts_nothing(app: Flask) -> None:
    """A browser sends such a request without asking first."""
    headers = {"Origin": "https://page.example", "Content-Type": "text/plain"}
    answer = app.test_client().post("/v0/executions", headers=headers, data=b'{"agent_id":"a"}')
    assert answer.status_code == 401


def test_a_proxys_word_does_not_make_a_stranger_local(
    valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path
) -> None:
    """With TRUSTED_PROXIES a forwarded loopback address still counts as forwarded."""
    with application(settings_for(valkey.url, tmp_path, kernel_token=None, trusted_proxies=1)) as app:
        answer = app.test_client().get("/v0/executions", headers={"X-Forwarded-For": "127.0.0.1"})
    assert answer.status_code == 401


@pytest.mark.parametrize("host", ["[::1::1]", "[0:0]:80", "[a:b:c]", "[1:.]", "[127.0.0.1]", "", "a b"])
def test_what_is_no_name_is_not_this_machine(host: str) -> None:
    """A broken name is a stranger's, not an error."""
    asked = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": host, "SERVER_NAME": "x", "wsgi.url_scheme": "http"}
    assert not asked_from_this_machine(asked)
    assert asked_from_this_machine({**asked, "HTTP_HOST": "[::1]:80"})


def test_own_addresses() -> None:
    """Loopback and the addresses of this machine's interfaces are its own, others are not."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; only selects an interface
            own = probe.getsockname()[0]
        except OSError:  # no network at all
            own = "127.0.0.1"
    assert is_own_address("127.0.0.1") and is_own_address("::1") and is_own_address(own)
    assert not is_own_address("192.0.2.1") and not is_own_address("0.0.0.0") and not is_own_address("x")

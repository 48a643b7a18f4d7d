"""Limits by address count networks: a customer's /64 of IPv6 is one caller, at every limited route."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import DoorAnswer
from worker.app import create_app
from worker.core.callers import network_of
from worker.core.settings import Settings

PAYMENT = {"PAYMENT-SIGNATURE": "bm9uc2Vuc2U="}
CONTRACT = {"X-Contract-ID": "ctr_" + "c" * 26}
REQUESTS = {
    "drafts": ("POST", "/contracts", {}),
    "contracts": ("PUT", "/contracts", {}),
    "unpaid requests": ("POST", "/execute", CONTRACT),
    "made-up payments": ("POST", "/execute", CONTRACT | PAYMENT),
    "quotes": ("GET", "/buy/echo", {}),
    "plain requests": ("POST", "/buy/echo", {}),
    "made-up plain payments": ("POST", "/buy/echo", PAYMENT),
    "lists of tasks": ("GET", "/tasks", {}),
    "guesses of tasks": ("GET", "/tasks/unknown", CONTRACT),
    "guesses of streams": ("GET", "/stream/unknown", CONTRACT),
    "guesses of contracts": ("GET", "/contracts", CONTRACT),
}


@pytest.fixture(name="client", scope="module")
def _client(running_paid_worker: PaidWorker) -> FlaskClient:
    limits = {"LIMIT_CONTRACTS": "1", "LIMIT_EXECUTES": "1", "LIMIT_UNKNOWN": "1"}
    return create_app(Settings.load({**running_paid_worker.environ, **limits})).test_client()


@pytest.mark.parametrize(("method", "path", "headers"), REQUESTS.values(), ids=REQUESTS)
def test_a_network_has_one_share(
    client: FlaskClient, method: str, path: str, headers: dict[str, str]
) -> None:
    """The second request of a /64 is refused whatever its address; the next network is answered."""

    def status(address: str) -> int:
        body = None if method == "GET" else {}
        came_from = {"REMOTE_ADDR": address}
        return client.open(
            path, method=method, headers=headers, json=body, environ_overrides=came_from
        ).status_code

    prefix = f"2001:db8:{secrets.randbits(16):x}"
    answers = [status(f"{prefix}:{n}") for n in ("1::1", "1:ffff::2", "2::1")]
    assert [each == 429 for each in answers] == [False, True, False], answers


def test_an_address_keeps_a_reserve_for_customers(client: FlaskClient, paid_worker: PaidWorker) -> None:
    """Strangers at a customer's address use up its limit, and the customer still drafts, signs and asks."""
    came_from = {"REMOTE_ADDR": f"2001:db8:{secrets.randbits(16):x}:1::1"}

    def door(method: str, path: str, body: Any = None, headers: Any = None) -> DoorAnswer:
        answer = client.open(path, method=method, json=body, headers=headers, environ_overrides=came_from)
        return DoorAnswer(answer.status_code, dict(answer.headers), answer.data)

    customer, stranger = paid_worker.seeker(), paid_worker.seeker()
    assert customer.hire().pay().status == 200
    for number in range(3):
        assert (door("POST", "/contracts", stranger.draft()).status == 429) == (number > 0)
        door("PUT", "/contracts", {})
        door("POST", "/execute", {}, CONTRACT)
    reserved = replace(customer, door=door)
    assert reserved.hire().execute().status == 402
    assert door("POST", "/contracts", customer.draft()).status == 429, "the reserve has a limit too"


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix:", "unix:"),
        (None, "-"),
    ],
)
def test_addresses_are_mapped_to_networks(address: str | None, network: str) -> None:
    """An IPv4 address stands for itself, also in IPv6 notation; what is no address is left as it is."""
    assert network_of(address) == network

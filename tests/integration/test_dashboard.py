"""The dashboard on a real store: who may see and change what, and what its pages show."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from flask.testing import FlaskClient

from tests.fakes.ledger_setup import KEY, LedgerSetup
from tests.waiting import eventually
from tests.web_app import application, settings_for
from worker.core.ids import new_id
from worker.core.settings import Settings
from worker.parts import Parts
from worker.queue.deferred_calls import REFUSED, DeferredCallRunner, Regular
from worker.remote.jobs import JobStore
from worker.remote.store import Connection
from worker.store.data_model import Keys
from worker.store.wrong_credentials import MOST_FAILURES

TOKEN, WATCH = "t" * 32, "w" * 32
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = {"Origin": "http://localhost"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}
KEYS = Keys()
NOBODYS = "0198a6f0-0000-7000-8000-000000000001"


@pytest.fixture(name="settings")
def _settings(valkey, tmp_path: Path) -> Settings:
    return settings_for(
        valkey.url,
        tmp_path,
        kernel_token=TOKEN,
        watch_tokens=(("ada", WATCH),),
        worker_key=KEY,
        secret_key="s",
        facilitator_url="https://facilitator.example/v2?key=part-of-an-address",
    )


@pytest.fixture(name="parts")
def _parts(settings: Settings, client: redis.Redis) -> Parts:
    return Parts(settings, "cli")


@pytest.fixture(name="new_browser")
def _new_browser(settings: Settings, client: redis.Redis) -> Iterator[Callable[[], FlaskClient]]:
    with application(settings) as app:
        yield app.test_client


@pytest.fixture(name="browser")
def _browser(new_browser: Callable[[], FlaskClient]) -> FlaskClient:
    """Signed in as the operator."""
    browser = new_browser()
    sign_in(browser, TOKEN)
    return browser


def sign_in(browser: FlaskClient, token: str, name: str = "Grace") -> None:
    answer = browser.post("/dashboard/sign-in", data={"token": token, "name": name}, headers=OWN | BROWSER)
    assert answer.status_code == 303 and answer.headers["Location"] == "/dashboard"


def create(parts: Parts, agent: str = "echo", **labels: str) -> str:
    return parts.executions.create(agent, {"n": 1}, door="test", labels=labels)[1]


def page(browser: FlaskClient, path: str = "") -> str:
    answer = browser.get(f"/dashboard{path}", headers=BROWSER, follow_redirects=True)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    return answer.get_data(as_text=True)


def test_strangers_see_the_form_and_nothing_else(new_browser) -> None:
    """Browsers are led to the form, programs are told 401."""
    answer = new_browser().get("/dashboard/money", headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/dashboard/sign-in")
    assert new_browser().get("/dashboard/money").status_code == 401
    assert "Token" in page(new_browser(), "/sign-in")


def test_signing_in_and_out(new_browser) -> None:
    """The token opens the pages, a signed-out browser sees the form again."""
    browser = new_browser()
    sign_in(browser, TOKEN)
    assert "All is well" in page(browser) or "need" in page(browser)
    browser.post("/dashboard/sign-out", headers=OWN)
    assert browser.get("/dashboard/money").status_code == 401


def test_wrong_tokens_are_slowed_down_like_wrong_bearers(new_browser) -> None:
    """Too many from one address are refused for a while; the right token always opens."""
    browser = new_browser()
    statuses = [
        browser.post("/dashboard/sign-in", data={"token": "x"}, headers=OWN).status_code
        for _ in range(MOST_FAILURES + 1)
    ]
    assert statuses == [401] * MOST_FAILURES + [429]
    refused = browser.get("/dashboard/", headers={"Authorization": "Bearer x"})
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0
    sign_in(browser, TOKEN)


@pytest.mark.parametrize("headers", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"}])
def test_changes_come_from_the_dashboard_itself(browser: FlaskClient, parts: Parts, headers) -> None:
    """A page elsewhere cannot make the operator's browser cancel anything."""
    id = create(parts)
    answer = browser.post(f"/dashboard/executions/{id}", data={"action": "cancel"}, headers=headers)
    assert answer.status_code == 403
    assert parts.executions.get(id).state == "pending" and not parts.operator_journal.newest()


def test_watchers_change_nothing(new_browser, parts: Parts) -> None:
    """A read-only token shows every page without its buttons, and every form is refused."""
    id, browser = create(parts), new_browser()
    sign_in(browser, WATCH)
    shown = page(browser, f"/executions/{id}")
    assert "ada" in shown and "Cancel this execution" not in shown
    for path in (f"/executions/{id}", "/money", "/webhooks", "/settings"):
        answer = browser.post(f"/dashboard{path}", data={"action": "cancel"}, headers=OWN)
        assert answer.status_code == 403, path
    assert parts.executions.get(id).state == "pending"


def test_changes_are_journaled_with_who_when_and_outcome(browser: FlaskClient, parts: Parts) -> None:
    """One that succeeds and one that is refused; the page shown afterwards says so."""
    id, form = create(parts), {"action": "cancel", "reason": "asked by phone"}
    done = browser.post(
        f"/dashboard/executions/{id}", data=form | {"back": "/dashboard/executions"}, headers=OWN
    )
    assert done.headers["Location"] == "/dashboard/executions?change=1"
    assert "asked by phone" in page(browser, "/journal")
    assert browser.post(f"/dashboard/executions/{id}", data=form, headers=OWN).status_code == 409
    second, first = parts.operator_journal.newest()
    assert (first.who, first.action, first.subject) == ("Grace", "cancel", f"execution {id}")
    assert first.is_done and first.address == "127.0.0.1" and first.at > 0
    assert second.outcome.startswith("refused: ")
    assert "Cancel" in page(browser, "/executions?change=1")


class Unread(BytesIO):
    """A body that nobody may read."""

    def read(self, *args: Any) -> bytes:
        raise AssertionError("the body was read")

    readinto = read  # type: ignore[assignment]


def test_forms_of_strangers_are_not_read(new_browser) -> None:
    """A refusal costs no parsing and waits for no slow sender; one that is too large is no other answer."""
    for length in (1_000, 2_000_000):
        answer = new_browser().post(
            "/dashboard/money",
            input_stream=Unread(b"a" * length),
            content_type="application/x-www-form-urlencoded",
            headers=OWN,
        )
        assert answer.status_code == 401


@pytest.mark.parametrize("payload", ["{", "NaN", '"\\ud800"', "[" * 20_000])
def test_payloads_and_arguments_are_strict_json(browser: FlaskClient, parts: Parts, payload: str) -> None:
    """What is not, or is nested too deeply for a parser, is refused with its field."""
    form = {"action": "signal", "signal": "go", "payload": payload}
    answer = browser.post(f"/dashboard/executions/{create(parts)}", data=form, headers=OWN)
    assert answer.status_code == 400 and "payload" in answer.get_data(as_text=True)
    assert "not JSON" in page(browser, f"/policy?{urlencode({'tool': 't', 'arguments': payload})}")
    assert not parts.operator_journal.newest()


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example",
        "//evil.example",
        "/dashboard/../x",
        "/execute",
        "/dashboard?a\r\nb: c",
    ],
)
def test_forms_lead_back_into_the_dashboard(browser: FlaskClient, parts: Parts, back: str) -> None:
    """A forged field of a form leads nowhere else."""
    path = f"/dashboard/executions/{create(parts)}"
    answer = browser.post(path, data={"action": "cancel", "back": back}, headers=OWN)
    assert answer.headers["Location"].startswith(f"{path}?change=")


def test_contents_of_others_are_text(browser: FlaskClient, parts: Parts) -> None:
    """Labels, inputs and names that look like markup are shown, not run."""
    evil = "<script>alert(1)</script>"
    id = parts.executions.create("echo", {"text": evil}, door="test", labels={"team": evil})[1]
    for path in ("", "/executions", f"/executions/{id}"):
        assert evil not in page(browser, path)
    assert "&lt;script&gt;" in page(browser, f"/executions/{id}")


def test_filters_of_executions(browser: FlaskClient, parts: Parts) -> None:
    """By state, agent, door and label, alone and together."""
    one, other = create(parts, "echo", team="red"), create(parts, "other", team="blue")
    parts.executions.cancel(other)
    wanted = {
        "status=pending": [one], "status=cancelled": [other], "agent=other": [other], "door=hire": [],
        "label=team:red": [one], "label=team:red&status=cancelled": [], "": [one, other],
    }  # fmt: skip
    for query, ids in wanted.items():
        shown = page(browser, f"/executions?{query}")
        assert [id for id in (one, other) if f"/dashboard/executions/{id}" in shown] == ids, query
    assert browser.get("/dashboard/executions?status=lost").status_code == 400


def test_connected_agents_and_runners_are_listed(browser: FlaskClient, parts: Parts) -> None:
    """By name and consumer, with the tools that runners published."""
    for kind, name in (("agent", "far-agent"), ("runner", "far-runner")):
        parts.remote_store.connect(Connection(new_id(), kind, name, f"{name}-1"), 60_000_000)
    JobStore(parts.remote_store).publish("far-runner", b'{"at":1,"tools":[{"id":"far_tool"}]}')
    shown = page(browser, "/agents")
    for name in ("far-agent-1", "far-runner-1", "far_tool", "nobody asks for it"):
        assert name in shown
    assert "1 agent, 1 runner connected" in page(browser)


def test_no_secret_is_shown(browser: FlaskClient, settings: Settings) -> None:
    """Settings name secrets, and say only that they are set."""
    shown = page(browser, "/settings")
    assert "KERNEL_TOKEN" in shown and "WATCH_TOKENS" in shown
    assert "https://facilitator.example/..." in shown
    for secret in (TOKEN, WATCH, KEY[2:], "part-of-an-address"):
        assert secret not in shown


def test_policy_answers_what_if(browser: FlaskClient) -> None:
    """The form says which rule would decide, and complains about arguments that are not JSON."""
    assert "permissive-default" in page(browser, "/policy?agent=a&tool=pay")
    assert "not JSON" in page(browser, "/policy?agent=a&tool=pay&arguments=%7B")


@pytest.fixture(name="unknown")
def _unknown(client: redis.Redis) -> str:
    """An execution whose payment has an unknown outcome, and an authorization that ended long ago."""
    setup = LedgerSetup(client)
    paid = setup.claim()
    setup.seal(paid)
    assert setup.ledger.settle_begin(paid.id, "token") is not None
    setup.ledger.settle_unknown(paid.id, 1, "token", "dropped", "", may_have_landed=True)
    client.hset(KEYS.money(paid.id), "1 valid_before", int(time.time()) - 3600)
    return paid.id


def test_unknown_payment_is_resolved_by_the_clock(browser: FlaskClient, parts: Parts, unknown: str) -> None:
    """The page shows the evidence; the decision is made by `worker money`'s code, and journaled twice."""
    assert "Unknown payment" in page(browser)
    assert "dropped" in page(browser, "/money") and unknown in page(browser, "/money")
    form = {"action": "refused", "execution": unknown, "number": "1", "back": "/dashboard/money"}
    assert browser.post("/dashboard/money", data=form, headers=OWN).status_code == 303
    assert f"asked to {REFUSED}" in page(browser, "/money")
    run_deferred_calls(parts)
    clock, grace = parts.operator_journal.newest()
    assert (grace.who, clock.who, clock.outcome) == ("Grace", "clock", "done: payment_due")
    assert "Unknown payment" not in page(browser)


def test_decision_that_the_clock_refuses_is_in_the_journal(
    browser: FlaskClient, parts: Parts, unknown: str
) -> None:
    """Without a chain nobody can confirm a transaction; the payment stays unknown."""
    form = {"action": "settled", "execution": unknown, "number": "1", "transaction": "0x" + "1" * 64}
    assert browser.post("/dashboard/money", data=form, headers=OWN).status_code == 303
    run_deferred_calls(parts)
    assert parts.operator_journal.newest()[0].outcome.startswith("refused: without RPC_URL")
    assert "Unknown payment" in page(browser)


def test_one_decision_about_a_payment_at_a_time(browser: FlaskClient, parts: Parts, unknown: str) -> None:
    """A second click, or the other decision on an old page, is refused until the clock has answered."""
    form = {"action": "refused", "execution": unknown, "number": "1"}
    other = {"action": "settled", "execution": unknown, "number": "1", "transaction": "0x" + "1" * 64}
    asked = [browser.post("/dashboard/money", data=each, headers=OWN) for each in (form, form, other)]
    assert [answer.status_code for answer in asked] == [303, 409, 409]
    assert len(parts.deferred_calls.waiting()) == 1
    newest = parts.operator_journal.newest()
    assert [line.outcome.partition(":")[0] for line in newest] == ["refused", "refused", "done"]


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({}, 400),
        ({"action": "steal"}, 400),
        ({"action": "settled", "execution": "x", "number": "1"}, 400),
        ({"action": "refused", "execution": NOBODYS, "number": "1"}, 404),
        ({"action": "refund", "execution": NOBODYS, "number": "1", "reason": "other"}, 404),
        ({"action": "retry", "leg": "refund x"}, 400),
        ({"action": "retry", "leg": "gift x 1"}, 400),
        ({"action": "dismiss", "transaction": "0x1", "log_index": "0"}, 404),
    ],
)  # fmt: skip
def test_malformed_decisions_about_money(browser: FlaskClient, parts: Parts, form, status: int) -> None:
    """Each is refused as a page that says why, and none leaves a deferred call."""
    answer = browser.post("/dashboard/money", data=form, headers=OWN)
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert not parts.deferred_calls.waiting()


def run_deferred_calls(parts: Parts, **regular: Regular) -> None:
    """What a clock's tick does, without its threads outliving the test."""
    resolve = parts.resolutions
    handlers = {
        "settle payment": lambda each: resolve.settled(
            each.arguments["id"], int(each.arguments["number"]), each.arguments["transaction"]
        ),
        REFUSED: lambda each: resolve.refused(each.arguments["id"], int(each.arguments["number"])),
    }
    runner = DeferredCallRunner(parts.deferred_calls, parts.operator_journal, handlers, regular)
    runner.chore(parts.store.now())
    eventually(lambda: not parts.deferred_calls.waiting(), 30, "all deferred calls done")
    runner.close()


def test_regular_calls_run_at_their_time_and_when_asked(parts: Parts) -> None:
    """The doctor waits for its first hour, unless the operator asks."""
    ran: list[int] = []
    doctor = Regular(lambda: ran.append(1), first_us=60_000_000, every_us=3_600_000_000)
    run_deferred_calls(parts, doctor=doctor)
    assert not ran
    parts.deferred_calls.schedule("doctor", parts.store.now(), anew=True)
    run_deferred_calls(parts, doctor=doctor)
    eventually(lambda: ran == [1], 30, "an examination")
    assert parts.deferred_calls.due(parts.store.now()) == []


def test_report_as_csv(browser: FlaskClient, parts: Parts, unknown: str) -> None:
    """The same columns and sums as `worker money report --csv`."""
    answer = browser.get("/dashboard/money.csv?by=agent")
    assert answer.mimetype == "text/csv"
    head, row = answer.get_data(as_text=True).split()
    assert head == "agent,payments,claimed,settled,refused,released,open,fees,refunds,kept"
    assert row == "echo,1,0.01,0,0,0,0.01,0,0,0"
    assert browser.get("/dashboard/money.csv?by=colour").status_code == 400


MANY, AT_ONCE = 100_000, 5_000
FILL = """
local prefix, now, label = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local states = {'completed', 'completed', 'completed', 'failed', 'cancelled'}
local agents = {'echo', 'brief', 'logo'}
for n = ARGV[3] + 1, ARGV[3] + ARGV[4] do
  local id = string.format('00000000-0000-7000-8000-%012d', n)
  local state, agent = states[n % 5 + 1], agents[n % 3 + 1]
  local door = n % 2 == 0 and 'hire' or 'kernel'
  local at = string.format('%.0f', now + (n - 100001) * 20000000)
  redis.call('HSET', prefix .. ':x:' .. id, 'id', id, 'agent', agent, 'door', door, 'lane', 'express',
    'state', state, 'phase', 'done', 'attempt', 1, 'attempts', 3, 'fence', 1, 'created', at, 'updated', at,
    'ends_by', at, 'started', at, 'first_started', at, 'ended', at, 'labels', '{"team":"red"}')
  redis.call('ZADD', prefix .. ':by:all', at, id)
  redis.call('ZADD', prefix .. ':by:state:' .. state, at, id)
  redis.call('ZADD', prefix .. ':by:agent:' .. agent, at, id)
  redis.call('ZADD', prefix .. ':by:door:' .. door, at, id)
  redis.call('ZADD', prefix .. ':ended', at, id)
  if n % 50 == 0 then redis.call('ZADD', label, at, id) end
end
"""


def test_lists_are_fast_with_a_hundred_thousand_executions(
    browser: FlaskClient, parts: Parts, client: redis.Redis
) -> None:
    """Overview, lists and every filter take less than 200 ms of server time."""
    now, label = parts.store.now(), KEYS.by_label("team", "red")
    for first in range(0, MANY, AT_ONCE):
        client.eval(FILL, 1, KEYS.prefix, now, label, first, AT_ONCE)
    assert parts.store.count(KEYS.everything) == MANY
    for path in (
        "/", "/?over=month", "/executions", "/executions?status=failed", "/executions?agent=brief",
        "/executions?door=hire&status=cancelled", "/executions?label=team:red&agent=logo", "/contracts",
        "/webhooks", "/policy", "/agents", "/money",
    ):  # fmt: skip
        # The best of some, because other tests share the cores.
        took = min(_seconds(browser, f"/dashboard{path}") for _ in range(8))
        assert took < 0.2, f"{path} takes {took * 1000:.0f} ms"


def _seconds(browser: FlaskClient, path: str) -> float:
    began = time.perf_counter()
    assert browser.get(path).status_code == 200
    return time.perf_counter() - began


def test_doctors_findings_need_somebody(browser: FlaskClient, parts: Parts) -> None:
    """What the doctor recorded as wrong stands on the overview; what is well does not."""
    finding = {"name": "eviction", "level": "wrong", "found": "allkeys-lru", "expected": "noeviction"}
    parts.doctor_record.write([finding, finding | {"name": "memory", "level": "ok"}])
    shown = page(browser)
    assert "Doctor: eviction" in shown and "Doctor: memory" not in shown
    assert json.dumps(finding["found"]).strip('"') in page(browser, "/settings")

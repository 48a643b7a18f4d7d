"""Which credential may use which route: every route × every credential. A route without a rule fails."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import redis
from flask import Flask

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import FlaskDoor, Seeker, signed_payment
from tests.web_app import application
from worker.core.agent_keys import agent_keys
from worker.doors.assets import assets
from worker.hiring.task import Task, TaskInput
from worker.local.valkey import EmbeddedStore

AGENT, RUNNER = "keyed-agent", "keyed-runner"
KEYS = {AGENT: "a" * 20, RUNNER: "r" * 20}
KERNEL = ("kernel", "p" * 20)
WATCHER = ("watcher", "l" * 20)

# Allowed credentials; all others are refused as unknown, without any content.
ANYBODY = {
    "nobody",
    "wrong token",
    "operator",
    "watcher",
    "agent key",
    "runner key",
    "kernel",
    "seeker",
    "other seeker",
    "payment alone",
    "task token",
    "signed-in payer",
}
OPERATOR = {"operator"}
# Those who may look at the dashboard.
WATCHERS = {"operator", "watcher"}
AGENTS = {"operator", "agent key"}
RUNNERS = {"operator", "runner key"}
AGENTS_AND_RUNNERS = AGENTS | RUNNERS
KERNELS = {"kernel"}
# Whoever bought the task: by contract, by a plain purchase's token, or signed in as its payer.
SEEKER = {"seeker", "task token", "signed-in payer"}
# A contract is the credential, but any caller may ask what a contract buys.
SEEKERS = {"seeker", "other seeker"}

RULES: dict[tuple[str, str], set[str]] = {
    ("GET", "/.well-known/hire-manifest.json"): ANYBODY,
    ("GET", "/manifest"): ANYBODY,
    ("GET", "/openapi.json"): ANYBODY,
    ("GET", "/openapi/operator.json"): ANYBODY,
    ("GET", "/.well-known/agent-card.json"): ANYBODY,
    ("GET", "/.well-known/agent-registration.json"): ANYBODY,
    ("GET", "/.well-known/did.json"): ANYBODY,
    ("GET", "/.well-known/x402"): ANYBODY,
    ("GET", "/favicon.ico"): ANYBODY,
    ("GET", "/llms.txt"): ANYBODY,
    ("GET", "/static/<path:name>"): ANYBODY,
    ("GET", "/"): ANYBODY,
    ("GET", "/c/<capability>"): ANYBODY,
    ("GET", "/docs"): ANYBODY,
    # The example has no files, and the worker lends no test dollars.
    ("GET", "/c/<capability>/example/<name>"): set(),
    ("POST", "/c/<capability>/hire"): set(),
    # A form for the token, whether there is such a task or not; the token alone opens it.
    ("GET", "/t/<task_id>"): ANYBODY,
    ("POST", "/t/<task_id>"): {"task token", "seeker"},
    ("GET", "/t/<task_id>/evidence.json"): {"task token"},
    ("GET", "/buy/<capability>"): ANYBODY,
    ("POST", "/buy/<capability>"): ANYBODY,
    # Nobody sells `chat` here; where it is on sale, anybody may buy it.
    ("GET", "/v1/chat/completions"): set(),
    ("POST", "/v1/chat/completions"): set(),
    ("GET", "/health"): ANYBODY,
    ("GET", "/v0/health"): ANYBODY,
    ("GET", "/v0/ready"): ANYBODY,
    ("GET", "/swarm/health"): ANYBODY,
    ("GET", "/ready"): OPERATOR,
    ("GET", "/metrics"): OPERATOR,
    ("GET", "/dashboard/sign-in"): ANYBODY,
    ("POST", "/dashboard/sign-in"): ANYBODY,
    ("POST", "/dashboard/sign-out"): WATCHERS,
    ("GET", "/dashboard/"): WATCHERS,
    ("GET", "/dashboard/agents"): WATCHERS,
    ("GET", "/dashboard/contracts"): WATCHERS,
    ("POST", "/dashboard/contracts"): OPERATOR,
    ("GET", "/dashboard/contracts/<ref>"): WATCHERS,
    ("GET", "/dashboard/executions"): WATCHERS,
    ("GET", "/dashboard/executions/<id>"): WATCHERS,
    ("POST", "/dashboard/executions/<id>"): OPERATOR,
    ("GET", "/dashboard/executions/<id>/stream"): WATCHERS,
    ("GET", "/dashboard/journal"): WATCHERS,
    ("GET", "/dashboard/money"): WATCHERS,
    ("POST", "/dashboard/money"): OPERATOR,
    ("GET", "/dashboard/money.csv"): WATCHERS,
    ("GET", "/dashboard/policy"): WATCHERS,
    ("GET", "/dashboard/settings"): WATCHERS,
    ("POST", "/dashboard/settings"): OPERATOR,
    ("GET", "/dashboard/stream"): WATCHERS,
    ("GET", "/dashboard/webhooks"): WATCHERS,
    ("POST", "/dashboard/webhooks"): OPERATOR,
    ("POST", "/contracts"): ANYBODY,
    ("PUT", "/contracts"): ANYBODY,
    ("GET", "/contracts"): SEEKERS,
    ("POST", "/execute"): SEEKERS | KERNELS,
    ("GET", "/tasks/<task_id>"): SEEKER,
    ("DELETE", "/tasks/<task_id>"): SEEKER,
    ("GET", "/tasks/<task_id>/evidence"): SEEKER,
    ("GET", "/tasks"): {"signed-in payer"},
    ("GET", "/stream/<task_id>"): SEEKER,
    ("GET", "/files/<execution_id>/<which>/<token>/<name>"): set(),
    ("GET", "/capabilities"): KERNELS,
    ("GET", "/swarm/capabilities"): KERNELS,
    ("POST", "/swarm/execute"): KERNELS,
    ("POST", "/swarm/verify"): KERNELS,
    ("POST", "/verify"): KERNELS,
    ("POST", "/v0/executions"): OPERATOR,
    ("GET", "/v0/executions"): OPERATOR,
    ("GET", "/v0/executions/<id>"): OPERATOR,
    ("POST", "/v0/executions/<id>/cancel"): OPERATOR,
    ("GET", "/v0/executions/<id>/events"): OPERATOR,
    ("POST", "/v0/executions/<id>/signal"): OPERATOR,
    ("GET", "/v0/executions/<id>/stream"): OPERATOR,
    ("GET", "/v0/tools"): AGENTS_AND_RUNNERS,
    ("GET", "/v0/agents/stream"): AGENTS,
    ("POST", "/v0/agents/intent"): AGENTS,
    ("POST", "/v0/agents/step-result"): AGENTS,
    ("GET", "/v0/runners/stream"): RUNNERS,
    ("DELETE", "/v0/runners/<path:id>"): RUNNERS,
    ("POST", "/v0/runners/<path:id>/capabilities"): RUNNERS,
    ("POST", "/v0/runners/<path:id>/results"): RUNNERS,
    ("POST", "/v0/runners/<path:id>/tools"): RUNNERS,
    ("POST", "/v0/runners/steps/<step>/started"): RUNNERS,
}
# A static file's name under its route.
STYLES = assets()["base.css"].address.removeprefix("/static/")
# Where a page of a refusal shows its code.
PAGE_CODE = re.compile(r'class="eyebrow">\d+ · ([A-Z_]+)<')
# Refusals of the caller: as if nothing existed, or rate limited after wrong credentials; a request without
# any contract is malformed.
REFUSED = {400, 401, 403, 404, 429}
QUERIES = {
    "/v0/agents/stream": {"agent_id": AGENT, "consumer_id": "c"},
    "/v0/runners/stream": {"runner_id": RUNNER, "consumer_id": "c", "capabilities": "t"},
}
BODIES = {
    "/execute": {"task_id": "t", "execution_id": "e", "attempt_id": "a"},
    "/v1/chat/completions": {"model": "chat", "messages": [{"role": "user", "content": "hello"}]},
    "/v0/executions": {"agent_id": "echo", "input": {}},
    "/v0/executions/<id>/signal": {"signal_type": "x"},
    "/v0/runners/<path:id>/tools": {"tools": []},
    "/v0/runners/<path:id>/capabilities": {"tools": []},
    "/v0/runners/steps/<step>/started": {"runner_id": RUNNER},
}
# A request that passes the access check may fail otherwise; these codes refuse the caller.
WHO = {
    "UNAUTHORIZED",
    "FORBIDDEN",
    "TASK_NOT_FOUND",
    "CONTRACT_NOT_FOUND",
    "MISSING_CONTRACT_ID",
    "FILE_NOT_FOUND",
    "NOT_FOUND",
}


@dataclass
class Site:
    """The application, a seeker with a task, a second seeker, and a wallet with a plain purchase."""

    app: Flask
    paid_door: PaidDoor
    mine: Deal
    other: Deal
    buyer: PlainBuyer
    bought: Task

    def headers(self, credential: str) -> dict[str, str]:
        token = self.paid_door.settings.kernel_token
        bearer = {
            "operator": token,
            "watcher": WATCHER[1],
            "wrong token": "x" * 40,
            "agent key": KEYS[AGENT],
            "runner key": KEYS[RUNNER],
        }
        if credential in bearer:
            return {"Authorization": f"Bearer {bearer[credential]}"}
        payment = {"PAYMENT-SIGNATURE": self.mine.payments[0]}
        return {
            "nobody": {},
            "kernel": {"Authorization": "Basic " + base64.b64encode(":".join(KERNEL).encode()).decode()},
            "seeker": {"X-Contract-ID": self.mine.document["contract_id"]},
            "other seeker": {"X-Contract-ID": self.other.document["contract_id"]},
            "payment alone": payment,
            "task token": {"Authorization": f"Bearer {self.bought.contract.terms.contract_id}"},
            "signed-in payer": {},
        }[credential]

    def task_id(self, credential: str) -> str:
        """The task that a seeker's credential opens."""
        plain = credential in ("task token", "signed-in payer")
        return self.bought.execution.id if plain else self.mine.id or ""

    def passes(self, method: str, rule: str, credential: str) -> bool:
        """Whether the route serves this caller, including with a complaint about the request."""
        path = rule.replace("<path:id>", RUNNER).replace("<capability>", "echo")
        path = path.replace("<path:name>", STYLES)
        for name in ("<id>", "<task_id>", "<execution_id>", "<step>"):
            path = path.replace(name, self.task_id(credential))
        path = path.replace("<ref>", self.paid_door.parts.book.ref(self.mine.document["contract_id"]))
        for name in ("<which>", "<token>", "<name>"):
            path = path.replace(name, "x" * 32)
        headers = self.headers(credential)
        if credential == "signed-in payer":  # a proof is valid once
            headers["SIGN-IN-WITH-X"] = self.buyer.proof()
        client = self.app.test_client()
        sent: dict[str, Any] = {"json": BODIES.get(rule, {})} if method in ("POST", "PUT") else {}
        if rule.startswith("/t/") and credential == "task token":
            # Pages take the token from a form, or from the cookie that the form sets.
            token = headers.pop("Authorization").removeprefix("Bearer ")
            client.set_cookie("task", token)
            sent = {"data": {"token": token}} if method == "POST" else {}
        answer = client.open(
            path,
            method=method,
            headers=headers,
            query_string=QUERIES.get(rule),
            **sent,
            buffered=False,
        )
        try:
            if answer.status_code not in REFUSED:
                return True
            found = answer.get_json(silent=True) or {}
            error = found.get("error")
            code = error.get("code") if isinstance(error, dict) else found.get("code")
            if answer.mimetype == "text/html" and (named := PAGE_CODE.search(answer.get_data(as_text=True))):
                code = named[1]
            return answer.status_code in (400, 404) and code not in WHO
        finally:
            answer.close()


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("access")
    with EmbeddedStore(home) as store:
        paid_door = PaidDoor(home, redis.Redis.from_url(store.url), store.url)
        mine, other = paid_door.deal(), paid_door.deal()
        mine.execute({"do": "ok"}, mine.payment())
        entries = agent_keys(f"agent:{AGENT}:{KEYS[AGENT]},runner:{RUNNER}:{KEYS[RUNNER]}:t")
        settings = replace(
            paid_door.settings, swarm_keys=(KERNEL,), agent_keys=entries, watch_tokens=(WATCHER,)
        )
        with application(settings) as app:
            seeker = Seeker(FlaskDoor(app), now=lambda: paid_door.now() / 1e6)
            yield Site(app, paid_door, mine, other, PlainBuyer(seeker), bought(paid_door, seeker.key))


def bought(paid_door: PaidDoor, key: str) -> Task:
    """A purchase at the plain door."""
    body, buying = TaskInput.of({"do": "ok"}), paid_door.parts.buying
    quote = asked(lambda: buying.buy("echo", body, {}))
    payment = signed_payment(quote.offer.payment_required(""), key, paid_door.now() / 1e6)
    return buying.buy("echo", body, {"PAYMENT-SIGNATURE": payment})


def routes(app: Flask) -> set[tuple[str, str]]:
    """All routes and methods of the application."""
    return {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
        if method not in ("HEAD", "OPTIONS")
    }


def test_every_route_has_a_rule(site: Site) -> None:
    """A new route needs an access rule."""
    assert routes(site.app) == RULES.keys()


@pytest.mark.parametrize("credential", sorted(ANYBODY))
def test_a_credential_opens_its_routes_and_no_other(site: Site, credential: str) -> None:
    """One row of the matrix: all routes with one credential."""
    # Last, because it ends the task.
    ordered = sorted(RULES, key=lambda route: (route[0] == "DELETE" or route[1].endswith("/cancel"), route))
    opened = {route for route in ordered if site.passes(*route, credential)}
    allowed = {route for route in RULES if credential in RULES[route]}
    assert opened == allowed, {"opened": opened - allowed, "closed": allowed - opened}

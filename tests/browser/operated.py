"""A worker to operate: a whole `worker local` whose store was prepared with money of unknown outcome."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis
from playwright.sync_api import Page

from tests.e2e.hire.webhook_receiver import Receiver
from tests.e2e.tree import Local
from tests.fakes.dollar import Rpc
from tests.fakes.ledger_setup import KEY, SEEKER, LedgerSetup, SignedClaim
from worker.core.amounts import to_atomic
from worker.core.settings import Settings
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts
from worker.seeker import Order, PurchaseStore, Seeker, SpendLimits, Wallet
from worker.x402.networks import resolve_network

POLICY = """
rules:
  - id: reading
    priority: 10
    when: {tool_id: look_up}
    then: {decision: allow}
  - id: paying
    priority: 20
    when: {tool_id: "pay_*", arguments: [{field: amount, pattern: "^[0-9.]+$"}]}
    then: {decision: require_approval, reason: money leaves the house}
default: {decision: deny, reason: only what is listed}
"""
WATCHER = "w" * 10 + "atches-only"
# So long that no clock looks by itself at what the operator shall decide.
_FAR_US = 10**15


class OperatedWorker:
    """The worker, its operator's browser, and what happened before it started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "policy.yaml").write_text(POLICY)
        self.store = EmbeddedStore(home / "store")
        url = self.store.start()
        self.client = redis.Redis.from_url(url)
        self.setup = LedgerSetup(self.client, test_clock=False)
        self.landed, self.dead = self._unknown(), self._unknown()
        self._expire(self.dead)
        self.local = Local(
            home, "--web", "1", "--work", "1", REDIS_URL=url, FACILITATOR_URL="", WORKER_KEY=KEY,
            WORKER_AGENTS="operated_agents", POLICY=str(home / "policy.yaml"), WATCH_TOKENS=f"ada:{WATCHER}",
        )  # fmt: skip
        self.receiver = Receiver()
        self._bought = 0

    def start(self) -> OperatedWorker:
        self.receiver.__enter__()
        self.local.start()
        return self

    def close(self) -> None:
        self.local.close()
        self.store.stop()

    @property
    def url(self) -> str:
        return f"{self.local.facts['url']}/dashboard"

    @property
    def parts(self) -> Parts:
        return self.local.parts

    def sign_in(self, page: Page, token: str = "", name: str = "Grace") -> Page:
        page.goto(f"{self.url}/sign-in")
        page.get_by_label("Token").fill(token or self.local.facts["kernel_token"])
        page.get_by_label("Your name").fill(name)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}**")
        return page

    def hire(self, input: Any) -> str:
        """Buys a report, with a webhook; returns the execution."""
        facts = self.local.facts
        limits = SpendLimits(
            most=to_atomic("1", field="most"), network=resolve_network(facts["network"]), plain_http=True
        )
        seeker = Seeker(Wallet(facts["seeker_key"]), PurchaseStore(self.home / "purchases"), limits)
        port = self.receiver.server.server_port
        result = seeker.hire(facts["url"], Order("report", webhook=f"http://127.0.0.1:{port}/hook"), input)
        return str(result.body["task_id"])

    def transfer(self, paid: SignedClaim) -> str:
        """Moves the money of a payment on the chain, behind the worker's back; returns the transaction."""
        facts = self.local.facts
        Rpc(facts["rpc"])("test_mint", SEEKER, 10**9)
        settings = {"FACILITATOR_URL": facts["facilitator"], "REDIS_URL": facts["redis"], "WORKER_KEY": KEY}
        payload, requirements = map(json.loads, self.setup.ledger.payload(paid.id, 1))
        answer = Parts(Settings.load(settings), "cli").facilitator.settle(payload, requirements)
        assert answer.body is not None and answer.body["success"], answer
        return str(answer.body["transaction"])

    def _unknown(self) -> SignedClaim:
        """A sealed purchase whose settle call was never answered."""
        paid = self.setup.claim(amount=250_000, agent="report")
        self.setup.seal(paid)
        assert self.setup.ledger.settle_begin(paid.id, "token") is not None
        self.setup.ledger.settle_unknown(paid.id, 1, "token", "dropped", "", may_have_landed=True)
        self.client.zadd(self.setup.keys.open_payments, {paid.id: self.setup.now() + _FAR_US})
        return paid

    def _expire(self, paid: SignedClaim) -> None:
        """Lets its authorization have ended long ago, so that it can never land."""
        key, ended = self.setup.keys.money(paid.id), int(time.time()) - 3600
        payload = json.loads(self.client.hget(key, "1 payload") or b"")
        payload["payload"]["authorization"]["validBefore"] = str(ended)
        self.client.hset(key, mapping={"1 payload": json.dumps(payload), "1 valid_before": ended})

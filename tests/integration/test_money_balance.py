"""For any sequence of events the totals balance, and the chain agrees with the ledger."""

from __future__ import annotations

import contextlib

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.facilitator_memory import POOR
from tests.fakes.ledger_setup import PLATFORM, PRICE, SEEKER, WORKER, LedgerSetup, SignedClaim
from worker.local.valkey import EmbeddedStore
from worker.payments.comparison import Comparison, ComparisonMark
from worker.payments.found import FoundMoney
from worker.payments.leg_ledger import CONFIRM_US, LEG_WINDOW_S, LegLedger
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.report import JournalReport, imbalances
from worker.x402.networks import BASE_SEPOLIA

WORDS = ["", "", "drop", "moved", "pending", POOR, "unexpected_settle_error"]
POINTS = [
    "after_leg_begin",
    "before_leg_signed",
    "after_leg_signed",
    "after_leg_settle",
    "before_leg_settled",
]


class ProcessKilled(BaseException):
    """The process died here."""


class MoneyWorld:
    """A worker, its seeker and its chain; each method is one possible event."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.ledger_setup = LedgerSetup(client)
        self.books = LegLedger(client, self.ledger_setup.keys, test_clock=True)
        self.kill_at = ""
        self.legs = LegRunner(
            self.books,
            self.ledger_setup.facilitator,
            sign=self.ledger_setup.settler.settled.sign,
            wallet=WORKER,
            network=BASE_SEPOLIA,
            fees=FeeRules(threshold=250, period_us=3_600_000_000),
            chain=self.ledger_setup.chain,
            checkpoint=self._point,
        )
        found = FoundMoney(
            client, self.ledger_setup.keys, self.ledger_setup.ledger, BASE_SEPOLIA, test_clock=True
        )
        mark = ComparisonMark(client, self.ledger_setup.keys, test_clock=True)
        ledger_setup = self.ledger_setup
        self.comparison = Comparison(
            mark, ledger_setup.ledger, ledger_setup.settler, found, pay_to=WORKER, chain=ledger_setup.chain
        )
        self.claims: list[SignedClaim] = []

    def _point(self, name: str) -> None:
        if name == self.kill_at:
            self.kill_at = ""
            raise ProcessKilled

    def _one(self, choice: int) -> SignedClaim | None:
        return self.claims[choice % len(self.claims)] if self.claims else None

    def claim(self, choice: int) -> None:
        mode = "before_work" if choice % 3 == 0 else "after_work"
        self.claims.append(self.ledger_setup.claim(fee=choice % 200, mode=mode, amount=PRICE + choice))

    def pay_again(self, choice: int) -> None:
        paid = self._one(choice)
        execution = self.ledger_setup.store.get(paid.id) if paid else None
        # The store drops an unpaid contract within a millisecond of its deadline.
        open_still = execution is not None and execution.ends_by > self.ledger_setup.now()
        if paid and execution and open_still and execution.phase in ("offered", "payment_due"):
            money = self.ledger_setup.ledger.money(paid.id)
            assert money is not None
            self.claims.append(self.ledger_setup.claim(paid.ref, paid.id, amount=money.payments[0].amount))

    def verify(self, choice: int) -> None:
        if paid := self._one(choice):
            self.ledger_setup.settler.verifier.verify(paid.id, paid.number)

    def refuse(self, choice: int) -> None:
        if paid := self._one(choice):
            self.ledger_setup.ledger.verify_refused(paid.id, paid.number, POOR)

    def work(self, choice: int) -> None:
        paid = self._one(choice)
        taken = (
            self.ledger_setup.store.take(paid.id, lease_us=10**7, worker="w", session="s") if paid else None
        )
        if paid and taken:
            outcome = "failed" if choice % 4 == 0 else "completed"
            self.ledger_setup.store.seal(
                paid.id, taken[0].fence, outcome, output=b"1", result=b"{}", error=b"{}", payload=b"{}"
            )

    def settle(self, choice: int) -> None:
        self.ledger_setup.facilitator.plan = [WORDS[choice % len(WORDS)]]
        if paid := self._one(choice):
            self.ledger_setup.settler.settle(paid.id)

    def lands_unannounced(self, choice: int) -> None:
        paid = self._one(choice)
        if paid and (SEEKER.lower(), paid.nonce) not in self.ledger_setup.chain._used:
            amount = int(paid.payload["payload"]["authorization"]["value"])
            self.ledger_setup.chain.settle(paid.authorization, WORKER, amount)

    def stray_money(self, choice: int) -> None:
        self.ledger_setup.chain.transfer(SEEKER, WORKER, PRICE + choice)

    def cancel(self, choice: int) -> None:
        if paid := self._one(choice):
            self.ledger_setup.store.cancel(paid.id, b"{}", by="seeker" if choice % 2 else "operator")

    def owe(self, choice: int) -> None:
        if paid := self._one(choice):
            self.books.owe(paid.id, paid.number, None if choice % 2 else choice * 50, "other")

    def tick(self, choice: int) -> None:
        self.ledger_setup.facilitator.plan = [WORDS[choice % len(WORDS)]]
        self.kill_at = POINTS[choice // 5 % len(POINTS)] if choice % 5 == 0 else ""
        with contextlib.suppress(ProcessKilled):
            self._tick()

    def _tick(self) -> None:
        for leg in self.legs.due(self.ledger_setup.now()):
            self.legs.attend(leg)
        for id in self.ledger_setup.ledger.due(self.ledger_setup.now()):
            self.ledger_setup.settler.attend(id)

    def retry(self, choice: int) -> None:
        for leg in self.books.open():
            self.books.retry(leg)

    def later(self, choice: int) -> None:
        self.ledger_setup.move_time([1, 40, 3700, LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 1][choice % 4])

    def compare(self, choice: int) -> None:
        self.ledger_setup.chain.mine()
        self.client.hdel("w:compared", "at", "lease")
        self.comparison.run()

    def journal(self) -> JournalReport:
        return JournalReport().read(line.decode() for line in self.client.lrange("w:journal", 0, -1))

    def imbalances(self) -> list[str]:
        return imbalances(self.journal(), self.ledger_setup.sums, self.books.all_gathered())

    def calm_down(self) -> None:
        """Removes all faults and waits until everything has ended."""
        self.ledger_setup.facilitator.plan, self.kill_at = [], ""
        for _ in range(6):
            self.retry(0)
            self.ledger_setup.move_time(3700)
            self._tick()
            self.compare(0)


MOVES = [
    name for name in vars(MoneyWorld) if not name.startswith("_") and name not in ("journal", "imbalances")
]
MOVES.remove("calm_down")
STEPS = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 199)), min_size=5, max_size=30)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(STEPS)
def test_money_totals_always_balance(valkey: EmbeddedStore, steps: list[tuple[str, int]]) -> None:
    """After every step claimed and settled are explained; at the end the chain shows the same money."""
    client = redis.Redis.from_url(valkey.url)
    client.flushall()
    world = MoneyWorld(client)
    for name, choice in steps:
        getattr(world, name)(choice)
        assert world.imbalances() == [], name
    world.calm_down()
    assert world.imbalances() == []
    _agrees_with_the_chain(world)
    client.close()


def _agrees_with_the_chain(world: MoneyWorld) -> None:
    """The ledger knows every unit that moved, and no leg was paid twice."""
    books, chain = world.journal(), world.ledger_setup.chain
    head = chain.head().block
    arrived = sum(each.amount for each in chain.transfers_to(WORKER, 0, head))
    listed = sum(each.amount for each in world.comparison._found.listed() if each.outcome == "listed")
    totals = books.totals()
    waiting = sum(
        each.amount for each in world.comparison._found.listed() if each.outcome.startswith("contract")
    )
    assert arrived == totals.settled + listed + waiting
    sent_back = sum(each.amount for each in chain.transfers_to(SEEKER, 0, head))
    assert sent_back == sum(row.refunds_paid for row in books.rows.values())
    assert sum(each.amount for each in chain.transfers_to(PLATFORM, 0, head)) == books.fees_paid
    assert chain.balance(WORKER) == arrived - sent_back - books.fees_paid
    assert world.ledger_setup.sums.get("refunds_due", 0) == 0

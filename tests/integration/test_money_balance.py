"""Whatever happens in whatever order, the sums balance, and the chain agrees with the books."""

from __future__ import annotations

import contextlib

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.desk import PLATFORM, PRICE, SEEKER, WORKER, Desk, Paid
from tests.fakes.facilitator_memory import POOR
from worker.local.valkey import EmbeddedStore
from worker.payments.comparison import Comparison, ComparisonMark
from worker.payments.found import FoundMoney
from worker.payments.leg_books import CONFIRM_US, LEG_WINDOW_S, LegBooks
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.networks import BASE_SEPOLIA
from worker.payments.report import Books, imbalances, read_journal

WORDS = ["", "", "drop", "moved", "pending", POOR, "unexpected_settle_error"]
POINTS = [
    "after_leg_begin",
    "before_leg_signed",
    "after_leg_signed",
    "after_leg_settle",
    "before_leg_settled",
]


class Killed(BaseException):
    """The process ended here."""


class World:
    """A worker, its seeker and its chain; each method is one thing that may happen."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.desk = Desk(client)
        self.books = LegBooks(client, self.desk.keys, test_clock=True)
        self.kill_at = ""
        self.legs = LegRunner(
            self.books,
            self.desk.facilitator,
            sign=self.desk.settler._sign,
            wallet=WORKER,
            network=BASE_SEPOLIA,
            fees=FeeRules(threshold=250, period_us=3_600_000_000),
            chain=self.desk.chain,
            checkpoint=self._point,
        )
        found = FoundMoney(client, self.desk.keys, self.desk.ledger, BASE_SEPOLIA, test_clock=True)
        mark = ComparisonMark(client, self.desk.keys, test_clock=True)
        desk = self.desk
        self.comparison = Comparison(mark, desk.ledger, desk.settler, found, pay_to=WORKER, chain=desk.chain)
        self.claims: list[Paid] = []

    def _point(self, name: str) -> None:
        if name == self.kill_at:
            self.kill_at = ""
            raise Killed

    def _one(self, choice: int) -> Paid | None:
        return self.claims[choice % len(self.claims)] if self.claims else None

    def claim(self, choice: int) -> None:
        mode = "before_work" if choice % 3 == 0 else "after_work"
        self.claims.append(self.desk.claim(fee=choice % 200, mode=mode, amount=PRICE + choice))

    def pay_again(self, choice: int) -> None:
        paid = self._one(choice)
        execution = self.desk.store.get(paid.id) if paid else None
        if paid and execution and execution.phase in ("offered", "payment_due"):
            money = self.desk.ledger.money(paid.id)
            assert money is not None
            self.claims.append(self.desk.claim(paid.ref, paid.id, amount=money.payments[0].amount))

    def verify(self, choice: int) -> None:
        if paid := self._one(choice):
            self.desk.settler.verify(paid.id, paid.number)

    def refuse(self, choice: int) -> None:
        if paid := self._one(choice):
            self.desk.ledger.verify_refused(paid.id, paid.number, POOR)

    def work(self, choice: int) -> None:
        paid = self._one(choice)
        taken = self.desk.store.take(paid.id, lease_us=10**7, worker="w", session="s") if paid else None
        if paid and taken:
            outcome = "failed" if choice % 4 == 0 else "completed"
            self.desk.store.seal(
                paid.id, taken[0].fence, outcome, output=b"1", result=b"{}", error=b"{}", payload=b"{}"
            )

    def settle(self, choice: int) -> None:
        self.desk.facilitator.plan = [WORDS[choice % len(WORDS)]]
        if paid := self._one(choice):
            self.desk.settler.settle(paid.id)

    def lands_unannounced(self, choice: int) -> None:
        paid = self._one(choice)
        if paid and (SEEKER.lower(), paid.nonce) not in self.desk.chain._used:
            amount = int(paid.payload["payload"]["authorization"]["value"])
            self.desk.chain.settle(paid.authorization, WORKER, amount)

    def stray_money(self, choice: int) -> None:
        self.desk.chain.transfer(SEEKER, WORKER, PRICE + choice)

    def cancel(self, choice: int) -> None:
        if paid := self._one(choice):
            self.desk.store.cancel(paid.id, b"{}", by="seeker" if choice % 2 else "operator")

    def owe(self, choice: int) -> None:
        if paid := self._one(choice):
            self.books.owe(paid.id, paid.number, None if choice % 2 else choice * 50, "other")

    def tick(self, choice: int) -> None:
        self.desk.facilitator.plan = [WORDS[choice % len(WORDS)]]
        self.kill_at = POINTS[choice // 5 % len(POINTS)] if choice % 5 == 0 else ""
        with contextlib.suppress(Killed):
            self._tick()

    def _tick(self) -> None:
        for leg in self.legs.due(self.desk.now()):
            self.legs.attend(leg)
        for id in self.desk.ledger.due(self.desk.now()):
            self.desk.settler.attend(id)

    def retry(self, choice: int) -> None:
        for leg in self.books.open():
            self.books.retry(leg)

    def later(self, choice: int) -> None:
        self.desk.move_time([1, 40, 3700, LEG_WINDOW_S + CONFIRM_US // 1_000_000 + 1][choice % 4])

    def compare(self, choice: int) -> None:
        self.desk.chain.mine()
        self.client.hdel("w:compared", "at", "lease")
        self.comparison.run()

    def journal(self) -> Books:
        return read_journal(line.decode() for line in self.client.lrange("w:journal", 0, -1))

    def imbalances(self) -> list[str]:
        return imbalances(self.journal(), self.desk.sums, self.books.all_gathered())

    def calm_down(self) -> None:
        """Honest again, and long enough for everything to end."""
        self.desk.facilitator.plan, self.kill_at = [], ""
        for _ in range(6):
            self.retry(0)
            self.desk.move_time(3700)
            self._tick()
            self.compare(0)


MOVES = [name for name in vars(World) if not name.startswith("_") and name not in ("journal", "imbalances")]
MOVES.remove("calm_down")
STEPS = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 199)), min_size=5, max_size=30)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(STEPS)
def test_the_sums_always_balance(valkey: EmbeddedStore, steps: list[tuple[str, int]]) -> None:
    """After every step claimed and settled are explained, and at the end the chain shows the same money."""
    client = redis.Redis.from_url(valkey.url)
    client.flushall()
    world = World(client)
    for name, choice in steps:
        getattr(world, name)(choice)
        assert world.imbalances() == [], name
    world.calm_down()
    assert world.imbalances() == []
    _agrees_with_the_chain(world)
    client.close()


def _agrees_with_the_chain(world: World) -> None:
    """Of money that moved, the books know every unit, and no leg was paid twice."""
    books, chain = world.journal(), world.desk.chain
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
    assert world.desk.sums.get("refunds_due", 0) == 0

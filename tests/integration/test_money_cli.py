"""`worker money`: what an operator reads, and what a wrong word cannot do."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import structlog

from tests.fakes.chain_services import facilitator_of, seekers_chain
from tests.fakes.desk import KEY, PLATFORM, PRICE, SEEKER, WORKER, Desk, Paid
from tests.fakes.dollar import Rpc
from tests.fakes.facilitator_memory import POOR
from worker.cli import main
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts
from worker.payments.leg_books import LegName
from worker.payments.legs import LegKind, LegState
from worker.settings import Settings

NOBODY = "0x" + "00" * 32


@pytest.fixture(name="chain", scope="module")
def _chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rpc]:
    with seekers_chain(tmp_path_factory.mktemp("chain")) as chain:
        yield chain


@pytest.fixture(name="facilitator", scope="module")
def _facilitator(chain: Rpc) -> Iterator[str]:
    with facilitator_of(chain) as url:
        yield url


@dataclass
class Counter:
    """Where the operator stands: the command line, and the desk whose money it shows."""

    desk: Desk
    parts: Parts
    chain: Rpc
    capsys: pytest.CaptureFixture[str]

    def run(self, *args: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(["money", *args])
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def unknown(self, *, moved: bool) -> Paid:
        """A payment whose settle call was never answered; the money moved or did not."""
        paid = self.desk.claim()
        self.desk.seal(paid)
        if moved:
            payload, requirements = self.desk.ledger.payload(paid.id, 1)
            answer = self.parts.facilitator.settle(json.loads(payload), json.loads(requirements))
            assert answer.body is not None and answer.body["success"] is True
            self.client.hset(f"w:money:{paid.id}", "test tx", answer.body["transaction"])
        leave = self.desk.ledger.settle_begin(paid.id, "token")
        assert leave is not None
        self.desk.ledger.settle_unknown(paid.id, 1, "token", "dropped", "", may_have_landed=True)
        return paid

    @property
    def client(self) -> redis.Redis:
        return self.parts.client

    def transaction(self, paid: Paid) -> str:
        return (self.client.hget(f"w:money:{paid.id}", "test tx") or b"").decode()

    def send_legs(self) -> None:
        runner = self.parts.leg_runner
        assert runner is not None
        for leg in runner.due(self.desk.now()):
            runner.attend(leg)


@pytest.fixture(name="counter")
def _counter(
    valkey: EmbeddedStore,
    client: redis.Redis,
    chain: Rpc,
    facilitator: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Counter]:
    environ = {
        "WORKER_ENV": "test",
        "REDIS_URL": valkey.url,
        "WORKER_KEY": KEY,
        "RPC_URL": chain.url,
        "FACILITATOR_URL": facilitator,
        "FEE_THRESHOLD": "0.0001",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    parts = Parts(Settings.load(environ), "cli")
    assert parts.chain is not None
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield Counter(Desk(client, outside=(parts.facilitator, parts.chain)), parts, chain, capsys)
    # The commands send the log to this test's standard error.
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


# report


def test_an_empty_worker_balances(counter: Counter) -> None:
    """Without any payment the report is zeros and in balance."""
    code, out, err = counter.run("report")
    assert code == 0 and err.count("balanced:") == 2
    assert out.splitlines()[1].split() == ["all", *["0"] * 9]


def test_the_report_shows_every_cent(counter: Counter) -> None:
    """Claimed, settled, refused, released, open, fees, refunds and kept, in USDC."""
    counter.desk.paid(fee=100)
    counter.desk.owed()
    counter.desk.ledger.verify_refused(counter.desk.claim().id, 1, POOR)
    counter.desk.store.cancel(counter.desk.claim().id, b"{}", by="operator")
    counter.desk.claim()
    code, out, _ = counter.run("report", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and rows == [
        {
            "all": "all",
            "payments": "5",
            "claimed": "0.05",
            "settled": "0.02",
            "refused": "0.01",
            "released": "0.01",
            "open": "0.01",
            "fees": "0.0001",
            "refunds": "0.01",
            "kept": "0.0099",
        }
    ]


def test_the_report_groups(counter: Counter) -> None:
    """By seeker, by agent and by day each payment stands in one row."""
    counter.desk.paid(agent="echo")
    removed = counter.desk.paid(agent="logo")
    counter.desk.paid(agent="logo")
    counter.client.delete(f"w:x:{removed.id}")
    for by, names in (("seeker", {SEEKER.lower()}), ("agent", {"echo", "logo", "(removed)"})):
        code, out, _ = counter.run("report", "--by", by, "--csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert code == 0 and {row[by] for row in rows} == names
        assert sum(int(row["payments"]) for row in rows) == 3
    _, out, _ = counter.run("report", "--by", "day", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert len(row["day"]) == 10 and row["settled"] == "0.03"


@pytest.mark.parametrize("counter_name", ["claimed", "settled", "open", "fees_due", "refunds_paid"])
def test_books_that_do_not_balance_are_reported(counter: Counter, counter_name: str) -> None:
    """A single unit that is missing makes the exit code 1 and is named."""
    counter.desk.paid(fee=100)
    counter.client.hincrby("w:sums", counter_name, 1)
    code, _, err = counter.run("report")
    assert code == 1 and "does not balance" in err and counter_name in err and "balanced:" not in err


def test_a_lost_journal_line_is_noticed(counter: Counter) -> None:
    """Books whose journal lost its last line do not balance."""
    counter.desk.paid()
    counter.client.rpop("w:journal")
    counter.client.lrem("w:journal", -1, counter.client.lindex("w:journal", -1))
    assert counter.run("report")[0] == 1


# unknown and resolve


def test_nothing_unknown(counter: Counter) -> None:
    """When all is told the list is empty and the exit code 0."""
    counter.desk.paid()
    code, out, err = counter.run("unknown")
    assert (code, out) == (0, "") and "nothing" in err


def test_what_waits_is_listed(counter: Counter) -> None:
    """Unknown and presumed payments, legs that are not settled, and transfers that nobody explains."""
    lost = counter.unknown(moved=False)
    presumed = counter.unknown(moved=False)
    counter.desk.settler.record_settled(presumed.id, 1, "", "presumed")
    counter.desk.owed()
    code, out, _ = counter.run("unknown")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 3
    assert lines[0].startswith(f"payment  {lost.id} 1  0.01  unknown")
    assert presumed.id in lines[1] and lines[1].endswith("only presumed")
    assert lines[2].startswith("leg  refund ") and "due" in lines[2]


def test_settled_needs_a_transaction_that_the_chain_confirms(counter: Counter) -> None:
    """A wrong hash, somebody else's and no hash change nothing; the right one settles the payment."""
    paid, other = counter.unknown(moved=True), counter.unknown(moved=True)
    for wrong in (NOBODY, counter.transaction(other), "0x12", "yes"):
        code, _, err = counter.run("resolve", paid.id, "1", "--settled", wrong)
        assert code == 1 and err.startswith("CONFLICT")
        assert counter.desk.state(paid) == "unknown"
    code, out, _ = counter.run("resolve", paid.id, "1", "--settled", counter.transaction(paid))
    assert (code, out.strip()) == (0, "settled: completed")
    money = counter.desk.ledger.money(paid.id)
    assert money is not None and money.payments[0].how == "operator"
    assert counter.run("resolve", paid.id, "1", "--settled", counter.transaction(paid))[0] == 1
    assert counter.run("report")[0] == 0


def test_settled_needs_a_node(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RPC_URL the operator's word alone settles nothing."""
    paid = counter.unknown(moved=True)
    monkeypatch.delenv("RPC_URL")
    code, _, err = counter.run("resolve", paid.id, "1", "--settled", counter.transaction(paid))
    assert code == 1 and "RPC_URL" in err and counter.desk.state(paid) == "unknown"


def test_refused_waits_until_it_can_no_longer_land(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the authorization may land nobody may call it refused; ten minutes after its end one may."""
    monkeypatch.delenv("RPC_URL")
    paid = counter.unknown(moved=False)
    end = int(paid.payload["payload"]["authorization"]["validBefore"])
    left = end - counter.desk.now() // 1_000_000
    for seconds in (0, left, left + 590):
        counter.client.set("w:test-clock", seconds * 1_000_000)
        code, _, err = counter.run("resolve", paid.id, "1", "--refused")
        assert code == 1 and "may still land" in err and counter.desk.state(paid) == "unknown"
    counter.client.set("w:test-clock", (left + 610) * 1_000_000)
    code, out, _ = counter.run("resolve", paid.id, "1", "--refused")
    assert (code, out.strip()) == (0, "refused: payment_due") and counter.desk.state(paid) == "refused"
    assert counter.run("resolve", paid.id, "1", "--refused")[0] == 1
    assert counter.run("report")[0] == 0


def test_refused_is_not_believed_against_the_chain(counter: Counter) -> None:
    """Money that landed cannot be called refused, however late it is; the hash to use is shown."""
    paid = counter.unknown(moved=True)
    counter.client.set("w:test-clock", 200_000 * 1_000_000)
    code, _, err = counter.run("resolve", paid.id, "1", "--refused")
    assert code == 1 and counter.transaction(paid) in err and counter.desk.state(paid) == "unknown"


@pytest.mark.parametrize("number", ["0", "2", "9999999999"])
@pytest.mark.parametrize("outcome", [["--refused"], ["--settled", NOBODY]])
def test_resolving_what_is_not_there(counter: Counter, number: str, outcome: list[str]) -> None:
    """An unknown execution or number is said to be unknown."""
    paid = counter.unknown(moved=False)
    for id in (paid.id, "nobody"):
        code, _, err = counter.run("resolve", id, number, *outcome)
        assert code == 1 and err.startswith("NOT_FOUND")


def test_resolve_wants_exactly_one_outcome(counter: Counter) -> None:
    """Neither both outcomes nor none of them is a command."""
    for outcome in ([], ["--refused", "--settled", NOBODY]):
        with pytest.raises(SystemExit) as usage:
            counter.run("resolve", "x", "1", *outcome)
        assert usage.value.code == 2


# refund, fees, journal


def test_a_refund_from_the_shell(counter: Counter) -> None:
    """Part of a payment, then the rest; each arrives and has its receipt in the execution's journal."""
    paid = counter.desk.paid()
    before = counter.chain.dollars(SEEKER)
    code, out, _ = counter.run("refund", paid.id, "--amount", "0.004", "--reason", "overcharge")
    assert code == 0 and out.startswith("0.004 USDC")
    counter.send_legs()
    assert counter.run("refund", paid.id)[0] == 0
    counter.send_legs()
    assert counter.chain.dollars(SEEKER) == before + PRICE
    code, out, _ = counter.run("journal", paid.id)
    assert code == 0 and out.count("refund receipt 1.") == 2 and "overcharge" in out
    receipts = [line.partition(": ")[2] for line in out.splitlines() if line.startswith("refund receipt")]
    assert [json.loads(each)["payload"]["amount"] for each in receipts] == ["4000", "6000"]
    code, _, err = counter.run("refund", paid.id)
    assert code == 1 and "at most 0 USDC" in err
    assert counter.run("report")[0] == 0


@pytest.mark.parametrize("amount", ["0", "0.010001", "-1", "1e3", "0.0000001", "", "all"])
def test_a_refund_of_a_wrong_amount(counter: Counter, amount: str) -> None:
    """What is no amount, too much or nothing makes no leg."""
    paid = counter.desk.paid()
    code, _, err = counter.run("refund", paid.id, f"--amount={amount}")
    assert code == 1 and ("AMOUNT_INVALID" in err or "at most 0.01 USDC" in err)
    assert counter.parts.leg_books.open() == []


def test_a_refund_of_what_was_not_paid(counter: Counter) -> None:
    """Nothing paid, nothing known and nothing ended are three different refusals."""
    unpaid = counter.desk.claim()
    assert "nothing was paid" in counter.run("refund", unpaid.id)[2]
    assert "NOT_FOUND" in counter.run("refund", "nobody")[2]
    working = counter.desk.claim(mode="before_work")
    counter.desk.ledger.verified(working.id, 1)
    counter.desk.settler.settle(working.id)
    assert "has not ended" in counter.run("refund", working.id)[2]
    assert "no such payment" in counter.run("refund", working.id, "--number", "7")[2]


def test_a_refused_refund_is_tried_again(counter: Counter) -> None:
    """With the wallet filled again the same command sends the same leg."""
    paid = counter.desk.owed()
    name = LegName(LegKind.REFUND, paid.id, 1)
    books = counter.parts.leg_books
    assert "is due" in counter.run("refund", paid.id)[2]
    books.begin(name, "t")
    books.refused(name, POOR)
    code, out, _ = counter.run("unknown")
    assert code == 1 and POOR in out
    code, out, _ = counter.run("refund", paid.id)
    assert code == 0 and "same nonce" in out
    counter.send_legs()
    leg = books.get(name)
    assert leg is not None and leg.state is LegState.SETTLED and counter.run("unknown")[0] == 0


def test_fees_by_wallet(counter: Counter) -> None:
    """Gathering, owed and paid fees, and the legs they went into; refused legs can be tried again."""
    counter.desk.paid(fee=40)
    assert counter.run("fees")[1].split() == [PLATFORM, "gathering", "0.00004", "owed", "0", "paid", "0"]
    counter.desk.paid(fee=70)
    counter.send_legs()
    first, leg = counter.run("fees")[1].splitlines()
    assert first.endswith("gathering 0  owed 0  paid 0.00011") and "settled  0x" in leg
    counter.desk.paid(fee=200)
    runner = counter.parts.leg_runner
    assert runner is not None
    (name,) = runner.due(counter.desk.now())
    counter.parts.leg_books.begin(name, "t")
    counter.parts.leg_books.refused(name, POOR)
    code, out, _ = counter.run("fees", "--retry")
    assert code == 0 and POOR in out and f"fee {PLATFORM} 2 is tried again" in out
    counter.send_legs()
    assert counter.run("fees")[1].splitlines()[0].endswith("gathering 0  owed 0  paid 0.00031")
    assert counter.run("report")[0] == 0


def test_the_journal_is_all_of_it(counter: Counter) -> None:
    """Every booked fact stands there, oldest first, with readable times and amounts."""
    paid = counter.desk.paid()
    code, out, _ = counter.run("journal")
    facts = [line.split("  ")[1] for line in out.splitlines()]
    assert code == 0 and facts == ["claimed", "verified", "settling", "settle_call", "settled"]
    assert all(line.split("  ")[2] == paid.id and line.split("  ")[4] == "0.01" for line in out.splitlines())


def test_a_local_worker_is_meant_by_its_directory(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --state the commands use the store, node, facilitator and key of the worker that runs there."""
    (tmp_path / "secrets.json").write_text(json.dumps({"WORKER_KEY": KEY}))
    about = {
        "url": "http://127.0.0.1:8000",
        "redis": counter.parts.settings.redis_url,
        "rpc": counter.chain.url,
        "facilitator": counter.parts.settings.facilitator_url,
        "network": "eip155:84532",
        "worker_wallet": WORKER,
        "kernel_token": "k" * 32,
    }
    (tmp_path / "local.json").write_text(json.dumps(about))
    paid = counter.unknown(moved=True)
    for name in ("REDIS_URL", "WORKER_KEY", "RPC_URL", "FACILITATOR_URL"):
        monkeypatch.delenv(name)
    transaction = counter.transaction(paid)
    code, _, err = counter.run("resolve", paid.id, "1", "--settled", transaction, "--state", str(tmp_path))
    assert code == 0, err
    assert counter.run("report", "--state", str(tmp_path / "elsewhere"))[0] == 2

"""`worker money`: reports, and commands with invalid arguments."""

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
from tests.fakes.dollar import DOLLAR, Rpc, calldata, fresh
from tests.fakes.facilitator_memory import POOR
from tests.fakes.ledger_setup import KEY, PLATFORM, PRICE, SEEKER, WORKER, LedgerSetup, SignedClaim
from tests.waiting import eventually
from worker.cli import main
from worker.core.settings import Settings
from worker.local.valkey import EmbeddedStore
from worker.parts import Parts
from worker.payments.audit import AuditName
from worker.payments.leg import LegKey, LegKind, LegState

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
class MoneyCommands:
    """The operator's commands and the ledger whose money they show."""

    ledger_setup: LedgerSetup
    parts: Parts
    chain: Rpc
    capsys: pytest.CaptureFixture[str]

    def run(self, *args: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(["money", *args])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def unknown(self, *, moved: bool) -> SignedClaim:
        """A payment whose settle call was never answered, with or without a transfer."""
        paid = self.ledger_setup.claim()
        self.ledger_setup.seal(paid)
        if moved:
            payload, requirements = self.ledger_setup.ledger.payload(paid.id, 1)
            answer = self.parts.facilitator.settle(json.loads(payload), json.loads(requirements))
            assert answer.body is not None and answer.body["success"] is True
            self.client.hset(f"w:money:{paid.id}", "test tx", answer.body["transaction"])
        leave = self.ledger_setup.ledger.settle_begin(paid.id, "token")
        assert leave is not None
        self.ledger_setup.ledger.settle_unknown(paid.id, 1, "token", "dropped", "", may_have_landed=True)
        return paid

    @property
    def client(self) -> redis.Redis:
        return self.parts.client

    def transaction(self, paid: SignedClaim) -> str:
        return (self.client.hget(f"w:money:{paid.id}", "test tx") or b"").decode()

    def send_legs(self) -> None:
        runner = self.parts.leg_runner
        assert runner is not None
        for leg in runner.due(self.ledger_setup.now()):
            runner.attend(leg)


@pytest.fixture(name="commands")
def _commands(
    valkey: EmbeddedStore,
    client: redis.Redis,
    chain: Rpc,
    facilitator: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[MoneyCommands]:
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
    yield MoneyCommands(LedgerSetup(client, outside=(parts.facilitator, parts.chain)), parts, chain, capsys)
    # The commands write their log to this test's standard error.
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


# Report


def test_report_of_a_new_worker_is_all_zero(commands: MoneyCommands) -> None:
    """Without payments the report is all zeros and in balance."""
    code, out, err = commands.run("report")
    assert code == 0 and err.count("balanced:") == 2
    assert out.splitlines()[1].split() == ["all", *["0"] * 9]


def test_report_shows_every_amount(commands: MoneyCommands) -> None:
    """Claimed, settled, refused, released, open, fees, refunds and kept, in USDC."""
    commands.ledger_setup.paid(fee=100)
    commands.ledger_setup.owed()
    commands.ledger_setup.ledger.verify_refused(commands.ledger_setup.claim().id, 1, POOR)
    commands.ledger_setup.store.cancel(commands.ledger_setup.claim().id, b"{}", by="operator")
    commands.ledger_setup.claim()
    code, out, _ = commands.run("report", "--csv")
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


def test_report_groups_by_seeker_agent_and_day(commands: MoneyCommands) -> None:
    """Each payment appears in one row by seeker, by agent and by day."""
    commands.ledger_setup.paid(agent="echo")
    removed = commands.ledger_setup.paid(agent="logo")
    commands.ledger_setup.paid(agent="logo")
    commands.client.delete(f"w:x:{removed.id}")
    for by, names in (("seeker", {SEEKER.lower()}), ("agent", {"echo", "logo", "(removed)"})):
        code, out, _ = commands.run("report", "--by", by, "--csv")
        rows = list(csv.DictReader(io.StringIO(out)))
        assert code == 0 and {row[by] for row in rows} == names
        assert sum(int(row["payments"]) for row in rows) == 3
    _, out, _ = commands.run("report", "--by", "day", "--csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert len(row["day"]) == 10 and row["settled"] == "0.03"


@pytest.mark.parametrize("counter_name", ["claimed", "settled", "open", "fees_due", "refunds_paid"])
def test_imbalance_is_reported(commands: MoneyCommands, counter_name: str) -> None:
    """A single missing unit is named and makes the exit code 1."""
    commands.ledger_setup.paid(fee=100)
    commands.client.hincrby("w:sums", counter_name, 1)
    code, _, err = commands.run("report")
    assert code == 1 and "does not balance" in err and counter_name in err and "balanced:" not in err


def test_lost_journal_line_is_reported(commands: MoneyCommands) -> None:
    """A ledger whose journal lost its last line does not balance."""
    commands.ledger_setup.paid()
    commands.client.rpop("w:journal")
    commands.client.lrem("w:journal", -1, commands.client.lindex("w:journal", -1))
    assert commands.run("report")[0] == 1


# Unknown and resolve


def test_unknown_list_is_empty(commands: MoneyCommands) -> None:
    """With no open payments the list is empty and the exit code 0."""
    commands.ledger_setup.paid()
    code, out, err = commands.run("unknown")
    assert (code, out) == (0, "") and "nothing" in err


def test_unknown_list_shows_open_money(commands: MoneyCommands) -> None:
    """Unknown and presumed payments, unsettled legs, and unexplained transfers."""
    lost = commands.unknown(moved=False)
    presumed = commands.unknown(moved=False)
    commands.ledger_setup.settler.record_settled(presumed.id, 1, "", "presumed")
    commands.ledger_setup.owed()
    code, out, _ = commands.run("unknown")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 3
    assert lines[0].startswith(f"payment  {lost.id} 1  0.01  unknown")
    assert presumed.id in lines[1] and lines[1].endswith("only presumed")
    assert lines[2].startswith("leg  refund ") and "due" in lines[2]


def test_unknown_list_shows_unproven_money(commands: MoneyCommands) -> None:
    """An unproven settlement, a presumed one and a leg that keeps failing, each with its reason."""
    unproven, presumed = commands.ledger_setup.paid(), commands.ledger_setup.claim()
    commands.parts.audit_book.end(AuditName(unproven.id, 1), "unproven", "0x" + "12" * 32)
    commands.ledger_setup.seal(presumed)
    commands.ledger_setup.settler.record_settled(presumed.id, 1, "0x" + "34" * 32, "presumed")
    owed = commands.ledger_setup.owed()
    for _ in range(6):
        commands.parts.leg_books.begin(LegKey(LegKind.REFUND, owed.id, 1), "t")
        commands.parts.leg_books.unknown(LegKey(LegKind.REFUND, owed.id, 1), "t", "http_500", "")
    code, out, _ = commands.run("unknown")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 3
    assert unproven.id in lines[0] and "unproven" in lines[0]
    assert presumed.id in lines[1] and lines[1].endswith("only presumed")
    assert owed.id in lines[2] and lines[2].endswith("http_500 (failed 6 times)")
    code, _, err = commands.run("report")
    assert code == 0 and "note: unproven: 1" in err and "note: legs: 1" in err


def test_resolve_settled_needs_a_confirmed_transaction(commands: MoneyCommands) -> None:
    """A wrong, foreign or missing hash changes nothing; the right one settles the payment."""
    paid, other = commands.unknown(moved=True), commands.unknown(moved=True)
    for wrong in (NOBODY, commands.transaction(other), "0x12", "yes"):
        code, _, err = commands.run("resolve", paid.id, "1", "--settled", wrong)
        assert code == 1 and err.startswith("CONFLICT")
        assert commands.ledger_setup.state(paid) == "unknown"
    code, out, _ = commands.run("resolve", paid.id, "1", "--settled", commands.transaction(paid))
    assert (code, out.strip()) == (0, "settled: completed")
    money = commands.ledger_setup.ledger.money(paid.id)
    assert money is not None and money.payments[0].how == "operator"
    assert commands.run("resolve", paid.id, "1", "--settled", commands.transaction(paid))[0] == 1
    assert commands.run("report")[0] == 0


def test_resolve_settled_needs_a_node(commands: MoneyCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RPC_URL the operator's statement alone settles nothing."""
    paid = commands.unknown(moved=True)
    monkeypatch.delenv("RPC_URL")
    code, _, err = commands.run("resolve", paid.id, "1", "--settled", commands.transaction(paid))
    assert code == 1 and "RPC_URL" in err and commands.ledger_setup.state(paid) == "unknown"


def test_resolve_refused_waits_until_the_authorization_expires(
    commands: MoneyCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the authorization may land it cannot be resolved as refused; ten minutes after its end it can."""
    monkeypatch.delenv("RPC_URL")
    paid = commands.unknown(moved=False)
    end = int(paid.payload["payload"]["authorization"]["validBefore"])
    left = end - commands.ledger_setup.now() // 1_000_000
    for seconds in (0, left, left + 590):
        commands.client.set("w:test-clock", seconds * 1_000_000)
        code, _, err = commands.run("resolve", paid.id, "1", "--refused")
        assert code == 1 and "may still land" in err and commands.ledger_setup.state(paid) == "unknown"
    commands.client.set("w:test-clock", (left + 610) * 1_000_000)
    code, out, _ = commands.run("resolve", paid.id, "1", "--refused")
    assert (code, out.strip()) == (0, "refused: payment_due") and commands.ledger_setup.state(
        paid
    ) == "refused"
    assert commands.run("resolve", paid.id, "1", "--refused")[0] == 1
    assert commands.run("report")[0] == 0


def test_resolve_refused_is_rejected_when_money_landed(commands: MoneyCommands) -> None:
    """Landed money cannot be resolved as refused, however late; the hash to use is shown."""
    paid = commands.unknown(moved=True)
    commands.client.set("w:test-clock", 200_000 * 1_000_000)
    code, _, err = commands.run("resolve", paid.id, "1", "--refused")
    assert code == 1 and commands.transaction(paid) in err and commands.ledger_setup.state(paid) == "unknown"


@pytest.mark.parametrize("number", ["0", "2", "9999999999"])
@pytest.mark.parametrize("outcome", [["--refused"], ["--settled", NOBODY]])
def test_resolve_unknown_payment_is_reported(
    commands: MoneyCommands, number: str, outcome: list[str]
) -> None:
    """An unknown execution or number is reported as unknown."""
    paid = commands.unknown(moved=False)
    for id in (paid.id, "nobody"):
        code, _, err = commands.run("resolve", id, number, *outcome)
        assert code == 1 and err.startswith("NOT_FOUND")


def test_resolve_wants_exactly_one_outcome(commands: MoneyCommands) -> None:
    """Both outcomes, or neither, are a usage error."""
    for outcome in ([], ["--refused", "--settled", NOBODY]):
        with pytest.raises(SystemExit) as usage:
            commands.run("resolve", "x", "1", *outcome)
        assert usage.value.code == 2


# Refund, fees, journal


def test_refund_command_pays_part_and_rest(commands: MoneyCommands) -> None:
    """Part of a payment, then the rest; each arrives and has a receipt in the execution's journal."""
    paid = commands.ledger_setup.paid()
    before = commands.chain.dollars(SEEKER)
    code, out, _ = commands.run("refund", paid.id, "--amount", "0.004", "--reason", "overcharge")
    assert code == 0 and out.startswith("0.004 USDC")
    commands.send_legs()
    assert commands.run("refund", paid.id)[0] == 0
    commands.send_legs()
    assert commands.chain.dollars(SEEKER) == before + PRICE
    code, out, _ = commands.run("journal", paid.id)
    assert code == 0 and out.count("refund receipt 1.") == 2 and "overcharge" in out
    receipts = [line.partition(": ")[2] for line in out.splitlines() if line.startswith("refund receipt")]
    assert [json.loads(each)["payload"]["amount"] for each in receipts] == ["4000", "6000"]
    code, _, err = commands.run("refund", paid.id)
    assert code == 1 and "at most 0 USDC" in err
    assert commands.run("report")[0] == 0


@pytest.mark.parametrize("amount", ["0", "0.010001", "-1", "1e3", "0.0000001", "", "all"])
def test_refund_of_an_invalid_amount_is_refused(commands: MoneyCommands, amount: str) -> None:
    """A malformed, excessive or zero amount creates no leg."""
    paid = commands.ledger_setup.paid()
    code, _, err = commands.run("refund", paid.id, f"--amount={amount}")
    assert code == 1 and ("AMOUNT_INVALID" in err or "at most 0.01 USDC" in err)
    assert commands.parts.leg_books.open() == []


def test_refund_of_unpaid_work_is_refused(commands: MoneyCommands) -> None:
    """Unpaid, unknown and unfinished executions are three different refusals."""
    unpaid = commands.ledger_setup.claim()
    assert "nothing was paid" in commands.run("refund", unpaid.id)[2]
    assert "NOT_FOUND" in commands.run("refund", "nobody")[2]
    working = commands.ledger_setup.claim(mode="before_work")
    commands.ledger_setup.ledger.verified(working.id, 1)
    commands.ledger_setup.settler.settle(working.id)
    assert "has not ended" in commands.run("refund", working.id)[2]
    assert "no such payment" in commands.run("refund", working.id, "--number", "7")[2]


def test_refused_refund_is_retried(commands: MoneyCommands) -> None:
    """Once the wallet is funded the same command sends the same leg."""
    paid = commands.ledger_setup.owed()
    name = LegKey(LegKind.REFUND, paid.id, 1)
    books = commands.parts.leg_books
    assert "is due" in commands.run("refund", paid.id)[2]
    books.begin(name, "t")
    books.refused(name, POOR)
    code, out, _ = commands.run("unknown")
    assert code == 1 and POOR in out
    code, out, _ = commands.run("refund", paid.id)
    assert code == 0 and "same nonce" in out
    commands.send_legs()
    leg = books.get(name)
    assert leg is not None and leg.state is LegState.SETTLED and commands.run("unknown")[0] == 0


def test_fees_are_listed_by_wallet(commands: MoneyCommands) -> None:
    """Accumulating, owed and paid fees and their legs; refused legs can be retried."""
    commands.ledger_setup.paid(fee=40)
    assert commands.run("fees")[1].split() == [PLATFORM, "gathering", "0.00004", "owed", "0", "paid", "0"]
    commands.ledger_setup.paid(fee=70)
    commands.send_legs()
    first, leg = commands.run("fees")[1].splitlines()
    assert first.endswith("gathering 0  owed 0  paid 0.00011") and "settled  0x" in leg
    commands.ledger_setup.paid(fee=200)
    runner = commands.parts.leg_runner
    assert runner is not None
    (name,) = runner.due(commands.ledger_setup.now())
    commands.parts.leg_books.begin(name, "t")
    commands.parts.leg_books.refused(name, POOR)
    code, out, _ = commands.run("fees", "--retry")
    assert code == 0 and POOR in out and f"fee {PLATFORM} 2 will be retried" in out
    commands.send_legs()
    assert commands.run("fees")[1].splitlines()[0].endswith("gathering 0  owed 0  paid 0.00031")
    assert commands.run("report")[0] == 0


def test_empty_books_are_said_to_be_empty(commands: MoneyCommands) -> None:
    """Without fees and without journal lines the commands say so, and why."""
    code, out, err = commands.run("fees")
    assert (code, out) == (0, "") and "no platform fees" in err
    code, out, err = commands.run("journal")
    assert (code, out) == (0, "") and "nobody has paid" in err
    code, out, err = commands.run("journal", "ex_unknown")
    assert (code, out) == (0, "") and "no execution ex_unknown" in err
    commands.ledger_setup.paid(fee=40)
    assert commands.run("fees")[2] == "" and commands.run("journal")[2] == ""


def test_journal_command_of_one_execution_prints_its_lines_only(commands: MoneyCommands) -> None:
    """Whoever else pays, and also once the record is gone."""
    before, paid, after = (commands.ledger_setup.paid() for _ in range(3))
    lines = [line.decode().split(" ") for line in commands.client.lrange("w:journal", 0, -1)]
    for each in (before, paid, after):
        expected = [line[1] for line in lines if line[2] == each.id]
        _, out, _ = commands.run("journal", each.id)
        assert [line.split("  ")[1] for line in out.splitlines()] == expected
        commands.client.delete(f"w:x:{each.id}")
        assert commands.run("journal", each.id)[1] == out


def test_journal_of_an_execution_is_whole_after_the_clock_was_set_back(commands: MoneyCommands) -> None:
    """Then the journal is not in the order of its times, such as after a fail-over to a slower clock."""
    setup = commands.ledger_setup
    paid = setup.claim()
    setup.client.decrby(setup.keys.test_clock, 600_000_000)
    setup.seal(paid)
    setup.settler.settle(paid.id)
    for _ in range(3):
        setup.paid()
    _, out, _ = commands.run("journal", paid.id)
    facts = [line.split("  ")[1] for line in out.splitlines()]
    assert facts[0] == "claimed" and facts[-1] == "settled"


def test_journal_command_prints_every_line(commands: MoneyCommands) -> None:
    """Every journal line is listed, oldest first, with readable times and amounts."""
    paid = commands.ledger_setup.paid()
    code, out, _ = commands.run("journal")
    facts = [line.split("  ")[1] for line in out.splitlines()]
    assert code == 0 and facts == ["claimed", "verified", "settling", "settle_call", "settled"]
    assert all(line.split("  ")[2] == paid.id and line.split("  ")[4] == "0.01" for line in out.splitlines())


def test_local_worker_is_selected_by_its_state_directory(
    commands: MoneyCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --state the commands use the store, node, facilitator and key of that directory's worker."""
    (tmp_path / "secrets.json").write_text(json.dumps({"WORKER_KEY": KEY}))
    about = {
        "url": "http://127.0.0.1:8000",
        "redis": commands.parts.settings.redis_url,
        "rpc": commands.chain.url,
        "facilitator": commands.parts.settings.facilitator_url,
        "network": "eip155:84532",
        "worker_wallet": WORKER,
        "kernel_token": "k" * 32,
    }
    (tmp_path / "local.json").write_text(json.dumps(about))
    paid = commands.unknown(moved=True)
    for name in ("REDIS_URL", "WORKER_KEY", "RPC_URL", "FACILITATOR_URL"):
        monkeypatch.delenv(name)
    transaction = commands.transaction(paid)
    code, _, err = commands.run("resolve", paid.id, "1", "--settled", transaction, "--state", str(tmp_path))
    assert code == 0, err
    assert commands.run("report", "--state", str(tmp_path / "elsewhere"))[0] == 2


def test_found_money_is_listed_and_decided_about(commands: MoneyCommands) -> None:
    """`money found` lists unexplained money and exits 1 until all of it is decided."""
    payer = fresh(commands.chain, dollars=5_000, gas=True)
    data = calldata("transfer(address,uint256)", WORKER, 5_000)
    transaction = commands.chain.send(payer, DOLLAR, data)
    commands.chain("test_mine")
    comparison = commands.parts.comparison
    eventually(lambda: comparison.run() or commands.parts.found.listed(), 30, "a comparison")
    code, listed, _ = commands.run("found")
    assert code == 1 and transaction in listed and "0.005" in listed and listed.rstrip().endswith("listed")
    assert commands.run("unknown")[0] == 1
    assert commands.run("found", transaction)[1] in listed
    assert commands.run("found", transaction, "--bind", "nothing")[0] != 0
    assert commands.run("found", "--refund")[0] != 0
    code, printed, _ = commands.run("found", transaction, "--refund")
    assert code == 0 and printed.startswith("0.005 USDC refund to 0x")
    for line in commands.run("found")[1].splitlines():
        if line.endswith("listed"):  # what other tests have sent on the same chain
            assert commands.run("found", line.split()[1], "--dismiss")[:2] == (0, "dismissed\n")
    code, listed, _ = commands.run("found")
    assert code == 0 and f"{transaction} 0" in listed and "refund " in listed
    assert commands.run("report")[0] == 0

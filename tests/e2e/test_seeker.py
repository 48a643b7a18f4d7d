"""The seeker against a real `worker local`, through a proxy that loses and changes things on the way.

What counts is the chain: every test ends by looking at what the seeker's wallet really lost.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.proxy import CUT, SWALLOW, Proxy
from tests.e2e.tree import PYTHON, ROOT, Local
from worker.local.demo import Balances, balance, balances, by_hand
from worker.local.valkey import free_port
from worker.payments.headers import decode, encode
from worker.payments.networks import BASE
from worker.seeker import Drawer, Limits, Order, Seeker, Wallet, pay
from worker.seeker.problems import OfferRefused, PaymentUnknown, SpendCapReached

HERE = Path(__file__).parent
BRIEF = {"brief": "A logo for Acme"}
LOGO = 500_000


@dataclass
class Stage:
    """A worker on this machine, a proxy before it, and a seeker's wallet with test dollars."""

    local: Local
    proxy: Proxy
    home: Path

    @property
    def facts(self) -> dict[str, Any]:
        return self.local.facts

    def seeker(self, name: str = "drawer", **limits: Any) -> Seeker:
        given = Limits(**{"most": 1_000_000, "patience_s": 30.0, **limits})
        return Seeker(Wallet(self.facts["seeker_key"]), Drawer(self.home / name), given)

    def balances(self) -> Balances:
        return balances(self.facts)

    def command(self, *more: str, capability: str = "logo-design", given: Any = None) -> list[str]:
        told = json.dumps(BRIEF if given is None else given)
        keep, out = str(self.home / "drawer"), str(self.home / "out")
        options = ["--input", told, "--keep", keep, "--out", out, *more]
        return [*PYTHON, "worker", "hire", self.proxy.url, capability, *options]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SEEKER_KEY": self.facts["seeker_key"], "PYTHONPATH": str(ROOT)}

    def hire(self, *more: str, **given: Any) -> subprocess.CompletedProcess[str]:
        """`worker hire` from the shell."""
        command = self.command(*more, **given)
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=90)


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Local, Proxy]]:
    """One worker for the module. Its address is the proxy's."""
    port = free_port()
    proxy = Proxy(port)
    settings = {
        "PUBLIC_URL": proxy.url,
        "WORKER_AGENTS": "worker.agents.shipped,agents_for_hire",
        "INLINE_BUDGET": "3s",
        "FACILITATOR_URL": "",
    }
    local = Local(tmp_path_factory.mktemp("seeker"), **settings)
    local.port = port
    try:
        local.start()
        yield local, proxy
    finally:
        local.close()
        proxy.close()


@pytest.fixture(name="stage")
def _stage(tree: tuple[Local, Proxy], tmp_path: Path) -> Stage:
    local, proxy = tree
    proxy.reset()
    return Stage(local, proxy, tmp_path)


def test_the_command_hires_pays_and_saves(stage: Stage) -> None:
    """`worker hire` ends with three proven files, a receipt, exactly the price gone, and no key in sight."""
    before = stage.balances()
    done = stage.hire("--max", "0.50")
    assert done.returncode == 0, done.stderr
    after = stage.balances()
    assert (before.seeker - after.seeker, after.worker - before.worker) == (LOGO, LOGO)
    assert sorted(path.name for path in (stage.home / "out").iterdir()) == [
        "hire-receipt.json",
        "logo_v1.svg",
        "logo_v2.svg",
        "logo_v3.svg",
    ]
    receipt = json.loads((stage.home / "out" / "hire-receipt.json").read_text())
    assert receipt["payment"]["success"] is True
    assert len(receipt["deliverables"]) == 3
    assert "both have signed" in done.stderr and "receipt, signed by the worker's wallet" in done.stderr
    shown = done.stdout + done.stderr + json.dumps(receipt)
    assert stage.facts["seeker_key"][2:] not in shown
    [kept] = (stage.home / "drawer").glob("*.json")
    assert json.loads(kept.read_text())["contract"]["contract_id"] not in shown


def test_a_cap_below_the_price_buys_nothing(stage: Stage) -> None:
    """The exit code says so, and nothing moves."""
    before = stage.balances()
    done = stage.hire("--max", "0.499999")
    assert done.returncode == 1
    assert "SPEND_CAP_REACHED" in done.stderr
    assert stage.proxy.payments == []
    assert stage.balances() == before


Change = Callable[[dict[str, Any]], None]


def _set(name: str, value: Any) -> Change:
    return lambda asked: asked["accepts"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_set("amount", "500001"), "amount"),
        (_set("payTo", "0x" + "66" * 20), "payTo"),
        (_set("asset", "0x" + "66" * 20), "asset"),
        (_set("network", BASE.caip2), "network"),
        (_set("maxTimeoutSeconds", 10_000_000), "maxTimeoutSeconds"),
        (lambda asked: asked["resource"].update(url="https://elsewhere.example/execute"), "resource.url"),
    ],
)
def test_a_402_changed_on_the_way_is_not_paid(stage: Stage, change: Change, field: str) -> None:
    """Whoever stands between can change the offer, but gets no signature for it."""

    def rewrite(head: bytes, answer: bytes) -> bytes:
        found = re.search(rb"PAYMENT-REQUIRED: ([^\r]+)", answer)
        if found is None:
            return answer
        asked = decode(found[1].decode(), "PAYMENT-REQUIRED")
        change(asked)
        return answer.replace(found[1], encode(asked).encode())

    before = stage.balances()
    stage.proxy.rewrite = rewrite
    with pytest.raises(OfferRefused) as raised:
        stage.seeker().hire(stage.proxy.url, Order("logo-design"), BRIEF)
    assert raised.value.details["field"] == field
    assert stage.proxy.payments == []
    assert not list((stage.home / "drawer").glob("*.json"))
    assert stage.balances() == before


def test_a_connection_lost_right_after_paying_costs_once(stage: Stage) -> None:
    """The answer to the payment is lost three times: the identical payment goes out again, charged once."""
    before = stage.balances()
    stage.proxy.on_payment = [CUT, CUT, CUT]
    result = stage.seeker().hire(stage.proxy.url, Order("logo-design"), BRIEF)
    assert result.doubt is None
    assert len(stage.proxy.payments) >= 4
    assert len(set(stage.proxy.payments)) == 1
    assert before.seeker - stage.balances().seeker == LOGO


def test_a_killed_client_gets_its_result_without_paying(stage: Stage) -> None:
    """kill -9 while the payment is out: the same command later sends the same payment and gets the files."""
    before = stage.balances()
    stage.proxy.on_payment = [SWALLOW]
    killed = subprocess.Popen(stage.command(), env=stage.environ, stderr=subprocess.DEVNULL)
    assert stage.proxy.seen_payment.wait(30)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    again = stage.hire()
    assert again.returncode == 0, again.stderr
    assert "going on with it" in again.stderr
    assert len(stage.proxy.payments) == 2
    assert len(set(stage.proxy.payments)) == 1
    assert len([head for head in stage.proxy.requests if head.startswith(b"POST /contracts")]) == 1
    assert (stage.home / "out" / "logo_v3.svg").exists()
    assert before.seeker - stage.balances().seeker == LOGO
    third = stage.hire("--max", "0.50")
    assert third.returncode == 0, third.stderr
    assert before.seeker - stage.balances().seeker == 2 * LOGO, "a finished hire is not gone on with"


def test_a_byte_changed_on_the_way_is_noticed(stage: Stage) -> None:
    """A spoiled file is not saved; the same command fetches it again later and pays nothing."""

    def flip(head: bytes, answer: bytes) -> bytes:
        if b"/logo_v2.svg" not in head:
            return answer
        return answer[:-1] + bytes([answer[-1] ^ 1])

    before = stage.balances()
    stage.proxy.rewrite = flip
    spoiled = stage.hire()
    assert spoiled.returncode == 1
    assert "CHECKSUM_MISMATCH" in spoiled.stderr
    assert sorted(path.name for path in (stage.home / "out").iterdir()) == ["logo_v1.svg", "logo_v3.svg"]
    stage.proxy.rewrite = None
    again = stage.hire()
    assert again.returncode == 0, again.stderr
    assert (stage.home / "out" / "logo_v2.svg").exists()
    assert before.seeker - stage.balances().seeker == LOGO


def test_slow_work_is_watched_while_it_goes_on(stage: Stage) -> None:
    """Progress is shown from the stream, the JSON result is printed, and money was taken before the work."""
    before = stage.balances()
    done = stage.hire("--settlement", "before_work", capability="slow", given={})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"steps": 4}
    assert "step 3" in done.stderr
    assert before.seeker - stage.balances().seeker == 200_000
    assert any(head.startswith(b"GET /stream/") for head in stage.proxy.requests)


def test_slow_work_is_polled_at_the_workers_pace(stage: Stage) -> None:
    """Without the stream a few polls see the work to its end, and it costs once."""
    before = stage.balances()
    result = stage.seeker().hire(stage.proxy.url, Order("slow"), {})
    assert result.body["output"]["content"] == {"steps": 4}
    polls = [head for head in stage.proxy.requests if head.startswith(b"GET /tasks/")]
    assert 1 <= len(polls) <= 8
    assert before.seeker - stage.balances().seeker == 200_000


def test_free_attempts_are_taken_and_cost_once(stage: Stage) -> None:
    """Two passing failures are answered with the same payment; the third attempt is what is paid for."""
    before = stage.balances()
    given = {"name": stage.home.name}
    result = stage.seeker().hire(stage.proxy.url, Order("stumble"), given)
    assert result.body["output"]["content"] == {"tries": 3}
    assert len(set(stage.proxy.payments)) == 1
    assert before.seeker - stage.balances().seeker == 100_000


def test_invalid_input_is_told_before_it_costs(stage: Stage) -> None:
    """The worker's own words come to the shell, and nothing is signed."""
    before = stage.balances()
    done = stage.hire(given={"brief": "A logo", "colors": "red"})
    assert done.returncode == 1
    assert "INVALID_INPUT" in done.stderr and "field: colors" in done.stderr
    assert stage.proxy.payments == []
    assert stage.balances() == before


def test_an_input_that_the_agent_refuses_is_corrected_on_the_same_payment(stage: Stage) -> None:
    """The command says so, and the next run with another input signs neither contract nor payment anew."""
    before = stage.balances()
    done = stage.hire(capability="picky", given={"word": "now"})
    assert done.returncode == 1 and "INVALID_INPUT" in done.stderr and "same contract" in done.stderr
    assert stage.balances() == before
    done = stage.hire(capability="picky", given={"word": "please"})
    assert done.returncode == 0, done.stderr
    assert "under its contract" in done.stderr and '{"said":"please"}' in done.stdout.replace(" ", "")
    assert len(set(stage.proxy.payments)) == 1
    drafts = [head for head in stage.proxy.requests if head.startswith(b"POST /contracts")]
    assert len(drafts) == 1
    assert before.seeker - stage.balances().seeker == 100_000


def test_contracts_are_made_by_hand_and_handed_in(stage: Stage) -> None:
    """draft, the worker's signature over HTTP, sign, verify, import and show from the shell."""

    def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        found = [*PYTHON, "worker", "contract", *command]
        return subprocess.run(
            found, env=stage.environ, cwd=ROOT, capture_output=True, text=True, timeout=60, **more
        )

    file = str(stage.home / "contract.json")
    drafted = run("draft", stage.proxy.url, "logo-design", "--deadline", "1h", "--price", "0.75")
    assert drafted.returncode == 0, drafted.stderr
    link = stage.local.request("POST", "/contracts", json.loads(drafted.stdout))
    assert link.status == 201
    signed = run("sign", "-", "--out", file, input=json.dumps(link.body))
    assert signed.returncode == 0, signed.stderr
    assert run("verify", file).returncode == 0
    state = ["--state", str(stage.local.state)]
    early = run("show", file, *state)
    assert early.returncode == 1 and "CONTRACT_NOT_SIGNED" in early.stderr
    imported = run("import", file, *state)
    assert imported.returncode == 0, imported.stderr
    contract = json.loads(Path(file).read_text())
    assert contract["contract_id"] not in imported.stdout
    assert json.loads(run("show", file, *state).stdout)["state"] == "SIGNED"
    before = stage.balances()
    assert stage.seeker().execute(stage.proxy.url, contract, BRIEF).doubt is None
    assert json.loads(run("show", file, *state).stdout)["state"] == "COMPLETED"
    assert before.seeker - stage.balances().seeker == 750_000


def test_the_printed_lines_work_when_they_are_pasted(stage: Stage) -> None:
    """What the demo prints, run by a shell in an empty directory, hires the agent for its price."""
    facts = {**stage.facts, "url": stage.proxy.url}
    lines = [line.strip() for line in by_hand(facts, stage.local.state) if line.startswith("  ")]
    assert len([line for line in lines if line.startswith("curl")]) == 4
    before = stage.balances()
    work = stage.home / "empty"
    work.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(stage.home)}
    pasted = "set -e\n" + "\n".join(lines[:-1])
    shown = subprocess.run(
        ["bash", "-c", pasted], cwd=work, env=environ, capture_output=True, text=True, timeout=90
    )
    assert shown.returncode == 0, shown.stderr
    last = shown.stdout.strip().splitlines()[-1]
    assert json.loads(last)["status"] == "completed", last
    assert before.seeker - stage.balances().seeker == LOGO
    one_line = subprocess.run(
        ["bash", "-c", lines[-1]], cwd=work, env=environ, capture_output=True, text=True, timeout=90
    )
    assert one_line.returncode == 0, one_line.stderr
    assert before.seeker - stage.balances().seeker == 2 * LOGO


# any x402 resource


@dataclass
class Shop:
    url: str
    proxy: Proxy
    payee: str


@pytest.fixture(name="shop", scope="module")
def _shop(tree: tuple[Local, Proxy]) -> Iterator[Shop]:
    """The official middleware, settling with our facilitator, behind a proxy of its own."""
    local, _ = tree
    payee = "0x" + "77" * 20
    command = [sys.executable, str(HERE / "shop.py"), local.facts["facilitator"], payee]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        proxy = Proxy(int(process.stdout.readline()))
        yield Shop(proxy.url, proxy, payee)
        proxy.close()
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(name="received")
def _received(stage: Stage, shop: Shop) -> Callable[[], int]:
    """What the shop has got since the test began."""
    facts = stage.facts
    shop.proxy.reset()
    before = balance(facts["rpc"], facts["asset"], shop.payee)
    return lambda: balance(facts["rpc"], facts["asset"], shop.payee) - before


def test_a_stock_resource_is_paid(stage: Stage, shop: Shop, received: Callable[[], int]) -> None:
    """GET and POST on the official Flask middleware are paid with one authorization each."""
    seeker = stage.seeker()
    weather = pay(seeker, f"{shop.url}/weather")
    assert (weather.answer.status, weather.amount) == (200, 30_000)
    assert json.loads(weather.answer.body) == {"sky": "blue"}
    assert re.fullmatch("0x[0-9a-f]{64}", weather.transaction)
    echo = pay(seeker, f"{shop.url}/echo", method="POST", body="hello")
    assert json.loads(echo.answer.body) == {"said": "hello"}
    assert received() == 60_000


def test_a_stock_resource_that_loses_its_answer_is_not_paid_twice(
    stage: Stage, shop: Shop, received: Callable[[], int]
) -> None:
    """The middleware forgets what it sold; the seeker tells of an unknown payment and signs no other."""
    shop.proxy.on_payment = [CUT]
    for _ in range(2):
        with pytest.raises(PaymentUnknown):
            pay(stage.seeker(patience_s=5.0), f"{shop.url}/weather")
    assert len(set(shop.proxy.payments)) == 1
    assert received() <= 30_000


def test_a_stock_resource_above_the_cap_is_left(
    stage: Stage, shop: Shop, received: Callable[[], int]
) -> None:
    """Three cents are not paid where two are allowed."""
    with pytest.raises(SpendCapReached):
        pay(stage.seeker(most=20_000), f"{shop.url}/weather")
    assert received() == 0
    assert shop.proxy.payments == []

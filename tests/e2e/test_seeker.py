"""The seeker against a real `worker local`, through a proxy that drops and changes messages.

Each test ends by checking on the chain what the seeker's wallet has spent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.proxy import CUT, SWALLOW, Proxy
from tests.e2e.tree import PYTHON, ROOT, Local
from worker.local.demo import Balances, balance, balances, by_hand
from worker.local.valkey import free_port
from worker.seeker import Order, PurchaseStore, Purse, Seeker, SpendLimits, Wallet, pay
from worker.seeker.problems import AlreadyBought, OfferRefused, PaymentUnknown, SpendCapReached
from worker.x402.headers import decode, encode
from worker.x402.networks import BASE

HERE = Path(__file__).parent
BRIEF = {"brief": "A logo for Acme"}
LOGO = 500_000


@dataclass
class SeekerSetup:
    """A local worker, a proxy in front of it, and a seeker's wallet with test dollars."""

    local: Local
    proxy: Proxy
    home: Path

    @property
    def facts(self) -> dict[str, Any]:
        return self.local.facts

    def seeker(self, name: str = "purchases", **limits: Any) -> Seeker:
        spend_limits = SpendLimits(**{"most": 1_000_000, "patience_s": 30.0, **limits})
        return Seeker(Wallet(self.facts["seeker_key"]), PurchaseStore(self.home / name), spend_limits)

    def balances(self) -> Balances:
        return balances(self.facts)

    def command(self, *more: str, capability: str = "logo-design", input: Any = None) -> list[str]:
        input_json = json.dumps(BRIEF if input is None else input)
        keep, out = str(self.home / "purchases"), str(self.home / "out")
        options = ["--input", input_json, "--keep", keep, "--out", out, *more]
        return [*PYTHON, "worker", "hire", self.proxy.url, capability, *options]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SEEKER_KEY": self.facts["seeker_key"], "PYTHONPATH": str(ROOT)}

    def hire(self, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs `worker hire` from the shell."""
        command = self.command(*more, **options)
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=90)


@pytest.fixture(name="tree", scope="module")
def _tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Local, Proxy]]:
    """One worker for the module. Its public address is the proxy's."""
    port = free_port()
    proxy = Proxy(port)
    settings = {
        "PUBLIC_URL": proxy.url,
        "WORKER_AGENTS": "worker.shipped,seeker_agents",
        "INLINE_BUDGET": "3s",
        "FACILITATOR_URL": "",
    }
    home = tmp_path_factory.mktemp("seeker")
    config = home / "worker.toml"
    config.write_text('[capability.absent-agent]\nremote = true\nprice = "0.50"\n')
    local = Local(home, WORKER_CONFIG=str(config), **settings)
    local.port = port
    try:
        local.start()
        yield local, proxy
    finally:
        local.close()
        proxy.close()


@pytest.fixture(name="setup")
def _setup(tree: tuple[Local, Proxy], tmp_path: Path) -> SeekerSetup:
    local, proxy = tree
    proxy.reset()
    return SeekerSetup(local, proxy, tmp_path)


def test_hire_pays_and_saves_the_deliverables(setup: SeekerSetup) -> None:
    """`worker hire` ends with three verified files, a receipt, the exact price spent and no key printed."""
    before = setup.balances()
    done = setup.hire("--max", "0.50")
    assert done.returncode == 0, done.stderr
    after = setup.balances()
    assert (before.seeker - after.seeker, after.worker - before.worker) == (LOGO, LOGO)
    assert sorted(path.name for path in (setup.home / "out").iterdir()) == [
        "hire-receipt.json",
        "logo_v1.svg",
        "logo_v2.svg",
        "logo_v3.svg",
    ]
    receipt = json.loads((setup.home / "out" / "hire-receipt.json").read_text())
    assert receipt["payment"]["success"] is True
    assert len(receipt["deliverables"]) == 3
    assert "both have signed" in done.stderr and "receipt, signed by the worker's wallet" in done.stderr
    shown = done.stdout + done.stderr + json.dumps(receipt)
    assert setup.facts["seeker_key"][2:] not in shown
    [purchase_file] = (setup.home / "purchases").glob("*.json")
    assert json.loads(purchase_file.read_text())["contract"]["contract_id"] not in shown


def test_json_is_one_document_for_the_result_and_for_the_error(setup: SeekerSetup) -> None:
    """Standard output alone can be parsed: what was delivered and paid, or the error."""
    done = setup.hire("--max", "0.50", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["receipt_proven"]) == ("completed", True)
    assert result["price"]["amount"] == "0.50" and result["transaction"].startswith("0x")
    saved = {each["name"]: Path(each["path"]) for each in result["deliverables"]}
    assert len(saved) == 3 and all(path.stat().st_size for path in saved.values())
    assert Path(result["receipt"]).is_file()
    assert "ctr_" not in done.stdout and "http" not in done.stdout
    refused = setup.hire("--max", "0.10", "--json", "--new")
    assert refused.returncode == 1
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "SPEND_CAP_REACHED" and error["advice"]


def test_busy_worker_says_why(setup: SeekerSetup) -> None:
    """While the hire retries, it reports that the capability's agent is not connected."""
    with subprocess.Popen(
        setup.command("--max", "1.00", capability="absent-agent", input={}),
        env=setup.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as hire:
        assert hire.stderr is not None
        lines = []
        for line in hire.stderr:
            lines.append(line)
            if "no agent is connected" in line:
                break
        hire.terminate()
    assert "asking again in 15 s" in lines[-1], lines


def test_price_above_the_cap_is_not_paid(setup: SeekerSetup) -> None:
    """The exit code reports it, and no money moves."""
    before = setup.balances()
    done = setup.hire("--max", "0.499999")
    assert done.returncode == 1
    assert "SPEND_CAP_REACHED" in done.stderr
    assert setup.proxy.payments == []
    assert setup.balances() == before


@pytest.mark.parametrize("place", ["/proc/none/here", "a-file/below"])
def test_unusable_output_directory_is_refused_before_signing(setup: SeekerSetup, place: str) -> None:
    """The error names `--out`; no contract is drafted, and nothing is paid."""
    (setup.home / "a-file").write_text("")
    before = setup.balances()
    done = setup.hire("--out", str(setup.home / place))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "field: --out" in done.stderr and "Nothing was signed" in done.stderr
    assert setup.proxy.payments == []
    assert not any(head.startswith(b"POST /contracts") for head in setup.proxy.requests)
    assert setup.balances() == before


def test_disk_error_after_payment_costs_nothing_more(setup: SeekerSetup) -> None:
    """The obstacle is reported without a traceback; the next run fetches the files and pays nothing."""
    before = setup.balances()
    (setup.home / "out" / "logo_v1.svg").mkdir(parents=True)
    done = setup.hire()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "NOT_SAVED" in done.stderr and "The work is paid" in done.stderr
    done = setup.hire("--out", str(setup.home / "other"))
    assert done.returncode == 0, done.stderr
    assert (setup.home / "other" / "logo_v1.svg").exists()
    assert before.seeker - setup.balances().seeker == LOGO


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
def test_tampered_402_is_not_paid(setup: SeekerSetup, change: Change, field: str) -> None:
    """A 402 changed in transit is not signed."""

    def rewrite(head: bytes, answer: bytes) -> bytes:
        found = re.search(rb"PAYMENT-REQUIRED: ([^\r]+)", answer)
        if found is None:
            return answer
        asked = decode(found[1].decode(), "PAYMENT-REQUIRED")
        change(asked)
        return answer.replace(found[1], encode(asked).encode())

    before = setup.balances()
    setup.proxy.rewrite = rewrite
    with pytest.raises(OfferRefused) as raised:
        setup.seeker().hire(setup.proxy.url, Order("logo-design"), BRIEF)
    assert raised.value.details["field"] == field
    assert setup.proxy.payments == []
    assert not list((setup.home / "purchases").glob("*.json"))
    assert setup.balances() == before


def test_lost_responses_after_paying_charge_once(setup: SeekerSetup) -> None:
    """The response to the payment is lost three times: the same payment is resent and charged once."""
    before = setup.balances()
    setup.proxy.on_payment = [CUT, CUT, CUT]
    result = setup.seeker().hire(setup.proxy.url, Order("logo-design"), BRIEF)
    assert result.doubt is None
    assert len(setup.proxy.payments) >= 4
    assert len(set(setup.proxy.payments)) == 1
    assert before.seeker - setup.balances().seeker == LOGO


def test_killed_client_resumes_without_paying_again(setup: SeekerSetup) -> None:
    """kill -9 while the payment is in flight: rerunning the command resends it and gets the files."""
    before = setup.balances()
    setup.proxy.on_payment = [SWALLOW]
    killed = subprocess.Popen(setup.command(), env=setup.environ, stderr=subprocess.DEVNULL)
    assert setup.proxy.seen_payment.wait(30)
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    again = setup.hire()
    assert again.returncode == 0, again.stderr
    assert "continuing it" in again.stderr
    assert len(setup.proxy.payments) == 2
    assert len(set(setup.proxy.payments)) == 1
    assert len([head for head in setup.proxy.requests if head.startswith(b"POST /contracts")]) == 1
    assert (setup.home / "out" / "logo_v3.svg").exists()
    assert before.seeker - setup.balances().seeker == LOGO
    third = setup.hire("--max", "0.50")
    assert third.returncode == 0, third.stderr
    assert before.seeker - setup.balances().seeker == 2 * LOGO, "a finished hire is not gone on with"


def test_corrupted_download_is_refused_and_fetched_again(setup: SeekerSetup) -> None:
    """A corrupted file is not saved; the same command later fetches it again and pays nothing."""

    def flip(head: bytes, answer: bytes) -> bytes:
        if b"/logo_v2.svg" not in head:
            return answer
        return answer[:-1] + bytes([answer[-1] ^ 1])

    before = setup.balances()
    setup.proxy.rewrite = flip
    spoiled = setup.hire()
    assert spoiled.returncode == 1
    assert "CHECKSUM_MISMATCH" in spoiled.stderr
    assert sorted(path.name for path in (setup.home / "out").iterdir()) == ["logo_v1.svg", "logo_v3.svg"]
    setup.proxy.rewrite = None
    again = setup.hire()
    assert again.returncode == 0, again.stderr
    assert (setup.home / "out" / "logo_v2.svg").exists()
    assert before.seeker - setup.balances().seeker == LOGO


def test_slow_prepaid_work_shows_progress(setup: SeekerSetup) -> None:
    """Progress is shown from the stream, the JSON result is printed, and payment settled before the work."""
    before = setup.balances()
    done = setup.hire("--settlement", "before_work", capability="slow", input={})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"steps": 4}
    assert "step 3" in done.stderr
    assert before.seeker - setup.balances().seeker == 200_000
    assert any(head.startswith(b"GET /stream/") for head in setup.proxy.requests)


def test_paid_stream_is_printed_once_as_it_arrives(setup: SeekerSetup) -> None:
    """The draft says when the stream is paid for, so its lines arrive one by one, each once."""
    before = setup.balances()
    process = subprocess.Popen(
        setup.command(capability="tale", input={}),
        env=setup.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    came = [(line, time.monotonic()) for line in process.stdout]
    printed = process.stderr.read()
    assert process.wait(60) == 0, printed
    assert [line for line, _ in came] == [f"line {number}\n" for number in range(6)]
    assert came[-1][1] - came[0][1] > 1.5, "the lines came together at the end"
    assert "line 0" not in printed and "paid before the work" in printed
    assert before.seeker - setup.balances().seeker == 100_000
    assert (setup.home / "out" / "output.txt").read_text() == "".join(line for line, _ in came)


def test_slow_work_is_polled_at_the_workers_interval(setup: SeekerSetup) -> None:
    """Without the stream a few polls follow the work to its end, and it is charged once."""
    before = setup.balances()
    result = setup.seeker().hire(setup.proxy.url, Order("slow"), {})
    assert result.body["output"]["content"] == {"steps": 4}
    polls = [head for head in setup.proxy.requests if head.startswith(b"GET /tasks/")]
    assert 1 <= len(polls) <= 8
    assert before.seeker - setup.balances().seeker == 200_000


def test_free_retries_reuse_one_payment(setup: SeekerSetup) -> None:
    """Two transient failures are retried with the same payment; the third attempt is charged."""
    before = setup.balances()
    input = {"name": setup.home.name}
    result = setup.seeker().hire(setup.proxy.url, Order("stumble"), input)
    assert result.body["output"]["content"] == {"tries": 3}
    assert len(set(setup.proxy.payments)) == 1
    assert before.seeker - setup.balances().seeker == 100_000


def test_invalid_input_is_reported_before_payment(setup: SeekerSetup) -> None:
    """The worker's own message reaches the shell, and nothing is signed."""
    before = setup.balances()
    done = setup.hire(input={"brief": "A logo", "colors": "red"})
    assert done.returncode == 1
    assert "INVALID_INPUT" in done.stderr and "field: colors" in done.stderr
    assert setup.proxy.payments == []
    assert setup.balances() == before


def test_refused_input_is_corrected_on_the_same_payment(setup: SeekerSetup) -> None:
    """The command says so, and the next run with other input signs no new contract or payment."""
    before = setup.balances()
    done = setup.hire(capability="picky", input={"word": "now"})
    assert done.returncode == 1 and "INVALID_INPUT" in done.stderr and "same contract" in done.stderr
    assert setup.balances() == before
    done = setup.hire(capability="picky", input={"word": "please"})
    assert done.returncode == 0, done.stderr
    assert "under its contract" in done.stderr and '{"said":"please"}' in done.stdout.replace(" ", "")
    assert len(set(setup.proxy.payments)) == 1
    drafts = [head for head in setup.proxy.requests if head.startswith(b"POST /contracts")]
    assert len(drafts) == 1
    assert before.seeker - setup.balances().seeker == 100_000


def test_contract_commands_sign_and_import_by_hand(setup: SeekerSetup) -> None:
    """draft, the worker's signature over HTTP, sign, verify, import and show from the shell."""

    def run(*command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        found = [*PYTHON, "worker", "contract", *command]
        return subprocess.run(
            found, env=setup.environ, cwd=ROOT, capture_output=True, text=True, timeout=60, **more
        )

    file = str(setup.home / "contract.json")
    drafted = run("draft", setup.proxy.url, "logo-design", "--deadline", "1h", "--price", "0.75")
    assert drafted.returncode == 0, drafted.stderr
    link = setup.local.request("POST", "/contracts", json.loads(drafted.stdout))
    assert link.status == 201
    signed = run("sign", "-", "--out", file, input=json.dumps(link.body))
    assert signed.returncode == 0, signed.stderr
    assert run("verify", file).returncode == 0
    state = ["--state", str(setup.local.state)]
    early = run("show", file, *state)
    assert early.returncode == 1 and "CONTRACT_NOT_SIGNED" in early.stderr
    imported = run("import", file, *state)
    assert imported.returncode == 0, imported.stderr
    contract = json.loads(Path(file).read_text())
    assert contract["contract_id"] not in imported.stdout
    assert json.loads(run("show", file, *state).stdout)["state"] == "SIGNED"
    before = setup.balances()
    assert setup.seeker().execute(setup.proxy.url, contract, BRIEF).doubt is None
    assert json.loads(run("show", file, *state).stdout)["state"] == "COMPLETED"
    assert before.seeker - setup.balances().seeker == 750_000


def test_printed_commands_work_when_pasted(setup: SeekerSetup) -> None:
    """The commands that the demo prints, run in an empty directory, hire the agent for its price."""
    facts = {**setup.facts, "url": setup.proxy.url}
    lines = [line.strip() for line in by_hand(facts, setup.local.state) if line.startswith("  ")]
    assert len([line for line in lines if line.startswith("curl")]) == 4
    before = setup.balances()
    work = setup.home / "empty"
    work.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(setup.home)}
    pasted = "set -e\n" + "\n".join(lines[:-1])
    shown = subprocess.run(
        ["bash", "-c", pasted], cwd=work, env=environ, capture_output=True, text=True, timeout=90
    )
    assert shown.returncode == 0, shown.stderr
    last = shown.stdout.strip().splitlines()[-1]
    assert json.loads(last)["status"] == "completed", last
    assert before.seeker - setup.balances().seeker == LOGO
    one_line = subprocess.run(
        ["bash", "-c", lines[-1]], cwd=work, env=environ, capture_output=True, text=True, timeout=90
    )
    assert one_line.returncode == 0, one_line.stderr
    assert before.seeker - setup.balances().seeker == 2 * LOGO


# Any x402 resource


@dataclass
class PaidResource:
    url: str
    proxy: Proxy
    payee: str


@pytest.fixture(name="resource", scope="module")
def _resource(tree: tuple[Local, Proxy]) -> Iterator[PaidResource]:
    """The official middleware, settling through our facilitator, behind its own proxy."""
    local, _ = tree
    payee = "0x" + "77" * 20
    command = [sys.executable, str(HERE / "paid_resource.py"), local.facts["facilitator"], payee]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        proxy = Proxy(int(process.stdout.readline()))
        yield PaidResource(proxy.url, proxy, payee)
        proxy.close()
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(name="received")
def _received(setup: SeekerSetup, resource: PaidResource) -> Callable[[], int]:
    """Returns what the resource's payee has received since the test began."""
    facts = setup.facts
    resource.proxy.reset()
    before = balance(facts["rpc"], facts["asset"], resource.payee)
    return lambda: balance(facts["rpc"], facts["asset"], resource.payee) - before


def test_hire_buys_plainly_from_any_x402_seller(
    setup: SeekerSetup, resource: PaidResource, received: Callable[[], int]
) -> None:
    """Without a manifest `worker hire` pays the address itself; so do --plain and, for a GET, --get."""
    options = ["--keep", str(setup.home / "purchases"), "--input", '{"a":1}']
    for number, (path, *more) in enumerate((("/echo",), ("/echo", "--plain"), ("/weather", "--get"))):
        out = setup.home / f"out-{number}"
        command = [*PYTHON, "worker", "hire", resource.url + path, *options, "--out", str(out), *more]
        done = subprocess.run(command, env=setup.environ, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == ({"sky": "blue"} if "--get" in more else {"said": '{"a":1}'})
        assert json.loads((out / "hire-receipt.json").read_text())["payment"]["success"] is True
        assert received() == 30_000 * (number + 1)


def test_hire_names_what_a_worker_sells_instead_of_guessing(setup: SeekerSetup) -> None:
    """A worker's own address is no resource: without CAPABILITY the manifest's names are listed."""
    command = [*PYTHON, "worker", "hire", setup.proxy.url, "--keep", str(setup.home / "purchases")]
    done = subprocess.run(command, env=setup.environ, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1 and "logo-design" in done.stderr


def test_purse_never_pays_twice_for_a_key(
    setup: SeekerSetup, resource: PaidResource, received: Callable[[], int]
) -> None:
    """Against a seller that keeps no records, a second call with the same key moves no money."""
    purse = Purse(Wallet(setup.facts["seeker_key"]), keep=setup.home / "purse", day="0.05")
    assert purse.buy(f"{resource.url}/echo", {"a": 1}, key="one").transaction
    with pytest.raises(AlreadyBought):
        purse.buy(f"{resource.url}/echo", {"a": 1}, key="one")
    with pytest.raises(SpendCapReached):
        purse.buy(f"{resource.url}/echo", {"a": 1}, key="two")
    assert received() == 30_000


def test_x402_resource_is_paid(
    setup: SeekerSetup, resource: PaidResource, received: Callable[[], int]
) -> None:
    """GET and POST on the official Flask middleware are paid with one authorization each."""
    seeker = setup.seeker()
    weather = pay(seeker, f"{resource.url}/weather")
    assert (weather.answer.status, weather.amount) == (200, 30_000)
    assert json.loads(weather.answer.body) == {"sky": "blue"}
    assert re.fullmatch("0x[0-9a-f]{64}", weather.transaction)
    echo = pay(seeker, f"{resource.url}/echo", method="POST", body="hello")
    assert json.loads(echo.answer.body) == {"said": "hello"}
    assert received() == 60_000


def test_x402_resource_with_a_lost_response_is_not_paid_twice(
    setup: SeekerSetup, resource: PaidResource, received: Callable[[], int]
) -> None:
    """The middleware forgets the sale; the seeker reports an unknown payment and signs no other."""
    resource.proxy.on_payment = [CUT]
    for _ in range(2):
        with pytest.raises(PaymentUnknown):
            pay(setup.seeker(patience_s=5.0), f"{resource.url}/weather")
    assert len(set(resource.proxy.payments)) == 1
    assert received() <= 30_000


def test_x402_resource_above_the_cap_is_not_paid(
    setup: SeekerSetup, resource: PaidResource, received: Callable[[], int]
) -> None:
    """Three cents are not paid where the cap is two."""
    with pytest.raises(SpendCapReached):
        pay(setup.seeker(most=20_000), f"{resource.url}/weather")
    assert received() == 0
    assert resource.proxy.payments == []

"""`worker local --prove`: hires and pays the worker like any client, and prints every step."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError

from worker.core.amounts import to_atomic, to_text
from worker.core.errors import Problem
from worker.seeker import Listener, Order, PurchaseStore, Result, Saved, Seeker, SpendLimits, Wallet
from worker.seeker.http import HttpTransport
from worker.seeker.problems import plain
from worker.seeker.worker_client import WorkerClient
from worker.x402.networks import resolve_network

PATIENCE_SECONDS = 30.0
LONGEST_SECONDS = 90.0
WEBHOOK_SECONDS = 30.0
# balanceOf(address), as Solidity numbers its functions.
_BALANCE_OF = "0x70a08231"

Say = Callable[[str], None]


def shout(text: str) -> None:
    """Print and flush, also into a pipe: the process that started the worker reads along."""
    print(text, flush=True)


class NotProven(Problem):
    code = "NOT_PROVEN"
    message = "the worker did not do what it promises"
    advice = "Look at the lines above, and at worker.log in the state directory."


@dataclass(frozen=True, slots=True)
class DemoTask:
    """What the seeker buys: a capability, its price, an input, and how many files it must produce."""

    capability: str
    price: str
    input: Any
    files: int | None = None


LOGO = DemoTask(
    "logo-design",
    "0.50",
    {"brief": "Create a minimalist logo for TechStartup Inc", "colors": ["#FF5733", "#333333"]},
    files=3,
)


@dataclass(frozen=True, slots=True)
class Balances:
    """Test dollars of both parties, in atomic units."""

    seeker: int
    worker: int


def prove(facts: Mapping[str, Any], state: Path, say: Say = shout) -> int:
    """Hire an agent of this `worker local`; 0 if everything was as promised."""
    began = time.monotonic()
    try:
        work = chosen(WorkerClient(HttpTransport(), facts["url"]).manifest())
        _hire(work, facts, state, say)
    except Problem as problem:
        say(f"\nNOT PROVEN  {problem.code}: {problem.message}. {problem.advice}")
        for name, value in problem.details.items():
            say(f"            {name}: {plain(value)}")
        return 1
    say(f"\nProven in {time.monotonic() - began:.1f} s.")
    for line in by_hand(facts, state, work):
        say(line)
    return 0


def chosen(manifest: Mapping[str, Any]) -> DemoTask:
    """The logo agent if it is offered, else the first of the author's own that publishes an example."""
    sold = {each["name"]: each for each in manifest["capabilities"]}
    if LOGO.capability in sold:
        return LOGO
    for name, each in sold.items():
        if "example_input" in each:
            return DemoTask(name, each["pricing"]["amount"], each["example_input"])
    raise NotProven(
        "nothing on offer can be hired without knowing its input",
        expected="a capability with a price and an example_input",
        received=", ".join(sold) or "no capability with a price",
        advice="Give one an example_input, or start with `worker local` alone, which hires nobody.",
    )


def _hire(work: DemoTask, facts: Mapping[str, Any], state: Path, say: Say) -> None:
    def step(name: str, text: str) -> None:
        say(f"{name:<11}{text}")

    def tell(word: str, seen: Mapping[str, Any]) -> None:
        if word in _TOLD:
            name, text = _TOLD[word]
            amount = seen.get("amount")
            step(name, text.format(**seen, dollars=to_text(amount) if isinstance(amount, int) else ""))

    limits = SpendLimits(
        most=to_atomic(work.price),
        patience_s=PATIENCE_SECONDS,
        network=resolve_network(facts["network"]),
        plain_http=True,
    )
    until = time.monotonic() + LONGEST_SECONDS

    def sleep(seconds: float) -> None:
        if time.monotonic() > until:
            raise NotProven(f"it was not done within {LONGEST_SECONDS:g} s")
        time.sleep(seconds)

    wallet, purchases = Wallet(facts["seeker_key"]), PurchaseStore(state / "seeker")
    seeker = Seeker(wallet, purchases, limits, tell=tell, sleep=sleep)
    say(f"A seeker hires {work.capability} of {facts['url']} for {work.price} test dollars.\n")
    before = balances(facts)
    step("before", _shown(before))
    listed = seeker.listing(facts["url"], work.capability)
    with Listener(listed.webhook_key) as listener:
        contract = seeker.contract(listed, Order(work.capability, price=work.price, webhook=listener.url))
        result = seeker.execute(listed.url, contract, work.input)
        saved = seeker.collect(result, state / "hired")
        after = balances(facts)
        webhook = listener.wait(contract["contract_id"], WEBHOOK_SECONDS)
    for each in saved:
        step("file", f"{each.path.name}, {each.size} bytes, as announced: {each.checksum}")
    step("after", _shown(after))
    _check(work, result, saved, before, after)
    _check_webhook(result, webhook)
    step("webhook", "task_completed arrived, signed with the manifest's key, with the same files")
    step("receipt", f"signed by the worker's wallet, for transaction {result.transaction}")


_TOLD = {
    "offered": ("manifest", "it offers {capability} for {price} USDC on {network}"),
    "signed_by_worker": ("contract", "drafted, and signed by the worker"),
    "signed_by_both": ("contract", "signed by the seeker too: {hash}"),
    "asked": ("402", "it asks for {dollars} USDC to its wallet, exactly what the contract says"),
    "kept": ("paid", "{dollars} USDC authorized, kept on disk, then sent"),
    "working": ("working", "under way"),
    "unsure": ("unsure", "{why}; the identical payment goes out again"),
    "busy": ("busy", "{message} ({why}); asking again in {seconds} s"),
    "done": ("completed", "the work is done and the payment has settled"),
}


def _check(work: DemoTask, result: Result, saved: list[Saved], before: Balances, after: Balances) -> None:
    price = to_atomic(work.price)
    if result.doubt is not None:
        raise NotProven(f"its receipt proves nothing: {result.doubt.message}")
    if not saved or work.files not in (None, len(saved)):
        raise NotProven(
            "it delivered another number of files", expected=work.files or "at least 1", received=len(saved)
        )
    moved = (before.seeker - after.seeker, after.worker - before.worker)
    if moved != (price, price):
        raise NotProven(
            "the balances did not move by the price",
            expected=f"{work.price} from the seeker, {work.price} to the worker",
            received=" and ".join(f"{each / 10**6:.6f}" for each in moved),
        )


def _check_webhook(result: Result, webhook: Mapping[str, Any] | None) -> None:
    if webhook is None:
        raise NotProven(f"no webhook of its own came within {WEBHOOK_SECONDS:g} s")
    if webhook.get("event") != "task_completed" or webhook.get("deliverables") != result.deliverables:
        raise NotProven("the webhook is for another event", received=plain(webhook.get("event")))


def balances(facts: Mapping[str, Any]) -> Balances:
    """Both parties' test dollars, as reported by the chain itself."""
    return Balances(*(balance(facts["rpc"], facts["asset"], facts[who]) for who in _WALLETS))


_WALLETS = ("seeker_wallet", "worker_wallet")


def balance(rpc: str | None, asset: str, wallet: str) -> int:
    """One wallet's balance of the asset, by JSON-RPC."""
    call = {"to": asset, "data": _BALANCE_OF + wallet[2:].lower().rjust(64, "0")}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "eth_call", "params": [call, "latest"]}
    try:
        answer = urllib3.request(
            "POST", rpc or "", json=asked, timeout=urllib3.Timeout(connect=5, read=10), retries=False
        )
        return int(answer.json()["result"], 16)
    except (HTTPError, OSError, ValueError, LookupError, TypeError) as fault:
        raise NotProven("the chain does not tell a balance", advice="Is RPC_URL right?") from fault


def _shown(found: Balances) -> str:
    return f"the seeker has {to_text(found.seeker)}, the worker {to_text(found.worker)} test dollars"


def by_hand(facts: Mapping[str, Any], state: Path, work: DemoTask = LOGO) -> list[str]:
    """The same purchase with curl, line by line; `worker contract` only adds the signatures."""
    worker, key = command_name(), shlex.quote(f"@{state.resolve() / 'local.json'}")
    url, body = facts["url"], shlex.quote(json.dumps(work.input, separators=(",", ":")))
    sends = "-H 'Content-Type: application/json'"
    named = "-H \"X-Contract-ID: $(grep -o -m1 'ctr_[a-z0-9]*' contract.json)\""
    return [
        "\nBy hand, in any empty directory's shell:\n",
        f"  {worker} contract draft {url} {work.capability} --key {key} --out draft.json",
        f"  curl -s {url}/contracts {sends} -d @draft.json -o offered.json",
        f"  {worker} contract sign offered.json --key {key} --out contract.json",
        f"  curl -s {url}/contracts -X PUT {sends} -d @contract.json -o known.json",
        f"  curl -s {url}/execute {sends} {named} -d {body} -D asked.txt",
        f"  PAYMENT=$({worker} contract pay contract.json --asked asked.txt --url {url} --key {key})",
        f'  curl -s {url}/execute {sends} {named} -H "PAYMENT-SIGNATURE: $PAYMENT" -d {body}',
        "\nOr in one line:\n",
        f"  {worker} hire {url} {work.capability} --input {body} --key {key} --max {work.price}",
        "",
    ]


def what_next(facts: Mapping[str, Any], state: Path) -> list[str]:
    """Says what to open, how to stop, where the operator's token is, and how to use another port."""
    about, url = state / "local.json", facts["url"]
    read = f'grep -o \'"kernel_token": "[^"]*\' {shlex.quote(str(about))} | cut -d\'"\' -f4'
    return [
        "It serves on.",
        "",
        f"  open           {url}    what can be hired, and a form that hires it; {url}/docs says how",
        f'  operator       curl -s {url}/ready -H "Authorization: Bearer $({read})"',
        f"                 or open {url}/dashboard; the token is in {about}, with the buyer's key",
        f"  log            {state / 'worker.log'}",
        "  stop           ^C",
        "  another port   PORT=8001 make run",
        "",
    ]


def command_name() -> str:
    """The shell command that runs this program."""
    installed = Path(sys.executable).with_name("worker")
    if not installed.exists():
        return f"{shlex.quote(sys.executable)} -m worker"
    found = shutil.which("worker")
    return "worker" if found and Path(found).samefile(installed) else shlex.quote(str(installed))

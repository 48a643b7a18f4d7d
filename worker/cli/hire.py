"""`worker hire`: hire a worker, watch it, save what it delivers, keep the receipt."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from worker.cli.documents import wallet_of
from worker.cli.inputs import read_document
from worker.contracts.amounts import to_atomic, to_text
from worker.errors import BadRequest, Problem
from worker.payments.networks import NETWORKS, resolve_network
from worker.seeker import Drawer, Limits, Order, Result, Saved, Seeker
from worker.seeker.problems import particulars, plain
from worker.values import Unfit, duration

DRAWER = Path("~/.hire")
_BAR = 24
_WEEK = 7 * 86_400.0
_SHOWN = frozenset({"text/plain", "application/json"})
_STEPS = {
    "offered": "the worker offers {capability} for {price} USDC on {network}",
    "signed_by_worker": "the worker has signed the contract ({wallet} is paid)",
    "signed_by_both": "both have signed: {hash}",
    "asked": "402: {amount} USDC to {pay_to}, as agreed",
    "kept": "payment signed and kept on disk as {ref}",
    "refused": "the payment was refused ({reason}); no money moved",
    "unsure": "no usable answer ({why}); the same request goes out again",
    "failed": "the attempt failed ({code})",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    hire = commands.add_parser(
        "hire",
        help="hire a worker, pay it, save what it delivers",
        description="Hires a worker. Run again after a failure, it goes on where it stopped: a payment "
        "that is out is only ever sent again, never another one beside it. An input that was refused after "
        "the payment may be corrected: the next run sends it under the same contract.",
    )
    hire.add_argument("url", metavar="URL", help="the worker's address")
    hire.add_argument("capability", metavar="CAPABILITY", help="as its manifest names it")
    hire.add_argument("--input", default="{}", help="JSON, or @FILE that holds it, or - for standard input")
    hire.add_argument("--key", metavar="@FILE", help="the wallet's key (default: SEEKER_KEY)")
    hire.add_argument("--max", default="1.00", metavar="USDC", help="the most this may cost (default: 1.00)")
    hire.add_argument("--out", metavar="DIR", help="where deliverables are saved (default: hired/...)")
    hire.add_argument("--webhook", metavar="URL", help="where the worker announces the end")
    hire.add_argument("--deadline", default="2h", metavar="TIME", help="how long it may take (default: 2h)")
    hire.add_argument("--settlement", choices=("after_work", "before_work"), help="when the payment is taken")
    hire.add_argument(
        "--network", choices=[each.name for each in NETWORKS], help="pay on no other network than this"
    )
    hire.add_argument("--keep", metavar="DIR", help=f"where payments are kept (default: {DRAWER})")
    hire.add_argument("--new", action="store_true", help="hire anew even if such a hire is unfinished")
    hire.add_argument("--plain-http", action="store_true", help="allow http:// on a network of your own")
    hire.set_defaults(handler=run_hire)


def run_hire(args: argparse.Namespace) -> int:
    view = View(sys.stderr)
    seeker = Seeker(
        wallet_of(args.key),
        Drawer(Path(args.keep) if args.keep else DRAWER.expanduser()),
        Limits(
            most=to_atomic(args.max, field="--max"),
            network=resolve_network(args.network) if args.network else None,
            plain_http=args.plain_http,
        ),
        tell=view.tell,
        live=True,
    )
    order = Order(
        args.capability,
        deadline_s=deadline_seconds(args.deadline),
        settlement=args.settlement,
        webhook=args.webhook,
    )
    task_input = read_document(args.input, name="--input")
    try:
        result = _hire(seeker, args, order, task_input, view)
        out = Path(args.out or f"hired/{args.capability}-{result.purchase.ref}")
        saved = seeker.collect(result, out)
        _keep_receipt(result, saved, out)
    except Problem:
        view.clear()
        raise
    view.delivered(result, saved, out)
    for each in saved:
        if each.mime.partition(";")[0] in _SHOWN:
            sys.stdout.write(each.path.read_text("utf-8", "replace").rstrip("\n") + "\n")
    return 0 if result.doubt is None else 1


def _hire(seeker: Seeker, args: argparse.Namespace, order: Order, task_input: Any, view: View) -> Result:
    unfinished = None if args.new else seeker.unfinished(args.url, order.capability, task_input)
    waiting = None if args.new or unfinished else seeker.correctable(args.url, order.capability)
    if waiting is not None:
        view.line(f"an earlier input was refused ({waiting.ref}): this one goes out under its contract")
        return seeker.correct(waiting.ref, task_input)
    if unfinished is None:
        return seeker.hire(args.url, order, task_input)
    view.line(f"this hire is unfinished ({unfinished.ref}): going on with it")
    return seeker.resume(unfinished.ref)


def _keep_receipt(result: Result, saved: list[Saved], out: Path) -> None:
    """Everything that a dispute would need, but not the contract's id: that one opens the result."""
    contract = dict(result.purchase.contract or {})
    kept = {
        "contract_hash": contract.get("hash"),
        "terms": contract.get("terms"),
        "payment": result.payment,
        "receipt": result.receipt,
        "deliverables": [{"name": each.name, "size": each.size, "checksum": each.checksum} for each in saved],
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(kept, ensure_ascii=False, indent=2) + "\n"
    (out / "hire-receipt.json").write_text(text, encoding="utf-8")


def deadline_seconds(text: str) -> float:
    try:
        return duration(60, _WEEK)(text)
    except Unfit as unfit:
        raise BadRequest("the time cannot be read", field="--deadline", expected=unfit.expected) from None


class View:
    """What a person sees while it happens: lines, and on a terminal one line that moves."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moving = ""
        self._last = ""

    def tell(self, word: str, facts: Mapping[str, Any]) -> None:
        if word in _STEPS:
            shown = {name: plain(value, 120) for name, value in facts.items()}
            if isinstance(facts.get("amount"), int):
                shown["amount"] = to_text(facts["amount"])
            self.line(_STEPS[word].format(**shown))
        elif word == "sent" and facts["paying"]:
            self.move("paid; waiting for the worker")
        elif word == "working":
            self._working(facts["body"])
        elif word == "event":
            self._event(str(facts["kind"]), facts["payload"])

    def line(self, text: str) -> None:
        self.clear()
        print(f"- {text}", file=self._out, flush=True)

    def move(self, text: str) -> None:
        """Shows where it stands, in place on a terminal, once per change elsewhere."""
        if text == self._last:
            return
        self._last = text
        if not self._out.isatty():
            print(f"  {text}", file=self._out, flush=True)
            return
        self.clear()
        self._moving = text[:100]
        print(self._moving, end="", file=self._out, flush=True)

    def problem(self, problem: Problem) -> None:
        for line in particulars(problem):
            print(line, file=self._out)

    def delivered(self, result: Result, saved: list[Saved], out: Path) -> None:
        for each in saved:
            self.line(f"{out / each.name}  {each.size} bytes  {each.checksum}")
        if result.receipt is not None and result.doubt is None:
            payload = result.receipt["payload"]
            self.line(f"receipt, signed by the worker's wallet: transaction {payload['transaction']}")
        if result.doubt is not None:
            self.line(f"RECEIPT NOT PROVEN: {result.doubt.message}. {result.doubt.advice}")
            self.problem(result.doubt)
        self.line(f"kept: {out / 'hire-receipt.json'}")

    def _working(self, body: Mapping[str, Any]) -> None:
        words = f"{plain(body.get('state', 'working'), 20)}, {plain(body.get('phase', ''), 20)}"
        place = body.get("queue_position")
        self.move(words + (f", place {place} in the queue" if isinstance(place, int) and place else ""))

    def _event(self, kind: str, payload: Mapping[str, Any]) -> None:
        if kind == "progress.updated":
            fraction = payload.get("fraction")
            done = min(max(float(fraction), 0.0), 1.0) if isinstance(fraction, int | float) else 0.0
            bar = "#" * int(done * _BAR)
            self.move(f"[{bar:.<{_BAR}}] {done:4.0%}  {plain(payload.get('message', ''), 60)}")
        elif kind == "file.written":
            self.line(
                f"made {plain(payload.get('name', ''), 80)}, {plain(payload.get('size', '?'), 20)} bytes"
            )
        elif kind == "output.chunk":
            self.clear()
            print(plain(payload.get("text", ""), 2_000), file=self._out, flush=True)

    def clear(self) -> None:
        if self._moving:
            print("\r" + " " * len(self._moving) + "\r", end="", file=self._out)
            self._moving = ""

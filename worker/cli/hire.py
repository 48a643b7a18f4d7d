"""`worker hire`: hire a worker, watch it, save its deliverables, keep the receipt."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from worker.cli.documents import make_room, wallet_of
from worker.cli.inputs import read_document
from worker.cli.plain import run_plain
from worker.cli.terminal import StatusLine, bar, print_json
from worker.core.amounts import to_atomic, to_text
from worker.core.errors import BadRequest, Problem
from worker.core.values import InvalidValue, duration
from worker.seeker import Order, PurchaseStore, Result, Saved, Seeker, SpendLimits
from worker.seeker.problems import particulars, plain
from worker.x402.networks import NETWORKS, resolve_network

PURCHASES = Path("~/.hire")
_BAR = 24
_WEEK = 7 * 86_400.0
_SHOWN = frozenset({"text/plain", "application/json"})
# Types of output that are included in the answer.
_CONTENT = ("text", "json")
_STEPS = {
    "offered": "the worker offers {capability} for {price} USDC on {network}, paid {when}",
    "signed_by_worker": "the worker has signed the contract ({wallet} is paid)",
    "signed_by_both": "both have signed: {hash}",
    "asked": "402: {amount} USDC to {pay_to}, as agreed",
    "kept": "payment signed and stored as {ref}",
    "refused": "the payment was refused ({reason}); no money moved",
    "busy": "the worker cannot do it now: {message} ({why}); asking again in {seconds} s",
    "unsure": "no usable answer ({why}); retrying the same request",
    "failed": "the attempt failed ({code})",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    hire = commands.add_parser(
        "hire",
        help="hire a worker, pay it, save what it delivers",
        description="Hires a worker. Run again after a failure, it goes on where it stopped: a payment "
        "that is out is only ever sent again, never another one beside it. An input that was refused after "
        "the payment may be corrected: the next run sends it under the same contract. With --plain it pays "
        "any x402 seller; repeated, it sends the same payment until there is a result.",
    )
    hire.add_argument("url", metavar="URL", help="the worker's address, or that of anything sold by x402")
    hire.add_argument(
        "capability", nargs="?", metavar="CAPABILITY", help="as the worker's manifest names it, if it has one"
    )
    hire.add_argument(
        "--plain",
        action="store_true",
        help="buy without a contract (by itself where CAPABILITY is left out and there is no manifest)",
    )
    hire.add_argument("--get", action="store_true", help="with a plain purchase: send GET, and no input")
    hire.add_argument("--input", default="{}", help="JSON, or @FILE that holds it, or - for standard input")
    hire.add_argument("--key", metavar="@FILE", help="the wallet's key (default: SEEKER_KEY)")
    hire.add_argument("--max", default="1.00", metavar="USDC", help="the most this may cost (default: 1.00)")
    hire.add_argument("--out", metavar="DIR", help="where deliverables are saved (default: hired/...)")
    hire.add_argument("--webhook", metavar="URL", help="webhook URL for the end of the work")
    hire.add_argument("--deadline", default="2h", metavar="TIME", help="how long it may take (default: 2h)")
    hire.add_argument(
        "--settlement",
        choices=("after_work", "before_work"),
        help="when the payment is taken (default: as the worker's manifest says)",
    )
    hire.add_argument(
        "--network", choices=[each.name for each in NETWORKS], help="pay on no other network than this"
    )
    hire.add_argument("--keep", metavar="DIR", help=f"where payments are kept (default: {PURCHASES})")
    hire.add_argument(
        "--new", action="store_true", help="start a new hire even if an identical one is unfinished"
    )
    hire.add_argument("--plain-http", action="store_true", help="allow http:// on a network of your own")
    hire.add_argument("--json", action="store_true", help="print one JSON document: the result or the error")
    hire.set_defaults(handler=run_hire)


def run_hire(args: argparse.Namespace) -> int:
    if not args.json:
        return _run_hire(args, Text(sys.stdout))
    try:
        return _run_hire(args, Text(StringIO()))  # only the document goes to standard output
    except Problem as problem:
        error = {"code": problem.code, "message": problem.message, "advice": problem.advice}
        print_json({"status": "failed", "error": {**error, "details": problem.details}})
        raise


def _run_hire(args: argparse.Namespace, text: Text) -> int:
    view = HireProgress(sys.stderr, text)
    seeker = Seeker(
        wallet_of(args.key),
        PurchaseStore(Path(args.keep) if args.keep else PURCHASES.expanduser()),
        SpendLimits(
            most=to_atomic(args.max, field="--max"),
            network=resolve_network(args.network) if args.network else None,
            plain_http=args.plain_http,
        ),
        tell=view.tell,
        live=True,
    )
    if args.plain or args.capability is None:
        return run_plain(seeker, args, view.line)
    order = Order(
        args.capability,
        deadline_s=deadline_seconds(args.deadline),
        settlement=args.settlement,
        webhook=args.webhook,
    )
    task_input = read_document(args.input, name="--input")
    make_room(Path(args.out or "hired"))
    try:
        result = _hire(seeker, args, order, task_input, view)
        out = Path(args.out or f"hired/{args.capability}-{result.purchase.ref}")
        saved = _save(seeker, result, out)
    except Problem:
        view.clear()
        text.end()
        raise
    view.delivered(result, saved, out)
    if args.json:
        print_json(_document(result, saved, out))
    for each in saved:
        if each.mime.partition(";")[0] in _SHOWN:
            text.whole(each.path.read_text("utf-8", "replace"))
    return 0 if result.doubt is None else 1


def _document(result: Result, saved: list[Saved], out: Path) -> dict[str, Any]:
    """The result as JSON, without the contract id and the URLs: those give anybody access to it."""
    contract, found = result.purchase.signed_contract, result.body.get("output")
    output = found if isinstance(found, dict) else {}
    files = [
        {"name": each.name, "path": str(out / each.name), "mime": each.mime}
        | {"size": each.size, "checksum": each.checksum}
        for each in saved
    ]
    return {
        "status": "completed",
        "ref": result.purchase.ref,
        "price": contract["terms"]["price"],
        "transaction": result.transaction or None,
        "receipt": str(out / "hire-receipt.json"),
        "receipt_proven": result.doubt is None,
        "deliverables": files,
        "output": output.get("content") if output.get("type") in _CONTENT else None,
    }


def _save(seeker: Seeker, result: Result, out: Path) -> list[Saved]:
    """Save the deliverables and the receipt; a disk failure here costs no second payment."""
    try:
        saved = seeker.collect(result, out)
        _keep_receipt(result, saved, out)
    except OSError as fault:
        raise Problem(
            f"the deliverables cannot be written to {str(out)!r} ({fault.strerror})",
            code="NOT_SAVED",
            field="--out",
            advice="The work is paid. Run it again with another --out to fetch it without another payment.",
        ) from fault
    return saved


def _hire(
    seeker: Seeker, args: argparse.Namespace, order: Order, task_input: Any, view: HireProgress
) -> Result:
    unfinished = None if args.new else seeker.unfinished(args.url, order.capability, task_input)
    waiting = None if args.new or unfinished else seeker.correctable(args.url, order.capability)
    if waiting is not None:
        view.line(f"an earlier input was refused ({waiting.ref}): sending this one under its contract")
        return seeker.correct(waiting.ref, task_input)
    if unfinished is None:
        return seeker.hire(args.url, order, task_input)
    view.line(f"this hire is unfinished ({unfinished.ref}): continuing it")
    return seeker.resume(unfinished.ref)


def _keep_receipt(result: Result, saved: list[Saved], out: Path) -> None:
    """Save everything a dispute would need, except the contract's id, which opens the result."""
    contract = dict(result.purchase.contract or {})
    record = {
        "contract_hash": contract.get("hash"),
        "terms": contract.get("terms"),
        "payment": result.payment,
        "receipt": result.receipt,
        "deliverables": [{"name": each.name, "size": each.size, "checksum": each.checksum} for each in saved],
    }
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, ensure_ascii=False, indent=2) + "\n"
    (out / "hire-receipt.json").write_text(text, encoding="utf-8")


def deadline_seconds(text: str) -> float:
    try:
        return duration(60, _WEEK)(text)
    except InvalidValue as unfit:
        raise BadRequest("the time cannot be read", field="--deadline", expected=unfit.expected) from None


class Text:
    """Delivered text on standard output: a stream's chunks as they come, and nothing twice."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = ""

    def chunk(self, text: str) -> None:
        self._shown += text
        self._write(text)

    def whole(self, text: str) -> None:
        """Print a complete text, or the part of it not yet shown as chunks."""
        if self._shown and not text.startswith(self._shown):
            self.end()
        self._write(text.removeprefix(self._shown))
        self._shown = text
        self.end()

    def end(self) -> None:
        """End an open line."""
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")
        self._shown = ""

    def _write(self, text: str) -> None:
        if self._out.isatty():  # untrusted text must not move the cursor
            text = "".join(ch if ch.isprintable() or ch in "\n\t" else " " for ch in text)
        self._out.write(text)
        self._out.flush()


class HireProgress:
    """Progress for a person: lines, and on a terminal one status line updated in place."""

    def __init__(self, out: TextIO, text: Text) -> None:
        self._out = out
        self._text = text
        self._streams = False
        self._status = StatusLine(out, indent="  ")

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
        self._status.line(f"- {text}")

    def move(self, text: str) -> None:
        """Show the status: in place on a terminal, elsewhere once per change."""
        self._status.move(text)

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
        output = body.get("output")
        self._streams = isinstance(output, dict) and output.get("type") == "stream"
        words = f"{plain(body.get('state', 'working'), 20)}, {plain(body.get('phase', ''), 20)}"
        place = body.get("queue_position")
        self.move(words + (f", place {place} in the queue" if isinstance(place, int) and place else ""))

    def _event(self, kind: str, payload: Mapping[str, Any]) -> None:
        if kind == "progress.updated":
            self.move(bar(payload.get("fraction"), plain(payload.get("message", ""), 60), _BAR))
        elif kind == "file.written":
            self.line(
                f"made {plain(payload.get('name', ''), 80)}, {plain(payload.get('size', '?'), 20)} bytes"
            )
        elif kind == "output.chunk":
            self._chunk(str(payload.get("text", "")))

    def _chunk(self, text: str) -> None:
        """A piece of the product if a stream was bought, else a progress remark."""
        self.clear()
        if self._streams:
            self._text.chunk(text)
        else:
            print(plain(text, 2_000), file=self._out, flush=True)

    def clear(self) -> None:
        self._status.clear()

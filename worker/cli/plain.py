"""`worker hire --plain`: buy from any x402 seller, save the answer and what it delivers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker.cli.documents import make_room
from worker.cli.inputs import read_document
from worker.core.errors import BadRequest, Problem
from worker.hiring.discovery import PATH
from worker.seeker import PlainResult, Seeker
from worker.seeker.deliveries import collect
from worker.seeker.http import checked_url, host_of
from worker.seeker.plain_purchase import buy, fetch
from worker.seeker.problems import NoManifest, plain
from worker.seeker.worker_client import WorkerClient

_CONTRACT_ONLY = ("webhook", "settlement")


def run_plain(seeker: Seeker, args: argparse.Namespace, tell: Callable[[str], object]) -> int:
    """Pay what the address asks, within the cap; a repeated command resumes the same payment."""
    for option in _CONTRACT_ONLY:
        if getattr(args, option):
            raise BadRequest("a plain purchase has no contract to say that in", field=f"--{option}")
    address = _address(seeker, args)
    task_input = read_document(args.input, name="--input")
    make_room(Path(args.out or "hired"))
    result = fetch(seeker, address) if args.get else buy(seeker, address, task_input)
    out = Path(args.out or f"hired/plain-{result.ref}")
    try:
        _save(seeker, result, out, tell)
    except OSError as fault:
        raise Problem(
            f"the answer cannot be written to {str(out)!r} ({fault.strerror})",
            code="NOT_SAVED",
            field="--out",
            advice="It may be paid. The answer is on standard output.",
        ) from fault
    finally:
        print(_shown(result), flush=True)
    return 0 if result.answer.status == 200 and result.body.get("status") != "failed" else 1


def _address(seeker: Seeker, args: argparse.Namespace) -> str:
    """The address to pay: a worker's capability, or the URL unchanged for any other seller."""
    base = checked_url(args.url, plain_http=args.plain_http)
    if args.capability is not None:
        return f"{base}{PATH}{args.capability}"
    if args.plain:
        return str(args.url)
    try:
        manifest = WorkerClient(seeker.http, base).manifest()
    except NoManifest:
        return str(args.url)
    named = manifest.get("capabilities")
    names = [each.get("name") for each in named if isinstance(each, dict)] if isinstance(named, list) else []
    raise BadRequest(
        "this worker sells more than one thing",
        field="CAPABILITY",
        expected=plain("one of " + ", ".join(str(name) for name in names)),
    )


def _save(seeker: Seeker, result: PlainResult, out: Path, tell: Callable[[str], object]) -> None:
    """Save the files first: the answer contains their checksums."""
    saved = collect(result.deliverables, out, http=seeker.http, worker_host=host_of(result.url))
    for each in saved:
        tell(f"{out / each.name}  {each.size} bytes  {each.checksum}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "answer").write_bytes(result.answer.body)
    receipt = {"url": result.url, "payment": result.payment, "receipt": result.body.get("receipt")}
    text = json.dumps(receipt, ensure_ascii=False, indent=2) + "\n"
    (out / "hire-receipt.json").write_text(text, encoding="utf-8")
    if result.transaction:
        tell(f"paid in transaction {plain(result.transaction, 80)}")
    tell(f"kept: {out / 'hire-receipt.json'}")


def _shown(result: PlainResult) -> str:
    """The product for standard output: a worker's content, or the answer unchanged."""
    output: Any = result.body.get("output")
    content = output.get("content") if isinstance(output, dict) else None
    if content is None:
        return result.answer.body.decode("utf-8", "replace")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)

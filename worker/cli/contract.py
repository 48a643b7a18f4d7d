"""`worker contract`: draft, sign, verify, import, show; and pay, for curl users."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worker.cli.documents import read_file, wallet_of, write_document
from worker.cli.inputs import read_document
from worker.cli.target import add_state, settings_with_key
from worker.contracts.signatures import Eip191Verifier, SignatureInvalid
from worker.core.amounts import to_atomic
from worker.core.canonical import contract_hash
from worker.core.errors import BadRequest, Conflict, NotFound, Problem
from worker.core.evm import same_address

_PARTIES = ("worker", "seeker")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    contract = commands.add_parser("contract", help="draft, sign, verify, import and show contracts")
    actions = contract.add_subparsers(dest="action", required=True, metavar="ACTION")

    draft = actions.add_parser("draft", help="write a draft from a worker's manifest")
    draft.add_argument("url", metavar="URL", help="the worker's address")
    draft.add_argument("capability", metavar="CAPABILITY", help="as its manifest names it")
    draft.add_argument("--price", metavar="USDC", help="default: what the worker asks")
    draft.add_argument("--deadline", default="2h", metavar="TIME", help="how long it may take (default: 2h)")
    draft.add_argument(
        "--settlement", choices=("after_work", "before_work"), help="when the payment is taken"
    )
    draft.add_argument("--webhook", metavar="URL", help="webhook URL for the end of the work")
    draft.add_argument("--output-schema", metavar="@FILE", help="what the output must be")
    draft.add_argument("--description", default="", help="of the task (default: the capability's)")
    draft.set_defaults(handler=run_draft)

    sign = actions.add_parser("sign", help="add the signature of the party whose key this is")
    verify = actions.add_parser("verify", help="check form, hash and signatures")
    imported = actions.add_parser("import", help="import a contract with both signatures into this worker")
    show = actions.add_parser("show", help="show a stored contract and its state")
    pay = actions.add_parser("pay", help="check a 402 against the contract; print the payment header's value")
    for action in (sign, verify, imported, show, pay):
        action.add_argument("file", metavar="FILE", help="the contract, or - for standard input")
    pay.add_argument("--asked", required=True, metavar="FILE", help="the 402's headers, from `curl -D`")
    pay.add_argument("--url", required=True, help="where the request goes")
    pay.add_argument("--max", default="1.00", metavar="USDC", help="the most this may cost (default: 1.00)")
    pay.add_argument(
        "--network", choices=("base", "base-sepolia"), help="the network that the contract's name means"
    )
    for action in (draft, sign, pay):
        action.add_argument("--key", metavar="@FILE", help="the wallet's key (default: SEEKER_KEY)")
    for action in (draft, sign):
        action.add_argument("--out", metavar="FILE", help="default: standard output")
    for action in (imported, show):
        add_state(action)
    for action, handler in ((sign, run_sign), (verify, run_verify), (pay, run_pay)):
        action.set_defaults(handler=handler)
    imported.set_defaults(handler=run_import)
    show.set_defaults(handler=run_show)


def run_draft(args: argparse.Namespace) -> int:
    from worker.cli.hire import deadline_seconds
    from worker.seeker import Order
    from worker.seeker.draft import draft, read_listing
    from worker.seeker.http import HttpTransport, checked_url
    from worker.seeker.worker_client import WorkerClient

    manifest = WorkerClient(HttpTransport(), checked_url(args.url)).manifest()
    schema = args.output_schema and read_document(args.output_schema, name="--output-schema")
    order = Order(
        args.capability,
        description=args.description,
        price=args.price,
        deadline_s=deadline_seconds(args.deadline),
        settlement=args.settlement,
        webhook=args.webhook,
        output_schema=schema or None,
    )
    listed = read_listing(manifest, args.capability)
    write_document(draft(listed, order, wallet_of(args.key).address, time.time()), args.out)
    return 0


def run_sign(args: argparse.Namespace) -> int:
    contract = _contract(args.file)
    wallet = wallet_of(args.key)
    party = next((each for each in _PARTIES if same_address(_wallet(contract, each), wallet.address)), None)
    if party is None:
        raise BadRequest(
            "the key does not belong to a party of this contract",
            field="--key",
            expected=[_wallet(contract, each) for each in _PARTIES],
            received=wallet.address,
        )
    digest = contract_hash(contract)
    if contract.get("hash", digest) != digest:
        raise BadRequest(
            "the contract's hash does not match its content", advice="It was changed after it was signed."
        )
    given = contract.get("signatures")
    signatures: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    other = "worker" if party == "seeker" else "seeker"
    if signatures.get(other):
        # Do not countersign what the other party never signed.
        Eip191Verifier().verify(
            digest, signatures[other], _wallet(contract, other), field=f"signatures.{other}"
        )
    signatures[party] = wallet.sign_contract(digest)
    signatures |= {"timestamp": _now(), "scheme": "eip191", "canonicalization": "RFC8785"}
    write_document({**contract, "signatures": signatures, "hash": digest}, args.out)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Print which checks pass and fail; the exit code says whether all pass."""
    contract = _contract(args.file)
    digest = contract_hash(contract)
    rows = [("form", _form(contract)), ("hash", "ok" if contract.get("hash") == digest else "differs")]
    given = contract.get("signatures")
    for party in _PARTIES:
        rows.append((party, _signature(contract, given if isinstance(given, dict) else {}, party, digest)))
    for name, found in rows:
        print(f"{name:<8}{found}")
    print(digest)
    wrong = [name for name, found in rows if not found.startswith("ok")]
    if wrong:
        print(f"not signed and sealed yet: {_next_step(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _next_step(wrong: list[str]) -> str:
    """How to fix the checks of `verify` that failed."""
    if "form" in wrong or "hash" in wrong:
        return "draft it anew with `worker contract draft`: what was changed cannot be signed"
    return f"`worker contract sign` with the key of the {' and of the '.join(wrong)}"


def run_import(args: argparse.Namespace) -> int:
    from worker.parts import Parts

    parts = Parts(settings_with_key(args.state, os.environ), "cli")
    known = parts.book.register(_contract(args.file))
    print(f"signed by both and known as {known.ref}; it may be executed with its contract id")
    return 0


def run_show(args: argparse.Namespace) -> int:
    from worker.core.states import TERMINAL
    from worker.parts import Parts

    contract_id = _contract(args.file).get("contract_id")
    parts = Parts(settings_with_key(args.state, os.environ), "cli")
    if not isinstance(contract_id, str):
        raise BadRequest(
            "the contract has no id", field="contract_id", advice="Draft one with `worker contract draft`."
        )
    known = parts.book.find(contract_id)
    if known is None:
        if parts.book.is_draft(contract_id):
            raise Conflict(
                "the worker signed it and waits for the seeker",
                code="CONTRACT_NOT_SIGNED",
                advice="The seeker signs with `worker contract sign`, then `worker contract import`.",
            )
        raise NotFound(
            "no such contract",
            code="CONTRACT_NOT_FOUND",
            advice="This worker does not know it: `worker contract import` hands it over.",
        )
    state, execution = "SIGNED", None
    if known.execution is not None:
        execution = parts.executions.get(known.execution)
        state = "COMPLETED" if execution.state in TERMINAL else "EXECUTING"
    write_document(
        {
            "state": state,
            "contract_ref": known.ref,
            "execution": known.execution,
            "phase": execution.phase if execution else None,
            "contract": known.document,
        },
        None,
    )
    return 0


def run_pay(args: argparse.Namespace) -> int:
    """Sign what a 402 asks for if it matches the contract; the caller keeps the value."""
    from worker.seeker import PurchaseStore, Seeker, SpendLimits
    from worker.seeker.checks import check_contract_signatures, choose
    from worker.seeker.demand import read_asking
    from worker.seeker.http import checked_url
    from worker.x402.networks import resolve_network

    contract = _contract(args.file)
    check_contract_signatures(contract)
    wallet = wallet_of(args.key)
    if not same_address(_wallet(contract, "seeker"), wallet.address):
        raise BadRequest("the key is not that of the contract's seeker", field="--key")
    try:
        lines = Path(args.asked).read_text("latin-1").splitlines()
    except OSError as fault:
        raise BadRequest(f"{args.asked!r} cannot be read", field="--asked") from fault
    pairs = (line.partition(":") for line in lines if ":" in line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    most = to_atomic(args.max, field="--max")
    network = resolve_network(args.network) if args.network else None
    seeker = Seeker(wallet, PurchaseStore(Path()), SpendLimits(most=most, network=network))
    agreed = seeker.agreed(contract, checked_url(args.url), most)
    chosen = choose(read_asking(headers, b"").demands, agreed)
    print(wallet.sign_payment(chosen.demand, chosen.network, int(time.time())).value)
    return 0


def _contract(path: str) -> dict[str, Any]:
    found = read_file(path, name="FILE")
    # The worker's own responses wrap it: {"state": ..., "contract": ...}.
    if isinstance(found, dict) and isinstance(found.get("contract"), dict):
        found = found["contract"]
    if not isinstance(found, dict):
        raise BadRequest("a contract is a JSON object", field="FILE")
    return found


def _wallet(contract: dict[str, Any], party: str) -> str:
    try:
        return str(contract["parties"][party]["wallet"])
    except (LookupError, TypeError):
        raise BadRequest("the contract names no wallet", field=f"parties.{party}.wallet") from None


def _form(contract: dict[str, Any]) -> str:
    from worker.schemas.validators import check_contract

    try:
        check_contract(contract, draft=not contract.get("signatures"))
    except Problem as problem:
        return f"{problem.details.get('field')}: expected {problem.details.get('expected')}"
    return "ok"


def _signature(contract: dict[str, Any], signatures: dict[str, Any], party: str, digest: str) -> str:
    if not signatures.get(party):
        return "has not signed"
    try:
        proven = Eip191Verifier().verify(
            digest, signatures[party], _wallet(contract, party), field=f"signatures.{party}"
        )
    except SignatureInvalid as refusal:
        return f"not proven: {refusal.message}"
    return f"ok {proven.address} ({proven.scheme})"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

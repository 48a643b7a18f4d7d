"""A facilitator for laptops and tests: it verifies and settles `exact` payments on one chain.

Not for production: it keeps pending settlements in memory and does not authenticate callers. It returns
refusals as 200 with a body, as the reference facilitators do.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import structlog

from worker.local.exact import ExactPayment, PaymentRejected, read, v1_name
from worker.local.httpd import Answer, JsonServer, as_json, read_json
from worker.schemas.validators import SchemaRefused, compile_schema, validate
from worker.x402.bazaar import BAZAAR
from worker.x402.facilitator_answers import EXTENSION_RESPONSES
from worker.x402.headers import encode

log = structlog.get_logger("worker.local.facilitator")
WARNING = "this facilitator is not meant for production: pending settlements are kept in memory only"


class LocalFacilitator:
    """The facilitator, served on a loopback port."""

    def __init__(self, rpc_url: str, gas_key: str, port: int = 0, *, wait_s: float = 30.0) -> None:
        # Imports web3; only the facilitator process pays for it.
        from worker.local.settlement import LocalSettler

        self._settler = LocalSettler(rpc_url, gas_key, wait_s=wait_s)
        self._server = JsonServer(self._handle, port)
        self.url = self._server.url
        self.port = self._server.port
        self.address = self._settler.address

    def start(self) -> None:
        log.warning("facilitator.not_for_production", note=WARNING, url=self.url)
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> LocalFacilitator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _handle(self, method: str, path: str, body: bytes) -> Answer:
        from worker.local.settlement import NodeUnavailable

        route = self._routes().get((method, path.split("?")[0].rstrip("/")))
        if route is None:
            return as_json(404, {"error": "not found"})
        try:
            return route(body)
        except NodeUnavailable:
            log.warning("facilitator.node_unavailable", path=path)
            return as_json(503, _unavailable(path))
        except Exception as exc:
            log.error("facilitator.failed", path=path, error=type(exc).__name__)
            return as_json(500, _unavailable(path))

    def _routes(self) -> dict[tuple[str, str], Callable[[bytes], Answer]]:
        return {
            ("GET", "/supported"): self._supported,
            ("GET", "/health"): self._health,
            ("POST", "/verify"): self._verify,
            ("POST", "/settle"): self._settle,
        }

    def _supported(self, _body: bytes) -> Answer:
        chain_id = self._settler.chain_id
        kinds = [{"x402Version": 2, "scheme": "exact", "network": f"eip155:{chain_id}"}]
        name = v1_name(chain_id)
        if name is not None:
            kinds.append({"x402Version": 1, "scheme": "exact", "network": name})
        signers = {"eip155:*": [self._settler.address]}
        return as_json(200, {"kinds": kinds, "extensions": [], "signers": signers})

    def _health(self, _body: bytes) -> Answer:
        return as_json(200, {"status": "ok", "chain_id": self._settler.chain_id, "note": WARNING})

    def _verify(self, body: bytes) -> Answer:
        try:
            payment = read(_decoded(body))
            self._settler.verify(payment)
        except PaymentRejected as exc:
            return as_json(200, _present({"isValid": False, "invalidReason": exc.reason, "payer": exc.payer}))
        return as_json(200, {"isValid": True, "payer": _cased(payment)})

    def _settle(self, body: bytes) -> Answer:
        try:
            document = _decoded(body)
            payment = read(document)
        except PaymentRejected as exc:
            failed = {"success": False, "errorReason": exc.reason, "transaction": "", "network": ""}
            return as_json(200, failed)
        outcome = self._settler.settle(payment)
        answer = {
            "success": outcome.success,
            "errorReason": outcome.reason,
            "payer": _cased(payment),
            "transaction": outcome.transaction,
            "network": payment.network,
        }
        status, content = as_json(200, _present(answer))[:2]
        return status, content, _listing(document) if outcome.success else {}


def _decoded(body: bytes) -> Any:
    try:
        return read_json(body)
    except ValueError as exc:
        raise PaymentRejected("invalid_payload") from exc


def _listing(document: Any) -> dict[str, str]:
    """A catalog's answer about the paid endpoint: listed if its info fits its own schema."""
    extension = document.get("paymentPayload", {}).get("extensions", {}).get(BAZAAR)
    if not isinstance(extension, dict):
        return {}
    listed: dict[str, str] = {"status": "success"}
    try:
        problems = validate(compile_schema(extension.get("schema")), extension.get("info"))
    except SchemaRefused as refused:
        problems = [{"field": refused.message}]
    if problems:
        listed = {
            "status": "rejected",
            "rejectedReason": f"info does not fit its schema: {problems[0]['field']}",
        }
    return {EXTENSION_RESPONSES: encode({BAZAAR: listed})}


def _present(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if value is not None}


def _cased(payment: ExactPayment) -> str:
    from eth_utils.address import to_checksum_address

    return str(to_checksum_address(payment.payer))


def _unavailable(path: str) -> dict[str, Any]:
    if path.startswith("/settle"):
        return {"success": False, "errorReason": "unexpected_settle_error", "transaction": "", "network": ""}
    if path.startswith("/verify"):
        return {"isValid": False, "invalidReason": "unexpected_verify_error"}
    return {"error": "the chain does not answer"}


def run(
    rpc_url: str,
    gas_key: str,
    port: int = 0,
    wait_s: float = 30.0,
    *,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the facilitator until SIGTERM or SIGINT; `ready` gets its URL once it responds."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with LocalFacilitator(rpc_url, gas_key, port, wait_s=wait_s) as facilitator:
        if ready is not None:
            ready(facilitator.url)
        stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """`facilitator --rpc URL [--port N] [--wait S]`; the gas key comes from FACILITATOR_GAS_KEY."""
    parser = argparse.ArgumentParser(prog="facilitator", description=f"A local facilitator; {WARNING}.")
    parser.add_argument("--rpc", default="http://127.0.0.1:8545")
    parser.add_argument("--port", type=int, default=4402)
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to wait for a transaction")
    given = parser.parse_args(argv)
    gas_key = os.environ.get("FACILITATOR_GAS_KEY", "")
    if not gas_key:
        parser.error("set FACILITATOR_GAS_KEY to the key that pays for gas")
    run(
        given.rpc,
        gas_key,
        given.port,
        given.wait,
        ready=lambda url: print(f"facilitator ready at {url}", flush=True),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

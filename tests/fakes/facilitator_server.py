"""A fake facilitator: a real HTTP server with a ledger and planned faults.

Without faults it is honest: verify checks nonce, value, window and (if set) balance; settle moves
the money once and returns a hash. Faults are queued per operation and each is used up by one
call. In a test:

    with FacilitatorServer() as server:
        server.plan("settle", facilitator_faults.refuse("insufficient_funds", status=400), times=2)
        ... server.url ...
        assert server.calls("settle") and server.charged() == 10_000

From another process, use HTTP, with a fault as JSON of its fields:

    POST   /_control  {"operation": "settle", "faults": [{"kind": "drop", "moves": true}], "times": 1}
    POST   /_control  {"balances": {"0x...": 5}}
    POST   /_control  {"release": true}                 every hanging call goes on
    POST   /_control  {"reconciles": true}              a repeated settle gets the first hash again
    GET    /_control  {"calls": [...], "transfers": [...], "faults": {...}, "overlaps": 0}
    DELETE /_control                                    forget everything

`python -m tests.fakes.facilitator_server --port 0` prints {"url": ...} and serves until killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import Any, Self

from tests.fakes.facilitator_faults import Fault
from tests.fakes.facilitator_http import Server, authorization_of, key_of

OPERATIONS = ("verify", "settle", "supported")
NONCE_USED = "invalid_exact_evm_nonce_already_used"


class FacilitatorServer:
    """The server and its controls; `url` is its base, without a trailing slash."""

    def __init__(self, port: int = 0) -> None:
        self._lock = threading.Lock()
        # Coinbase's returns the first hash for a repeated settle, the reference one does not.
        self.reconciles = False
        self._released = threading.Event()
        self._http = Server(("127.0.0.1", port), self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread: threading.Thread | None = None
        self.reset()

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving, release hanging calls and close open connections."""
        self._released.set()
        self._http.shutdown()
        self._http.cut_connections()
        self._http.server_close()
        if self._thread is not None:
            self._thread.join(5)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Forget calls, transfers, balances and faults."""
        with self._lock:
            self._calls: list[dict[str, Any]] = []
            self._transfers: dict[str, dict[str, Any]] = {}
            self._faults: dict[str, deque[Fault]] = {name: deque() for name in OPERATIONS}
            self._payers: dict[tuple[str, str], deque[Fault]] = {}
            self._balances: dict[str, int] = {}
            self._open: dict[str, int] = {}
            self._overlaps = 0
            self.reconciles = False
        self._released.set()
        self._released = threading.Event()

    def plan(self, operation: str, *faults: Fault, times: int = 1, payer: str | None = None) -> None:
        """Queue these faults, in this order, for the next calls; the whole list `times` times.

        With a payer they apply to calls about its payments, which meet no other faults first.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"no operation {operation}")
        with self._lock:
            if payer is None:
                self._faults[operation].extend(list(faults) * times)
            else:
                mine = self._payers.setdefault((operation, payer.lower()), deque())
                mine.extend(list(faults) * times)

    def set_balance(self, wallet: str, units: int) -> None:
        """Set a wallet's balance; wallets without one have unlimited funds."""
        with self._lock:
            self._balances[wallet.lower()] = units

    def release(self) -> None:
        """Let every hanging call continue."""
        released, self._released = self._released, threading.Event()
        released.set()

    @property
    def accepted(self) -> int:
        """How many connections were ever accepted."""
        return self._http.accepted

    def cut_connections(self) -> None:
        """Close every open connection."""
        self._http.cut_connections()

    def calls(self, operation: str | None = None) -> list[dict[str, Any]]:
        """Return the calls received: operation, body, headers in lower case, the fault applied."""
        with self._lock:
            return [call for call in self._calls if operation in (None, call["operation"])]

    def transfers(self) -> list[dict[str, Any]]:
        """Return every transfer made: payer, to, value, nonce, transaction."""
        with self._lock:
            return list(self._transfers.values())

    def charged(self, payer: str | None = None) -> int:
        """Return how much has been transferred, by this payer or by all."""
        return sum(
            moved["value"] for moved in self.transfers() if payer is None or moved["payer"] == payer.lower()
        )

    def state(self) -> dict[str, Any]:
        """Return everything recorded, as GET /_control shows it."""
        with self._lock:
            return {
                "calls": list(self._calls),
                "transfers": list(self._transfers.values()),
                "faults": {name: [asdict(fault) for fault in plan] for name, plan in self._faults.items()},
                "overlaps": self._overlaps,
            }

    @property
    def overlaps(self) -> int:
        """How many settle calls arrived while another one of the same authorization was open."""
        with self._lock:
            return self._overlaps

    # Used by the HTTP handler

    def begin(self, operation: str, body: Any, headers: dict[str, str]) -> Fault | None:
        with self._lock:
            fault = self._next(operation, body)
            met = fault.kind if fault else None
            self._calls.append({"operation": operation, "body": body, "headers": headers, "fault": met})
            return fault

    def _next(self, operation: str, body: Any) -> Fault | None:
        try:
            payer = authorization_of(body)["from"].lower()
        except (KeyError, TypeError, AttributeError):
            payer = ""
        for plan in (self._payers.get((operation, payer)), self._faults[operation]):
            if plan:
                return plan.popleft()
        return None

    def enter_settle(self, key: str) -> None:
        with self._lock:
            self._overlaps += self._open.get(key, 0) > 0
            self._open[key] = self._open.get(key, 0) + 1

    def leave_settle(self, key: str) -> None:
        with self._lock:
            self._open[key] = self._open.get(key, 1) - 1

    def verify(self, body: Any) -> dict[str, Any]:
        code = self._problem(body)
        payer = authorization_of(body)["from"]
        return (
            {"isValid": False, "invalidReason": code, "payer": payer}
            if code
            else {
                "isValid": True,
                "payer": payer,
            }
        )

    def settle(self, body: Any) -> dict[str, Any]:
        """Move the money if the payment is valid, and answer as an honest facilitator does."""
        code = self._problem(body)
        if code == NONCE_USED and self.reconciles:
            code = None
        authorization = authorization_of(body)
        response = {"payer": authorization["from"], "network": body["paymentRequirements"]["network"]}
        if code is not None:
            return {"success": False, "errorReason": code, "transaction": "", **response}
        return {"success": True, "transaction": self.move(body), **response}

    def move(self, body: Any) -> str:
        """Record the transfer, once per authorization, and return its hash."""
        authorization, key = authorization_of(body), key_of(body)
        transaction = "0x" + hashlib.sha256(key.encode()).hexdigest()
        payer, value = authorization["from"].lower(), int(authorization["value"])
        with self._lock:
            if key not in self._transfers:
                if payer in self._balances:
                    self._balances[payer] -= value
                self._transfers[key] = {
                    "payer": payer,
                    "to": authorization["to"].lower(),
                    "value": value,
                    "nonce": authorization["nonce"].lower(),
                    "transaction": transaction,
                }
        return transaction

    def released(self) -> threading.Event:
        return self._released

    def _problem(self, body: Any) -> str | None:
        authorization, asked = authorization_of(body), body["paymentRequirements"]
        with self._lock:
            if key_of(body) in self._transfers:
                return NONCE_USED
            if self._balances.get(authorization["from"].lower(), sys.maxsize) < int(authorization["value"]):
                return "invalid_exact_evm_insufficient_balance"
        if authorization["to"].lower() != asked["payTo"].lower():
            return "invalid_exact_evm_payload_recipient_mismatch"
        if int(authorization["value"]) != int(asked["amount"]):
            return "invalid_exact_evm_payload_authorization_value_mismatch"
        if int(authorization["validBefore"]) < time.time() + 6:
            return "invalid_exact_evm_payload_authorization_valid_before"
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description="A facilitator that lies on demand.")
    parser.add_argument("--port", type=int, default=0)
    server = FacilitatorServer(parser.parse_args().port).start()
    print(json.dumps({"url": server.url}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()

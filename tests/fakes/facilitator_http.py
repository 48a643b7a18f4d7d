"""The fake facilitator's HTTP side: routes, network faults and the control route."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.facilitator_faults import Fault


def authorization_of(body: Any) -> dict[str, str]:
    found: dict[str, str] = body["paymentPayload"]["payload"]["authorization"]
    return found


def key_of(body: Any) -> str:
    asked, authorization = body["paymentRequirements"], authorization_of(body)
    parts = (asked["network"], asked["asset"], authorization["from"], authorization["nonce"])
    return "/".join(parts).lower()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], owner: Any) -> None:
        super().__init__(address, _Handler)
        self.owner = owner
        self._sockets: set[socket.socket] = set()
        self.accepted = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self._sockets.add(request)
        self.accepted += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._sockets.discard(request)
        super().shutdown_request(request)

    def cut_connections(self) -> None:
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores peers that disconnect, which tests do on purpose; prints any other error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Suppresses access logs."""

    def do_GET(self) -> None:
        if self.path == "/_control":
            self._send(200, self.server.owner.state())
        elif self.path == "/supported":
            self._serve("supported", None)
        else:
            self._send(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = self._read()
        if self.path == "/_control":
            self._control(body)
        elif self.path in ("/verify", "/settle"):
            self._serve(self.path[1:], body)
        else:
            self._send(404, {"error": "not found"})

    def do_DELETE(self) -> None:
        if self.path == "/_control":
            self.server.owner.reset()
            self._send(200, {})
        else:
            self._send(404, {"error": "not found"})

    def _control(self, body: Any) -> None:
        owner = self.server.owner
        try:
            faults = [Fault(**{**fault, "headers": ()}) for fault in body.get("faults", ())]
            if faults:
                owner.plan(body["operation"], *faults, times=int(body.get("times", 1)))
            for wallet, units in body.get("balances", {}).items():
                owner.set_balance(wallet, int(units))
            if body.get("release"):
                owner.release()
            owner.reconciles = bool(body.get("reconciles", owner.reconciles))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            self._send(400, {"error": str(error)})
            return
        self._send(200, owner.state())

    def _serve(self, operation: str, body: Any) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = owner.begin(operation, body, headers)
        if operation != "settle":
            self._act(operation, body, fault)
            return
        try:
            key = key_of(body)
        except (KeyError, TypeError, AttributeError):
            self._send(400, {"success": False, "errorReason": "invalid_payload", "transaction": ""})
            return
        owner.enter_settle(key)
        try:
            self._act(operation, body, fault)
        finally:
            owner.leave_settle(key)

    def _act(self, operation: str, body: Any, fault: Fault | None) -> None:
        owner = self.server.owner
        if fault is not None and fault.moves and operation == "settle":
            owner.move(body)
        if fault is not None and fault.kind == "hang":
            owner.released().wait(fault.seconds)
            fault = None
        if fault is None or fault.kind == "slow_body":
            honest = self._honest(operation, body)
            self._send(200, honest, between=fault.seconds if fault else 0)
        elif fault.kind == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault.kind == "no_hash":
            self._send(200, {"success": True, "transaction": "", "network": ""})
        elif fault.kind == "pending":
            transaction = "0x" + hashlib.sha256(key_of(body).encode()).hexdigest()
            response = {"success": False, "errorReason": "settlement_pending", "transaction": transaction}
            self._send(fault.status, {**response, "network": body["paymentRequirements"]["network"]})
        else:
            self._send(fault.status, fault.body, dict(fault.headers))

    def _honest(self, operation: str, body: Any) -> dict[str, Any]:
        owner = self.server.owner
        if operation == "supported":
            networks = ("eip155:8453", "eip155:84532")
            kinds = [{"x402Version": 2, "scheme": "exact", "network": network} for network in networks]
            return {"kinds": kinds, "extensions": [], "signers": {}}
        return owner.verify(body) if operation == "verify" else owner.settle(body)

    def _read(self) -> Any:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            return json.loads(data)
        except ValueError:
            return None

    def _send(
        self, status: int, body: Any, headers: dict[str, str] | None = None, between: float = 0
    ) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if not between:
            self.wfile.write(data)
            return
        for index in range(len(data)):
            self.wfile.write(data[index : index + 1])
            self.server.owner.released().wait(between)

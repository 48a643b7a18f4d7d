"""The official Python facilitator (`x402` with its web3 signer) behind the usual facilitator HTTP paths.

`OfficialFacilitator` runs this file in a separate process, as an operator would run a facilitator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import requests

from tests.waiting import eventually
from worker.local.valkey import free_port

ROOT = Path(__file__).parents[2]
NETWORK = "eip155:84532"


class OfficialFacilitator:
    """The process; `log` is its output."""

    def __init__(self, rpc_url: str, gas_key: str, log: Path) -> None:
        self._log = log
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "tests.fakes.official_facilitator", rpc_url, str(port)]
        self._gas_key = gas_key
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            environ = {**os.environ, "GAS_KEY": self._gas_key}
            self._process = subprocess.Popen(self._command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        eventually(self._answers, 60, "the official facilitator")

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/supported", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


def serve(rpc_url: str, port: int, gas_key: str) -> None:
    """Serves until the process is stopped."""
    from x402 import x402FacilitatorSync
    from x402.mechanisms.evm import FacilitatorWeb3Signer
    from x402.mechanisms.evm.exact import register_exact_evm_facilitator
    from x402.schemas import PaymentPayload, PaymentRequirements

    facilitator = x402FacilitatorSync()
    register_exact_evm_facilitator(facilitator, FacilitatorWeb3Signer(gas_key, rpc_url), NETWORK)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, facilitator.get_supported().model_dump(by_alias=True, exclude_none=True))

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            payload = PaymentPayload.model_validate(request["paymentPayload"])
            requirements = PaymentRequirements.model_validate(request["paymentRequirements"])
            act = facilitator.verify if self.path.endswith("/verify") else facilitator.settle
            try:
                answer = act(payload, requirements)
            except Exception as broken:
                print(f"{self.path} {type(broken).__name__}: {broken}", flush=True)
                self._answer(500, {"error": type(broken).__name__})
                return
            response = answer.model_dump(by_alias=True, exclude_none=True)
            print(self.path, json.dumps(response), flush=True)
            self._answer(200, response)

        def _answer(self, status: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Suppresses access logs: only responses are logged."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), os.environ["GAS_KEY"])

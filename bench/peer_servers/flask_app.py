"""The official Flask middleware selling `POST /echo`; served by gunicorn."""

from __future__ import annotations

import os

from flask import Flask, jsonify
from x402 import x402ResourceServerSync
from x402.http import FacilitatorConfig, HTTPFacilitatorClientSync
from x402.http.middleware.flask import payment_middleware
from x402.mechanisms.evm.exact import register_exact_evm_server

from bench.facilitator import NETWORK


def create_app() -> Flask:
    app = Flask("peer")
    facilitator = HTTPFacilitatorClientSync(FacilitatorConfig(url=os.environ["FACILITATOR_URL"]))
    server = x402ResourceServerSync(facilitator)
    register_exact_evm_server(server, NETWORK)
    accepts = {"scheme": "exact", "network": NETWORK, "payTo": os.environ["PAYEE"], "price": "$0.01"}
    payment_middleware(app, {"POST /echo": {"accepts": accepts}}, server)

    @app.post("/echo")
    def echo() -> object:
        return jsonify(done=True)

    @app.get("/health")
    def health() -> object:
        return jsonify(ok=True)

    return app

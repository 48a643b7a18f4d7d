"""The least that each kind of request can cost here, written by hand on Flask without any guarantee.

A lookup (a 402's floor) and a digest with a lookup (a replay's) are served as the worker is. Paid work (two
kept facilitator calls, without a store and with three journaled scripts) is served by gunicorn as published.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os

import redis
import urllib3
from flask import Flask, Response, request

_JOURNAL = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[2], ARGV[1])
return redis.call('LLEN', KEYS[2])
"""
_OFFER = base64.b64encode(json.dumps({"x402Version": 2, "accepts": [{"scheme": "exact"}]}).encode()).decode()
_DONE = b'{"done":true}\n'


def create_app() -> Flask:
    app = Flask("floors", static_folder=None)
    store = redis.Redis.from_url(os.environ["REDIS_URL"])
    store.set("floor", _DONE)
    journal = store.register_script(_JOURNAL)
    facilitator = os.environ.get("FACILITATOR_URL", "")
    links = urllib3.PoolManager(num_pools=1, maxsize=256)

    def ask(operation: str, payment: str) -> dict[str, object]:
        body = json.dumps({"x402Version": 2, "paymentPayload": json.loads(base64.b64decode(payment))})
        headers = {"Content-Type": "application/json"}
        answer: dict[str, object] = links.request(
            "POST", f"{facilitator}/{operation}", body=body.encode(), headers=headers
        ).json()
        return answer

    def paid(settled: dict[str, object]) -> Response:
        response = Response(_DONE, mimetype="application/json")
        response.headers["PAYMENT-RESPONSE"] = base64.b64encode(json.dumps(settled).encode()).decode()
        return response

    @app.get("/health")
    def health() -> Response:
        return Response(_DONE, mimetype="application/json")

    @app.post("/floor")
    def floor() -> bytes:
        found: bytes = store.get("floor")  # type: ignore[assignment]
        return found

    @app.post("/asked")
    def asked() -> Response:
        request.get_json()
        store.get("floor")
        response = Response(b"{}", status=402, mimetype="application/json")
        response.headers["PAYMENT-REQUIRED"] = _OFFER
        return response

    @app.post("/replayed")
    def replayed() -> Response:
        hashlib.sha256(request.get_data()).hexdigest()
        return Response(store.get("floor"), mimetype="application/json")  # type: ignore[arg-type]

    @app.post("/paid")
    def bare() -> Response:
        request.get_json()
        payment = request.headers["PAYMENT-SIGNATURE"]
        assert ask("verify", payment)["isValid"]
        return paid(ask("settle", payment))

    @app.post("/journaled")
    def journaled() -> Response:
        request.get_json()
        payment = request.headers["PAYMENT-SIGNATURE"]
        keys = [f"floor:{hashlib.sha256(payment.encode()).hexdigest()}", "floor:log"]
        journal(keys=keys, args=["claim", request.get_data()])
        assert ask("verify", payment)["isValid"]
        journal(keys=keys, args=["result", _DONE])
        settled = ask("settle", payment)
        journal(keys=keys, args=["settled", json.dumps(settled)])
        return paid(settled)

    return app

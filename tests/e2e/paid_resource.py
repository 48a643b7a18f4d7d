"""A resource sold by the official Flask middleware.

`python paid_resource.py FACILITATOR PAYEE` prints its port.
"""

from __future__ import annotations

import sys

from flask import Flask, jsonify, request
from werkzeug.serving import make_server
from x402 import x402ResourceServerSync
from x402.http import FacilitatorConfig, HTTPFacilitatorClientSync
from x402.http.middleware.flask import payment_middleware
from x402.mechanisms.evm.exact import register_exact_evm_server

NETWORK = "eip155:84532"


def paid_resource(facilitator: str, payee: str) -> Flask:
    app = Flask("worker")
    server = x402ResourceServerSync(HTTPFacilitatorClientSync(FacilitatorConfig(url=facilitator)))
    register_exact_evm_server(server, NETWORK)
    accepts = {"scheme": "exact", "network": NETWORK, "payTo": payee, "price": "$0.03"}
    payment_middleware(
        app, {"GET /weather": {"accepts": accepts}, "POST /echo": {"accepts": accepts}}, server
    )

    @app.get("/weather")
    def weather() -> object:
        return jsonify(sky="blue")

    @app.post("/echo")
    def echo() -> object:
        return jsonify(said=request.get_data(as_text=True))

    return app


if __name__ == "__main__":
    served = make_server("127.0.0.1", 0, paid_resource(sys.argv[1], sys.argv[2]), threaded=True)
    print(served.port, flush=True)
    served.serve_forever()

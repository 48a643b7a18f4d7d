"""The official FastAPI middleware selling `POST /echo`: `uvicorn fastapi_app:app` in this folder."""

from __future__ import annotations

import os

from fastapi import FastAPI
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.http.middleware.fastapi import PaymentMiddlewareASGI
from x402.mechanisms.evm.exact import register_exact_evm_server

NETWORK = "eip155:84532"

app = FastAPI()
_server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=os.environ["FACILITATOR_URL"])))
register_exact_evm_server(_server, NETWORK)
_accepts = {"scheme": "exact", "network": NETWORK, "payTo": os.environ["PAYEE"], "price": "$0.01"}
app.add_middleware(PaymentMiddlewareASGI, routes={"POST /echo": {"accepts": _accepts}}, server=_server)


@app.post("/echo")
async def echo() -> dict[str, bool]:
    return {"done": True}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}

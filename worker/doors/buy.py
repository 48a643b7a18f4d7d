"""The plain door: one URL per capability, open to any client that can pay a 402."""

from __future__ import annotations

import time
from typing import Any

from flask import Blueprint, Response, request

from worker.core.callers import network_of
from worker.doors.answers import PlainAnswer, json_answer
from worker.doors.bodies import Body, raw
from worker.doors.contract_bodies import expect_json
from worker.doors.direct import DirectRoute
from worker.doors.hire import LOOKED_UP, HireServices, add_private, pays
from worker.doors.hire_views import payment_headers, purchase_line, receipt_of, refusal
from worker.doors.request_headers import RequestHeaders
from worker.hiring.buying import SignInRequired
from worker.hiring.discovery import PATH
from worker.hiring.task import PaymentRequired, TaskInput
from worker.x402.sign_in import SIGN_IN_HEADER

NAME = "buy"


def add_private_headers(response: Response) -> Response:
    add_private(response.headers)
    return response


def sign_in_required(problem: SignInRequired, services: HireServices) -> Response:
    """The receipt of a payment that no longer grants access, and how to read the task instead."""
    problem.details["receipt"] = receipt_of(problem.task)
    response = refusal(problem, None).response()
    response.headers.update(payment_headers(problem.task, services.network))
    return response


def door(services: HireServices) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)
    buying, settings = services.buying, services.settings

    blueprint.after_request(add_private_headers)

    @blueprint.errorhandler(SignInRequired)
    def on_sign_in_required(problem: SignInRequired) -> Response:
        return sign_in_required(problem, services)

    @blueprint.get(f"{PATH}<capability>")
    def quote(capability: str) -> Response:
        services.slow_down(request.environ, "executes", settings.limit_executes)
        raise buying.quote(capability, None)

    @blueprint.post(f"{PATH}<capability>")
    def buy(capability: str) -> Response:
        return _bought(services, capability, request.environ, raw).response()

    @blueprint.get("/tasks")
    def my_tasks() -> Response:
        services.slow_down(request.environ, "executes", settings.limit_executes)
        proof = request.headers.get(SIGN_IN_HEADER)
        if proof is None:
            return json_answer(buying.challenge(), 401)
        bought = [purchase_line(each, services.deliverables) for each in buying.bought_by(proof)]
        return json_answer({"tasks": bought})

    return blueprint


def direct_routes(services: HireServices) -> dict[str, DirectRoute]:
    def buy(environ: dict[str, Any], read: Body) -> PlainAnswer:
        return _bought(services, environ["PATH_INFO"].removeprefix(PATH), environ, read)

    return {PATH: DirectRoute(f"{NAME}.buy", buy, add_private)}


def _bought(services: HireServices, capability: str, environ: dict[str, Any], read: Body) -> PlainAnswer:
    began, buying = time.monotonic(), services.buying
    # By address: the payer is unproven until its signature is checked.
    kind = "payments" if pays(environ) else "executes"
    services.slow_down(environ, kind, services.settings.limit_executes)
    body, headers = TaskInput(read()), RequestHeaders(environ)
    try:
        if not body.raw and not pays(environ):
            raise buying.quote(capability, None)
        expect_json(environ)
        try:
            network = network_of(environ.get("REMOTE_ADDR"))
            task = buying.buy(capability, body, headers, headers.get("X-Webhook-URL"), network)
        finally:
            # The record was read before, unless the body could not be compared with it.
            environ[LOOKED_UP] = not body.unreadable
        return services.answer(environ, task, began, buying.offer_again)
    except PaymentRequired as offered:
        return refusal(offered, None)

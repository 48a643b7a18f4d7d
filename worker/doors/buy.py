"""The plain door: one URL per capability, open to any client that can pay a 402."""

from __future__ import annotations

import time

from flask import Blueprint, Response, g, request

from worker.core.callers import network_of
from worker.doors.answers import json_answer
from worker.doors.bodies import raw
from worker.doors.contract_bodies import expect_json
from worker.doors.hire import EXPOSED, HireServices, pays, request_headers
from worker.doors.hire_views import (
    payment_headers,
    problem_response,
    purchase_line,
    receipt_of,
)
from worker.hiring.buying import SignInRequired
from worker.hiring.discovery import PATH
from worker.hiring.task import TaskInput
from worker.x402.sign_in import SIGN_IN_HEADER

NAME = "buy"


def add_private_headers(response: Response) -> Response:
    """Responses depend on headers that shared caches ignore."""
    response.headers["Access-Control-Expose-Headers"] = EXPOSED
    response.headers.setdefault("Cache-Control", "private, no-store")
    return response


def sign_in_required(problem: SignInRequired, services: HireServices) -> Response:
    """The receipt of a payment that no longer grants access, and how to read the task instead."""
    problem.details["receipt"] = receipt_of(problem.task)
    response = problem_response(problem, None)
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
        services.slow_down("executes", settings.limit_executes)
        raise buying.quote(capability, None)

    @blueprint.post(f"{PATH}<capability>")
    def buy(capability: str) -> Response:
        began = time.monotonic()
        # By address: the payer is unproven until its signature is checked.
        services.slow_down("payments" if pays() else "executes", settings.limit_executes)
        body = TaskInput(raw())
        webhook = request.headers.get("X-Webhook-URL")
        if not body.raw and not pays():
            raise buying.quote(capability, None)
        expect_json()
        try:
            network = network_of(request.remote_addr)
            task = buying.buy(capability, body, request_headers(), webhook, network)
        finally:
            # The record was read before, unless the body could not be compared with it.
            g.looked_up = not body.unreadable
        return services.answer(task, began, buying.offer_again)

    @blueprint.get("/tasks")
    def my_tasks() -> Response:
        services.slow_down("executes", settings.limit_executes)
        proof = request.headers.get(SIGN_IN_HEADER)
        if proof is None:
            return json_answer(buying.challenge(), 401)
        bought = [purchase_line(each, services.deliverables) for each in buying.bought_by(proof)]
        return json_answer({"tasks": bought})

    return blueprint

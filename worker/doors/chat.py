"""The chat agent for OpenAI clients that pay 402s: `POST /v1/chat/completions`, whole or streamed.

A purchase here is one at `/buy/chat`, with the same input, payment, ledger and task; only the forms differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

from flask import Blueprint, Response, request

from worker.capabilities.declare import Capability
from worker.core.callers import network_of
from worker.core.canonical import canonical
from worker.core.errors import InvalidInput
from worker.core.states import State
from worker.delivery.failure import failure_of
from worker.doors.answers import SSE_HEADERS, json_answer
from worker.doors.bodies import raw
from worker.doors.buy import add_private_headers, sign_in_required
from worker.doors.chat_forms import HEARTBEAT, ChatAnswer, ChatRequest, read_request
from worker.doors.contract_bodies import expect_json
from worker.doors.hangup import bound_writes
from worker.doors.hire import LOOKED_UP, HireServices, pays
from worker.doors.hire_views import payment_headers
from worker.doors.request_headers import RequestHeaders
from worker.engine.events import Kind
from worker.hiring.buying import Buying, SignInRequired
from worker.hiring.discovery import CHAT, COMPLETIONS
from worker.hiring.task import Task, TaskInput
from worker.x402.bazaar import BAZAAR
from worker.x402.offer import Offer

NAME = "chat"
# Routers end requests that stay silent for 30 s.
WAIT_SECONDS = 25.0
_STILL_WORKING = {
    "code": "STILL_WORKING",
    "message": "the answer takes longer than this request waits; the work goes on",
    "details": {"advice": "Read it at poll_url with the task_token as bearer, or ask with stream=true."},
}
_BROKEN_OFF = {"code": "STILL_WORKING", "message": "the stream broke off; read the task with its token"}


def door(services: HireServices) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)
    buying = _at_completions(services)

    @blueprint.after_request
    def expose(response: Response) -> Response:
        if pays(request.environ):
            # OpenAI clients repeat failed requests without the payment, which would buy once more.
            response.headers["X-Should-Retry"] = "false"
        return add_private_headers(response)

    @blueprint.errorhandler(SignInRequired)
    def on_sign_in_required(problem: SignInRequired) -> Response:
        return sign_in_required(problem, services)

    @blueprint.get(COMPLETIONS)
    def quote() -> Response:
        services.slow_down(request.environ, "executes", services.settings.limit_executes)
        raise buying.quote(CHAT, None)

    @blueprint.post(COMPLETIONS)
    def complete() -> Response:
        began, environ = time.monotonic(), request.environ
        kind = "payments" if pays(environ) else "executes"
        services.slow_down(environ, kind, services.settings.limit_executes)
        body = raw()
        if not body and not pays(environ):
            raise buying.quote(CHAT, None)
        expect_json(environ)
        capability = services.hiring.catalog.get(CHAT)
        if capability is None and not pays(environ):
            raise buying.quote(CHAT, None)
        asked = read_request(body)
        _expect_model(asked, capability)
        given = TaskInput.of(asked.input)
        try:
            network = network_of(request.remote_addr)
            webhook = request.headers.get("X-Webhook-URL")
            task = buying.buy(CHAT, given, RequestHeaders(environ), webhook, network)
        finally:
            environ[LOOKED_UP] = True
        task = services.tasks.wait(task, began + WAIT_SECONDS, until_paid=asked.stream)
        if task.unpaid:
            raise buying.offer_again(task)
        return _answer(services, task, asked)

    return blueprint


def _at_completions(services: HireServices) -> Buying:
    """Sells at this door's address. Catalogs list the capability's own one, whose input they describe."""
    listed = services.buying

    def advertise(capability: Capability, offer: Offer) -> Offer:
        offer = listed.advertise(capability, offer)
        kept = {name: each for name, each in offer.extensions.items() if name != BAZAAR}
        return replace(offer, extensions=kept)

    url = f"{services.settings.public_url}{COMPLETIONS}"
    return replace(listed, address=lambda name: url, advertise=advertise)


def _expect_model(asked: ChatRequest, capability: Capability | None) -> None:
    """Refuses another model than the one that would answer; recorded purchases outlive the capability."""
    names = [each for each in (capability.model, CHAT) if each] if capability else []
    if names and asked.model not in names:
        raise InvalidInput("no such model here", field="model", expected=names, received=asked.model[:80])


def _answer(services: HireServices, task: Task, asked: ChatRequest) -> Response:
    execution = task.execution
    answer = ChatAnswer(
        execution.id,
        execution.created // 1_000_000,
        asked.model,
        {"task_token": task.contract.terms.contract_id},
    )
    if asked.stream and (task.charged or execution.state is State.COMPLETED):
        return _streamed(services, task, answer)
    if execution.state is State.COMPLETED:
        response = json_answer(answer.whole(_text(services, task)))
        response.headers.update(payment_headers(task, services.network))
        return response
    shown = services.show(task)
    if shown.status == 202:
        return json_answer({**json.loads(shown.body), "error": _STILL_WORKING}, 504, shown.headers)
    return shown.response()


def _streamed(services: HireServices, task: Task, answer: ChatAnswer) -> Response:
    id = task.execution.id
    give_back = services.places.take(id, newcomer=not services.hiring.has_customer(id))
    bound_writes(request.environ)
    headers = SSE_HEADERS | payment_headers(task, services.network)
    response = Response(_pieces(services, task, answer), mimetype="text/event-stream", headers=headers)
    response.call_on_close(give_back)
    return response


def _pieces(services: HireServices, task: Task, answer: ChatAnswer) -> Iterator[str]:
    """The text as it is made; the log may lack the end of a long one, which the result has."""
    yield answer.begin()
    sent = 0
    for batch in services.tasks.events(task.execution.id, 0):
        if not batch:
            yield HEARTBEAT
        for event in batch:
            if event.kind == Kind.OUTPUT_CHUNK:
                text = event.data()["text"]
                sent += len(text)
                yield answer.piece(text)
    ended = services.tasks.read(task.contract, task.execution.id)
    if ended.execution.state is not State.COMPLETED:
        error = failure_of(ended.execution) if ended.execution.state.terminal else _BROKEN_OFF
        yield answer.broken(error)
        return
    rest = _text(services, ended)[sent:]
    yield (answer.piece(rest) if rest else "") + answer.end()


def _text(services: HireServices, task: Task) -> str:
    executions = services.tasks.executions
    if task.execution.result["type"] == "stream":
        return executions.streamed_text(task.execution)
    output = executions.output(task.execution)
    return output if isinstance(output, str) else canonical(output).decode()

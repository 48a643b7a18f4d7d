"""The swarm door: a WattSwarm runtime under `/swarm` and at the root, for kernels with a key.

Without SWARM_KEYS the door does not exist and its routes are 404. `POST /execute` at the root belongs to
the hire door; it is handled here if it names no contract and its body is a kernel's.
"""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from worker.core.errors import Problem, UnsupportedMedia
from worker.doors.bodies import raw
from worker.doors.hire import CONTRACT
from worker.swarm import answers
from worker.swarm.kernels import Kernel, KernelKeyUnknown, Kernels
from worker.swarm.serving import SwarmRuntime

NAME = "swarm"
PREFIX = "/swarm"
# A kernel's body contains the first of these and one of the others.
_MARK, _MARKS = b'"execution_id"', (b'"attempt_id"', b'"task_contract"')


def is_asked() -> bool:
    """Whether this door handles the current request, including one to the root's `/execute`."""
    return request.blueprint == NAME or bool(g.get("swarm"))


def refuse(problem: Problem) -> Response:
    """An error in the format that a kernel shows to its operator."""
    response = _json(answers.error_body(problem), problem.status)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    if isinstance(problem, KernelKeyUnknown):
        response.headers["WWW-Authenticate"] = 'Basic realm="swarm", charset="UTF-8"'
    return response


def door(serving: SwarmRuntime, kernels: Kernels) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    def kernel() -> Kernel:
        return kernels.authenticate(request.headers.get("Authorization", ""), request.remote_addr or "")

    @blueprint.before_app_request
    def claim() -> Response | None:
        if request.path.startswith(PREFIX + "/"):
            g.swarm = True
        elif _asks_for_work() and _is_a_kernels(raw()):
            g.swarm = True
            return execute()
        return None

    @blueprint.get(f"{PREFIX}/health")
    def health() -> Response:
        return _json(b'{"status":"ok"}')

    @blueprint.get(f"{PREFIX}/capabilities")
    @blueprint.get("/capabilities")
    def capabilities() -> Response:
        kernel()
        return _json(serving.capabilities())

    @blueprint.post(f"{PREFIX}/execute")
    def execute() -> Response:
        return _json(serving.execute(kernel(), _body()))

    @blueprint.post(f"{PREFIX}/verify")
    @blueprint.post("/verify")
    def verify() -> Response:
        return _json(serving.verify(kernel(), _body()))

    return blueprint


def _asks_for_work() -> bool:
    """`POST /execute` at the root, without a contract."""
    post = request.method == "POST" and request.path.rstrip("/") == "/execute"
    return post and not request.headers.get(CONTRACT)


def _is_a_kernels(body: bytes) -> bool:
    """Matches bytes only: an untrusted body is not parsed before its key is checked."""
    return _MARK in body and any(mark in body for mark in _MARKS)


def _body() -> bytes:
    kind = request.mimetype
    if kind not in ("", "application/json") and not kind.endswith("+json"):
        raise UnsupportedMedia(field="Content-Type", expected="application/json", received=kind[:80])
    return raw()


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, mimetype="application/json")

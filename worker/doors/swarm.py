"""The swarm door: a WattSwarm runtime under `/swarm` and at the root, for kernels that have a key.

Without SWARM_KEYS there is no such door: its addresses are 404 like any unknown one. `POST /execute` at the
root belongs to the hire door; it comes here when it names no contract and its body is a kernel's.
"""

from __future__ import annotations

from flask import Blueprint, Response, g, request

from worker.doors.answers import raw_body
from worker.doors.hire import CONTRACT
from worker.errors import Problem, UnsupportedMedia
from worker.swarm import answers, serde, wire
from worker.swarm.kernels import Kernel, Kernels, NoKey
from worker.swarm.serving import Serving

NAME = "swarm"
PREFIX = "/swarm"
_MARK = b'"execution_id"'


def is_asked() -> bool:
    """Whether the present request is this door's, also when it came by the root's `/execute`."""
    return request.blueprint == NAME or bool(g.get("swarm"))


def refuse(problem: Problem) -> Response:
    """An error in the form that a kernel shows to its operator."""
    response = _json(answers.error_body(problem), problem.status)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    if isinstance(problem, NoKey):
        response.headers["WWW-Authenticate"] = 'Basic realm="swarm", charset="UTF-8"'
    return response


def door(serving: Serving, kernels: Kernels) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    def kernel() -> Kernel:
        return kernels.who(request.headers.get("Authorization", ""))

    @blueprint.before_app_request
    def claim() -> Response | None:
        if request.path.startswith(PREFIX + "/"):
            g.swarm = True
        elif _asks_for_work() and _is_a_kernels(request.get_data()):
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


def _is_a_kernels(raw: bytes) -> bool:
    if _MARK not in raw:
        return False
    try:
        return wire.looks_like_execute(serde.loads(raw))
    except serde.NotJson:
        return False


def _body() -> bytes:
    kind = request.mimetype
    if kind not in ("", "application/json") and not kind.endswith("+json"):
        raise UnsupportedMedia(field="Content-Type", expected="application/json", received=kind[:80])
    return raw_body()


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, mimetype="application/json")

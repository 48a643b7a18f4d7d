"""The web application: parts and doors put together. The only file that knows all doors."""

from __future__ import annotations

import os
import threading
from typing import Any

import redis
import structlog
from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, RequestEntityTooLarge
from werkzeug.middleware.proxy_fix import ProxyFix

from worker.contracts.task import PaymentRequired
from worker.doors import cors, hire, kernel, ops, swarm
from worker.doors.answers import problem_answer, request_id
from worker.doors.hire_views import required_headers
from worker.errors import Problem, TooLarge
from worker.logs import bound, configure
from worker.parts import Parts
from worker.requests_count import RequestCounts
from worker.settings import Settings
from worker.store import unavailable

log = structlog.get_logger()

BODY_BYTES = 1 << 20
HEADER_BYTES = 16 << 10
_PAYMENTS = ("PAYMENT-SIGNATURE", "X-PAYMENT")


def create_app(settings: Settings | None = None) -> Flask:
    """The application for these settings, or for those of the environment."""
    settings = settings or Settings.load(os.environ)
    configure(settings)
    app = Flask("worker", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES
    app.url_map.strict_slashes = False
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    parts = Parts(settings, "web")
    counts = parts.counts
    _frame_requests(app, counts)
    cors.add(app, settings.cors_origins)
    _answer_errors(app)
    app.register_blueprint(ops.door(parts, counts))
    app.register_blueprint(kernel.door(parts))
    hired = hire.door(parts.hiring, parts.manifest, parts.deliverables, parts.limits, settings)
    app.register_blueprint(hired)
    if settings.swarm_keys:
        app.register_blueprint(swarm.door(parts.serving, parts.kernels))
    threading.Thread(target=_warm_up, args=(parts,), name="warm-up", daemon=True).start()
    return app


def _warm_up(parts: Parts) -> None:
    """Connects before the first request needs it; a store that is away is the requests' matter."""
    try:
        parts.client.ping()
    except redis.RedisError:
        log.warning("web.store_away")


def _frame_requests(app: Flask, counts: RequestCounts) -> None:
    @app.before_request
    def begin() -> None:
        g.request_id = request_id(request.headers.get("X-Request-Id"))
        g.logging = bound(request_id=g.request_id)
        g.logging.__enter__()
        # Payments have a bound of their own, and a refusal that says more.
        others = [pair for pair in request.headers if pair[0].upper() not in _PAYMENTS]
        if sum(len(name) + len(value) + 4 for name, value in others) > HEADER_BYTES:
            raise Problem(
                "the request's headers are too large",
                code="HEADERS_TOO_LARGE",
                status=431,
                expected=f"at most {HEADER_BYTES} bytes",
                advice="Send fewer or shorter headers; nothing was charged.",
            )

    @app.teardown_request
    def unbind(error: BaseException | None) -> None:
        logging = g.pop("logging", None)
        if logging is not None:
            logging.__exit__(None, None, None)

    @app.after_request
    def end(response: Response) -> Response:
        response.headers["X-Request-Id"] = g.request_id
        counts.count(request.endpoint or "unknown", response.status_code)
        return response


def _answer_errors(app: Flask) -> None:
    """Whatever is raised becomes an answer in the door's own form; nothing of it leaks."""

    def answer(problem: Problem) -> Any:
        if swarm.is_asked():
            return swarm.refuse(problem)
        # What no door knows is most likely a seeker's mistake, unless it was meant for the kernel.
        door = request.blueprint or (kernel.NAME if request.path.startswith("/v0") else hire.NAME)
        form = hire.render_problem if door == hire.NAME else kernel.render_problem
        response = problem_answer(problem, form)
        if isinstance(problem, PaymentRequired):
            response.headers.update(required_headers(problem))
        return response

    @app.errorhandler(Problem)
    def on_problem(problem: Problem) -> Any:
        return answer(problem)

    @app.errorhandler(redis.RedisError)
    def on_store(error: redis.RedisError) -> Any:
        away = unavailable(error)
        if away is None:
            log.exception("web.store_error")
        return answer(away or Problem())

    @app.errorhandler(HTTPException)
    def on_http(error: HTTPException) -> Any:
        response = answer(_from_http(error))
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    @app.errorhandler(Exception)
    def on_anything(error: Exception) -> Any:
        log.exception("web.request_failed")
        return answer(Problem())


def _from_http(error: HTTPException) -> Problem:
    if isinstance(error, RequestEntityTooLarge):
        return TooLarge("request body too large", expected=f"at most {BODY_BYTES} bytes")
    known = {
        400: ("INVALID_REQUEST", "Mend the request; nothing was charged."),
        404: ("NOT_FOUND", "What there is stands in /openapi.json; nothing was charged."),
        405: ("METHOD_NOT_ALLOWED", "Use a method that Allow names; nothing was charged."),
        415: ("UNSUPPORTED_MEDIA_TYPE", "Send application/json; nothing was charged."),
    }
    status = error.code or 500
    code, advice = known.get(status, known[400])
    return Problem(error.name.lower(), code=code, status=status, advice=advice)

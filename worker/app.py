"""The web application: combines parts and doors. The only module that imports all doors."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

import redis
import structlog
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
from werkzeug.middleware.proxy_fix import ProxyFix

from worker.core.errors import NotFound as UnknownRoute
from worker.core.errors import Problem, TooLarge
from worker.core.logs import begin_request, configure, end_request
from worker.core.settings import Settings
from worker.doors import assets, buy, chat, cors, dashboard, hire, kernel, ops, pages, shop, site, swarm
from worker.doors.answers import add_common, request_id, this_request
from worker.doors.application import Application
from worker.doors.direct import BEGAN, DirectRoutes, raise_if_failed
from worker.doors.limits import BODY_BYTES, check_headers
from worker.engine.figures import MeasuredFigures
from worker.parts import Parts
from worker.store.client import unavailable
from worker.store.data_version import WrongDataVersion, use_store
from worker.store.outage import note
from worker.store.request_counts import RequestCounts

log = structlog.get_logger()

_STORE_PAUSE = 1.0
# On this exit code gunicorn stops instead of restarting the process.
_HALT = 3


def create_app(settings: Settings | None = None) -> Flask:
    """The application for these settings, or for the environment's."""
    settings = settings or Settings.load(os.environ)
    configure(settings)
    app = Application("worker", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_BYTES
    app.url_map.strict_slashes = False
    parts = Parts(settings, "web")
    counts = parts.counts
    _frame_requests(app, counts)
    cors.add(app, settings.cors_origins)
    _answer_errors(app, settings)
    app.register_blueprint(ops.door(parts, counts))
    app.register_blueprint(kernel.door(parts))
    services = hire.HireServices(
        parts.hiring,
        parts.tasks,
        parts.contract_service,
        parts.deliverables,
        parts.limits,
        parts.network,
        settings,
        parts.evidence,
        parts.buying,
    )
    if not settings.cors_origins:
        routes = kernel.direct_routes(parts) | hire.direct_routes(services) | buy.direct_routes(services)
        app.wsgi_app = DirectRoutes(app.wsgi_app, routes, counts)  # type: ignore[method-assign]
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    app.register_blueprint(hire.door(services, parts.manifest))
    app.register_blueprint(buy.door(services))
    app.register_blueprint(chat.door(services))
    figures = MeasuredFigures(parts.store.stats)
    for_people = shop.ShopServices(services, parts.manifest, figures, parts.site_documents, parts.trial_hires)
    app.register_blueprint(assets.door())
    app.register_blueprint(dashboard.door(parts))
    app.register_blueprint(shop.door(for_people))
    app.register_blueprint(site.door(parts.site_documents, parts.manifest.for_sale_if_known, settings))
    if settings.swarm_keys:
        app.register_blueprint(swarm.door(parts.serving, parts.kernels))
    # Called by the serving process, see worker/web.py; tests that only call the application skip it.
    app.extensions["begin"] = partial(_begin, parts)
    return app


def _begin(parts: Parts) -> None:
    threading.Thread(target=_join_store, args=(parts,), name="join-store", daemon=True).start()


def _join_store(parts: Parts) -> None:
    """Connects before the first request; exits if the store's data version is not this release's."""
    while True:
        try:
            use_store(parts.client, parts.keys)
            return parts.witness.keep_vouching()
        except redis.RedisError as error:
            note(error, "web.start")
            time.sleep(_STORE_PAUSE)
        except WrongDataVersion as wrong:
            log.error("web.wrong_data_version", reason=wrong.message)
            os._exit(_HALT)


def _frame_requests(app: Flask, counts: RequestCounts) -> None:
    @app.before_request
    def begin() -> None:
        environ = this_request().environ
        environ.setdefault(BEGAN, time.monotonic())
        begin_request(request_id(environ))
        if "//" in environ["PATH_INFO"]:
            # The router would redirect to a URL built from the Host header.
            raise NotFound()
        check_headers(environ)
        raise_if_failed(environ)

    @app.teardown_request
    def unbind(error: BaseException | None) -> None:
        end_request()

    @app.after_request
    def end(response: Response) -> Response:
        asked = this_request()
        status, environ = response.status_code, asked.environ
        add_common(response.headers, status, environ)
        counts.count(asked.endpoint or "unknown", status, time.monotonic() - environ[BEGAN])
        return response


def _answer_errors(app: Flask, settings: Settings) -> None:
    """Turns every exception into an answer in the door's error format; no internals leak."""

    # These have the HIRE error format.
    sells = frozenset({hire.NAME, buy.NAME, chat.NAME})
    hires = sells | {assets.NAME, shop.NAME}

    def answer(problem: Problem) -> Any:
        if swarm.is_asked():
            return swarm.refuse(problem)
        door = request.blueprint
        if door in sells:
            return hire.refuse(problem)
        if pages.answers(request):
            return pages.problem_page(problem, settings)
        # Use the HIRE error format for unknown routes, except under /v0.
        door = door or (kernel.NAME if request.path.startswith("/v0") else hire.NAME)
        return hire.refuse(problem) if door in hires else kernel.refuse(problem)

    @app.errorhandler(Problem)
    def on_problem(problem: Problem) -> Any:
        return answer(problem)

    @app.errorhandler(redis.RedisError)
    def on_store(error: redis.RedisError) -> Any:
        note(error, "web")
        refused = unavailable(error) or Problem()
        refused.charged = None  # the payment's state in the store is unknown
        return answer(refused)

    @app.errorhandler(HTTPException)
    def on_http(error: HTTPException) -> Any:
        response = answer(_from_http(error))
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    @app.errorhandler(Exception)
    def on_anything(error: Exception) -> Any:
        note(error, "web")
        return answer(Problem(charge_known=False))


def _from_http(error: HTTPException) -> Problem:
    if isinstance(error, RequestEntityTooLarge):
        return TooLarge("request body too large", expected=f"at most {BODY_BYTES} bytes")
    if error.code == 404 and request.path.startswith("/v0"):
        return UnknownRoute(f"no such route; {kernel.OTHER_PROTOCOL}")
    known = {
        400: ("INVALID_REQUEST", "Fix the request and retry. You were not charged."),
        404: ("NOT_FOUND", "See /openapi.json for the routes. You were not charged."),
        405: ("METHOD_NOT_ALLOWED", "Use a method listed in Allow. You were not charged."),
        415: ("UNSUPPORTED_MEDIA_TYPE", "Send application/json. You were not charged."),
    }
    status = error.code or 500
    code, advice = known.get(status, known[400])
    return Problem(error.name.lower(), code=code, status=status, advice=advice)

"""Gunicorn configuration of the web process: gevent in every environment.

Patch before any other import, so that no module keeps an unpatched lock or socket.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import gc

# Imports make much that stays and next to no garbage; looking for it would take a tenth of their time.
gc.disable()

import contextlib
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gevent
from gunicorn.glogging import Logger

from worker import http_server
from worker.core import logs
from worker.core.settings import BadStart, Settings
from worker.policy.file import PolicyInvalid, policy_for

# Before the first fork, so that a bad start is reported once, not by a worker that keeps restarting.
try:
    settings = Settings.load(os.environ)
    policy_for(settings.policy, production=settings.deployed)
except BadStart as bad:
    print(bad, file=sys.stderr)
    raise SystemExit(2) from None
except PolicyInvalid as invalid:
    print(f"{invalid.code}: {invalid.message}. {invalid.advice}", file=sys.stderr)
    raise SystemExit(2) from None

# A stream is an open file, and the usual soft limit (1,024, or 256 on a Mac) is far too low.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_wanted = 65_536 if _hard == resource.RLIM_INFINITY else min(_hard, 65_536)
if _soft < _wanted:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_wanted, _hard))


class _Logger(Logger):  # type: ignore[misc]
    """Logs gunicorn's own messages in the worker's log format."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.configure(settings)


logger_class = _Logger
accesslog = None

wsgi_app = "worker.app:create_app()"
worker_class = "gevent"
workers = settings.web_concurrency
# Above the number of streams that a process accepts, so that our own refusal, with its reason, applies.
worker_connections = 4_000
# Each process builds its own application: what it starts (subscriptions, settlers, counters)
# would not survive a fork, and without web3 the import that preloading saves is short.
preload_app = False

# A laptop's worker must not be reachable from outside; a server's is behind a router.
bind = f"{'0.0.0.0' if settings.deployed else '127.0.0.1'}:{settings.port}"
backlog = 2048
keepalive = 75
# A process that does not yield for this long is stuck and is replaced.
timeout = 30
# Lets open requests and settlements finish; hosts kill after 30 s.
graceful_timeout = 25

# A payment header has about 2 kB; the application limits the total size of all headers.
# A runner names its tools in the request line: this is gunicorn's maximum.
limit_request_line = 8190
limit_request_fields = 64
limit_request_field_size = 8190
# Only TRUSTED_PROXIES decides whose forwarded addresses are trusted.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}


class _Ended(BaseException):
    """Ends the wait for a client's next request."""


class _Waiting:
    """A connection's wait for its next request. A timer for each would cost more than reading the request."""

    def __init__(self, since: "dict[_Waiting, float]") -> None:
        self._since = since

    def __enter__(self) -> None:
        self._greenlet = gevent.getcurrent()
        self._since[self] = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._since.pop(self, None)
        return kind is _Ended

    def end(self) -> None:
        # Run in the loop, so that no request can arrive between the check and the end.
        gevent.get_hub().loop.run_callback(self._end)

    def _end(self) -> None:
        if self in self._since:
            self._greenlet.throw(_Ended)


def when_ready(server: Any) -> None:
    gc.enable()


def post_fork(server: Any, worker: Any) -> None:
    gc.disable()  # until the application is loaded


def post_worker_init(worker: Any) -> None:
    """Leaves what the application consists of out of later searches for garbage, which would take 80 ms.

    On shutdown, closes streams and idle keep-alive connections. Either would block shutdown for
    `graceful_timeout` and then be cut off. Open requests may finish.
    """
    # The parent has no use for the store's client, which would take up 8 MB there.
    from worker.engine import watch

    http_server.use(worker.cfg)
    gc.freeze()
    gc.enable()
    begin = getattr(worker.wsgi, "extensions", {}).get("begin")
    if begin is not None:
        begin()
    waiting: dict[_Waiting, float] = {}
    patience = worker.cfg.keepalive  # `keepalive` above, unless config/gunicorn.py sets another
    worker.timeout_ctx = lambda: _Waiting(waiting)

    def end_those(since: float) -> None:
        for each, began in waiting.items():  # the longest first
            if began > since:
                return
            each.end()

    def give_way() -> None:
        while worker.alive:
            time.sleep(0.25)
            end_those(time.monotonic() - patience)
        watch.close_all()
        while True:
            end_those(time.monotonic())
            time.sleep(0.25)

    threading.Thread(target=give_way, name="give-way", daemon=True).start()


control_socket_disable = True
# The heartbeat is a file; on disk it could block.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None

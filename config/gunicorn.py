"""How the web process is served: gevent, everywhere the same.

The patch comes before any other import, so that nobody keeps an unpatched lock or socket.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

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

from worker import logs
from worker.executions import watch
from worker.executions.policy_file import PolicyInvalid, policy_for
from worker.settings import BadStart, Settings

# before the first fork: a bad start is told once, and not by a worker that dies and comes back
try:
    settings = Settings.load(os.environ)
    policy_for(settings.policy, production=settings.production)
except BadStart as bad:
    print(bad, file=sys.stderr)
    raise SystemExit(2) from None
except PolicyInvalid as invalid:
    print(f"{invalid.code}: {invalid.message}. {invalid.advice}", file=sys.stderr)
    raise SystemExit(2) from None

# A stream is an open file, and the usual soft limit (1,024, or 256 on a Mac) is far below what we hold.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_wanted = 65_536 if _hard == resource.RLIM_INFINITY else min(_hard, 65_536)
if _soft < _wanted:
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_wanted, _hard))


class _Logger(Logger):
    """Gunicorn's own lines take the form of all others."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.configure(settings)


logger_class = _Logger
accesslog = None

wsgi_app = "worker.app:create_app()"
worker_class = "gevent"
workers = settings.web_concurrency
# Above the number of streams that a process accepts, so that the refusal is ours and says why.
worker_connections = 4_000
# Each process builds its own application: what it starts (subscriptions, settlers, counters)
# would not survive a fork, and without web3 the import that preloading saves is short.
preload_app = False

# A laptop's worker is nobody else's business; a server's stands behind a router.
bind = f"{'0.0.0.0' if settings.production else '127.0.0.1'}:{settings.port}"
backlog = 2048
keepalive = 75
# A process that does not yield for this long is stuck, and is replaced.
timeout = 30
# Requests and settlements under way are let finish; hosts kill after 30 s.
graceful_timeout = 25

# A payment header has about 2 kB; what all headers have together is counted by the application.
# A runner names its tools in the request line: this is the longest that gunicorn can be told.
limit_request_line = 8190
limit_request_fields = 64
limit_request_field_size = 8190
# Who is believed about addresses is TRUSTED_PROXIES' business alone.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}


class _Waiting(gevent.Timeout):
    """The time in which a kept connection waits for its next request. It can be ended early."""

    def __init__(self, seconds: float, waiting: set[Any]) -> None:
        super().__init__(seconds, False)
        self._waiting = waiting

    def __enter__(self) -> Any:
        self._greenlet = gevent.getcurrent()
        self._waiting.add(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._waiting.discard(self)
        return super().__exit__(*error)

    def end(self) -> None:
        # From the loop, so that no request can come between the look and the end.
        gevent.get_hub().loop.run_callback(self._end)

    def _end(self) -> None:
        if self in self._waiting:
            self._greenlet.throw(self)


def post_worker_init(worker: Any) -> None:
    """Told to stop, a process lets go of its streams, and of kept connections on which nothing happens.

    Either would hold it up for `graceful_timeout` and then be torn. Requests under way are let finish.
    """
    waiting: set[_Waiting] = set()
    worker.timeout_ctx = lambda: _Waiting(keepalive, waiting)

    def give_way() -> None:
        while worker.alive:
            time.sleep(0.25)
        watch.close_all()
        while True:
            for each in list(waiting):
                each.end()
            time.sleep(0.25)

    threading.Thread(target=give_way, name="give-way", daemon=True).start()


control_socket_disable = True
# The heartbeat is a file; on a disk it could block.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None

"""Structured logging: static event names with fields, and never a secret.

`log.info("execution.completed", agent=...)`: the name never varies, everything variable is a field. In
production each line is one JSON object. Records of other libraries get the same form, with the logger's
name as the event and their text as `message`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from worker.core.json import kept_encoder
from worker.core.settings import Settings

HIDDEN = "[hidden]"
_NAMES = frozenset(
    {
        "authorization",
        "proxy_authorization",
        "cookie",
        "set_cookie",
        "contract_id",
        "x_contract_id",
        "payment_signature",
        "x_payment",
        "payment_payload",
        "signature",
        "key",
        "token",
        "password",
        "secret",
        "secrets",
        "redis_url",
        "rpc_url",
    }
)
_ENDINGS = ("_key", "_token", "_password", "_secret", "_keys", "_signature", "_authorization")
_HARMLESS = frozenset({"step_key", "payment_key", "public_key", "idempotency_key"})
_SHORTEST_SECRET = 8
_SCALARS = frozenset({int, float, bool, str, type(None)})


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Sends all log lines of this process to `stream` (default: stderr). May be called again."""
    output = stream or cast(TextIO, _Stderr())
    json = settings.log_format == "json" or (settings.log_format == "auto" and settings.deployed)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _stamp,
    ]
    last: list[Processor] = [
        structlog.processors.format_exc_info,
        _Redacted(settings.secrets()),
        _renderer(json, output),
    ]
    # Each line would otherwise look up the stream's lock, in a logger of its own.
    writer = structlog.WriteLogger(output)
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _foreign],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for name in ("gunicorn.error", "gunicorn.access", "rq.worker", "rq"):
        other = logging.getLogger(name)
        other.handlers[:] = []
        other.propagate = True
    for chatty in ("urllib3", "rq.worker", "web3", "botocore", "werkzeug"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)


_apart: TextIO | None = None


def keep_apart(fd: int) -> None:
    """Redirects log lines to this descriptor, to free standard error for author code."""
    global _apart
    _apart = os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


class _Stderr:
    """Looks up sys.stderr on every write: a temporary replacement may have been closed."""

    def write(self, text: str) -> int:
        return (_apart or sys.stderr).write(text)

    def flush(self) -> None:
        (_apart or sys.stderr).flush()

    def isatty(self) -> bool:
        return (_apart or sys.stderr).isatty()


@contextmanager
def bound(
    *,
    execution_id: str | None = None,
    contract_ref: str | None = None,
    attempt: int | None = None,
) -> Iterator[None]:
    """Adds these fields to every line logged inside. Follows the greenlet or thread that entered it."""
    fields = {
        "execution_id": execution_id,
        "contract_ref": contract_ref,
        "attempt": attempt,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    # The library's own block reads all fields of the context first.
    before = structlog.contextvars.bind_contextvars(**given)
    try:
        yield
    finally:
        structlog.contextvars.reset_contextvars(**before)


def begin_request(request_id: str) -> None:
    """Adds the request's id to every line logged until `end_request`, in the same greenlet or thread."""
    structlog.contextvars.bind_contextvars(request_id=request_id)


def end_request() -> None:
    structlog.contextvars.unbind_contextvars("request_id")


def _renderer(json: bool, output: TextIO) -> Processor:
    if json:
        return structlog.processors.JSONRenderer(serializer=_as_json)
    return structlog.dev.ConsoleRenderer(colors=output.isatty(), timestamp_key="at")


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, (bytes, bytearray)) else repr(value)


_text_of = kept_encoder(ascii=True, allow_nan=True, spaced=True, default=_plain)


def _as_json(event: Mapping[str, Any], **_: object) -> str:
    return _text_of(event)


def _stamp(_: Any, __: str, event: EventDict) -> EventDict:
    second, rest = divmod(time.time_ns(), 1_000_000_000)
    event["at"] = f"{_date(second)}.{rest // 1_000:06d}Z"
    return event


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _foreign(_: Any, __: str, event: EventDict) -> EventDict:
    """Moves a library's text to `message`: it varies, so it cannot be the event name."""
    record = event.get("_record")
    event["message"] = event.pop("event")
    event["event"] = record.name if record is not None else "log"
    return event


@lru_cache(maxsize=4_096)
def _is_secret(name: Any) -> bool:
    plain = str(name).lower().replace("-", "_")
    return plain in _NAMES or (plain.endswith(_ENDINGS) and plain not in _HARMLESS)


def _inside(value: Any, depth: int) -> Any:
    if type(value) in _SCALARS:
        return value
    if depth > 6:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN if _is_secret(name) else _inside(each, depth + 1)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_inside(each, depth + 1) for each in value]
    return value


class _Redacted:
    """Hides the values of fields with secret-sounding names, at any depth, and the operator's own secrets in
    any text, wherever they came from.
    """

    def __init__(self, secrets: tuple[str, ...]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def __call__(self, _: Any, __: str, event: EventDict) -> MutableMapping[str, Any]:
        found: dict[str, Any] = {}
        for name, value in event.items():
            kind = type(value)
            if _is_secret(name):
                found[name] = HIDDEN
            elif kind is str:
                # Most words of a line are shorter than any secret.
                found[name] = value if len(value) < _SHORTEST_SECRET else self._clean(value)
            else:
                found[name] = value if kind in _SCALARS else self._clean(_inside(value, 0))
        return found

    def _clean(self, value: Any) -> Any:
        if value is None or isinstance(value, (int, float)):
            return value
        if isinstance(value, str):
            for secret in self._secrets:
                if secret in value:
                    value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {name: self._clean(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._clean(each) for each in value]
        return self._clean(_plain(value))

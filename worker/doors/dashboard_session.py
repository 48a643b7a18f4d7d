"""Who uses the dashboard: tokens, the signed cookie that stands for one, and where changes may come from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flask import Request, Response

from worker.core.errors import Forbidden, Unauthorized
from worker.core.settings import Settings
from worker.doors.own_machine import asked_from_this_machine

COOKIE = "dashboard"
PATH = "/dashboard"
LIFE_SECONDS = 12 * 3600
OPERATOR, WATCHER = "operator", "watcher"
MOST_NAME = 60


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who is signed in. `by_cookie`: a browser sends the proof by itself."""

    role: str
    name: str
    ends: int = 0
    by_cookie: bool = False

    @property
    def may_change(self) -> bool:
        return self.role == OPERATOR


class WrongOrigin(Forbidden):
    message = "this change does not come from the dashboard's own pages"
    advice = "Open the dashboard at PUBLIC_URL and repeat the change there."


class Sessions:
    """Tells tokens and cookies apart from forged ones; keeps nothing.

    The cookie's key is made from SECRET_KEY and all tokens, so replacing a token ends its sessions.
    `failed` counts wrong tokens and may refuse the address.
    """

    def __init__(self, settings: Settings, secret: str, failed: Callable[[str], None]) -> None:
        self._root = urlsplit(settings.public_url).path
        self._origin = settings.public_url[: len(settings.public_url) - len(self._root)]
        self._secure = settings.public_url.startswith("https:")
        self._token = settings.kernel_token
        self._watchers = settings.watch_tokens
        self._failed = failed
        tokens = json.dumps([self._token, self._watchers])
        self._key = hmac.new(secret.encode(), f"dashboard:{tokens}".encode(), hashlib.sha256).digest()

    def visitor(self, request: Request) -> Visitor | None:
        """Who asks: by bearer, by cookie, or as this machine itself where no token is set."""
        authorization = request.headers.get("Authorization", "")
        if authorization:
            return self.by_token(request, authorization.removeprefix("Bearer "), "")
        found = self._read(request.cookies.get(COOKIE, ""))
        if found is None and self._token is None and asked_from_this_machine(request.environ):
            return Visitor(OPERATOR, "this machine", by_cookie=True)
        return found

    def by_token(self, request: Request, token: str, name: str) -> Visitor:
        """Whose token it is; a wrong one counts against its address."""
        sent = token.strip().encode()
        known = [(OPERATOR, name or OPERATOR, self._token)] if self._token else []
        known += [(WATCHER, watcher, secret) for watcher, secret in self._watchers]
        ends = int(time.time()) + LIFE_SECONDS
        found = [
            Visitor(role, who[:MOST_NAME], ends)
            for role, who, secret in known
            if hmac.compare_digest(sent, secret.encode())
        ]
        if found:
            return found[0]
        self._failed(request.remote_addr or "")
        raise Unauthorized("this token is not known", advice="Use KERNEL_TOKEN, or a token of WATCH_TOKENS.")

    def check_origin(self, request: Request, *, must_name: bool = True) -> None:
        """Refuses a change that a page of another site may have made a browser send.

        Browsers name the origin of every form; only programs do not, and those have no cookie.
        """
        origin = request.headers.get("Origin")
        if origin is None and not must_name:
            return
        if origin not in (self._origin, request.host_url.rstrip("/")):
            raise WrongOrigin()

    def begin(self, response: Response, visitor: Visitor) -> None:
        response.set_cookie(COOKIE, self._sign(visitor), max_age=LIFE_SECONDS, **self._where())

    def end(self, response: Response) -> None:
        response.set_cookie(COOKIE, "", max_age=0, **self._where())

    def _where(self) -> dict[str, Any]:
        return {
            "path": self._root + PATH,
            "httponly": True,
            "samesite": "Strict",
            "secure": self._secure,
        }

    def _sign(self, visitor: Visitor) -> str:
        fields = json.dumps([visitor.role, visitor.name, visitor.ends])
        body = base64.urlsafe_b64encode(fields.encode()).decode()
        return f"{body}.{self._mac(body)}"

    def _read(self, cookie: str) -> Visitor | None:
        body, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            return None
        try:
            role, name, ends = json.loads(base64.urlsafe_b64decode(body))
        except (binascii.Error, ValueError):
            return None
        return Visitor(role, name, ends, by_cookie=True) if ends > time.time() else None

    def _mac(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()

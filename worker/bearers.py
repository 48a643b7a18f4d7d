"""Who calls: the operator with the token, or one agent or runner with its own key."""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

import redis
import structlog

from worker.errors import Forbidden, Problem, Unauthorized
from worker.executions.keys import Keys

log = structlog.get_logger()

# So many wrong bearers of one address in a minute, and the next ones have to wait out that minute.
MOST_FAILURES = 30
WINDOW = 60
_MOST_ADDRESSES = 10_000
OPERATOR = ""


class TooManyFailures(Problem):
    code, status = "RATE_LIMITED", 429
    message = "too many failed attempts"
    advice = "Wait for the time in Retry-After, then use the right bearer."


class Bearers:
    """Checks bearers in constant time. Wrong ones are slowed down; a store that is away slows down nobody.

    The right one always opens, whatever else its address sends: behind one router or proxy may be the
    operator, an agent with an old key and a stranger, and none of them may lock out the others. What may
    be guessed is too long to be found by guessing.
    """

    def __init__(
        self, token: str | None, agent_keys: Iterable[tuple[str, str]], client: redis.Redis, keys: Keys
    ) -> None:
        known = [(OPERATOR, token)] if token is not None else []
        self._known = [(name, f"Bearer {key}".encode()) for name, key in [*known, *agent_keys]]
        self._client = client
        self._keys = keys
        self._blocked: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def caller(self, address: str, authorization: str) -> str:
        """OPERATOR, or the agent or runner whose key it is."""
        if not self._known:
            return OPERATOR
        given = authorization.encode()
        found = [name for name, bearer in self._known if hmac.compare_digest(given, bearer)]
        if found:
            return found[0]
        if given:
            self._refuse_blocked(address)
            self._failed(address)
        raise Unauthorized()

    def _refuse_blocked(self, address: str) -> None:
        until = self._blocked.get(address)
        if until is None:
            return
        left = until - time.monotonic()
        if left > 0:
            raise TooManyFailures(retry_after=max(1, round(left)))
        with self._lock:
            self._blocked.pop(address, None)

    def _failed(self, address: str) -> None:
        """Counts over all processes; one that has seen too many refuses without asking the store again."""
        key = self._keys.failed_bearers(address)
        try:
            with self._client.pipeline(transaction=True) as pipe:
                pipe.set(key, 0, ex=WINDOW, nx=True)
                pipe.incr(key)
                pipe.ttl(key)
                _, count, left = pipe.execute()
        except redis.RedisError:
            log.warning("bearers.store_away")
            return
        if int(count) <= MOST_FAILURES:
            return
        with self._lock:
            self._blocked[address] = time.monotonic() + max(1, int(left))
            while len(self._blocked) > _MOST_ADDRESSES:
                self._blocked.popitem(last=False)
        log.warning("bearers.blocked", address=address)
        raise TooManyFailures(retry_after=max(1, int(left)))


def only(caller: str, name: str) -> None:
    """An agent's or runner's key opens nothing that is another's."""
    if caller not in (OPERATOR, name):
        raise Forbidden("this key is for another agent or runner")

"""Checks that the store accepts writes, and would reject a write rather than evict data.

A replica that was a primary, or a server with a full disk, answers reads but accepts no writes.
"""

from __future__ import annotations

import redis

from worker.core.shared_probe import SILENT, SharedProbe

__all__ = ["REFUSES", "SILENT", "UNREACHABLE", "StoreHealth", "eviction"]

KEEPS = "noeviction"
UNREACHABLE = "unreachable"
REFUSES = "refuses writes"
_PROBE_MS = 60_000


class StoreHealth:
    """Probes by writing a key of its own. A hanging probe holds one connection, however many ask."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = key
        self._probe = SharedProbe(self._look, name="store-probe")

    def check(self) -> str:
        """Returns 'ok', or what is wrong."""
        return self._probe.check()

    def _look(self) -> str:
        try:
            return self._ask()
        except (redis.ConnectionError, redis.TimeoutError):
            return UNREACHABLE
        except redis.RedisError:
            return REFUSES

    def _ask(self) -> str:
        self._client.set(self._key, 1, px=_PROBE_MS)
        policy = eviction(self._client)
        return "ok" if policy in (KEEPS, None) else f"may evict keys: its policy is {policy}, not {KEEPS}"


def eviction(client: redis.Redis) -> str | None:
    """Returns the store's eviction policy; None if the store does not report it."""
    try:
        found = client.info("memory").get("maxmemory_policy")
    except redis.ResponseError:  # some hosted stores forbid INFO
        return None
    return str(found) if found else None

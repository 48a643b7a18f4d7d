"""Evidence addresses read over the network, only from hosts that the operator listed."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from worker.delivery.addresses import Rules, rules_for
from worker.delivery.outbound import Outbound, Refused, TimedOut, Unreachable
from worker.swarm.fetching import Fetched, Outcome


class ReadEvidence:
    """A `fetching.Fetch` over the guarded client: no redirects, no private addresses, a cap on the body."""

    def __init__(self, env: str, origins: Iterable[str]) -> None:
        ports = [port for origin in origins if (port := urlsplit(origin).port)]
        self._rules: Rules = rules_for(env, ports=ports)

    def __call__(self, uri: str, *, max_bytes: int, seconds: float) -> Fetched:
        client = Outbound(self._rules, total_seconds=seconds, body_cap=max_bytes)
        try:
            answer = client.call("GET", uri)
        except TimedOut:
            return Fetched(Outcome.TIMEOUT)
        except (Unreachable, Refused):
            return Fetched(Outcome.UNREACHABLE)
        if answer.status in (401, 403):
            return Fetched(Outcome.AUTH)
        if answer.status != 200 or answer.truncated:
            return Fetched(Outcome.UNREACHABLE)
        return Fetched(Outcome.OK, answer.body)

"""Reads evidence addresses over the network, only from hosts the operator listed."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from worker.delivery.addresses import AddressRules, rules_for
from worker.delivery.outbound import Outbound, TimedOut, Unreachable, UrlRefused
from worker.swarm.fetching import Fetched, FetchOutcome


class EvidenceReader:
    """A `fetching.Fetch` over the guarded client: no redirects, no private addresses, a body size limit."""

    def __init__(self, env: str, origins: Iterable[str]) -> None:
        ports = [port for origin in origins if (port := urlsplit(origin).port)]
        self._rules: AddressRules = rules_for(env, ports=ports)

    def __call__(self, uri: str, *, max_bytes: int, seconds: float) -> Fetched:
        client = Outbound(self._rules, total_seconds=seconds, body_cap=max_bytes)
        try:
            answer = client.call("GET", uri)
        except TimedOut:
            return Fetched(FetchOutcome.TIMEOUT)
        except (Unreachable, UrlRefused):
            return Fetched(FetchOutcome.UNREACHABLE)
        if answer.status in (401, 403):
            return Fetched(FetchOutcome.AUTH)
        if answer.status != 200 or answer.truncated:
            return Fetched(FetchOutcome.UNREACHABLE)
        return Fetched(FetchOutcome.OK, answer.body)

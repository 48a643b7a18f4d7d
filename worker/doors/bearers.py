"""Bearer authentication: the operator's token, or an agent's or runner's own key."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from worker.core.agent_keys import AgentKey
from worker.core.errors import Forbidden, Unauthorized


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller. The operator has no name and may act under any."""

    role: str
    name: str = ""
    tools: frozenset[str] = frozenset()


OPERATOR = Caller("operator")


class BearerTokens:
    """Checks bearers in constant time.

    `failed` counts wrong ones and may refuse the address.

    A correct bearer is always accepted, whatever else its address sends: the operator, an agent with an old
    key and a stranger may share a router or proxy and must not lock each other out. Credentials are too
    long to guess.
    """

    def __init__(
        self, token: str | None, agent_keys: Iterable[AgentKey], failed: Callable[[str], None]
    ) -> None:
        known = [(OPERATOR, token)] if token is not None else []
        known += [(Caller(each.role, each.name, each.tools), each.key) for each in agent_keys]
        self._known = [(caller, f"Bearer {key}".encode()) for caller, key in known]
        self._failed = failed

    def caller(self, address: str, authorization: str, *, from_this_machine: bool) -> Caller:
        """Returns OPERATOR, or the agent or runner that owns the key.

        If no key is set, only requests from this machine are accepted.
        """
        if not self._known:
            if from_this_machine:
                return OPERATOR
            raise Unauthorized(
                "without KERNEL_TOKEN only this machine itself may ask, and not through a proxy",
                advice="Set KERNEL_TOKEN where the worker runs, and send it as a bearer.",
            )
        sent = authorization.encode()
        found = [caller for caller, bearer in self._known if hmac.compare_digest(sent, bearer)]
        if found:
            return found[0]
        if sent:
            self._failed(address)
        raise Unauthorized()


def only(caller: Caller, name: str) -> None:
    """Refuses an agent's or runner's key for another agent or runner."""
    if caller != OPERATOR and caller.name != name:
        raise Forbidden("this key is for another agent or runner")


def may_offer(caller: Caller, tools: Iterable[str]) -> None:
    """Refuses tools that the runner's key does not name."""
    foreign = sorted(set(tools) - caller.tools) if caller != OPERATOR else []
    if foreign:
        raise Forbidden(
            f"this key does not offer the tool {foreign[0][:64]!r}",
            field="tools",
            expected=sorted(caller.tools),
            advice="Offer the tools that the key's entry in AGENT_KEYS names.",
        )

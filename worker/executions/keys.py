"""The names of everything the engine keeps in the store, and the order in which scripts take them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from worker.executions.states import State

PREFIX = "w"


class Keys:
    """Key names under one prefix. `transition(id)` is what every script that moves an execution takes."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = prefix
        p = prefix
        self.express = f"{p}:express"
        self.leases = f"{p}:leases"
        self.queued = f"{p}:queued"
        self.timers = f"{p}:timers"
        self.deadlines = f"{p}:deadlines"
        self.ended = f"{p}:ended"
        self.step_deadlines = f"{p}:step-deadlines"
        self.stats = f"{p}:stats"
        self.ticks = f"{p}:ticks"
        self.catalog = f"{p}:catalog"
        self.test_clock = f"{p}:test-clock"
        self.everything = f"{p}:by:all"
        self.open_payments = f"{p}:open"
        self.legs = f"{p}:legs"
        self.journal = f"{p}:journal"
        self.sums = f"{p}:sums"
        self.wallets = f"{p}:wallets"
        self.contracts = f"{p}:contracts"
        self.drafts = f"{p}:drafts"
        self.epochs = f"{p}:epochs"
        self.parted = f"{p}:parted"
        self.turns = f"{p}:turns"
        self.busy = f"{p}:busy"
        self.retries = f"{p}:retries"
        self.schemas = f"{p}:schemas"
        self.outbox = f"{p}:outbox"
        self.outbox_cursor = f"{p}:outbox-cursor"
        self.failing_hosts = f"{p}:failing-hosts"
        self._shared = [
            self.leases,
            self.queued,
            self.timers,
            self.deadlines,
            self.ended,
            self.step_deadlines,
            self.stats,
            self.express,
            self.open_payments,
            self.legs,
            self.journal,
            self.sums,
            self.wallets,
            *(self.by_state(state) for state in State),
        ]

    def record(self, id: str) -> str:
        return f"{self.prefix}:x:{id}"

    def log(self, id: str) -> str:
        return f"{self.prefix}:log:{id}"

    def steps(self, id: str) -> str:
        return f"{self.prefix}:steps:{id}"

    def money(self, id: str) -> str:
        return f"{self.prefix}:money:{id}"

    def ledger(self, id: str) -> str:
        return f"{self.prefix}:ledger:{id}"

    def hooks(self, id: str) -> str:
        """The journal of an execution's webhooks."""
        return f"{self.prefix}:hooks:{id}"

    def contract(self, ref: str) -> str:
        return f"{self.prefix}:contract:{ref}"

    def draft(self, ref: str) -> str:
        return f"{self.prefix}:draft:{ref}"

    def payment(self, key: str) -> str:
        """What a payment key is bound to, for ever."""
        return f"{self.prefix}:paid:{hashlib.sha256(key.encode()).hexdigest()[:40]}"

    def payment_identifier(self, contract_ref: str, identifier: str) -> str:
        return (
            f"{self.prefix}:pay-id:{hashlib.sha256(f'{contract_ref}:{identifier}'.encode()).hexdigest()[:40]}"
        )

    def idempotency(self, scope: str, key: str) -> str:
        return f"{self.prefix}:key:{_digest(scope, key)[:40]}"

    def swarm(self, what: str, name: str) -> str:
        return f"{self.prefix}:swarm:{what}:{name}"

    def takers(self, lane: str) -> str:
        return f"{self.prefix}:takers:{lane}"

    def by_state(self, state: str) -> str:
        return f"{self.prefix}:by:state:{state}"

    def by_agent(self, agent: str) -> str:
        return f"{self.prefix}:by:agent:{agent}"

    def by_door(self, door: str) -> str:
        return f"{self.prefix}:by:door:{door}"

    def by_label(self, name: str, value: str) -> str:
        return f"{self.prefix}:by:label:{_digest(name, value)[:32]}"

    def transition(self, id: str) -> list[str]:
        return [self.record(id), self.log(id), self.steps(id), self.money(id), self.ledger(id), *self._shared]

    def indexes(self, agent: str, door: str, labels: Mapping[str, str]) -> list[str]:
        """The lists an execution stands in for as long as it exists, beside the one of its state."""
        return [
            self.everything,
            self.by_agent(agent),
            self.by_door(door),
            *(self.by_label(name, value) for name, value in labels.items()),
        ]

    # Connections of remote agents and runners. A session's id ends like its connection's epoch, so whoever
    # knows the one finds the mailbox of the other.

    def connection(self, epoch: str) -> str:
        return f"{self.prefix}:conn:{ending(epoch)}"

    def mail(self, epoch_or_session: str) -> str:
        """What waits to be written to a connection."""
        return f"{self.prefix}:mail:{ending(epoch_or_session)}"

    def held(self, epoch_or_session: str) -> str:
        """The executions a connection works on."""
        return f"{self.prefix}:held:{ending(epoch_or_session)}"

    def consumers(self, kind: str, name: str) -> str:
        """The connections of one agent or runner, by consumer."""
        return f"{self.prefix}:consumers:{kind}:{short(name)}"

    def waiting(self, agent: str) -> str:
        """Executions that wait for a remote agent, oldest first."""
        return f"{self.prefix}:waiting:{short(agent)}"

    def offers(self, tool: str) -> str:
        """The runner connections that offer a tool."""
        return f"{self.prefix}:offers:{short(tool)}"

    def jobs(self, tool: str) -> str:
        """Calls of a tool that wait for a runner, oldest first."""
        return f"{self.prefix}:jobs:{short(tool)}"

    def failed_bearers(self, address: str) -> str:
        return f"{self.prefix}:failed-bearers:{short(address)}"


def short(name: str) -> str:
    """A name of any length and content as a part of a key."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def ending(epoch_or_session: str) -> str:
    return epoch_or_session[-12:]


def _digest(first: str, second: str) -> str:
    """One name for a pair; the length keeps ("a:b", "c") apart from ("a", "b:c")."""
    return hashlib.sha256(f"{len(first)}:{first}:{second}".encode()).hexdigest()

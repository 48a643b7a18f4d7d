"""Every key the worker keeps in the store. `docs/data-model.md` is generated from here.

All names start with one prefix. Ids in a name are ours; names chosen by others (tools, agents, keys) are
replaced by a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from worker.store import key_fields as fields
from worker.store.key_types import Each, Shared, Type

PREFIX = "w"
STATES = ("pending", "running", "blocked", "completed", "failed", "cancelled")

# Labels of all bought work, whose values are fields of its record too.
CONTRACT_LABEL = "contract_ref"
HIRE_LABELS = ("door", CONTRACT_LABEL)

_FOREVER = "for ever"
_EXECUTION = "as long as its execution"


def short(name: str) -> str:
    """Shortens a name of any length and content to a part of a key."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def ending(epoch_or_session: str) -> str:
    """Returns the common ending of an epoch and its sessions: from either, the other's keys can be found."""
    return epoch_or_session[-12:]


def digest(*parts: str) -> str:
    """Hashes several parts to one name; their lengths keep ("a:b", "c") distinct from ("a", "b:c")."""
    *first, last = parts
    text = "".join(f"{len(part)}:{part}:" for part in first) + last
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _label(name: str, value: str) -> str:
    return digest(name, value)[:32]


def _payment(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:40]


def _consumers(kind: str, name: str) -> str:
    return f"{kind}:{short(name)}"


def _request(scope: str, key: str) -> str:
    return f"{PREFIX}:key:{digest(scope, key)}"


def _identifier(scope: str, identifier: str) -> str:
    return hashlib.sha256(f"{scope}:{identifier}".encode()).hexdigest()[:40]


class Keys:
    """The keys under one prefix."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = prefix

    # Executions

    record = Each("x:{id}", Type.HASH, "engine", "retention after its end", "one execution", fields.RECORD)
    log = Each("log:{id}", Type.LIST, "engine", _EXECUTION, "its events; the position is the sequence")
    steps = Each(
        "steps:{id}",
        Type.HASH,
        "engine",
        _EXECUTION,
        "its tool calls, signals and remembered values",
        fields.STEPS,
    )
    leases = Shared("leases", Type.ZSET, "engine", _FOREVER, "running executions by the end of their lease")
    queued = Shared(
        "queued", Type.ZSET, "engine", _FOREVER, "pending executions that a process may take, by time"
    )
    express = Shared(
        "express", Type.LIST, "queue", _FOREVER, "the express lane: ids of short work, oldest first"
    )
    handed = Each(
        "handed:{session}",
        Type.LIST,
        "queue",
        "until the process waits again, or for the time of a lease",
        "the execution that a waiting process got from the express lane",
    )
    timers = Shared(
        "timers", Type.ZSET, "engine", _FOREVER, "executions that the clock must look at, by time"
    )
    deadlines = Shared(
        "deadlines", Type.ZSET, "engine", _FOREVER, "executions by the time when they end at the latest"
    )
    step_deadlines = Shared(
        "step-deadlines", Type.ZSET, "engine", _FOREVER, "`id step` by the end of its time"
    )
    ended = Shared("ended", Type.ZSET, "engine", _FOREVER, "ended executions by time, until they are removed")
    everything = Shared("by:all", Type.ZSET, "engine", _FOREVER, "all executions by creation")
    by_state = Each(
        "by:state:{state}", Type.ZSET, "engine", _FOREVER, "executions of a state by creation", entries=STATES
    )
    by_agent = Each("by:agent:{agent}", Type.ZSET, "engine", _FOREVER, "executions of an agent by creation")
    by_door = Each("by:door:{door}", Type.ZSET, "engine", _FOREVER, "executions of a door by creation")
    by_label = Each(
        "by:label:{name,value}",
        Type.ZSET,
        "engine",
        _FOREVER,
        "executions with a label by creation",
        part=_label,
    )
    idempotency = Each(
        "key:{scope,key}",
        Type.STRING,
        "engine",
        _EXECUTION,
        "the execution that an idempotency key made",
        part=digest,
    )
    stats = Shared("stats", Type.HASH, "engine", _FOREVER, "counters and mean durations", fields.STATS)

    # Processes

    ticks = Shared("ticks", Type.ZSET, "queue", _FOREVER, "trees of processes by their clock's last tick")
    chores = Shared(
        "chores",
        Type.STRING,
        "queue",
        "three seconds",
        "the tree of processes whose clock does the chores that one does for all",
    )
    takers = Each(
        "takers:{lane}", Type.ZSET, "queue", _FOREVER, "warm processes of a lane by their last sign of life"
    )
    checks = Shared(
        "checks", Type.LIST, "queue", "some seconds", "`time check`: schemas and inputs to check before money"
    )
    check_answer = Each("check:{id}", Type.STRING, "queue", "ten seconds", "the answer of a check, as JSON")
    check_cpu = Each(
        "check-cpu:{account}",
        Type.STRING,
        "queue",
        "a minute",
        "CPU time (us) that checks for an address or wallet took",
        part=short,
    )
    trees = Shared(
        "trees", Type.ZSET, "capabilities", _FOREVER, "trees of processes by their last sign of life"
    )
    catalogs = Shared(
        "catalogs",
        Type.HASH,
        "capabilities",
        _FOREVER,
        "what each tree can run, as JSON",
        fields.CATALOGS,
    )
    catalog = Shared(
        "catalog", Type.STRING, "capabilities", _FOREVER, "what processes of the first release offer, as JSON"
    )
    data_version = Shared(
        "data-version",
        Type.STRING,
        "store",
        _FOREVER,
        "`version oldest`: of the data, and of the oldest worker that can use it",
    )
    deferred_calls = Shared(
        "deferred_calls",
        Type.ZSET,
        "queue",
        _FOREVER,
        "what doors left to the clock, and regular deferred calls, by time",
    )
    deferred_call = Each(
        "deferred_call:{id}",
        Type.HASH,
        "queue",
        "a day",
        "one deferred call until it is done",
        fields.DEFERRED_CALL,
    )
    doctor = Shared("doctor", Type.STRING, "store", _FOREVER, "what the doctor found last, as JSON")
    operator_journal = Shared(
        "operator-journal",
        Type.LIST,
        "store",
        _FOREVER,
        "every change made from the dashboard, as JSON: when, who, what, its outcome",
    )
    probe = Shared("probe", Type.STRING, "store", "a moment", "shows that the store takes writes")
    test_clock = Shared(
        "test-clock", Type.STRING, "store", _FOREVER, "the clock's offset; WORKER_ENV=test only"
    )

    # Money

    money = Each(
        "money:{id}",
        Type.HASH,
        "payments",
        _EXECUTION,
        "its payments, numbered, and their legs",
        fields.MONEY,
    )
    ledger = Each(
        "ledger:{id}",
        Type.LIST,
        "payments",
        _EXECUTION,
        "every change of its money, as releases before data version 5 wrote it; it is only removed",
    )
    fees = Each(
        "money:{wallet}",
        Type.HASH,
        "payments",
        _FOREVER,
        "a wallet's fee legs, numbered as payments are",
        fields.MONEY,
    )
    payment = Each(
        "paid:{key}",
        Type.STRING,
        "payments",
        _FOREVER,
        "`id number`: what a payment's key is bound to",
        part=_payment,
    )
    payment_identifier = Each(
        "pay-id:{scope,identifier}",
        Type.STRING,
        "payments",
        _FOREVER,
        "`id number` for a payment-identifier",
        part=_identifier,
    )
    open_payments = Shared(
        "open", Type.ZSET, "payments", _FOREVER, "executions with open money, by the next look"
    )
    verifying = Shared(
        "verifying", Type.ZSET, "payments", _FOREVER, "claims whose payment is being verified, by time"
    )
    legs = Shared("legs", Type.ZSET, "payments", _FOREVER, "refunds and fees that are due, by the next try")
    audits = Shared(
        "audits",
        Type.ZSET,
        "payments",
        _FOREVER,
        "`id number` of settlements that no node has proven, by the next look",
    )
    unproven = Shared(
        "unproven",
        Type.ZSET,
        "payments",
        _FOREVER,
        "`id number` of settlements that the chain never had, by time",
    )
    transactions = Shared(
        "transactions",
        Type.HASH,
        "payments",
        _FOREVER,
        "transaction → the payment that it was first named for",
        fields.TRANSACTIONS,
    )
    journal = Shared("journal", Type.LIST, "payments", _FOREVER, "every change of any money")
    sums = Shared(
        "sums",
        Type.HASH,
        "payments",
        _FOREVER,
        "amounts by state; they add up to what was claimed",
        fields.SUMS,
    )
    wallets = Shared("wallets", Type.HASH, "payments", _FOREVER, "what is counted by wallet", fields.WALLETS)
    life = Shared(
        "compared",
        Type.HASH,
        "payments",
        _FOREVER,
        "the store's own life, and how far chain and ledger were compared in it",
        fields.LIFE,
    )
    writers = Shared(
        "writers", Type.ZSET, "payments", _FOREVER, "processes that write about money, by their last sign"
    )
    listings = Shared(
        "listings", Type.HASH, "payments", _FOREVER, "what catalogs say of capabilities", fields.LISTINGS
    )
    found = Shared("found", Type.ZSET, "payments", _FOREVER, "transfers that no payment explains, by time")
    found_about = Shared(
        "found:about", Type.HASH, "payments", _FOREVER, "what is known of each of them", fields.FOUND_ABOUT
    )

    # Contracts

    contract = Each(
        "contract:{ref}",
        Type.HASH,
        "contracts",
        "its deadline, once paid retention",
        "one contract",
        fields.CONTRACT,
    )
    contracts = Shared(
        "contracts", Type.ZSET, "contracts", _FOREVER, "signed contracts that nobody paid for, by their end"
    )
    unpaid = Shared(
        "unpaid", Type.ZSET, "contracts", _FOREVER, "`ref size wallet new` of unpaid contracts by their end"
    )
    unpaid_new = Shared(
        "unpaid:new",
        Type.ZSET,
        "contracts",
        _FOREVER,
        "those of wallets that never paid, by registration",
    )
    unpaid_bytes = Shared(
        "unpaid:bytes", Type.HASH, "contracts", _FOREVER, "their bytes", fields.UNPAID_BYTES
    )
    draft = Each("draft:{ref}", Type.STRING, "contracts", "an hour", "hash of a draft that we signed")
    drafts = Shared("drafts", Type.ZSET, "contracts", _FOREVER, "drafts by their end")

    # Remote agents and runners

    epochs = Shared(
        "epochs", Type.ZSET, "remote", _FOREVER, "connections by the end of their lease; 0: ended"
    )
    parted = Shared(
        "parted",
        Type.HASH,
        "remote",
        _FOREVER,
        "connections whose process left",
        fields.PARTED,
    )
    turns = Shared(
        "turns", Type.HASH, "remote", _FOREVER, "who had the last turn, by agent and by tool", fields.TURNS
    )
    busy = Shared("busy", Type.HASH, "remote", _FOREVER, "runner connections at work", fields.BUSY)
    retries = Shared(
        "retries", Type.ZSET, "remote", _FOREVER, "`id step` of jobs that are tried again, by time"
    )
    schemas = Shared("schemas", Type.HASH, "remote", _FOREVER, "tools that runners published", fields.SCHEMAS)
    connection = Each(
        "conn:{epoch}",
        Type.HASH,
        "remote",
        "as long as the connection",
        "one connection",
        fields.CONNECTION,
        part=ending,
    )
    mail = Each(
        "mail:{epoch}",
        Type.LIST,
        "remote",
        "as long as the connection",
        "messages to be written to it",
        part=ending,
    )
    held = Each(
        "held:{epoch}",
        Type.HASH,
        "remote",
        "as long as the connection",
        "its executions",
        fields.HELD,
        part=ending,
    )
    consumers = Each(
        "consumers:{kind,name}",
        Type.ZSET,
        "remote",
        _FOREVER,
        "connections of an agent or runner",
        part=_consumers,
    )
    waiting = Each(
        "waiting:{agent}",
        Type.ZSET,
        "remote",
        _FOREVER,
        "executions that wait for an agent, by creation",
        part=short,
    )
    offers = Each(
        "offers:{tool}", Type.ZSET, "remote", _FOREVER, "runner connections that offer a tool", part=short
    )
    jobs = Each(
        "jobs:{tool}",
        Type.ZSET,
        "remote",
        _FOREVER,
        "`id step` of calls that wait for a runner, by time",
        part=short,
    )

    # Delivery

    hooks = Each("hooks:{id}", Type.HASH, "delivery", _EXECUTION, "the journal of its webhooks", fields.HOOKS)
    outbox = Shared("outbox", Type.ZSET, "delivery", _FOREVER, "notices by the next attempt")
    outbox_cursor = Shared(
        "outbox-cursor", Type.STRING, "delivery", _FOREVER, "how far executions were searched for notices"
    )
    hooked = Shared(
        "hooked", Type.ZSET, "delivery", _FOREVER, "begun executions with webhooks until their end, by start"
    )
    failing_hosts = Shared(
        "failing-hosts",
        Type.HASH,
        "delivery",
        _FOREVER,
        "hosts that fail",
        fields.FAILING_HOSTS,
    )

    # Callers

    failed_bearers = Each(
        "failed-bearers:{address}",
        Type.STRING,
        "doors",
        "a minute",
        "wrong credentials of an address",
        part=short,
    )
    swarm_at = Each(
        "swarm:at:{scope,key}",
        Type.STRING,
        "swarm",
        "a minute",
        "the execution that a kernel's request reserved",
        part=_request,
    )
    swarm_places = Each(
        "swarm:places:{lane}", Type.ZSET, "swarm", _FOREVER, "`id kernel`: places held in a lane, by time"
    )
    swarm_task = Each(
        "swarm:task:{scope,task}",
        Type.STRING,
        "swarm",
        "as long as a kernel may ask again",
        "a task's latest execution",
        part=_request,
    )
    swarm_waits = Each(
        "swarm:waits:{scope,key}",
        Type.STRING,
        "swarm",
        "as long as a request may wait",
        "when a kernel's request was first told to wait",
        part=_request,
    )
    swarm_day = Each(
        "swarm:day:{kernel}",
        Type.HASH,
        "swarm",
        _FOREVER,
        "a kernel's executions of the day",
        fields.SWARM_DAY,
    )
    rate = Each("rate:{key}", Type.ZSET, "policy", "its longest window", "calls in a sliding window")

    def indexes(self, agent: str, door: str, labels: Mapping[str, str]) -> list[str]:
        """Index keys of an execution for its whole lifetime, except the per-state index."""
        return [
            self.everything,
            self.by_agent(agent),
            self.by_door(door),
            *(self.by_label(name, value) for name, value in labels.items()),
        ]

    def indexes_of_hire(self, agent: str, door: str, labels: Mapping[str, str]) -> list[str]:
        """The same for bought work whose own labels are found by its door and its contract."""
        return self.indexes(
            agent, door, {name: value for name, value in labels.items() if name not in HIRE_LABELS}
        )

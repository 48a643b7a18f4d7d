"""Every setting: its default, what its text may be, and what the settings promise together.

A field has the name of its environment variable in lower case. `Settings.load` reads all of
them, refuses with all problems at once, and never shows a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from worker import values

T = TypeVar("T")

HOUR, DAY = 3600.0, 86_400.0
CDP_FACILITATOR = "https://api.cdp.coinbase.com/platform/v2/x402"
FACILITATORS = {"eip155:8453": CDP_FACILITATOR, "eip155:84532": "https://x402.org/facilitator"}
LONG_SECRET, SHORT_SECRET = 32, 16


@dataclass(frozen=True)
class BadSetting:
    """One thing that keeps the worker from starting."""

    name: str
    found: str
    expected: str


class BadStart(Exception):
    """The settings do not fit; lists everything that is wrong with them."""

    def __init__(self, problems: Iterable[BadSetting]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.table())

    def table(self) -> str:
        rows = [("setting", "found", "expected")] + [(p.name, p.found, p.expected) for p in self.problems]
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in rows]
        return "\n".join(["The worker cannot start with these settings:", "", *lines])


def _one(read: Callable[[str], T], default: T, *, secret: bool = False) -> T:
    return field(default=default, repr=not secret, metadata={"read": read, "secret": secret})


@dataclass(frozen=True)
class Settings:
    """What the operator decided. Durations are seconds."""

    port: int = _one(values.integer(1, 65535), 8000)
    public_url: str = _one(values.web_url, "http://127.0.0.1:8000")
    trusted_proxies: int = _one(values.integer(0, 10), 0)
    worker_env: str = _one(values.one_of("local", "test", "production"), "local")

    redis_url: str | None = _one(values.redis_url, None, secret=True)
    redis_tls_ca: str | None = _one(values.certificate, None)
    redis_tls_verify: str = _one(values.one_of("on", "ca", "off"), "on")
    store_connections: int = _one(values.integer(2, 500), 10)

    worker_state_dir: str = _one(values.text, "var")
    worker_config: str = _one(values.existing, "config/worker.toml")
    worker_agents: tuple[str, ...] = _one(values.listed(values.module), ())

    worker_key: str | None = _one(values.private_key, None, secret=True)
    worker_wallet: str | None = _one(values.wallet, None)
    worker_agent_id: str = _one(values.identifier, "agent_worker")

    network: str = _one(values.network, values.NETWORKS["base-sepolia"])
    facilitator_url: str = _one(values.web_url, FACILITATORS["eip155:84532"])
    cdp_api_key_id: str | None = _one(values.text, None, secret=True)
    cdp_api_key_secret: str | None = _one(values.text, None, secret=True)
    rpc_url: str | None = _one(values.rpc_url, None, secret=True)
    settle: str = _one(values.one_of("after_work", "before_work"), "after_work")
    max_payment_window: int = _one(values.integer(60, 86_400), 3600)
    fee_threshold: int = _one(values.dollars, 1_000_000)
    fee_period: float = _one(values.duration(60, 30 * DAY), DAY)

    kernel_token: str | None = _one(values.text, None, secret=True)
    agent_keys: tuple[tuple[str, str], ...] = _one(values.credentials, (), secret=True)
    swarm_keys: tuple[tuple[str, str], ...] = _one(values.credentials, (), secret=True)
    swarm_provider_family: str = _one(values.text, "swarm-runtime")
    swarm_model_id: str = _one(values.text, "swarm-model-v1")
    swarm_limits: tuple[tuple[str, int, int], ...] = _one(values.kernel_limits, ())
    swarm_patience: float = _one(values.duration(0, 25), 20.0)
    swarm_policy_hashes: tuple[tuple[str, str], ...] = _one(values.listed(values.policy_hash), ())
    swarm_full_schema: str = _one(values.one_of("on", "off"), "off")
    swarm_evidence_hosts: tuple[str, ...] = _one(values.listed(values.evidence_origin), ())
    secret_key: str | None = _one(values.text, None, secret=True)
    webhook_key: bytes | None = _one(values.webhook_key, None, secret=True)
    cors_origins: tuple[str, ...] = _one(values.listed(values.origin), ())

    policy: str | None = _one(values.existing, None)
    files_url: str = _one(values.files_url, "var/files")

    execution_timeout: float = _one(values.duration(1, 7 * DAY), HOUR)
    step_timeout: float = _one(values.duration(1, DAY), 300.0)
    agent_timeout: float = _one(values.duration(1, HOUR), 30.0)
    retention: float = _one(values.duration(60, 3650 * DAY), 30 * DAY)
    inline_budget: float = _one(values.duration(0, 25), 10.0)
    lease: float = _one(values.duration(1, 60), 5.0)
    handback_grace: float = _one(values.duration(0, 600), 20.0)

    # Requests a minute of one address or wallet; 0 is no limit. Production has limits of its own.
    limit_contracts: int = _one(values.integer(0, 1_000_000), 0)
    limit_executes: int = _one(values.integer(0, 1_000_000), 0)
    limit_unknown: int = _one(values.integer(0, 1_000_000), 0)

    web_concurrency: int = _one(values.integer(1, 64), 1)
    express_processes: int = _one(values.integer(1, 64), 1)
    queue_processes: int = _one(values.integer(1, 64), 1)
    queue_limit: int = _one(values.integer(1, 1_000_000), 10_000)
    log_format: str = _one(values.one_of("auto", "json", "text"), "auto")

    @property
    def production(self) -> bool:
        return self.worker_env == "production"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The environment variables that are read, in the order of this file."""
        return tuple(each.name.upper() for each in fields(cls))

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Settings:
        """The settings in `environ`; empty counts as absent, unknown names are ignored."""
        given = {name: environ[name].strip() for name in cls.names() if environ.get(name, "").strip()}
        read: dict[str, Any] = {}
        problems = []
        for each in fields(cls):
            name = each.name.upper()
            if name in given:
                try:
                    read[each.name] = each.metadata["read"](given[name])
                except values.Unfit as unfit:
                    problems.append(BadSetting(name, _shown(name, given[name]), unfit.expected))
        settings = _with_derived(cls(**read), read, given)
        unread = {problem.name for problem in problems}
        together = [*_together(settings, given, dyno=bool(environ.get("DYNO")))]
        if settings.production:
            together += _production(settings, given)
        problems += [p for p in together if p.name not in unread]
        if problems:
            raise BadStart(problems)
        return settings

    def secrets(self) -> tuple[str, ...]:
        """The texts that no log line and no answer may contain."""
        found: list[str] = []
        for each in fields(self):
            if each.metadata["secret"]:
                value = getattr(self, each.name)
                if isinstance(value, str):
                    found.append(value)
                elif isinstance(value, tuple):
                    found += [secret for _, secret in value]
        for url in (self.redis_url, self.rpc_url):
            password = urlsplit(url).password if url else None
            found += [password, unquote(password)] if password else []
        if self.worker_key:
            found.append(self.worker_key[2:])
        return tuple(dict.fromkeys(found))


_SECRET = {each.name.upper() for each in fields(Settings) if each.metadata["secret"]}


def _with_derived(settings: Settings, read: Mapping[str, Any], given: Mapping[str, str]) -> Settings:
    """Defaults that follow from other settings."""
    derived: dict[str, Any] = {}
    if "PUBLIC_URL" not in given:
        derived["public_url"] = f"http://127.0.0.1:{settings.port}"
    if "FILES_URL" not in given:
        derived["files_url"] = settings.worker_state_dir.rstrip("/") + "/files"
    if "FACILITATOR_URL" not in given:
        derived["facilitator_url"] = FACILITATORS.get(settings.network, "")
    if settings.production:
        limits = {"limit_contracts": 20, "limit_executes": 60, "limit_unknown": 20}
        derived |= {name: limit for name, limit in limits.items() if name.upper() not in given}
    if "worker_key" in read and "WORKER_WALLET" not in given:
        derived["worker_wallet"] = values.address_of(read["worker_key"])
    return replace(settings, **derived)


def _together(settings: Settings, given: Mapping[str, str], *, dyno: bool) -> Iterator[BadSetting]:
    """What must hold between settings, everywhere."""

    def wrong(name: str, expected: str) -> BadSetting:
        return BadSetting(name, _shown(name, given.get(name)), expected)

    if settings.worker_key and settings.worker_wallet != values.address_of(settings.worker_key):
        yield wrong("WORKER_WALLET", f"the wallet of WORKER_KEY, {values.address_of(settings.worker_key)}")
    if not settings.facilitator_url:
        yield wrong("FACILITATOR_URL", f"an address; there is no default for {settings.network}")
    for one, other in (("CDP_API_KEY_ID", "CDP_API_KEY_SECRET"), ("CDP_API_KEY_SECRET", "CDP_API_KEY_ID")):
        if one not in given and other in given:
            yield wrong(one, f"a value, because {other} has one")
    if settings.redis_tls_ca and not (settings.redis_url or "").startswith("rediss://"):
        yield wrong("REDIS_TLS_CA", "nothing, unless REDIS_URL begins with rediss://")
    if settings.redis_tls_verify == "ca" and not settings.redis_tls_ca:
        yield wrong("REDIS_TLS_CA", "the store's certificate, because REDIS_TLS_VERIFY is ca")
    if len(settings.cors_origins) > 1 and "*" in settings.cors_origins:
        yield wrong("CORS_ORIGINS", "either * or a list of origins")
    if settings.kernel_token and settings.kernel_token in dict(settings.agent_keys).values():
        yield wrong("AGENT_KEYS", "keys that differ from KERNEL_TOKEN")
    kernels = {"*", *dict(settings.swarm_keys)}
    if any(name not in kernels for name, _, _ in settings.swarm_limits):
        yield wrong("SWARM_LIMITS", "names that SWARM_KEYS has, or *")
    if dyno and "WORKER_ENV" not in given:
        yield wrong("WORKER_ENV", "production (or another, but named), because this is a dyno")
    if dyno and not settings.files_url.startswith("s3://"):
        yield wrong("FILES_URL", "s3://bucket/prefix, because a dyno's disk is neither kept nor shared")


def _production(settings: Settings, given: Mapping[str, str]) -> Iterator[BadSetting]:
    """What is refused where money is real."""

    def wrong(name: str, expected: str) -> BadSetting:
        return BadSetting(name, _shown(name, given.get(name)), expected)

    for name in ("REDIS_URL", "WORKER_KEY", "WORKER_AGENT_ID", "NETWORK", "RPC_URL"):
        if name not in given:
            yield wrong(name, "a value, in production")
    if urlsplit(settings.public_url).scheme != "https":
        yield wrong("PUBLIC_URL", "an https:// address, in production")
    for name, url in (("RPC_URL", settings.rpc_url), ("FACILITATOR_URL", settings.facilitator_url)):
        parts = urlsplit(url or "https:")
        if parts.scheme != "https" and parts.hostname not in values.LOOPBACK:
            yield wrong(name, "an https:// address, in production")
    if "NETWORK" in given and values.is_test_network(settings.network):
        yield wrong("NETWORK", "a network where money is real, in production")
    if settings.redis_tls_verify == "off":
        yield wrong("REDIS_TLS_VERIFY", "on, or ca with REDIS_TLS_CA, in production")
    if settings.facilitator_url == CDP_FACILITATOR and not (
        settings.cdp_api_key_id or settings.cdp_api_key_secret
    ):
        yield wrong("CDP_API_KEY_ID", "a value (CDP_API_KEY_SECRET too): the facilitator is Coinbase's")
    for name, secret in (("SECRET_KEY", settings.secret_key), ("KERNEL_TOKEN", settings.kernel_token)):
        if len(secret or "") < LONG_SECRET:
            yield wrong(name, f"at least {LONG_SECRET} characters, in production")
    for name, pairs in (("AGENT_KEYS", settings.agent_keys), ("SWARM_KEYS", settings.swarm_keys)):
        if any(len(secret) < SHORT_SECRET for _, secret in pairs):
            yield wrong(name, f"secrets of at least {SHORT_SECRET} characters, in production")
    if "*" in settings.cors_origins:
        yield wrong("CORS_ORIGINS", "a list of origins, in production")
    if settings.retention < 14 * DAY:
        yield wrong("RETENTION", "at least 336h in production: 7 days to the deadline, 7 to come back")


def _shown(name: str, value: str | None) -> str:
    """What may be printed of a value. Anything with an @ could be an address with a password."""
    if value is None:
        return "nothing"
    if name in _SECRET or "@" in value or "PRIVATE" in value:
        return f"(hidden, {len(value)} characters)"
    return value if value.isprintable() and len(value) <= 60 else ascii(value[:50]) + "..."

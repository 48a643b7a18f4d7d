"""All settings: defaults, accepted text, and constraints between settings.

A field is named like its environment variable, in lower case. `Settings.load` reads all of them,
reports all problems at once, and never shows a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from worker.core import values
from worker.core.agent_keys import AgentKey, agent_keys
from worker.core.secret_strength import weak_secrets
from worker.core.store_address import parse

T = TypeVar("T")

HOUR, DAY = 3600.0, 86_400.0
CDP_FACILITATOR = "https://api.cdp.coinbase.com/platform/v2/x402"
FACILITATORS = {"eip155:8453": CDP_FACILITATOR, "eip155:84532": "https://x402.org/facilitator"}
LONG_SECRET, SHORT_SECRET = 32, 16


@dataclass(frozen=True)
class BadSetting:
    """One problem that prevents the worker from starting."""

    name: str
    found: str
    expected: str


class BadStart(Exception):
    """The settings are invalid; lists all problems."""

    def __init__(self, problems: Iterable[BadSetting]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.table())

    def table(self, subject: str = "The worker cannot start") -> str:
        rows = [("setting", "found", "expected")] + [(p.name, p.found, p.expected) for p in self.problems]
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in rows]
        return "\n".join([f"{subject} with these settings:", "", *lines])


def _one(read: Callable[[str], T], default: T, *, secret: bool = False) -> T:
    return field(default=default, repr=not secret, metadata={"read": read, "secret": secret})


@dataclass(frozen=True)
class Settings:
    """The operator's settings. Durations are in seconds."""

    port: int = _one(values.integer(1, 65535), 8000)
    public_url: str = _one(values.web_url, "http://127.0.0.1:8000")
    trusted_proxies: int = _one(values.integer(0, 10), 0)
    worker_env: str = _one(values.one_of("local", "test", "staging", "production"), "local")

    redis_url: str | None = _one(values.redis_url, None, secret=True)
    redis_tls_ca: str | None = _one(values.certificate, None)
    redis_tls_verify: str = _one(values.one_of("on", "ca", "off"), "on")
    store_memory: int = _one(values.size(1 << 20, 1 << 44), 0)

    worker_state_dir: str = _one(values.text, "var")
    worker_config: str = _one(values.existing, "config/worker.toml")
    worker_agents: tuple[str, ...] = _one(values.listed(values.module), ())

    worker_key: str | None = _one(values.private_key, None, secret=True)
    worker_wallet: str | None = _one(values.wallet, None)
    worker_agent_id: str = _one(values.identifier, "agent_worker")

    signing_key: str | None = _one(values.private_key, None, secret=True)
    contact_email: str | None = _one(values.email, None)
    icon_url: str | None = _one(values.web_url, None)
    guidance: str = _one(values.guidance, "")
    agent_registrations: tuple[tuple[str, int], ...] = _one(values.listed(values.registration), ())

    network: str = _one(values.network, values.NETWORKS["base-sepolia"])
    facilitator_url: str = _one(values.web_url, FACILITATORS["eip155:84532"])
    cdp_api_key_id: str | None = _one(values.text, None, secret=True)
    cdp_api_key_secret: str | None = _one(values.text, None, secret=True)
    rpc_url: str | None = _one(values.rpc_url, None, secret=True)
    confirmations: int | None = _one(values.integer(0, 10_000), None)
    settle: str = _one(values.one_of("after_work", "before_work"), "after_work")
    max_payment_window: int = _one(values.integer(60, 86_400), 3600)
    fee_threshold: int = _one(values.dollars, 1_000_000)
    fee_period: float = _one(values.duration(60, 30 * DAY), DAY)

    try_key: str | None = _one(values.private_key, None, secret=True)
    try_daily: int = _one(values.dollars, 1_000_000)

    kernel_token: str | None = _one(values.text, None, secret=True)
    watch_tokens: tuple[tuple[str, str], ...] = _one(values.credentials, (), secret=True)
    agent_keys: tuple[AgentKey, ...] = _one(agent_keys, (), secret=True)
    swarm_keys: tuple[tuple[str, str], ...] = _one(values.credentials, (), secret=True)
    swarm_provider_family: str = _one(values.text, "swarm-runtime")
    swarm_model_id: str = _one(values.text, "swarm-model-v1")
    swarm_limits: tuple[tuple[str, int, int], ...] = _one(values.kernel_limits, ())
    swarm_patience: float = _one(values.duration(0, 150), 150.0)
    swarm_policy_hashes: tuple[tuple[str, str], ...] = _one(values.listed(values.policy_hash), ())
    swarm_full_schema: str = _one(values.one_of("on", "off"), "off")
    swarm_evidence_hosts: tuple[str, ...] = _one(values.listed(values.evidence_origin), ())
    secret_key: str | None = _one(values.text, None, secret=True)
    accepted_secret_keys: tuple[str, ...] = _one(values.listed(values.text), (), secret=True)
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

    # Requests per minute per address or wallet; 0 means no limit. Deployments have other defaults.
    limit_contracts: int = _one(values.integer(0, 1_000_000), 0)
    limit_executes: int = _one(values.integer(0, 1_000_000), 0)
    limit_unknown: int = _one(values.integer(0, 1_000_000), 0)

    web_concurrency: int = _one(values.integer(1, 64), 1)
    express_processes: int = _one(values.integer(1, 64), 1)
    queue_processes: int = _one(values.integer(1, 64), 1)
    # A warm process is replaced after this many runs, this long, this much memory (MB) over its start, or
    # this many open files (default: half of its limit).
    process_runs: int = _one(values.integer(1, 1_000_000), 1_000)
    process_life: float = _one(values.duration(60, 30 * DAY), HOUR)
    process_memory: int = _one(values.integer(16, 1_000_000), 256)
    process_files: int | None = _one(values.integer(64, 1_000_000), None)
    queue_limit: int = _one(values.integer(1, 1_000_000), 10_000)
    log_format: str = _one(values.one_of("auto", "json", "text"), "auto")

    @property
    def deployed(self) -> bool:
        """Whether it is public: production, or staging (production on a test network)."""
        return self.worker_env in ("staging", "production")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The environment variables that are read, in declaration order."""
        return tuple(each.name.upper() for each in fields(cls))

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> Settings:
        """Reads the settings from `environ`; empty counts as absent, unknown names are ignored."""
        env = {name: environ[name].strip() for name in cls.names() if environ.get(name, "").strip()}
        read: dict[str, Any] = {}
        problems = []
        for each in fields(cls):
            name = each.name.upper()
            if name in env:
                try:
                    read[each.name] = each.metadata["read"](env[name])
                except values.InvalidValue as unfit:
                    problems.append(BadSetting(name, _shown(name, env[name]), unfit.expected))
        settings = _with_derived(cls(**read), read, env)
        unread = {problem.name for problem in problems}
        together = [*_together(settings, env, dyno=bool(environ.get("DYNO")))]
        if settings.deployed:
            together += _deployed(settings, env, dyno=bool(environ.get("DYNO")))
        if settings.worker_env == "local":
            together += _local(settings, env)
        problems += [p for p in together if p.name not in unread]
        if problems:
            raise BadStart(problems)
        return settings

    def own_secrets(self) -> dict[str, tuple[str, ...]]:
        """The operator's secrets by setting; keys as hex digits."""
        chosen = {
            "WORKER_KEY": (self.worker_key,),
            "TRY_KEY": (self.try_key,),
            "SIGNING_KEY": (self.signing_key,),
            "SECRET_KEY": (self.secret_key,),
            "ACCEPTED_SECRET_KEYS": self.accepted_secret_keys,
            "KERNEL_TOKEN": (self.kernel_token,),
            "WATCH_TOKENS": tuple(token for _, token in self.watch_tokens),
            "WEBHOOK_KEY": (self.webhook_key.hex() if self.webhook_key else None,),
            "AGENT_KEYS": tuple(entry.key for entry in self.agent_keys),
            "SWARM_KEYS": tuple(secret for _, secret in self.swarm_keys),
        }
        return {name: tuple(filter(None, texts)) for name, texts in chosen.items()}

    def secrets(self) -> tuple[str, ...]:
        """The texts that no log line and no answer may contain."""
        found: list[str] = []
        for each in fields(self):
            if each.metadata["secret"]:
                value = getattr(self, each.name)
                if isinstance(value, str):
                    found.append(value)
                elif isinstance(value, tuple):
                    found += [_secret_of(each) for each in value]
        for url in (self.redis_url, self.rpc_url):
            password = urlsplit(url).password if url else None
            found += [password, unquote(password)] if password else []
        found += parse(self.redis_url).passwords if self.redis_url else ()
        found += [key[2:] for key in (self.worker_key, self.signing_key, self.try_key) if key]
        return tuple(dict.fromkeys(found))


def _secret_of(entry: AgentKey | tuple[str, str] | str) -> str:
    if isinstance(entry, AgentKey):
        return entry.key
    return entry if isinstance(entry, str) else entry[1]


_SECRET = {each.name.upper() for each in fields(Settings) if each.metadata["secret"]}


def _with_derived(settings: Settings, read: Mapping[str, Any], env: Mapping[str, str]) -> Settings:
    """Fills in defaults that depend on other settings."""
    derived: dict[str, Any] = {}
    if "PUBLIC_URL" not in env:
        derived["public_url"] = f"http://127.0.0.1:{settings.port}"
    if "FILES_URL" not in env:
        derived["files_url"] = settings.worker_state_dir.rstrip("/") + "/files"
    if "FACILITATOR_URL" not in env:
        derived["facilitator_url"] = FACILITATORS[settings.network]
    if settings.deployed:
        limits = {"limit_contracts": 20, "limit_executes": 60, "limit_unknown": 20}
        derived |= {name: limit for name, limit in limits.items() if name.upper() not in env}
    if "worker_key" in read and "WORKER_WALLET" not in env:
        derived["worker_wallet"] = values.address_of(read["worker_key"])
    return replace(settings, **derived)


def _together(settings: Settings, env: Mapping[str, str], *, dyno: bool) -> Iterator[BadSetting]:
    """Checks constraints between settings, in every environment."""

    def wrong(name: str, expected: str) -> BadSetting:
        return BadSetting(name, _shown(name, env.get(name)), expected)

    if settings.worker_key and settings.worker_wallet != values.address_of(settings.worker_key):
        yield wrong("WORKER_WALLET", f"the wallet of WORKER_KEY, {values.address_of(settings.worker_key)}")
    if settings.try_key and not values.is_test_network(settings.network):
        yield wrong("TRY_KEY", "no value, because money of this network is real and visitors would spend it")
    if settings.try_key and settings.try_key == settings.worker_key:
        yield wrong("TRY_KEY", "another key than WORKER_KEY: nobody hires itself")
    for one, other in (("CDP_API_KEY_ID", "CDP_API_KEY_SECRET"), ("CDP_API_KEY_SECRET", "CDP_API_KEY_ID")):
        if one not in env and other in env:
            yield wrong(one, f"a value, because {other} has one")
    if settings.redis_tls_ca and not (settings.redis_url or "").startswith("rediss"):
        yield wrong("REDIS_TLS_CA", "no value, unless REDIS_URL begins with rediss")
    sentinels = parse(settings.redis_url).service if settings.redis_url else ""
    if settings.redis_tls_verify == "ca" and sentinels and not settings.redis_tls_ca:
        yield wrong("REDIS_TLS_CA", "the servers' certificate: with Sentinels none is learnt")
    if len(settings.cors_origins) > 1 and "*" in settings.cors_origins:
        yield wrong("CORS_ORIGINS", "either * or a list of origins")
    for name, keys in (
        ("AGENT_KEYS", {entry.key for entry in settings.agent_keys}),
        ("WATCH_TOKENS", {token for _, token in settings.watch_tokens}),
    ):
        if settings.kernel_token in keys:
            yield wrong(name, "keys that differ from KERNEL_TOKEN")
    kernels = {"*", *dict(settings.swarm_keys)}
    if any(name not in kernels for name, _, _ in settings.swarm_limits):
        yield wrong("SWARM_LIMITS", "names from SWARM_KEYS, or *")
    if dyno and "WORKER_ENV" not in env:
        yield wrong("WORKER_ENV", "production, staging or another value, because this is a dyno")
    if dyno and not settings.files_url.startswith("s3://"):
        yield wrong("FILES_URL", "s3://bucket/prefix, because a dyno's disk is temporary and not shared")


def _local(settings: Settings, env: Mapping[str, str]) -> Iterator[BadSetting]:
    """Checks that a local worker, which trusts every caller, uses test money and serves only this machine."""
    if not values.is_test_network(settings.network):
        expected = "a test network, or WORKER_ENV=production: money of this network is real"
        yield BadSetting("NETWORK", _shown("NETWORK", env.get("NETWORK")), expected)
    if not values.is_this_machine(settings.public_url):
        expected = "this machine's own address (127.0.0.1, localhost), or WORKER_ENV=staging or production"
        yield BadSetting("PUBLIC_URL", _shown("PUBLIC_URL", env.get("PUBLIC_URL")), expected)


def _deployed(settings: Settings, env: Mapping[str, str], *, dyno: bool) -> Iterator[BadSetting]:
    """Checks the rules of staging and production: strong secrets, real addresses, no shortcuts."""
    environment = settings.worker_env

    def wrong(name: str, expected: str) -> BadSetting:
        return BadSetting(name, _shown(name, env.get(name)), expected)

    for name in ("REDIS_URL", "WORKER_KEY", "WORKER_AGENT_ID", "NETWORK", "RPC_URL"):
        if name not in env:
            yield wrong(name, f"a value, in {environment}")
    yield from _public_address(settings, wrong, named="TRUSTED_PROXIES" in env, dyno=dyno)
    for name, url in (("RPC_URL", settings.rpc_url), ("FACILITATOR_URL", settings.facilitator_url)):
        parts = urlsplit(url or "https:")
        if parts.scheme != "https" and parts.hostname not in values.LOOPBACK:
            yield wrong(name, f"an https:// address, in {environment}")
    money = "a test network" if environment == "staging" else "a network where money is real"
    if "NETWORK" in env and values.is_test_network(settings.network) != (environment == "staging"):
        yield wrong("NETWORK", f"{money}, in {environment}")
    if settings.redis_tls_verify == "off":
        yield wrong("REDIS_TLS_VERIFY", f"on, or ca, in {environment}")
    if settings.facilitator_url == CDP_FACILITATOR and not (
        settings.cdp_api_key_id or settings.cdp_api_key_secret
    ):
        yield wrong(
            "CDP_API_KEY_ID", "a value, and CDP_API_KEY_SECRET too, because the facilitator is Coinbase's"
        )
    for name, expected in weak_secrets(settings.own_secrets()):
        yield wrong(name, f"{expected}, in {environment}")
    for name, secret in (("SECRET_KEY", settings.secret_key), ("KERNEL_TOKEN", settings.kernel_token)):
        if len(secret or "") < LONG_SECRET:
            yield wrong(name, f"at least {LONG_SECRET} characters, in {environment}")
    own = settings.own_secrets()
    for name, secrets in ((name, own[name]) for name in ("AGENT_KEYS", "SWARM_KEYS", "WATCH_TOKENS")):
        if any(len(secret) < SHORT_SECRET for secret in secrets):
            yield wrong(name, f"secrets of at least {SHORT_SECRET} characters, in {environment}")
    if "*" in settings.cors_origins:
        yield wrong("CORS_ORIGINS", f"a list of origins, in {environment}")
    if settings.retention < 14 * DAY:
        expected = f"at least 336h in {environment}: 7 days until the deadline, 7 days to fetch the result"
        yield wrong("RETENTION", expected)
    for name in ("LIMIT_CONTRACTS", "LIMIT_EXECUTES", "LIMIT_UNKNOWN"):
        if not getattr(settings, name.lower()):
            yield wrong(name, f"at least 1, in {environment}: 0 lets anybody ask without end")


def _public_address(
    settings: Settings, wrong: Callable[[str, str], BadSetting], *, named: bool, dyno: bool
) -> Iterator[BadSetting]:
    """Checks the public address; the worker itself serves plain HTTP behind a proxy."""
    environment = settings.worker_env
    if urlsplit(settings.public_url).scheme != "https":
        yield wrong("PUBLIC_URL", f"an https:// address, in {environment}")
    elif values.is_this_machine(settings.public_url):
        yield wrong("PUBLIC_URL", f"the name by which the world reaches the worker, in {environment}")
    elif urlsplit(settings.public_url).path:
        yield wrong("PUBLIC_URL", "an address without a path, such as https://worker.example")
    if not named or (dyno and not settings.trusted_proxies):
        expected = "how many proxies stand in front (1 for a router or nginx): else all callers count as one"
        yield wrong("TRUSTED_PROXIES", expected)


def _shown(name: str, value: str | None) -> str:
    """Returns what may be printed of a value. Anything with an @ could be a URL with a password."""
    if value is None:
        return "nothing"
    if name in _SECRET or "@" in value or "PRIVATE" in value:
        return f"(hidden, {len(value)} characters)"
    return value if value.isprintable() and len(value) <= 60 else ascii(value[:50]) + "..."

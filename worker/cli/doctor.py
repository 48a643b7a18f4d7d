"""`worker doctor`: is this a place where the worker may take money?

Looks at the store above all, because a store that forgets is a worker that forgets payments.
Hosted stores often forbid CONFIG; then INFO must do, and what it does not tell is said so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO
from urllib.parse import urlsplit

import redis

from worker.agents.config import load_overrides
from worker.cli.target import add_state, settings_with_key
from worker.logs import configure
from worker.payments.chain import ChainEvidence, ChainUnavailable
from worker.payments.outcomes import Answer, supports
from worker.settings import BadStart, Settings
from worker.store import REDIS_AT_LEAST, Role, connect, share
from worker.values import LOOPBACK, bare

Level = Literal["ok", "warn", "wrong"]
Info = Mapping[str, Any]

MEMORY_WARN, MEMORY_WRONG = 75, 90
SKEW_WARN, SKEW_WRONG = 2.0, 30.0
CANNOT_TELL = "cannot tell, the store forbids CONFIG"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    expected: str


def doctor(settings: Settings) -> list[Finding]:
    """Everything that can be said about the place these settings name."""
    findings = [_capabilities(settings)]
    if settings.worker_key is not None:
        findings += _money(settings)
    url = settings.redis_url or _running_store(settings)
    if url is None:
        expected = "REDIS_URL, or `worker local`, which brings a store"
        return [*findings, Finding("store", "warn", "none is configured and none runs", expected)]
    return [*findings, *_store(replace(settings, redis_url=url))]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor`; it sets `handler`: arguments in, exit code out."""
    parser = commands.add_parser("doctor", help="check settings and store")
    _options(parser)
    parser.set_defaults(handler=lambda given: run(given, os.environ, sys.stdout))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    add_state(parser)


def main(args: Sequence[str], environ: Mapping[str, str] = os.environ, out: TextIO | None = None) -> int:
    """Print what `doctor` finds; 1 when something is wrong, 2 when the settings do not even load."""
    parser = argparse.ArgumentParser(prog="worker doctor", description="Check settings and store.")
    _options(parser)
    return run(parser.parse_args(args), environ, out or sys.stdout)


def run(options: argparse.Namespace, environ: Mapping[str, str], output: TextIO) -> int:
    """With `--state` it looks at that `worker local`, its chain and facilitator too."""
    try:
        settings = settings_with_key(options.state, environ) if options.state else Settings.load(environ)
        configure(settings)  # standard output is the findings' alone
        findings = doctor(settings)
    except BadStart as bad:
        if options.json:
            print(json.dumps({"settings": [asdict(problem) for problem in bad.problems]}), file=output)
        else:
            print(bad, file=output)
        return 2
    wrong = any(finding.level == "wrong" for finding in findings)
    if options.json:
        print(json.dumps({"ok": not wrong, "findings": [asdict(each) for each in findings]}), file=output)
    else:
        _print_table(findings, output)
    return 1 if wrong else 0


def _print_table(findings: Sequence[Finding], output: TextIO) -> None:
    wide = max(len(each.name) for each in findings)
    for each in findings:
        more = "" if each.level == "ok" else f"; expected: {each.expected}"
        print(f"{each.level:<5}  {each.name:<{wide}}  {each.found}{more}", file=output)


def _capabilities(settings: Settings) -> Finding:
    count, file = len(load_overrides(settings.worker_config)), settings.worker_config
    found = f"{count} in {file}" if Path(file).exists() else f"none, there is no {file}"
    return Finding("overrides", "ok", found, "a file without mistakes")


def _money(settings: Settings) -> list[Finding]:
    """Whoever settles our payments and whoever shows the chain; without a key no payment is taken."""
    from worker.parts import Parts

    parts = Parts(settings, "cli")
    return [_facilitator(parts.facilitator.supported(), settings), _node(parts.chain, settings)]


def _facilitator(answer: Answer, settings: Settings) -> Finding:
    expected = f"exact payments on {settings.network}"
    where = bare(settings.facilitator_url)
    if supports(answer, settings.network):
        return Finding("facilitator", "ok", f"{where} settles {expected}", expected)
    if answer.status is None or not 200 <= answer.status < 300:
        why = answer.fault or f"answers {answer.status}"
        return Finding("facilitator", "warn", f"{where} cannot be asked: {why}", expected)
    return Finding("facilitator", "wrong", f"{where} does not list them", expected)


def _node(chain: ChainEvidence | None, settings: Settings) -> Finding:
    expected = f"a node of {settings.network}, or lost answers of the facilitator stay unknown"
    if chain is None:
        return Finding("chain", "warn", "no RPC_URL", expected)
    where = bare(settings.rpc_url or "")
    try:
        head = chain.head()
    except ChainUnavailable as away:
        served = away.details.get("received")
        if served is not None:
            return Finding("chain", "wrong", f"{where} serves eip155:{served}", expected)
        return Finding("chain", "warn", f"{where} cannot be asked", expected)
    return Finding("chain", "ok", f"{where} is at block {head.block}", expected)


def _running_store(settings: Settings) -> str | None:
    """The embedded store of a `worker local` that runs on this state directory."""
    try:
        told = json.loads((Path(settings.worker_state_dir) / "local.json").read_text())
        return str(told["redis"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(settings: Settings) -> list[Finding]:
    where = bare(settings.redis_url or "")
    store = connect(settings, role="cli")
    try:
        before = time.time()
        seconds, micros = store.time()
        skew = seconds + micros / 1e6 - (before + time.time()) / 2
        info: Info = store.info()
    except redis.RedisError as error:
        return [Finding("store", "wrong", f"{where}: {_kind(error)}", "a store that answers")]
    try:
        return [
            Finding("store", "ok", where, "a store that answers"),
            _encryption(settings),
            _version(info),
            _shape(info),
            *_durability(store, info),
            _eviction(store, info),
            _memory(info),
            _connections(store, info, settings),
            _scripts(store),
            _skew(skew),
        ]
    except (redis.ConnectionError, redis.TimeoutError) as error:
        return [Finding("store", "wrong", f"{where}: {_kind(error)}", "a store that keeps answering")]
    finally:
        store.close()


def _kind(error: Exception) -> str:
    return {
        "AuthenticationError": "refuses our password",
        "TimeoutError": "does not answer in time",
        "ConnectionError": "cannot be reached",
        "BusyLoadingError": "is still loading its data",
        "NoPermissionError": "forbids TIME or INFO",
    }.get(type(error).__name__, "answers with an error")


def _encryption(settings: Settings) -> Finding:
    expected = "rediss:// beyond this machine, with the certificate checked"
    parts = urlsplit(settings.redis_url or "")
    if parts.scheme == "rediss":
        level: Level = "warn" if settings.redis_tls_verify == "off" else "ok"
        return Finding("encryption", level, f"TLS, REDIS_TLS_VERIFY is {settings.redis_tls_verify}", expected)
    if parts.scheme == "unix" or parts.hostname in LOOPBACK:
        return Finding("encryption", "ok", "none, on this machine", expected)
    return Finding("encryption", "warn", "none", expected)


def _version(info: Info) -> Finding:
    least = ".".join(map(str, REDIS_AT_LEAST))
    found = str(info.get("redis_version", "unknown"))
    product = f"Valkey {info['valkey_version']}, as Redis {found}" if "valkey_version" in info else found
    numbers = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    fits = len(numbers) == 2 and tuple(numbers) >= REDIS_AT_LEAST
    return Finding("version", "ok" if fits else "wrong", product, f"{least} or newer")


def _shape(info: Info) -> Finding:
    mode = str(info.get("redis_mode", info.get("server_mode", "standalone")))
    role = str(info.get("role", "master"))
    fits = mode != "cluster" and role == "master"
    return Finding("shape", "ok" if fits else "wrong", f"{mode}, {role}", "one master, not a cluster")


def _durability(store: redis.Redis, info: Info) -> Iterator[Finding]:
    expected = "an append-only file, or a crash of the store forgets payments"
    if "aof_enabled" not in info:
        yield Finding("append-only file", "warn", "cannot tell, INFO does not say", expected)
        return
    if not int(info["aof_enabled"]):
        yield Finding("append-only file", "wrong", "off", expected)
        return
    yield Finding("append-only file", "ok", "on", expected)
    mode = _configured(store, "appendfsync")
    level: Level = {"always": "ok", "no": "wrong"}.get(mode or "", "warn")  # type: ignore[assignment]
    found = mode or f"{CANNOT_TELL}; counts as everysec"
    yield Finding("appendfsync", level, found, "always: with everysec a crash loses up to 2 s")
    for part in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        status = str(info.get(part, "ok"))
        if status != "ok":
            yield Finding(part, "wrong", status, "ok: the store has trouble with its disk")


def _eviction(store: redis.Redis, info: Info) -> Finding:
    policy = info.get("maxmemory_policy") or _configured(store, "maxmemory-policy")
    expected = "noeviction: any other lets the store delete payments when memory is short"
    if policy is None:
        return Finding("eviction", "warn", CANNOT_TELL, expected)
    return Finding("eviction", "ok" if policy == "noeviction" else "wrong", str(policy), expected)


def _memory(info: Info) -> Finding:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    expected = f"at most {MEMORY_WARN} % in use; a full store refuses every write"
    if not limit:
        return Finding("memory", "ok", f"{_mib(used)} used, no limit", expected)
    percent = 100 * used // limit
    level: Level = "wrong" if percent > MEMORY_WRONG else "warn" if percent > MEMORY_WARN else "ok"
    return Finding("memory", level, f"{percent} % of {_mib(limit)} used", expected)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def connections_needed(settings: Settings) -> dict[Role, int]:
    """What all processes of these settings may hold together, by role."""
    processes: dict[Role, int] = {
        "web": settings.web_concurrency,
        "express": settings.express_processes,
        "queue": settings.queue_processes,
        "cli": 1,
    }
    return {role: count * share(settings, role).total for role, count in processes.items()}


def _connections(store: redis.Redis, info: Info, settings: Settings) -> Finding:
    needed = connections_needed(settings)
    total = sum(needed.values())
    sums = " + ".join(f"{role} {count}" for role, count in needed.items())
    limit = info.get("maxclients") or _configured(store, "maxclients")
    if limit is None:
        return Finding("connections", "warn", f"{sums} = {total}; {CANNOT_TELL}", "room for them")
    level: Level = "wrong" if total > int(limit) else "warn" if total > 0.9 * int(limit) else "ok"
    expected = "room for one machine of each kind; more machines need more"
    return Finding("connections", level, f"{sums} = {total} of {limit}", expected)


def _scripts(store: redis.Redis) -> Finding:
    expected = "EVAL and EVALSHA: every change of state is a script"
    try:
        works = store.eval("return redis.call('TIME')[1]", 0) is not None
    except redis.ResponseError:
        works = False
    return Finding("scripts", "ok" if works else "wrong", "possible" if works else "refused", expected)


def _skew(skew: float) -> Finding:
    level: Level = "wrong" if abs(skew) > SKEW_WRONG else "warn" if abs(skew) > SKEW_WARN else "ok"
    expected = f"within {SKEW_WARN:g} s: the store's clock decides whether a payment is still valid"
    return Finding("clock", level, f"the store is {skew:+.3f} s from this machine", expected)


def _configured(store: redis.Redis, name: str) -> str | None:
    """A value of the store's configuration, or None where CONFIG is forbidden or does not know it."""
    ask: Callable[[str], Any] = store.config_get
    try:
        answer = ask(name)
    except redis.ResponseError:
        return None
    value = {_text(key): _text(found) for key, found in answer.items()}.get(name)
    return value or None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

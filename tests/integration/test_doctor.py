"""`worker doctor` against real stores: healthy, at risk of data loss, and unknown."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.fakes import facilitator_faults as faults
from tests.fakes.facilitator_server import FacilitatorServer
from tests.waiting import eventually
from worker.cli.doctor import doctor, main
from worker.cli.doctor_results import CheckResult
from worker.cli.doctor_store import connections_needed
from worker.core.settings import Settings
from worker.local.chain import LocalChain
from worker.local.valkey import EmbeddedStore, free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="embedded")
def _embedded(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


@pytest.fixture(name="admin")
def _admin(embedded: EmbeddedStore) -> redis.Redis:
    return redis.Redis.from_url(embedded.url, decode_responses=True)


def findings(url: str, **environ: str) -> dict[str, CheckResult]:
    return {each.name: each for each in doctor(Settings.load({"REDIS_URL": url, **environ}))}


def run(environ: dict[str, str], *args: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(args, environ, out), out.getvalue()


def test_embedded_store_has_no_findings(embedded: EmbeddedStore) -> None:
    """The embedded store of a laptop causes no warnings."""
    found = findings(embedded.url)
    assert {each.level for each in found.values()} == {"ok"}
    assert {
        "append-only file",
        "appendfsync",
        "eviction",
        "memory",
        "connections",
        "scripts",
        "clock",
    } <= set(found)
    code, output = run({"REDIS_URL": embedded.url})
    assert code == 0 and "wrong" not in output and embedded.url.partition("://:")[2][:20] not in output


def test_agent_keys_without_a_role_are_named(embedded: EmbeddedStore) -> None:
    """An entry without a role, from older releases, is a warning, and its key is not shown."""
    found = findings(embedded.url, AGENT_KEYS="agent:a:key-one,old-entry:key-two")["agent keys"]
    assert found.level == "warn" and "old-entry" in found.found and "key-two" not in found.found
    assert "agent keys" not in findings(embedded.url, AGENT_KEYS="agent:a:key-one")


def test_missing_append_only_file_is_an_error(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """A store that loses data on restart fails the check."""
    admin.config_set("appendonly", "no")
    assert findings(embedded.url)["append-only file"].level == "wrong"
    assert "appendfsync" not in findings(embedded.url)
    code, output = run({"REDIS_URL": embedded.url})
    assert code == 1 and "append-only file" in output


@pytest.mark.parametrize(("mode", "level"), [("always", "ok"), ("everysec", "warn"), ("no", "wrong")])
def test_fsync_mode_findings(embedded: EmbeddedStore, admin: redis.Redis, mode: str, level: str) -> None:
    """fsync each second is a warning; no fsync is an error."""
    admin.config_set("appendfsync", mode)
    assert findings(embedded.url)["appendfsync"].level == level
    assert run({"REDIS_URL": embedded.url})[0] == (1 if level == "wrong" else 0)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_eviction_policy_is_an_error(embedded: EmbeddedStore, admin: redis.Redis, policy: str) -> None:
    """A store that may evict keys may evict payments."""
    admin.config_set("maxmemory-policy", policy)
    assert findings(embedded.url)["eviction"].level == "wrong"


@pytest.mark.parametrize(("share", "level"), [(0.5, "ok"), (0.8, "warn"), (0.99, "wrong")])
def test_memory_usage_findings(embedded: EmbeddedStore, admin: redis.Redis, share: float, level: str) -> None:
    """Above three quarters is a warning, above nine tenths an error."""
    admin.set("ballast", "x" * 20_000_000)
    # The command's own copy counts as well until the store's next round.
    eventually(
        lambda: admin.info("memory")["used_memory"] < 30_000_000, description="only one copy of the ballast"
    )
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] / share))
    memory = findings(embedded.url)["memory"]
    assert memory.level == level and "%" in memory.found


def test_connections_of_all_processes_are_counted(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """All processes of all roles count; more than the store allows is an error."""
    admin.config_set("maxclients", 20)
    assert findings(embedded.url)["connections"].level == "ok"
    crowd = {"WEB_CONCURRENCY": "3", "QUEUE_PROCESSES": "4"}
    needed = connections_needed(Settings.load(crowd))
    assert needed == {"web": 9, "express": 2, "queue": 8, "check": 1, "clock": 2, "parent": 1, "cli": 2}
    many = findings(embedded.url, **crowd)["connections"]
    assert many.level == "wrong" and "25 of 20" in many.found
    admin.config_set("maxclients", 27)
    assert findings(embedded.url, **crowd)["connections"].level == "warn"


def test_less_compact_hashes_are_named_but_no_finding(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """They only take memory; the expected value is the embedded store's."""
    assert findings(embedded.url)["compact hashes"].found == "hash-max-listpack-value 2048"
    admin.config_set("hash-max-listpack-value", 64)
    found = findings(embedded.url)["compact hashes"]
    assert found.level == "ok" and found.found.endswith(" 64") and "2048 or more" in found.expected


def test_hosted_store_without_config_is_checked(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """Without CONFIG the fsync mode is unknown, the rest comes from INFO; a release may accept that."""
    admin.acl_setuser(
        "hosted", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-config"]
    )
    url = embedded.url.replace(embedded.url.partition("://")[2].partition("@")[0], "hosted:secret")
    found = findings(url)
    assert found["appendfsync"].level == "unknown" and "cannot tell" in found["appendfsync"].found
    assert {name for name, each in found.items() if each.level != "ok"} == {"appendfsync"}
    assert run({"REDIS_URL": url})[0] == 4
    assert run({"REDIS_URL": url}, "--allow-unknown")[0] == 0


def test_store_without_scripts_is_an_error(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """The engine needs a store that accepts scripts."""
    admin.acl_setuser(
        "plain", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all", "-@scripting"]
    )
    url = embedded.url.replace(embedded.url.partition("://")[2].partition("@")[0], "plain:secret")
    assert findings(url)["scripts"].level == "wrong"


def test_replica_is_an_error(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """A replica accepts no writes."""
    admin.replicaof("127.0.0.1", str(free_port()))
    assert findings(embedded.url)["shape"].level == "wrong"


def test_stopped_store_is_unreachable() -> None:
    """An unreachable address is reported without its password; `--allow-unreachable` accepts it."""
    url = f"redis://:store-password@127.0.0.1:{free_port()}"
    code, output = run({"REDIS_URL": url})
    assert code == 3 and "cannot be reached" in output and "store-password" not in output
    assert run({"REDIS_URL": url}, "--allow-unreachable")[0] == 0


def test_wrong_password_has_its_own_finding(embedded: EmbeddedStore) -> None:
    """A wrong password is reported as such, not as a network problem."""
    code, output = run({"REDIS_URL": embedded.url.replace("://:", "://:x")})
    assert code == 1 and "refuses our password" in output


def test_missing_local_store_is_a_warning(tmp_path: Path) -> None:
    """Before `worker local` has run there is nothing to check and no error."""
    code, output = run({"WORKER_STATE_DIR": str(tmp_path)})
    assert code == 0 and "warn" in output and "worker local" in output


def test_running_local_worker_is_found(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """Without REDIS_URL the command checks the store of a running `worker local`."""
    (tmp_path / "local.json").write_text(json.dumps({"redis": embedded.url}))
    code, output = run({"WORKER_STATE_DIR": str(tmp_path)}, "--json")
    names = {each["name"]: each["level"] for each in json.loads(output)["findings"]}
    assert code == 0 and names["appendfsync"] == "ok"
    (tmp_path / "local.json").write_text("[broken")
    assert run({"WORKER_STATE_DIR": str(tmp_path)})[0] == 0


def test_local_worker_is_found_by_its_state_directory(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """`--state` checks store, facilitator and chain of that directory; if none runs, it says so."""
    code, output = run({}, "--state", str(tmp_path))
    assert code == 2 and "--state" in output
    facts = {
        "redis": embedded.url,
        "url": "http://127.0.0.1:9",
        "kernel_token": "k" * 32,
        "network": "base-sepolia",
        "rpc": "http://127.0.0.1:9",
        "facilitator": "http://127.0.0.1:9",
    }
    (tmp_path / "local.json").write_text(json.dumps(facts))
    code, output = run({}, "--state", str(tmp_path), "--json")
    names = {each["name"]: each["level"] for each in json.loads(output)["findings"]}
    assert (names["appendfsync"], names["facilitator"], names["chain"]) == (
        "ok",
        "unreachable",
        "unreachable",
    )
    assert code == 3


def test_missing_overrides_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default file is used if present; a new user is told when it is missing."""
    monkeypatch.chdir(tmp_path)
    assert "none, there is no config/worker.toml" in run({"WORKER_STATE_DIR": str(tmp_path)})[1]


def test_json_output(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """One object with the overall result and every finding."""
    code, output = run({"REDIS_URL": embedded.url}, "--json")
    report = json.loads(output)
    assert code == 0 and report["ok"] is True
    assert {"name", "level", "found", "expected"} == set(report["findings"][0])
    admin.config_set("appendonly", "no")
    code, output = run({"REDIS_URL": embedded.url}, "--json")
    assert code == 1 and json.loads(output)["ok"] is False


def test_invalid_settings_are_reported(tmp_path: Path) -> None:
    """Settings that do not load and faulty overrides end the check, and all are named."""
    code, output = run({"WORKER_ENV": "production", "PORT": "0"})
    assert code == 2 and "PORT" in output and "WORKER_KEY" in output
    code, output = run({"PORT": "0"}, "--json")
    assert code == 2 and json.loads(output)["findings"][0]["name"] == "PORT"
    (tmp_path / "w.toml").write_text("[capability.a]\nprice = 1\n")
    code, output = run({"WORKER_CONFIG": str(tmp_path / "w.toml")})
    assert code == 1 and "w.toml:2" in output


def test_missing_tls_is_a_warning() -> None:
    """A remote store without TLS, or with unverified TLS, is a warning."""
    from worker.cli.doctor_store import _encryption

    def level(url: str, **environ: str) -> str:
        return _encryption(Settings.load({"REDIS_URL": url, **environ})).level

    assert level("redis://store.example") == "warn"
    assert level("rediss://store.example") == "ok"
    assert level("rediss://store.example", REDIS_TLS_VERIFY="off") == "warn"
    assert level("redis://localhost") == "ok" and level("unix:///run/s") == "ok"


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ({"redis_version": "6.2.0"}, "ok"),
        ({"redis_version": "6.0.16"}, "wrong"),
        ({"redis_version": "10.1"}, "ok"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "ok"),
        ({"redis_version": "soon"}, "wrong"),
        ({}, "wrong"),
    ],
)
def test_store_version_findings(info: dict[str, str], level: str) -> None:
    """6.2 is the oldest store version with all commands we need."""
    from worker.cli.doctor_store import _version

    assert _version(info).level == level


def test_store_clock_skew_is_reported() -> None:
    """A store whose clock is far off would misjudge payment windows."""
    from worker.cli.doctor_store import _skew

    assert [_skew(seconds).level for seconds in (0.1, -1.9, 5.0, -31.0)] == ["ok", "ok", "warn", "wrong"]


def test_exit_code_of_the_command(embedded: EmbeddedStore) -> None:
    """The Procfile's release step runs the command and uses its exit code."""
    release = next(
        line for line in (ROOT / "Procfile").read_text().splitlines() if line.startswith("release: ")
    ).split()[1:]
    assert release[0] == "python"
    for url, code in ((embedded.url, 0), (f"redis://127.0.0.1:{free_port()}", 3)):
        done = subprocess.run(
            [sys.executable, *release[1:]],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": url},
            capture_output=True,
        )
        assert done.returncode == code, done.stderr


# Money: facilitator and chain node


KEY = "0x" + "22" * 32


def money_findings(url: str, facilitator: str, **environ: str) -> dict[str, CheckResult]:
    found = findings(url, WORKER_KEY=KEY, FACILITATOR_URL=facilitator, **environ)
    return {name: each for name, each in found.items() if name in ("facilitator", "chain")}


def test_facilitator_and_node_are_not_asked_without_a_key(embedded: EmbeddedStore) -> None:
    """A worker that cannot be paid needs neither facilitator nor node."""
    assert not {"facilitator", "chain"} & set(findings(embedded.url))


def test_matching_facilitator_and_node_are_ok(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A facilitator that supports our network and a node of the right chain pass."""
    with FacilitatorServer() as facilitator, LocalChain(tmp_path / "chain") as chain:
        found = money_findings(embedded.url, facilitator.url, RPC_URL=chain.url)
        assert {name: each.level for name, each in found.items()} == {"facilitator": "ok", "chain": "ok"}
        assert len(facilitator.calls("supported")) == 1
        code, output = run({"REDIS_URL": embedded.url, "WORKER_KEY": KEY, "FACILITATOR_URL": facilitator.url})
        assert code == 0 and "no RPC_URL" in output and KEY[2:] not in output


def test_wrong_network_is_an_error(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A facilitator that would refuse our payments and a node of another chain are found at startup."""
    with FacilitatorServer() as facilitator, LocalChain(tmp_path / "chain") as chain:
        kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}]
        facilitator.plan("supported", faults.answer(200, {"kinds": kinds}))
        found = money_findings(
            embedded.url, facilitator.url, RPC_URL=chain.url, NETWORK="base", WORKER_ENV="test"
        )
        assert {name: each.level for name, each in found.items()} == {
            "facilitator": "wrong",
            "chain": "wrong",
        }
        assert "eip155:84532" in found["chain"].found and "eip155:8453" in found["chain"].expected


@pytest.mark.parametrize("answer", [(500, {}), (200, "garbage"), (401, {"error": "who are you"})])
def test_failing_facilitator_is_reported(embedded: EmbeddedStore, answer: tuple[int, Any]) -> None:
    """A server error may be temporary; garbage and a refusal are permanent."""
    with FacilitatorServer() as facilitator:
        facilitator.plan("supported", faults.answer(*answer))
        level = money_findings(embedded.url, facilitator.url)["facilitator"].level
        assert level == ("unreachable" if answer[0] == 500 else "wrong")


def test_unreachable_facilitator_or_node_is_told_from_a_wrong_one(embedded: EmbeddedStore) -> None:
    """A temporarily unreachable facilitator or node is told from a wrong one."""
    away = f"http://127.0.0.1:{free_port()}"
    found = money_findings(embedded.url, away, RPC_URL=f"{away}/secret-path")
    assert {each.level for each in found.values()} == {"unreachable"}
    assert "secret-path" not in str(found)

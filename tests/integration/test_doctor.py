"""`worker doctor` against real stores: what is right, what could lose data, what it cannot tell."""

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
from worker.cli.doctor import Finding, connections_needed, doctor, main
from worker.local.chain import LocalChain
from worker.local.valkey import EmbeddedStore, free_port
from worker.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="embedded")
def _embedded(tmp_path: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path) as store:
        yield store


@pytest.fixture(name="admin")
def _admin(embedded: EmbeddedStore) -> redis.Redis:
    return redis.Redis.from_url(embedded.url, decode_responses=True)


def findings(url: str, **environ: str) -> dict[str, Finding]:
    return {each.name: each for each in doctor(Settings.load({"REDIS_URL": url, **environ}))}


def run(environ: dict[str, str], *args: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(args, environ, out), out.getvalue()


def test_the_embedded_store_is_sound(embedded: EmbeddedStore) -> None:
    """The store that a laptop gets has nothing to warn of."""
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
    code, said = run({"REDIS_URL": embedded.url})
    assert code == 0 and "wrong" not in said and embedded.url.partition("://:")[2][:20] not in said


def test_no_append_only_file_is_wrong(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """A store that forgets at a restart fails the check."""
    admin.config_set("appendonly", "no")
    assert findings(embedded.url)["append-only file"].level == "wrong"
    assert "appendfsync" not in findings(embedded.url)
    code, said = run({"REDIS_URL": embedded.url})
    assert code == 1 and "append-only file" in said


@pytest.mark.parametrize(("mode", "level"), [("always", "ok"), ("everysec", "warn"), ("no", "wrong")])
def test_when_the_store_writes(embedded: EmbeddedStore, admin: redis.Redis, mode: str, level: str) -> None:
    """Writing each second is a warning, writing whenever is wrong."""
    admin.config_set("appendfsync", mode)
    assert findings(embedded.url)["appendfsync"].level == level
    assert run({"REDIS_URL": embedded.url})[0] == (1 if level == "wrong" else 0)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_eviction_is_wrong(embedded: EmbeddedStore, admin: redis.Redis, policy: str) -> None:
    """A store that may delete keys to make room may delete payments."""
    admin.config_set("maxmemory-policy", policy)
    assert findings(embedded.url)["eviction"].level == "wrong"


@pytest.mark.parametrize(("share", "level"), [(0.5, "ok"), (0.8, "warn"), (0.99, "wrong")])
def test_memory_nearly_full(embedded: EmbeddedStore, admin: redis.Redis, share: float, level: str) -> None:
    """Above three quarters it warns, above nine tenths it is wrong."""
    admin.set("ballast", "x" * 20_000_000)
    # The command's own copy counts as well until the store's next round.
    eventually(lambda: admin.info("memory")["used_memory"] < 30_000_000, what="only one copy of the ballast")
    admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] / share))
    memory = findings(embedded.url)["memory"]
    assert memory.level == level and "%" in memory.found


def test_connections_are_added_up(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """All processes of all roles count, and too many for the store are wrong."""
    admin.config_set("maxclients", 40)
    assert findings(embedded.url)["connections"].level == "ok"
    crowd = {"WEB_CONCURRENCY": "3", "QUEUE_PROCESSES": "4"}
    needed = connections_needed(Settings.load(crowd))
    assert needed == {"web": 33, "express": 3, "queue": 16, "cli": 2}
    many = findings(embedded.url, **crowd)["connections"]
    assert many.level == "wrong" and "54 of 40" in many.found
    admin.config_set("maxclients", 56)
    assert findings(embedded.url, **crowd)["connections"].level == "warn"


def test_a_hosted_store_forbids_config(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """Without CONFIG the fsync mode counts as everysec, the rest comes from INFO, and nothing fails."""
    admin.acl_setuser(
        "hosted", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all"], commands=["-config"]
    )
    url = embedded.url.replace(embedded.url.partition("://")[2].partition("@")[0], "hosted:secret")
    found = findings(url)
    assert found["appendfsync"].level == "warn" and "cannot tell" in found["appendfsync"].found
    assert {name for name, each in found.items() if each.level != "ok"} == {"appendfsync"}
    assert run({"REDIS_URL": url})[0] == 0


def test_scripts_may_be_forbidden(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """A store that refuses scripts cannot carry the engine."""
    admin.acl_setuser(
        "plain", enabled=True, passwords=["+secret"], keys=["*"], categories=["+@all", "-@scripting"]
    )
    url = embedded.url.replace(embedded.url.partition("://")[2].partition("@")[0], "plain:secret")
    assert findings(url)["scripts"].level == "wrong"


def test_a_replica_is_wrong(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """A replica accepts no writes."""
    admin.replicaof("127.0.0.1", str(free_port()))
    assert findings(embedded.url)["shape"].level == "wrong"


def test_a_store_that_is_down_is_wrong() -> None:
    """An address where nobody answers is reported without its password."""
    url = f"redis://:store-password@127.0.0.1:{free_port()}"
    code, said = run({"REDIS_URL": url})
    assert code == 1 and "cannot be reached" in said and "store-password" not in said


def test_a_wrong_password_is_told_apart(embedded: EmbeddedStore) -> None:
    """Whoever mistyped the password is not sent looking for the network."""
    code, said = run({"REDIS_URL": embedded.url.replace("://:", "://:x")})
    assert code == 1 and "refuses our password" in said


def test_no_store_on_a_laptop_is_a_warning(tmp_path: Path) -> None:
    """Before `worker local` runs there is nothing to look at, and nothing wrong."""
    code, said = run({"WORKER_STATE_DIR": str(tmp_path)})
    assert code == 0 and "warn" in said and "worker local" in said


def test_the_running_laptop_is_found(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """Without REDIS_URL the store of a running `worker local` is checked."""
    (tmp_path / "local.json").write_text(json.dumps({"redis": embedded.url}))
    code, said = run({"WORKER_STATE_DIR": str(tmp_path)}, "--json")
    names = {each["name"]: each["level"] for each in json.loads(said)["findings"]}
    assert code == 0 and names["appendfsync"] == "ok"
    (tmp_path / "local.json").write_text("[broken")
    assert run({"WORKER_STATE_DIR": str(tmp_path)})[0] == 0


def test_a_laptop_is_named_by_its_state_directory(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """`--state` as everywhere else: store, facilitator and chain are asked; where none runs, it says so."""
    code, said = run({}, "--state", str(tmp_path))
    assert code == 2 and "--state" in said
    told = {
        "redis": embedded.url,
        "url": "http://127.0.0.1:9",
        "kernel_token": "k" * 32,
        "network": "base-sepolia",
        "rpc": "http://127.0.0.1:9",
        "facilitator": "http://127.0.0.1:9",
    }
    (tmp_path / "local.json").write_text(json.dumps(told))
    code, said = run({}, "--state", str(tmp_path), "--json")
    names = {each["name"]: each["level"] for each in json.loads(said)["findings"]}
    assert (names["appendfsync"], names["facilitator"], names["chain"]) == ("ok", "warn", "warn")


def test_overrides_that_are_nowhere_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default file is looked for where one stands; a newcomer is told when it is not there."""
    monkeypatch.chdir(tmp_path)
    assert "none, there is no config/worker.toml" in run({"WORKER_STATE_DIR": str(tmp_path)})[1]


def test_json_for_machines(embedded: EmbeddedStore, admin: redis.Redis) -> None:
    """One object says whether all is well, and lists every finding."""
    code, said = run({"REDIS_URL": embedded.url}, "--json")
    told = json.loads(said)
    assert code == 0 and told["ok"] is True
    assert {"name", "level", "found", "expected"} == set(told["findings"][0])
    admin.config_set("appendonly", "no")
    code, said = run({"REDIS_URL": embedded.url}, "--json")
    assert code == 1 and json.loads(said)["ok"] is False


def test_bad_settings_are_a_finding_of_their_own(tmp_path: Path) -> None:
    """Settings that do not load, or overrides with mistakes, end the check with all of them named."""
    code, said = run({"WORKER_ENV": "production", "PORT": "0"})
    assert code == 2 and "PORT" in said and "WORKER_KEY" in said
    code, said = run({"PORT": "0"}, "--json")
    assert code == 2 and json.loads(said)["settings"][0]["name"] == "PORT"
    (tmp_path / "w.toml").write_text("[capability.a]\nprice = 1\n")
    code, said = run({"WORKER_CONFIG": str(tmp_path / "w.toml")})
    assert code == 2 and "w.toml:2" in said


def test_encryption_beyond_this_machine() -> None:
    """A store elsewhere without TLS, or with unchecked TLS, is a warning."""
    from worker.cli.doctor import _encryption

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
def test_versions(info: dict[str, str], level: str) -> None:
    """Six point two is the oldest store whose commands we need."""
    from worker.cli.doctor import _version

    assert _version(info).level == level


def test_the_clock_may_be_wrong() -> None:
    """A store whose clock is far off would misjudge payment windows."""
    from worker.cli.doctor import _skew

    assert [_skew(seconds).level for seconds in (0.1, -1.9, 5.0, -31.0)] == ["ok", "ok", "warn", "wrong"]


def test_as_a_program(embedded: EmbeddedStore) -> None:
    """The Procfile's release line runs it, and the exit code is the answer."""
    release = next(
        line for line in (ROOT / "Procfile").read_text().splitlines() if line.startswith("release: ")
    ).split()[1:]
    assert release[0] == "python"
    for url, code in ((embedded.url, 0), (f"redis://127.0.0.1:{free_port()}", 1)):
        done = subprocess.run(
            [sys.executable, *release[1:]],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": url},
            capture_output=True,
        )
        assert done.returncode == code, done.stderr


# Money: whoever settles, and whoever shows the chain


KEY = "0x" + "22" * 32


def money_findings(url: str, facilitator: str, **environ: str) -> dict[str, Finding]:
    found = findings(url, WORKER_KEY=KEY, FACILITATOR_URL=facilitator, **environ)
    return {name: each for name, each in found.items() if name in ("facilitator", "chain")}


def test_without_a_key_nobody_is_asked_about_money(embedded: EmbeddedStore) -> None:
    """A worker that cannot be paid needs neither facilitator nor node."""
    assert not {"facilitator", "chain"} & set(findings(embedded.url))


def test_facilitator_and_node_are_asked(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A facilitator that lists our network and a node of the right chain are in order."""
    with FacilitatorServer() as facilitator, LocalChain(tmp_path / "chain") as chain:
        found = money_findings(embedded.url, facilitator.url, RPC_URL=chain.url)
        assert {name: each.level for name, each in found.items()} == {"facilitator": "ok", "chain": "ok"}
        assert len(facilitator.calls("supported")) == 1
        code, said = run({"REDIS_URL": embedded.url, "WORKER_KEY": KEY, "FACILITATOR_URL": facilitator.url})
        assert code == 0 and "no RPC_URL" in said and KEY[2:] not in said


def test_a_facilitator_of_another_network_is_wrong(embedded: EmbeddedStore, tmp_path: Path) -> None:
    """A facilitator that would refuse our payments and a node of another chain are found at the start."""
    with FacilitatorServer() as facilitator, LocalChain(tmp_path / "chain") as chain:
        kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}]
        facilitator.plan("supported", faults.answer(200, {"kinds": kinds}))
        found = money_findings(embedded.url, facilitator.url, RPC_URL=chain.url, NETWORK="base")
        assert {name: each.level for name, each in found.items()} == {
            "facilitator": "wrong",
            "chain": "wrong",
        }
        assert "eip155:84532" in found["chain"].found and "eip155:8453" in found["chain"].expected


@pytest.mark.parametrize("answer", [(500, {}), (200, "garbage"), (401, {"error": "who are you"})])
def test_a_facilitator_that_cannot_be_asked(embedded: EmbeddedStore, answer: tuple[int, Any]) -> None:
    """An error or garbage says nothing about the network, so it is a warning or a wrong list, never ok."""
    with FacilitatorServer() as facilitator:
        facilitator.plan("supported", faults.answer(*answer))
        level = money_findings(embedded.url, facilitator.url)["facilitator"].level
        assert level == ("wrong" if answer[0] == 200 else "warn")


def test_nobody_at_the_other_end_is_a_warning(embedded: EmbeddedStore) -> None:
    """A deployment does not fail because a facilitator or a node is away for a moment."""
    away = f"http://127.0.0.1:{free_port()}"
    found = money_findings(embedded.url, away, RPC_URL=f"{away}/secret-path")
    assert {each.level for each in found.values()} == {"warn"}
    assert "secret-path" not in str(found)

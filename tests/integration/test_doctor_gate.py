"""`worker doctor` as a release gate: each wrong setting is named with its fix and stops the release."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
from moto.server import ThreadedMotoServer

from tests.fakes import facilitator_faults as faults
from tests.fakes.certificates import self_signed
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.stub_server import StubServer
from worker.cli.doctor import main
from worker.local.chain import LocalChain
from worker.local.valkey import EmbeddedStore, free_port

WRONG, REFUSED, UNREACHABLE, UNKNOWN = 1, 2, 3, 4
DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
OTHER_CHAIN = b'{"jsonrpc":"2.0","id":0,"result":"0x1"}'
OPERATORS = "e8Ru1QyW0zXn6TbD4kLmS9vJc3PfHg7A"
# The first account of a development chain.
ANVIL = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
AGENT = "from worker import agent\n@agent('gate-{name}', price={price})\ndef run(job):\n    return {{}}\n"


@dataclass
class Deployment:
    """A valid staging deployment whose parts a test may replace."""

    sound: dict[str, str]
    places: dict[str, str]
    facilitator: FacilitatorServer
    store: redis.Redis

    def doctor(self, *options: str, **changes: str) -> tuple[int, dict[str, Any]]:
        environ = {**self.sound, **{name: text.format(**self.places) for name, text in changes.items()}}
        for name in [name for name in sys.modules if name.startswith("gate_")]:
            del sys.modules[name]  # each call is a new process in production
        boto3.DEFAULT_SESSION = None
        out = io.StringIO()
        status = main(["--json", *options], {name: each for name, each in environ.items() if each}, out)
        return status, json.loads(out.getvalue())


@pytest.fixture(name="services", scope="module")
def _services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Everything a deployment needs, and some unrelated servers."""
    home = tmp_path_factory.mktemp("gate")
    tls = self_signed(home / "tls", "elsewhere.example")
    bucket = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    bucket.start()
    with ExitStack() as stack:
        stack.callback(bucket.stop)
        store = EmbeddedStore(home / "store")
        stack.enter_context(store)
        chain = stack.enter_context(LocalChain(home / "chain"))
        facilitator = stack.enter_context(FacilitatorServer())
        page = stack.enter_context(StubServer(200, b"<html>hello</html>"))
        denies = stack.enter_context(StubServer(403, DENIED))
        other_chain = stack.enter_context(StubServer(200, OTHER_CHAIN))
        untrusted = stack.enter_context(StubServer(200, b"{}", tls=tls))
        s3 = "http://{}:{}".format(*bucket.get_host_and_port())
        client = boto3.client(
            "s3", endpoint_url=s3, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
        )
        client.create_bucket(Bucket="worker-files")
        sound = {
            "WORKER_ENV": "staging",
            "PUBLIC_URL": "https://staging.worker.example",
            "TRUSTED_PROXIES": "1",
            "REDIS_URL": store.url,
            "WORKER_KEY": "0x" + hashlib.sha256(b"a wallet of its own").hexdigest(),
            "WORKER_AGENT_ID": "agent_shop",
            "NETWORK": "base-sepolia",
            "FACILITATOR_URL": facilitator.url,
            "RPC_URL": chain.url,
            "SECRET_KEY": "Vn2rXo0sT9qLm4wYb7KcJ8dZf5hGp1aE",
            "KERNEL_TOKEN": OPERATORS,
            "FILES_URL": "s3://worker-files/shop",
            "WORKER_AGENTS": "worker.shipped",
            "WORKER_STATE_DIR": str(home / "state"),
        }
        places = {
            "dead": f"http://127.0.0.1:{free_port()}",
            "page": page.url,
            "denies": denies.url,
            "other_chain": other_chain.url,
            "untrusted": untrusted.url,
            "untrusted_store": untrusted.url.replace("https", "rediss"),
            "dead_port": str(free_port()),
            "s3": s3,
            "pem": tls.file.read_text().replace("\n", "\\n"),
            "half_pem": tls.file.read_text()[:100],
        }
        with redis.Redis.from_url(store.url) as admin:
            yield Deployment(sound, places, facilitator, admin)
        client.close()


@pytest.fixture(name="deployment")
def _deployment(services: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployment:
    """The deployment, with bucket credentials where boto3 reads them, and faulty modules."""
    services.facilitator.reset()
    services.store.config_set("appendonly", "yes")
    services.store.config_set("maxmemory-policy", "noeviction")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", services.places["s3"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "gate_broken.py").write_text("def run(:\n")
    (tmp_path / "gate_raises.py").write_text("x = 1\nraise RuntimeError('no licence')\n")
    (tmp_path / "gate_price.py").write_text(AGENT.format(name="price", price="'0,05'"))
    (tmp_path / "gate.toml").write_text("[capability.logo-desing]\nprice = '1.00'\n")
    (tmp_path / "policy.yaml").write_text("rules: 5\n")
    services.places["tmp"] = str(tmp_path)
    return services


def test_a_deployment_in_order_passes(deployment: Deployment) -> None:
    """A valid deployment has no findings, and all checks ran."""
    status, said = deployment.doctor()
    assert {each["name"]: each for each in said["findings"] if each["level"] != "ok"} == {}
    assert status == 0 and said["ok"] is True
    assert {"agents", "facilitator", "chain", "files", "store", "encryption", "policy"} <= {
        each["name"] for each in said["findings"]
    }


# changed settings, exit code, name of the finding, and a word of its message
MISTAKES: dict[str, tuple[dict[str, str], int, str, str]] = {
    "facilitator dead": ({"FACILITATOR_URL": "{dead}"}, UNREACHABLE, "facilitator", "does not answer"),
    "facilitator is a web page": ({"FACILITATOR_URL": "{page}"}, WRONG, "facilitator", "no facilitator"),
    "facilitator refuses": ({"FACILITATOR_URL": "{denies}"}, WRONG, "facilitator", "credentials"),
    "facilitator's certificate": ({"FACILITATOR_URL": "{untrusted}"}, WRONG, "facilitator", "certificate"),
    "CDP secret unreadable": (
        {"CDP_API_KEY_ID": "an-id-of-cdp", "CDP_API_KEY_SECRET": "no key at all"},
        WRONG,
        "facilitator",
        "CDP_API_KEY_SECRET",
    ),
    "node dead": ({"RPC_URL": "{dead}"}, UNREACHABLE, "chain", "does not answer"),
    "node of another chain": ({"RPC_URL": "{other_chain}"}, WRONG, "chain", "serves eip155:1"),
    "node is a web page": ({"RPC_URL": "{page}"}, WRONG, "chain", "like an Ethereum node"),
    "node refuses": ({"RPC_URL": "{denies}"}, WRONG, "chain", "403"),
    "node's certificate": ({"RPC_URL": "{untrusted}"}, WRONG, "chain", "certificate"),
    "bucket missing": ({"FILES_URL": "s3://no-such-bucket/shop"}, WRONG, "files", "no such bucket"),
    "bucket dead": ({"AWS_ENDPOINT_URL_S3": "{dead}"}, UNREACHABLE, "files", "does not answer"),
    "bucket not writable": ({"AWS_ENDPOINT_URL_S3": "{denies}"}, WRONG, "files", "writing failed"),
    "bucket's certificate": ({"AWS_ENDPOINT_URL_S3": "{untrusted}"}, WRONG, "files", "certificate"),
    "bucket without credentials": ({"AWS_ACCESS_KEY_ID": ""}, WRONG, "files", "AWS_ACCESS_KEY_ID"),
    "bucket's name": ({"FILES_URL": "s3://Not_A_Bucket"}, WRONG, "files", "s3://bucket/prefix"),
    "files no directory": ({"FILES_URL": "/dev/null/files"}, WRONG, "files", "directory"),
    "agents missing": ({"WORKER_AGENTS": "no_such_agents"}, WRONG, "WORKER_AGENTS", "no module"),
    "agents with a syntax error": (
        {"WORKER_AGENTS": "gate_broken"},
        WRONG,
        "gate_broken.py:1",
        "SyntaxError",
    ),
    "agents that raise": ({"WORKER_AGENTS": "gate_raises"}, WRONG, "gate_raises.py:2", "no licence"),
    "agents with a bad price": ({"WORKER_AGENTS": "gate_price"}, WRONG, "gate_price", "0,05"),
    "override of nobody": ({"WORKER_CONFIG": "{tmp}/gate.toml"}, WRONG, "overrides", "logo-design?"),
    "policy broken": ({"POLICY": "{tmp}/policy.yaml"}, WRONG, "policy.yaml:1", "rules"),
    "setting mistyped": ({"REDIS_TSL_VERIFY": "ca"}, WRONG, "REDIS_TSL_VERIFY", "REDIS_TLS_VERIFY?"),
    "limit mistyped": ({"LIMIT_EXECUTE": "5"}, WRONG, "LIMIT_EXECUTE", "LIMIT_EXECUTES?"),
    "chat half set": ({"CHAT_BASE_URL": "https://models.example/v1"}, WRONG, "chat", "CHAT_MODEL"),
    "chat without an address": ({"CHAT_MODEL": "m", "CHAT_API_KEY": "k"}, WRONG, "chat", "CHAT_BASE_URL"),
    "proxy not named": ({"TRUSTED_PROXIES": ""}, REFUSED, "TRUSTED_PROXIES", "how many proxies"),
    "localhost as public address": (
        {"PUBLIC_URL": "https://localhost:8000"},
        REFUSED,
        "PUBLIC_URL",
        "the world",
    ),
    "path in the public address": (
        {"PUBLIC_URL": "https://worker.example/shop"},
        REFUSED,
        "PUBLIC_URL",
        "without a path",
    ),
    "public address without TLS": ({"PUBLIC_URL": "http://worker.example"}, REFUSED, "PUBLIC_URL", "https"),
    "store dead": ({"REDIS_URL": "redis://127.0.0.1:{dead_port}"}, UNREACHABLE, "store", "cannot be reached"),
    "store's password": ({"REDIS_URL": "redis://:wrong@127.0.0.1"}, WRONG, "store", "password"),
    "store's certificate": ({"REDIS_URL": "{untrusted_store}"}, WRONG, "store", "certificate"),
    "store without TLS": ({"REDIS_URL": "redis://192.0.2.7:{dead_port}"}, WRONG, "encryption", "none"),
    "certificate with line ends": ({"REDIS_TLS_CA": "{pem}"}, REFUSED, "REDIS_TLS_CA", "line breaks"),
    "half a certificate": ({"REDIS_TLS_CA": "{half_pem}"}, REFUSED, "REDIS_TLS_CA", "whole certificate"),
    "no contract limit": ({"LIMIT_CONTRACTS": "0"}, REFUSED, "LIMIT_CONTRACTS", "at least 1"),
    "no request limit": ({"LIMIT_EXECUTES": "0"}, REFUSED, "LIMIT_EXECUTES", "at least 1"),
    "no limit for strangers": ({"LIMIT_UNKNOWN": "0"}, REFUSED, "LIMIT_UNKNOWN", "at least 1"),
    "real money in staging": ({"NETWORK": "base"}, REFUSED, "NETWORK", "test network"),
    "short secret": ({"SECRET_KEY": "Vn2rXo0sT9qL"}, REFUSED, "SECRET_KEY", "32 characters"),
    "one secret for two": ({"SECRET_KEY": OPERATORS}, REFUSED, "KERNEL_TOKEN", "another value"),
    "published key": ({"WORKER_KEY": ANVIL}, REFUSED, "WORKER_KEY", "published with a development chain"),
    "dyno without a bucket": ({"DYNO": "web.1", "FILES_URL": "var/files"}, REFUSED, "FILES_URL", "s3://"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_stops_the_release(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    """One wrong setting: the finding names it and what is expected, and shows no secret."""
    changes, status, name, word = MISTAKES[mistake]
    changes = dict(changes)
    if mistake == "store's password":
        changes["REDIS_URL"] = deployment.sound["REDIS_URL"].replace("://:", "://:x")
    for each in [each for each in changes if each.startswith("AWS_")]:
        monkeypatch.setenv(each, changes.pop(each).format(**deployment.places))
    code, said = deployment.doctor(**changes)
    found = [each for each in said["findings"] if name in each["name"] and each["level"] != "ok"]
    assert found, said["findings"]
    assert any(word in f"{each['found']} {each['expected']}" for each in found), found
    assert all(each["expected"] for each in found)
    assert code == status and said["exit"] == status and said["ok"] is False
    if status == UNREACHABLE:
        assert deployment.doctor("--allow-unreachable", **changes)[0] == 0
    else:
        assert deployment.doctor("--allow-unreachable", "--allow-unknown", **changes)[0] == status
    shown = json.dumps(said)
    assert all(
        deployment.sound[secret] not in shown for secret in ("WORKER_KEY", "SECRET_KEY", "KERNEL_TOKEN")
    )


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [("appendonly", "no", "append-only file"), ("maxmemory-policy", "allkeys-lru", "eviction")],
)
def test_a_store_that_forgets_stops_the_release(
    deployment: Deployment, setting: str, value: str, name: str
) -> None:
    """No append-only file, or an eviction policy that may delete payments."""
    deployment.store.config_set(setting, value)
    code, said = deployment.doctor()
    assert code == WRONG and [each["name"] for each in said["findings"] if each["level"] == "wrong"] == [name]


def test_a_facilitator_of_another_network(deployment: Deployment) -> None:
    """A facilitator that lists other networks only would refuse every payment."""
    kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:8453"}]
    deployment.facilitator.plan("supported", faults.answer(200, {"kinds": kinds}))
    code, said = deployment.doctor()
    assert code == WRONG and "does not list them" in json.dumps(said)


def test_a_mistyped_name_beside_the_right_one_is_not_ours(deployment: Deployment) -> None:
    """Hosts set variables of their own; if the setting itself is present, none is a typo of it."""
    assert deployment.doctor(REDIS_URL_2="x", PUBLIC_URLS="x", SWARM_SIZE="")[0] == 0


def test_a_refused_start_tells_the_mistyped_name_too(deployment: Deployment) -> None:
    """A typo is often why a setting is missing: one report names both."""
    code, said = deployment.doctor(KERNEL_TOKEN="", KERNEL_TOKNE=OPERATORS)
    assert code == REFUSED
    assert {"KERNEL_TOKEN", "KERNEL_TOKNE"} == {each["name"] for each in said["findings"]}
    assert "e8Ru1Qy" not in json.dumps(said)

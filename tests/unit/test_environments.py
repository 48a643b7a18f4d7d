"""The environments: local trusts only its own machine, staging is production on a test network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.certificates import self_signed
from worker.core.settings import BadStart, Settings

ROOT = Path(__file__).parents[2]
STAGING = {
    "WORKER_ENV": "staging",
    "PUBLIC_URL": "https://staging.worker.example",
    "TRUSTED_PROXIES": "1",
    "REDIS_URL": "rediss://:store-password@store.example:6380/0",
    "WORKER_KEY": "0x" + hashlib.sha256(b"a wallet of its own").hexdigest(),
    "WORKER_AGENT_ID": "agent_shop",
    "NETWORK": "base-sepolia",
    "RPC_URL": "https://node.example",
    "SECRET_KEY": "Vn2rXo0sT9qLm4wYb7KcJ8dZf5hGp1aE",
    "KERNEL_TOKEN": "e8Ru1QyW0zXn6TbD4kLmS9vJc3PfHg7A",
}


def refused(environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(BadStart) as caught:
        Settings.load(environ)
    return {problem.name: problem.expected for problem in caught.value.problems}


def test_staging_starts_on_a_test_network_alone() -> None:
    """Staging has production's limits, and refuses a main network."""
    settings = Settings.load(STAGING)
    assert settings.deployed
    assert (settings.limit_contracts, settings.limit_executes, settings.limit_unknown) == (20, 60, 20)
    cdp = {"CDP_API_KEY_ID": "an-id", "CDP_API_KEY_SECRET": "a-secret"}
    assert set(refused({**STAGING, **cdp, "NETWORK": "base"})) == {"NETWORK"}


@pytest.mark.parametrize("name", [name for name in STAGING if name != "WORKER_ENV"])
def test_staging_wants_what_production_wants(name: str) -> None:
    """Secrets, node and proxies must be set: no local default applies."""
    assert set(refused({key: value for key, value in STAGING.items() if key != name})) == {name}


@pytest.mark.parametrize(("environ", "host"), [(STAGING, "0.0.0.0"), ({}, "127.0.0.1")])
def test_only_a_deployment_listens_beyond_this_machine(environ: dict[str, str], host: str) -> None:
    """Staging listens on all interfaces, local on loopback only."""
    code = "import worker.web; print(worker.web.bind)"
    kept = {name: value for name, value in os.environ.items() if name not in Settings.names()}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**kept, **environ}, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{host}:8000", done.stderr


def test_a_laptop_takes_no_real_money() -> None:
    """WORKER_ENV=local refuses the main network and names the environment to use."""
    assert "WORKER_ENV=production" in refused({"NETWORK": "base"})["NETWORK"]


@pytest.mark.parametrize("url", ["https://worker.example", "http://192.168.1.7:8000", "http://10.0.0.1"])
def test_a_laptop_has_no_public_address(url: str) -> None:
    """WORKER_ENV=local refuses an address of another machine."""
    assert "WORKER_ENV=staging" in refused({"PUBLIC_URL": url})["PUBLIC_URL"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9000", "127.8.8.8", "[::1]:8000", "shop.localhost"])
def test_a_laptops_own_addresses(host: str) -> None:
    """Every spelling of a loopback address is accepted."""
    assert Settings.load({"PUBLIC_URL": f"http://{host}"}).public_url == f"http://{host}"


def test_a_router_in_front_of_a_dyno_is_a_proxy() -> None:
    """A dyno is always behind a router, so TRUSTED_PROXIES=0 is refused there and allowed elsewhere."""
    bucket = {"FILES_URL": "s3://bucket/prefix"}
    assert set(refused({**STAGING, **bucket, "DYNO": "web.1", "TRUSTED_PROXIES": "0"})) == {"TRUSTED_PROXIES"}
    assert Settings.load({**STAGING, "TRUSTED_PROXIES": "0"}).trusted_proxies == 0


def test_a_certificate_with_its_line_ends_written_out(tmp_path: Path) -> None:
    """Escaped line breaks in a PEM setting, and a truncated certificate, are reported before connecting."""
    pem = self_signed(tmp_path, "store.example").file
    whole = pem.read_text()
    assert Settings.load({**STAGING, "REDIS_TLS_CA": whole}).redis_tls_ca == whole.strip()
    assert "line breaks" in refused({**STAGING, "REDIS_TLS_CA": whole.replace("\n", "\\n")})["REDIS_TLS_CA"]
    assert "whole certificate" in refused({**STAGING, "REDIS_TLS_CA": whole[:200]})["REDIS_TLS_CA"]
    pem.write_text("no certificate")
    assert "whole certificate" in refused({**STAGING, "REDIS_TLS_CA": str(pem)})["REDIS_TLS_CA"]

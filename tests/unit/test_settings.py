"""Settings: parsing, refusals, and hiding of secrets."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import random
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.certificates import self_signed
from worker.core import values
from worker.core.agent_keys import AgentKey, to_rewrite
from worker.core.local_secrets import local_secrets
from worker.core.secret_strength import is_guessable
from worker.core.settings import BadStart, Settings
from worker.core.values import address_of
from worker.x402.networks import resolve_network

KEY = "0x" + "11" * 32
WALLET = "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A"
ROOT = Path(__file__).parents[2]
PRODUCTION_KEY = "0x" + hashlib.sha256(b"key").hexdigest()

PRODUCTION = {
    "WORKER_ENV": "production",
    "PUBLIC_URL": "https://worker.example",
    "TRUSTED_PROXIES": "1",
    "REDIS_URL": "rediss://:store-password@store.example:6380/0",
    "WORKER_KEY": PRODUCTION_KEY,
    "WORKER_AGENT_ID": "agent_shop",
    "NETWORK": "base",
    "RPC_URL": "https://node.example/v2/node-api-key",
    "CDP_API_KEY_ID": "cdp-key-id",
    "CDP_API_KEY_SECRET": "cdp-key-secret",
    "SECRET_KEY": hashlib.sha256(b"secret").hexdigest(),
    "KERNEL_TOKEN": hashlib.sha256(b"token").hexdigest(),
}


def refused(environ: dict[str, str]) -> dict[str, str]:
    """Return the problems of a failed start, by setting."""
    with pytest.raises(BadStart) as caught:
        Settings.load(environ)
    return {problem.name: problem.expected for problem in caught.value.problems}


def test_empty_environment_means_local() -> None:
    """Without any setting the worker is local, on loopback, with the documented defaults."""
    settings = Settings.load({})
    assert settings.worker_env == "local" and not settings.deployed
    assert settings.public_url == "http://127.0.0.1:8000"
    assert settings.network == "eip155:84532"
    assert settings.facilitator_url == "https://x402.org/facilitator"
    assert (settings.execution_timeout, settings.step_timeout, settings.agent_timeout) == (3600, 300, 30)
    assert (settings.max_payment_window, settings.inline_budget, settings.lease) == (3600, 10, 5)
    assert settings.redis_url is None and settings.worker_key is None and settings.agent_keys == ()


def test_field_names_match_their_variables() -> None:
    """Each field has the name of its environment variable."""
    assert [name.lower() for name in Settings.names()] == [f.name for f in dataclasses.fields(Settings)]


def test_settings_are_immutable() -> None:
    """A settings object is immutable."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings.load({}).port = 1  # type: ignore[misc]


def test_empty_values_are_unset_and_unknown_names_ignored() -> None:
    """An empty variable means the default, and unknown variables are ignored."""
    assert Settings.load({"PORT": "  ", "KERNEL_TOKEN": "", "HOME": "/root", "X_PORT": "a"}) == Settings.load(
        {}
    )


def test_defaults_follow_other_settings() -> None:
    """Address, files, facilitator and wallet are derived from other settings."""
    settings = Settings.load(
        {
            "PORT": "9",
            "WORKER_ENV": "test",
            "WORKER_STATE_DIR": "/s/",
            "NETWORK": "base",
            "WORKER_KEY": KEY[2:],
        }
    )
    assert settings.public_url == "http://127.0.0.1:9"
    assert settings.files_url == "/s/files"
    assert settings.facilitator_url == "https://api.cdp.coinbase.com/platform/v2/x402"
    assert (settings.worker_key, settings.worker_wallet) == (KEY, WALLET)


def test_invalid_settings_are_all_listed() -> None:
    """Name, found and expected of every error, in one table."""
    environ = {
        "PORT": "0",
        "LEASE": "soon",
        "SETTLE": "never",
        "CORS_ORIGINS": "ftp://x",
        "POLICY": "/no/such",
    }
    with pytest.raises(BadStart) as caught:
        Settings.load(environ)
    assert {p.name: p.found for p in caught.value.problems} == environ
    table = str(caught.value).splitlines()
    for name, found in environ.items():
        assert [line for line in table if line.startswith(name) and found in line], name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h", 3600), ("168h", 604800), ("1h30m", 5400), ("2.5", 2.5)],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations are written with units or as plain seconds."""
    assert values.duration(0, 1e7)(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "h", "-5", "5 m", "1m1h", "1e3", "nan", "inf", "٣s", "9" * 30, "5ms", "1d", "0x10", "+5", "5s\n"],
)
def test_invalid_durations_are_refused(text: str) -> None:
    """An ambiguous or infinite value is not a duration."""
    with pytest.raises(values.InvalidValue):
        values.duration(0, 1e7)(text)


@given(st.text(max_size=40))
def test_parsers_survive_any_text(text: str) -> None:
    """Any value of a variable is either parsed or reported as a problem."""
    for name in Settings.names():
        try:
            Settings.load({name: text})
        except BadStart as bad:
            assert bad.problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "65536"),
        ("PORT", "٨٠"),
        ("PORT", "80.0"),
        ("PUBLIC_URL", "https://user:pw@worker.example"),
        ("PUBLIC_URL", "https://worker.example/?a=1"),
        ("PUBLIC_URL", "javascript:alert(1)"),
        ("PUBLIC_URL", "https://worker.example:port"),
        ("PUBLIC_URL", "https://worker .example"),
        ("REDIS_URL", "http://store:6379"),
        ("REDIS_URL", "rediss://store:6379/0?ssl_cert_reqs=none"),
        ("REDIS_URL", "redis://store:6379/0?retry_on_timeout=yes"),
        ("REDIS_URL", "redis:///0"),
        ("REDIS_URL", "unix://"),
        ("REDIS_URL", "redis://store/one"),
        ("REDIS_URL", "redis://one,other/0"),
        ("REDIS_URL", "redis://store:65536"),
        ("REDIS_URL", "redis://store:0"),
        ("REDIS_URL", "redis+sentinel://one,other"),
        ("REDIS_URL", "redis+sentinel://one,,other/shop"),
        ("REDIS_URL", "redis+sentinel://one/shop/0/1"),
        ("REDIS_URL", "redis+sentinel://one/shop?sentinel_password="),
        ("REDIS_URL", "rediss+sentinel://one/shop?ssl_cert_reqs=none"),
        ("REDIS_URL", "unix+sentinel://one/shop"),
        ("NETWORK", "solana"),
        ("NETWORK", "eip155:0"),
        ("NETWORK", "eip155:8453x"),
        ("WORKER_KEY", "00" * 32),
        ("WORKER_KEY", "ff" * 32),
        ("WORKER_KEY", "11" * 31),
        ("WORKER_WALLET", "0x19e7E376E7C213B7E7e7e46cc70A5dD086DAff2A"),
        ("WORKER_WALLET", WALLET[2:]),
        ("WORKER_AGENTS", "shop.agents,os;rm"),
        ("WORKER_AGENT_ID", "a b"),
        ("AGENT_KEYS", "researcher"),
        ("AGENT_KEYS", "a:one,a:two"),
        ("AGENT_KEYS", "a:same-key,b:same-key"),
        ("AGENT_KEYS", "agent:a:one,a:two"),
        ("AGENT_KEYS", "agent:a"),
        ("AGENT_KEYS", "agent:a:"),
        ("AGENT_KEYS", "runner:r"),
        ("AGENT_KEYS", "runner:r:key"),
        ("AGENT_KEYS", "runner:r:key:"),
        ("AGENT_KEYS", "runner:r:key:a||b"),
        ("AGENT_KEYS", "operator:a:key"),
        ("SWARM_KEYS", ":password"),
        ("SWARM_KEYS", "kernel:,other:x"),
        ("CORS_ORIGINS", "https://app.example/path"),
        ("CORS_ORIGINS", "https://a.example,*"),
        ("FILES_URL", "ftp://host/x"),
        ("FILES_URL", "s3://key:secret@bucket/x"),
        ("WEBHOOK_KEY", "whsk_" + base64.b64encode(b"x" * 31).decode()),
        ("INLINE_BUDGET", "26s"),
        ("REDIS_TLS_VERIFY", "maybe"),
        ("WORKER_CONFIG", "no/such/file.toml"),
        ("WORKER_ENV", "prod"),
    ],
)
def test_invalid_values_are_refused(name: str, text: str) -> None:
    """A meaningless or ambiguous value prevents the start."""
    assert name in refused({name: text})


def test_lists_and_pairs_are_parsed() -> None:
    """Keys and passwords are parsed as pairs; a password may contain colons; blanks are ignored."""
    settings = Settings.load(
        {
            "AGENT_KEYS": "agent:researcher:key:one, runner:r-1:key-two:search|mcp:fetch , older:key-three",
            "SWARM_KEYS": "kernel:pass:with:colons",
            "WORKER_AGENTS": " shop.agents ,, shop.tools,",
            "CORS_ORIGINS": "https://a.example,http://localhost:3000",
        }
    )
    assert settings.agent_keys == (
        AgentKey("agent", "researcher", "key:one"),
        AgentKey("runner", "r-1", "key-two", frozenset({"search", "mcp:fetch"})),
        AgentKey("agent", "older", "key-three", old=True),
    )
    names = to_rewrite(settings.agent_keys)
    assert names is not None and "older" in names and "researcher" not in names
    assert to_rewrite(settings.agent_keys[:2]) is None
    assert settings.swarm_keys == (("kernel", "pass:with:colons"),)
    assert settings.worker_agents == ("shop.agents", "shop.tools")
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")


def test_webhook_key_accepts_both_formats() -> None:
    """Standard Webhooks' format and hex give the same 32 bytes."""
    seed = bytes(range(32))
    spelled = "whsk_" + base64.b64encode(seed).decode()
    assert Settings.load({"WEBHOOK_KEY": spelled}).webhook_key == seed
    assert Settings.load({"WEBHOOK_KEY": seed.hex()}).webhook_key == seed


def test_network_names_are_normalised() -> None:
    """base, its CAIP-2 name and other letter cases are the same network."""
    for text in ("base", "Base", "eip155:8453"):
        assert Settings.load({"WORKER_ENV": "test", "NETWORK": text}).network == "eip155:8453"


@pytest.mark.parametrize("chain", ["eip155:137", "eip155:1337", "polygon"])
def test_unknown_network_is_refused(chain: str) -> None:
    """The error names the available networks, even if a facilitator is configured."""
    wrong = refused({"NETWORK": chain, "FACILITATOR_URL": "http://127.0.0.1:5000/"})
    assert wrong["NETWORK"] == "base (eip155:8453) or base-sepolia (eip155:84532)"


@pytest.mark.parametrize("network", sorted(values.NETWORKS.values()))
def test_every_allowed_network_has_a_usdc_address(network: str) -> None:
    """Payments know every network that the settings allow."""
    assert resolve_network(network).caip2 == network


def test_wallet_must_match_the_key() -> None:
    """A wallet that does not belong to the key is refused; letter case does not matter."""
    assert Settings.load({"WORKER_KEY": KEY, "WORKER_WALLET": WALLET.lower()}).worker_wallet == WALLET
    other = values.address_of("0x" + "22" * 32)
    assert WALLET in refused({"WORKER_KEY": KEY, "WORKER_WALLET": other})["WORKER_WALLET"]


def test_checksums_match_the_library() -> None:
    """Our own derivation of the address from the key agrees with eth-account."""
    from eth_account import Account

    for number in (
        1,
        2,
        0xDEAD,
        2**255 + 19,
        int("fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364140", 16),
    ):
        key = f"0x{number:064x}"
        assert values.address_of(values.private_key(key)) == Account.from_key(key).address


def test_checksums_without_the_native_library() -> None:
    """Without coincurve the slow implementation gives the same address."""
    code = (
        "import sys; sys.modules['coincurve'] = None\n"
        f"from worker.core.values import address_of; print(address_of('{KEY}'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == WALLET


def test_reading_settings_imports_no_wallet_library() -> None:
    """A start takes milliseconds: eth_account and web3 are not imported, even with a key."""
    code = (
        f"import sys; from worker.core.settings import Settings; Settings.load({{'WORKER_KEY': '{KEY}'}})\n"
        "print([m for m in ('eth_account', 'web3', 'redis', 'flask') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_incomplete_facilitator_credentials_are_refused() -> None:
    """An id without its secret, or a secret without its id, is refused in every environment."""
    assert "CDP_API_KEY_SECRET" in refused({"CDP_API_KEY_ID": "x"})
    assert "CDP_API_KEY_ID" in refused({"CDP_API_KEY_SECRET": "x"})


def test_tls_settings_require_each_other(tmp_path: Path) -> None:
    """A certificate without TLS has no effect, so it is refused; `ca` without one learns it on first use."""
    pem = tmp_path / "ca.pem"
    pem.write_bytes(self_signed(tmp_path, "h").file.read_bytes())
    assert "REDIS_TLS_CA" in refused({"REDIS_URL": "redis://h", "REDIS_TLS_CA": str(pem)})
    Settings.load({"REDIS_URL": "rediss://h", "REDIS_TLS_VERIFY": "ca"})
    assert "REDIS_TLS_CA" in refused({"REDIS_URL": "rediss://h", "REDIS_TLS_CA": "/no/such.pem"})
    assert Settings.load({"REDIS_URL": "rediss://h", "REDIS_TLS_CA": str(pem)}).redis_tls_ca == str(pem)


def test_operator_token_must_be_unique() -> None:
    """An agent key equal to the operator's token would make the agent the operator."""
    assert "AGENT_KEYS" in refused({"KERNEL_TOKEN": "same-token", "AGENT_KEYS": "a:same-token"})


def test_dyno_cannot_run_locally() -> None:
    """On a dyno the environment must be set, and files must go to a bucket."""
    problems = refused({"DYNO": "web.1"})
    assert {"WORKER_ENV", "FILES_URL"} == set(problems)
    Settings.load({"DYNO": "web.1", "WORKER_ENV": "test", "FILES_URL": "s3://bucket/prefix"})
    assert "FILES_URL" in refused({**PRODUCTION, "DYNO": "web.1", "FILES_URL": "/data"})


def test_valid_production_settings() -> None:
    """Production starts with all required settings."""
    settings = Settings.load(PRODUCTION)
    assert settings.deployed and settings.worker_wallet == address_of(PRODUCTION_KEY)
    assert settings.network == "eip155:8453"


def test_visitors_are_lent_no_real_money() -> None:
    """A wallet for visitors is refused where money is real, and may not be the worker's own."""
    lent = "0x" + "3" * 63 + "1"
    assert "TRY_KEY" in refused({**PRODUCTION, "TRY_KEY": lent})
    assert "TRY_KEY" in refused({"WORKER_KEY": KEY, "TRY_KEY": KEY})
    settings = Settings.load({"WORKER_KEY": KEY, "TRY_KEY": lent, "TRY_DAILY": "0.50"})
    assert settings.try_daily == 500_000 and lent not in repr(settings)


@pytest.mark.parametrize(
    "missing",
    [
        "PUBLIC_URL",
        "REDIS_URL",
        "WORKER_KEY",
        "WORKER_AGENT_ID",
        "NETWORK",
        "RPC_URL",
        "SECRET_KEY",
        "KERNEL_TOKEN",
    ],
)
def test_production_requires_settings(missing: str) -> None:
    """A setting with a local default is required in production."""
    environ = {name: value for name, value in PRODUCTION.items() if name != missing}
    assert set(refused(environ)) == {missing}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PUBLIC_URL", "http://worker.example"),
        ("NETWORK", "base-sepolia"),
        ("NETWORK", "eip155:84532"),
        ("RPC_URL", "http://node.example"),
        ("FACILITATOR_URL", "http://facilitator.example"),
        ("SECRET_KEY", "short"),
        ("KERNEL_TOKEN", "k" * 31),
        ("REDIS_TLS_VERIFY", "off"),
        ("AGENT_KEYS", "a:short"),
        ("SWARM_KEYS", "kernel:short"),
        ("CORS_ORIGINS", "*"),
        ("RETENTION", "24h"),
        ("LIMIT_CONTRACTS", "0"),
        ("LIMIT_EXECUTES", "0"),
        ("LIMIT_UNKNOWN", "0"),
        ("PUBLIC_URL", "https://localhost"),
        ("PUBLIC_URL", "https://127.0.0.1:8000"),
        ("PUBLIC_URL", "https://worker.example/shop"),
    ],
)
def test_production_refuses_local_settings(name: str, text: str) -> None:
    """Insecure settings are refused in production by name, and allowed in test."""
    assert set(refused({**PRODUCTION, name: text})) == {name}
    Settings.load({"WORKER_ENV": "test", name: text})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORKER_KEY", KEY),
        ("WORKER_KEY", "0x" + "0" * 63 + "7"),
        ("WORKER_KEY", "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"),
        ("SIGNING_KEY", KEY),
        ("SIGNING_KEY", PRODUCTION_KEY),
        ("SIGNING_KEY", "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"),
        ("SECRET_KEY", "s" * 40),
        ("SECRET_KEY", "abcdefgh" * 5),
        ("SECRET_KEY", "abcdefghijklmnopqrstuvwxyz0123456789"),
        ("SECRET_KEY", "change-me-before-you-go-to-production"),
        ("KERNEL_TOKEN", PRODUCTION_KEY),
        ("KERNEL_TOKEN", PRODUCTION_KEY[2:].upper()),
        ("KERNEL_TOKEN", PRODUCTION["SECRET_KEY"]),
        ("WEBHOOK_KEY", PRODUCTION_KEY[2:]),
        ("AGENT_KEYS", f"a:{PRODUCTION['KERNEL_TOKEN']}"),
        ("SWARM_KEYS", f"a:{PRODUCTION['SECRET_KEY']}"),
        ("SWARM_KEYS", "a:" + "xy" * 12),
    ],
)
def test_production_refuses_secrets_that_others_may_know(name: str, text: str) -> None:
    """Equal, guessable and published secrets are named, but never shown."""
    with pytest.raises(BadStart) as caught:
        Settings.load({**PRODUCTION, name: text})
    assert {problem.name for problem in caught.value.problems} == {name}
    assert text.removeprefix("a:") not in str(caught.value)


def test_every_secret_of_the_worker_is_checked_and_hidden_from_authors() -> None:
    """A new secret setting is compared with the others and removed before author code is imported."""
    issued_elsewhere = {"REDIS_URL", "RPC_URL", "CDP_API_KEY_ID", "CDP_API_KEY_SECRET"}
    secret = {each.name.upper() for each in dataclasses.fields(Settings) if each.metadata["secret"]}
    assert Settings.load({}).own_secrets().keys() == secret - issued_elsewhere


def test_random_secrets_are_strong() -> None:
    """None of a thousand drawn secrets is taken for a guessable one."""
    drawn = random.Random(1)
    assert not any(is_guessable(drawn.randbytes(8).hex()) for _ in range(1_000))
    assert not any(is_guessable(base64.urlsafe_b64encode(drawn.randbytes(24)).decode()) for _ in range(1_000))


def test_coinbase_facilitator_needs_credentials() -> None:
    """Production's default facilitator requires credentials; another one does not."""
    environ = {name: value for name, value in PRODUCTION.items() if not name.startswith("CDP")}
    assert "CDP_API_KEY_ID" in refused(environ)
    Settings.load({**environ, "FACILITATOR_URL": "https://facilitator.example"})


def test_secrets_are_hidden_in_repr() -> None:
    """Neither repr nor a failed start shows a secret, even one set in the wrong variable."""
    secrets = {
        "WORKER_KEY": KEY,
        "SECRET_KEY": "the-secret-key-of-sessions-and-refs",
        "KERNEL_TOKEN": "the-kernel-token-of-the-operator",
        "AGENT_KEYS": "a:the-key-of-an-agent",
        "SWARM_KEYS": "a:the-password-of-a-kernel",
        "REDIS_URL": "redis://:the-store-password@h:1",
        "RPC_URL": "https://node.example/the-node-key",
        "CDP_API_KEY_ID": "the-cdp-id",
        "CDP_API_KEY_SECRET": "the-cdp-secret",
    }
    settings = Settings.load(secrets)
    with pytest.raises(BadStart) as caught:
        Settings.load({**secrets, "WORKER_ENV": "production", "PUBLIC_URL": "http://u:the-url-password@h"})
    for shown in (repr(settings), str(settings), str(caught.value), repr(caught.value)):
        assert "the-" not in shown and "1111" not in shown
    with pytest.raises(BadStart) as caught:
        Settings.load({name: "the- broken" + value for name, value in secrets.items()})
    assert "the-" not in str(caught.value)


def test_secrets_are_listed_for_redaction() -> None:
    """The log redaction list contains every secret, including the password in a URL."""
    known = Settings.load(
        {**PRODUCTION, "AGENT_KEYS": "a:key-of-agent-one", "REDIS_URL": "rediss://:p%40ss-word@h"}
    )
    expected = {
        PRODUCTION_KEY,
        PRODUCTION_KEY[2:],
        PRODUCTION["SECRET_KEY"],
        PRODUCTION["KERNEL_TOKEN"],
        "key-of-agent-one",
        "p%40ss-word",
        "p@ss-word",
        "cdp-key-secret",
    }
    assert expected <= set(known.secrets())
    assert "a" not in known.secrets()


def test_addresses_without_a_scheme() -> None:
    """An address is shown without user, password, path and query."""
    assert values.bare("https://u:p@node.example:8545/v2/key?x=1") == "https://node.example:8545/..."
    assert values.bare("redis://[::1]:6379") == "redis://[::1]:6379"
    assert "secret" not in values.bare("http://[secret")


def test_env_example_lists_exactly_the_settings() -> None:
    """config/.env.example has each setting once, with a reason above it, and shows the real defaults."""
    lines = (ROOT / "config/.env.example").read_text().splitlines()
    named = [match[1] for line in lines if (match := re.fullmatch(r"#([A-Z_]+)=.*", line))]
    assert sorted(named) == sorted(Settings.names())
    for before, line in zip(lines, lines[1:], strict=False):
        if re.fullmatch(r"#[A-Z_]+=.*", line):
            assert before.startswith("# ") or re.fullmatch(r"#[A-Z_]+=.*", before), line


def test_env_example_defaults_match() -> None:
    """Uncommenting the defaults changes nothing."""
    lines = (ROOT / "config/.env.example").read_text().splitlines()
    shown = dict(line[1:].split("=", 1) for line in lines if re.fullmatch(r"#[A-Z_]+=.+", line))
    # Examples of settings without a default, and of files that must exist.
    for name in ("REDIS_URL", "CORS_ORIGINS", "WORKER_AGENTS", "POLICY", "WORKER_CONFIG"):
        shown.pop(name)
    for name in ("CONTACT_EMAIL", "ICON_URL", "AGENT_REGISTRATIONS"):
        shown.pop(name)
    assert Settings.load(shown) == Settings.load({})


def test_app_json_lists_real_settings() -> None:
    """app.json asks only for existing variables, and its plain values are accepted."""
    wanted = json.loads((ROOT / "app.json").read_text())["env"]
    known = {*Settings.names(), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert set(wanted) <= known
    fixed = {name: each["value"] for name, each in wanted.items() if "value" in each}
    asked = {
        **PRODUCTION,
        **fixed,
        "FILES_URL": "s3://bucket",
        "DYNO": "web.1",
    }
    assert Settings.load(asked).redis_tls_verify == "ca"


def test_local_secrets_are_created_once(tmp_path: Path) -> None:
    """Secrets persist across starts, are readable only by this user, and pass the settings."""
    secrets = local_secrets(tmp_path / "new")
    assert local_secrets(tmp_path / "new") == secrets
    assert stat.S_IMODE((tmp_path / "new" / "secrets.json").stat().st_mode) == 0o600
    settings = Settings.load(secrets)
    assert settings.worker_wallet == values.address_of(secrets["WORKER_KEY"])
    assert len(settings.kernel_token or "") >= 32 and len(settings.secret_key or "") >= 32
    assert settings.swarm_keys
    assert local_secrets(tmp_path / "other")["WORKER_KEY"] != secrets["WORKER_KEY"]


def test_concurrent_starts_share_one_set_of_secrets(tmp_path: Path) -> None:
    """Processes that start together on one directory get the same secrets."""
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: local_secrets(tmp_path), range(16)))
    assert all(each == results[0] for each in results)


def test_secrets_file_survives_a_newer_version(tmp_path: Path) -> None:
    """Secrets missing in an old file are added, existing ones are kept."""
    (tmp_path / "secrets.json").write_text(json.dumps({"WORKER_KEY": KEY, "OLD": "x"}))
    secrets = local_secrets(tmp_path)
    assert secrets["WORKER_KEY"] == KEY and "KERNEL_TOKEN" in secrets and "OLD" not in secrets


@pytest.mark.parametrize("content", ["", "{", "[]", '{"WORKER_KEY": 1}', "\x00"])
def test_invalid_secrets_file_is_not_replaced(tmp_path: Path, content: str) -> None:
    """An unreadable file may contain a wallet's key: it is reported and not overwritten."""
    path = tmp_path / "secrets.json"
    path.write_text(content)
    with pytest.raises(BadStart) as caught:
        local_secrets(tmp_path)
    assert str(path) in str(caught.value) and path.read_text() == content


@pytest.mark.parametrize(
    ("text", "units"), [("1", 1_000_000), ("0", 0), ("0.25", 250_000), ("0.000001", 1), ("12.5", 12_500_000)]
)
def test_dollar_amounts_are_exact(text: str, units: int) -> None:
    """FEE_THRESHOLD is written in USDC and stored in atomic units."""
    assert Settings.load({"FEE_THRESHOLD": text}).fee_threshold == units


@pytest.mark.parametrize("text", ["-1", "1.", ".5", "1e3", "0.0000001", "1,5", "one", "1_0", "١"])
def test_invalid_amounts_are_refused(text: str) -> None:
    """Signs, exponents, more than six decimals and other digits are refused."""
    assert "USDC" in refused({"FEE_THRESHOLD": text})["FEE_THRESHOLD"]


def test_fee_threshold_and_period_defaults() -> None:
    """By default a fee leg is created at 1 USDC or after 24 hours."""
    settings = Settings.load({})
    assert (settings.fee_threshold, settings.fee_period) == (1_000_000, 86_400)
    assert "FEE_PERIOD" in refused({"FEE_PERIOD": "1s"})


def test_kernel_limits_are_parsed() -> None:
    """Limits by name with `*` as default, hashes by policy in both formats, hosts as origins."""
    digest = "ab" * 32
    settings = Settings.load(
        {
            "SWARM_KEYS": "alpha:one, beta kernel:two",
            "SWARM_LIMITS": "beta kernel:5000:50, *:100:10",
            "SWARM_POLICY_HASHES": f"vp.a.v1:{digest}, vp.b.v1:sha256:{digest}",
            "SWARM_EVIDENCE_HOSTS": "files.example, http://127.0.0.1:8080",
            "SWARM_FULL_SCHEMA": "ON",
        }
    )
    assert settings.swarm_limits == (("beta kernel", 5000, 50), ("*", 100, 10))
    assert settings.swarm_policy_hashes == (("vp.a.v1", digest), ("vp.b.v1", digest))
    assert settings.swarm_evidence_hosts == ("https://files.example", "http://127.0.0.1:8080")
    assert settings.swarm_full_schema == "on"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SWARM_LIMITS", "alpha"),
        ("SWARM_LIMITS", "alpha:5"),
        ("SWARM_LIMITS", "alpha:0:5"),
        ("SWARM_LIMITS", "alpha:5:0"),
        ("SWARM_LIMITS", "alpha:5:101"),
        ("SWARM_LIMITS", "alpha:-5:10"),
        ("SWARM_LIMITS", "alpha:5:5,alpha:6:6"),
        ("SWARM_LIMITS", "nobody:5:5"),
        ("SWARM_POLICY_HASHES", "ab" * 32),
        ("SWARM_POLICY_HASHES", "vp.a.v1:" + "AB" * 32),
        ("SWARM_POLICY_HASHES", "vp.a.v1:abc"),
        ("SWARM_EVIDENCE_HOSTS", "https://files.example/path"),
        ("SWARM_EVIDENCE_HOSTS", "https://user@files.example"),
        ("SWARM_EVIDENCE_HOSTS", "*"),
        ("SWARM_FULL_SCHEMA", "yes"),
        ("SWARM_PATIENCE", "151s"),
    ],
)
def test_invalid_kernel_limits_are_refused(name: str, text: str) -> None:
    """An invalid limit, hash or host prevents the start."""
    assert name in refused({"SWARM_KEYS": "alpha:one", name: text})

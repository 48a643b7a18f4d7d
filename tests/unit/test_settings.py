"""Settings: what is read, what is refused, and that a secret never shows."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker import values
from worker.local.secrets import local_secrets
from worker.settings import BadStart, Settings

KEY = "0x" + "11" * 32
WALLET = "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A"
ROOT = Path(__file__).parents[2]

PRODUCTION = {
    "WORKER_ENV": "production",
    "PUBLIC_URL": "https://worker.example",
    "REDIS_URL": "rediss://:store-password@store.example:6380/0",
    "WORKER_KEY": KEY,
    "WORKER_AGENT_ID": "agent_shop",
    "NETWORK": "base",
    "RPC_URL": "https://node.example/v2/node-api-key",
    "CDP_API_KEY_ID": "cdp-key-id",
    "CDP_API_KEY_SECRET": "cdp-key-secret",
    "SECRET_KEY": "s" * 32,
    "KERNEL_TOKEN": "k" * 32,
}


def refused(environ: dict[str, str]) -> dict[str, str]:
    """What a bad start says, by setting."""
    with pytest.raises(BadStart) as caught:
        Settings.load(environ)
    return {problem.name: problem.expected for problem in caught.value.problems}


def test_an_empty_environment_is_a_laptop() -> None:
    """Without any setting the worker is local, on loopback, with the documented defaults."""
    settings = Settings.load({})
    assert settings.worker_env == "local" and not settings.production
    assert settings.public_url == "http://127.0.0.1:8000"
    assert settings.network == "eip155:84532"
    assert settings.facilitator_url == "https://x402.org/facilitator"
    assert (settings.execution_timeout, settings.step_timeout, settings.agent_timeout) == (3600, 300, 30)
    assert (settings.max_payment_window, settings.inline_budget, settings.lease) == (3600, 10, 5)
    assert settings.redis_url is None and settings.worker_key is None and settings.agent_keys == ()


def test_a_field_is_its_variable_in_lower_case() -> None:
    """Whoever knows the environment variable knows the field."""
    assert [name.lower() for name in Settings.names()] == [f.name for f in dataclasses.fields(Settings)]


def test_settings_cannot_be_changed() -> None:
    """A settings object is a value."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings.load({}).port = 1  # type: ignore[misc]


def test_empty_is_absent_and_unknown_names_are_ignored() -> None:
    """An empty variable means the default, and other programs' variables do not matter."""
    assert Settings.load({"PORT": "  ", "KERNEL_TOKEN": "", "HOME": "/root", "X_PORT": "a"}) == Settings.load(
        {}
    )


def test_defaults_follow_other_settings() -> None:
    """Address, files, facilitator and wallet are derived from what is known."""
    settings = Settings.load(
        {"PORT": "9", "WORKER_STATE_DIR": "/s/", "NETWORK": "base", "WORKER_KEY": KEY[2:]}
    )
    assert settings.public_url == "http://127.0.0.1:9"
    assert settings.files_url == "/s/files"
    assert settings.facilitator_url == "https://api.cdp.coinbase.com/platform/v2/x402"
    assert (settings.worker_key, settings.worker_wallet) == (KEY, WALLET)


def test_a_bad_start_lists_every_problem_at_once() -> None:
    """Name, found and expected of everything that is wrong, in one table."""
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
def test_strange_durations_are_refused(text: str) -> None:
    """What could be read in two ways, or without end, is no duration."""
    with pytest.raises(values.Unfit):
        values.duration(0, 1e7)(text)


@given(st.text(max_size=40))
def test_no_text_breaks_a_reader(text: str) -> None:
    """Whatever stands in a variable is either read or listed as a problem."""
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
def test_what_does_not_fit_is_refused(name: str, text: str) -> None:
    """A value that means nothing, or more than it seems to, keeps the worker from starting."""
    assert name in refused({name: text})


def test_lists_and_pairs() -> None:
    """Keys and passwords are read as pairs; a password may hold colons; blanks do not count."""
    settings = Settings.load(
        {
            "AGENT_KEYS": "researcher:key-one, runner-1:key-two",
            "SWARM_KEYS": "kernel:pass:with:colons",
            "WORKER_AGENTS": " shop.agents ,, shop.tools,",
            "CORS_ORIGINS": "https://a.example,http://localhost:3000",
        }
    )
    assert settings.agent_keys == (("researcher", "key-one"), ("runner-1", "key-two"))
    assert settings.swarm_keys == (("kernel", "pass:with:colons"),)
    assert settings.worker_agents == ("shop.agents", "shop.tools")
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")


def test_a_webhook_key_in_both_spellings() -> None:
    """Standard Webhooks' spelling and hex give the same 32 bytes."""
    seed = bytes(range(32))
    spelled = "whsk_" + base64.b64encode(seed).decode()
    assert Settings.load({"WEBHOOK_KEY": spelled}).webhook_key == seed
    assert Settings.load({"WEBHOOK_KEY": seed.hex()}).webhook_key == seed


def test_networks_have_one_name_inside() -> None:
    """base, its CAIP-2 name and other letters are the same network."""
    for text in ("base", "Base", "eip155:8453"):
        assert Settings.load({"NETWORK": text}).network == "eip155:8453"


def test_an_unknown_network_needs_its_own_facilitator() -> None:
    """Nobody guesses who settles on a chain we do not know."""
    assert "FACILITATOR_URL" in refused({"NETWORK": "eip155:1337"})
    given_one = Settings.load({"NETWORK": "eip155:1337", "FACILITATOR_URL": "http://127.0.0.1:5000/"})
    assert given_one.facilitator_url == "http://127.0.0.1:5000"


def test_the_wallet_must_be_the_keys() -> None:
    """A wallet that the key does not open is refused, whatever the case of its letters."""
    assert Settings.load({"WORKER_KEY": KEY, "WORKER_WALLET": WALLET.lower()}).worker_wallet == WALLET
    other = values.address_of("0x" + "22" * 32)
    assert WALLET in refused({"WORKER_KEY": KEY, "WORKER_WALLET": other})["WORKER_WALLET"]


def test_addresses_agree_with_the_library() -> None:
    """Our short way from key to address gives what eth-account gives."""
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


def test_addresses_without_the_native_library() -> None:
    """Where coincurve has no wheel, the slow way gives the same address."""
    code = (
        "import sys; sys.modules['coincurve'] = None\n"
        f"from worker.values import address_of; print(address_of('{KEY}'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == WALLET


def test_reading_settings_imports_no_wallet_library() -> None:
    """A start costs milliseconds: eth_account and web3 stay out, with a key too."""
    code = (
        f"import sys; from worker.settings import Settings; Settings.load({{'WORKER_KEY': '{KEY}'}})\n"
        "print([m for m in ('eth_account', 'web3', 'redis', 'flask') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_half_of_the_facilitators_credentials() -> None:
    """An id without its secret, or a secret without its id, is a mistake everywhere."""
    assert "CDP_API_KEY_SECRET" in refused({"CDP_API_KEY_ID": "x"})
    assert "CDP_API_KEY_ID" in refused({"CDP_API_KEY_SECRET": "x"})


def test_tls_settings_belong_together(tmp_path: Path) -> None:
    """A certificate without TLS would protect nothing, and `ca` without a certificate cannot work."""
    pem = tmp_path / "ca.pem"
    pem.write_text("x")
    assert "REDIS_TLS_CA" in refused({"REDIS_URL": "redis://h", "REDIS_TLS_CA": str(pem)})
    assert "REDIS_TLS_CA" in refused({"REDIS_URL": "rediss://h", "REDIS_TLS_VERIFY": "ca"})
    assert "REDIS_TLS_CA" in refused({"REDIS_URL": "rediss://h", "REDIS_TLS_CA": "/no/such.pem"})
    assert Settings.load({"REDIS_URL": "rediss://h", "REDIS_TLS_CA": str(pem)}).redis_tls_ca == str(pem)


def test_the_operators_token_is_nobody_elses() -> None:
    """An agent's key that equals the operator's token would make the agent the operator."""
    assert "AGENT_KEYS" in refused({"KERNEL_TOKEN": "same-token", "AGENT_KEYS": "a:same-token"})


def test_a_dyno_is_not_a_laptop() -> None:
    """On a dyno the environment must be named, and files must go to a bucket."""
    problems = refused({"DYNO": "web.1"})
    assert {"WORKER_ENV", "FILES_URL"} == set(problems)
    Settings.load({"DYNO": "web.1", "WORKER_ENV": "test", "FILES_URL": "s3://bucket/prefix"})
    assert "FILES_URL" in refused({**PRODUCTION, "DYNO": "web.1", "FILES_URL": "/data"})


def test_a_sound_production() -> None:
    """With everything it needs, production starts."""
    settings = Settings.load(PRODUCTION)
    assert settings.production and settings.worker_wallet == WALLET and settings.network == "eip155:8453"


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
def test_production_needs(missing: str) -> None:
    """What has a convenient default on a laptop must be given where money is real."""
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
    ],
)
def test_production_refuses(name: str, text: str) -> None:
    """What is insecure is refused in production, by name, and allowed on a laptop."""
    assert set(refused({**PRODUCTION, name: text})) == {name}
    Settings.load({name: text})


def test_coinbase_wants_credentials() -> None:
    """The default facilitator of production cannot be used without them; another one can."""
    environ = {name: value for name, value in PRODUCTION.items() if not name.startswith("CDP")}
    assert "CDP_API_KEY_ID" in refused(environ)
    Settings.load({**environ, "FACILITATOR_URL": "https://facilitator.example"})


def test_no_secret_shows() -> None:
    """Neither repr nor a bad start shows a secret, also when it is in the wrong place."""
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


def test_secrets_are_known_for_the_logs() -> None:
    """The list that logs hide by holds each secret, the password of an address too."""
    known = Settings.load(
        {**PRODUCTION, "AGENT_KEYS": "a:key-of-agent-one", "REDIS_URL": "rediss://:p%40ss-word@h"}
    )
    expected = {
        KEY,
        KEY[2:],
        "s" * 32,
        "k" * 32,
        "key-of-agent-one",
        "p%40ss-word",
        "p@ss-word",
        "cdp-key-secret",
    }
    assert expected <= set(known.secrets())
    assert "a" not in known.secrets()


def test_bare_addresses() -> None:
    """An address is shown without user, password, path and query."""
    assert values.bare("https://u:p@node.example:8545/v2/key?x=1") == "https://node.example:8545/..."
    assert values.bare("redis://[::1]:6379") == "redis://[::1]:6379"
    assert "secret" not in values.bare("http://[secret")


def test_the_example_names_exactly_the_settings() -> None:
    """config/.env.example has each setting once, with a reason above it, and shows true defaults."""
    lines = (ROOT / "config/.env.example").read_text().splitlines()
    named = [match[1] for line in lines if (match := re.fullmatch(r"#([A-Z_]+)=.*", line))]
    assert sorted(named) == sorted(Settings.names())
    for before, line in zip(lines, lines[1:], strict=False):
        if re.fullmatch(r"#[A-Z_]+=.*", line):
            assert before.startswith("# ") or re.fullmatch(r"#[A-Z_]+=.*", before), line


def test_the_examples_defaults_are_the_defaults() -> None:
    """Whoever takes the comment signs away from the defaults changes nothing."""
    lines = (ROOT / "config/.env.example").read_text().splitlines()
    shown = dict(line[1:].split("=", 1) for line in lines if re.fullmatch(r"#[A-Z_]+=.+", line))
    for name in ("REDIS_URL", "CORS_ORIGINS", "WORKER_AGENTS", "POLICY", "WORKER_CONFIG"):
        shown.pop(name)  # examples of things that have no default, or that must exist here
    assert Settings.load(shown) == Settings.load({})


def test_a_dynos_description_names_real_settings() -> None:
    """app.json asks only for variables that exist, and its plain values are accepted."""
    wanted = json.loads((ROOT / "app.json").read_text())["env"]
    known = {*Settings.names(), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert set(wanted) <= known
    fixed = {name: each["value"] for name, each in wanted.items() if "value" in each}
    asked = {
        **PRODUCTION,
        **fixed,
        "FILES_URL": "s3://bucket",
        "DYNO": "web.1",
        "REDIS_TLS_CA": "-----BEGIN CERTIFICATE-----",
    }
    assert Settings.load(asked).redis_tls_verify == "ca"


def test_a_laptops_secrets_are_made_once(tmp_path: Path) -> None:
    """They are the same at the next start, for this user's eyes only, and settings accept them."""
    made = local_secrets(tmp_path / "new")
    assert local_secrets(tmp_path / "new") == made
    assert stat.S_IMODE((tmp_path / "new" / "secrets.json").stat().st_mode) == 0o600
    settings = Settings.load(made)
    assert settings.worker_wallet == values.address_of(made["WORKER_KEY"])
    assert len(settings.kernel_token or "") >= 32 and len(settings.secret_key or "") >= 32
    assert settings.swarm_keys
    assert local_secrets(tmp_path / "other")["WORKER_KEY"] != made["WORKER_KEY"]


def test_two_starts_make_the_same_secrets(tmp_path: Path) -> None:
    """Processes that start together on one directory agree."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: local_secrets(tmp_path), range(16)))
    assert all(each == made[0] for each in made)


def test_kept_secrets_survive_a_newer_version(tmp_path: Path) -> None:
    """What is missing in an old file is added, what is there stays."""
    (tmp_path / "secrets.json").write_text(json.dumps({"WORKER_KEY": KEY, "OLD": "x"}))
    kept = local_secrets(tmp_path)
    assert kept["WORKER_KEY"] == KEY and "KERNEL_TOKEN" in kept and "OLD" not in kept


@pytest.mark.parametrize("content", ["", "{", "[]", '{"WORKER_KEY": 1}', "\x00"])
def test_broken_secrets_are_not_replaced(tmp_path: Path, content: str) -> None:
    """A file that cannot be read may hold the key to a wallet: it is left alone and named."""
    path = tmp_path / "secrets.json"
    path.write_text(content)
    with pytest.raises(BadStart) as caught:
        local_secrets(tmp_path)
    assert str(path) in str(caught.value) and path.read_text() == content


@pytest.mark.parametrize(
    ("text", "units"), [("1", 1_000_000), ("0", 0), ("0.25", 250_000), ("0.000001", 1), ("12.5", 12_500_000)]
)
def test_an_amount_of_dollars_is_read_exactly(text: str, units: int) -> None:
    """FEE_THRESHOLD is written in USDC and kept in atomic units."""
    assert Settings.load({"FEE_THRESHOLD": text}).fee_threshold == units


@pytest.mark.parametrize("text", ["-1", "1.", ".5", "1e3", "0.0000001", "1,5", "one", "1_0", "١"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    """Signs, exponents, more than six decimals and other digits are not guessed at."""
    assert "USDC" in refused({"FEE_THRESHOLD": text})["FEE_THRESHOLD"]


def test_fees_gather_for_a_day_or_a_dollar() -> None:
    """Without settings a fee leg is made at 1 USDC or after 24 hours."""
    settings = Settings.load({})
    assert (settings.fee_threshold, settings.fee_period) == (1_000_000, 86_400)
    assert "FEE_PERIOD" in refused({"FEE_PERIOD": "1s"})


def test_what_kernels_may_have() -> None:
    """Limits by name with `*` for the rest, hashes by policy in both spellings, hosts as origins."""
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
        ("SWARM_PATIENCE", "26s"),
    ],
)
def test_what_kernels_cannot_have(name: str, text: str) -> None:
    """A limit, hash or host that means nothing keeps the worker from starting."""
    assert name in refused({"SWARM_KEYS": "alpha:one", name: text})

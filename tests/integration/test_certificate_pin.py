"""A store's certificate is pinned at the first contact; that address then accepts no other."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.fakes.certificates import Certificate, self_signed
from tests.system import program
from tests.waiting import eventually
from worker.core.settings import Settings
from worker.local.valkey import free_port
from worker.store.client import certificate_pin, connect

TLS = {"REDIS_TLS_VERIFY": "ca"}


@contextmanager
def tls_store(port: int, certificate: Certificate) -> Iterator[str]:
    """The system's Redis with TLS only."""
    options = ["--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", ""]
    options += ["--tls-cert-file", str(certificate.file), "--tls-key-file", str(certificate.key)]
    options += ["--tls-auth-clients", "no"]
    process = subprocess.Popen([program("redis-server"), *options], stdout=subprocess.DEVNULL)
    url = f"rediss://127.0.0.1:{port}/0"
    try:
        with redis.Redis.from_url(url, ssl_cert_reqs=None) as client:

            def answers() -> bool:
                try:
                    return bool(client.ping())
                except redis.ConnectionError:
                    return False

            eventually(answers, 10, "the store answers over TLS")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def ping(settings: Settings) -> bool:
    client = connect(settings, role="cli")
    try:
        return bool(client.ping())
    finally:
        client.close()


def test_the_first_certificate_is_pinned(tmp_path: Path) -> None:
    """Without REDIS_TLS_CA the first contact pins it; another is refused until the pin is removed."""
    port = free_port()
    mine, other = self_signed(tmp_path / "mine", "store"), self_signed(tmp_path / "other", "store")
    state = str(tmp_path / "state")
    environ = {"REDIS_URL": f"rediss://127.0.0.1:{port}/0", "WORKER_STATE_DIR": state, **TLS}
    settings = Settings.load(environ)
    pin = certificate_pin(settings)
    assert pin is not None and pin.fingerprint() is None
    with tls_store(port, mine):
        assert ping(settings) and ping(Settings.load(environ))
    assert pin.file.read_text() == mine.file.read_text()
    learnt = pin.fingerprint()
    assert learnt is not None and len(learnt) == 16
    with tls_store(port, other):
        with pytest.raises(redis.ConnectionError, match="another certificate"):
            ping(settings)
        assert pin.fingerprint() == learnt
        pin.file.unlink()
        assert ping(settings) and pin.fingerprint() != learnt


def test_the_learnt_certificate_can_be_pinned_for_good(tmp_path: Path) -> None:
    """The pinned file works as REDIS_TLS_CA."""
    port = free_port()
    environ = {
        "REDIS_URL": f"rediss://127.0.0.1:{port}/0",
        "WORKER_STATE_DIR": str(tmp_path / "state"),
        **TLS,
    }
    pin = certificate_pin(Settings.load(environ))
    assert pin is not None
    with tls_store(port, self_signed(tmp_path / "mine", "store")):
        ping(Settings.load(environ))
        for_good = Settings.load({**environ, "REDIS_TLS_CA": pin.file.read_text()})
        assert certificate_pin(for_good) is None and ping(for_good)


def test_processes_that_start_together_learn_one_certificate(tmp_path: Path) -> None:
    """Many concurrent first contacts leave one complete file and no others."""
    port = free_port()
    state = tmp_path / "state"
    environ = {"REDIS_URL": f"rediss://127.0.0.1:{port}/0", "WORKER_STATE_DIR": str(state), **TLS}
    mine = self_signed(tmp_path / "mine", "store")
    with tls_store(port, mine), ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: ping(Settings.load(environ)), range(16)))
    [left] = state.iterdir()
    assert left.read_text() == mine.file.read_text() and stat.S_ISREG(left.stat().st_mode)


def test_a_broken_pin_is_no_pin(tmp_path: Path) -> None:
    """A pin file without a certificate refuses the connection instead of trusting any server."""
    port = free_port()
    environ = {"REDIS_URL": f"rediss://127.0.0.1:{port}/0", "WORKER_STATE_DIR": str(tmp_path), **TLS}
    pin = certificate_pin(Settings.load(environ))
    assert pin is not None
    pin.file.write_text("x")
    with (
        tls_store(port, self_signed(tmp_path / "mine", "store")),
        pytest.raises(redis.ConnectionError, match="no certificate"),
    ):
        ping(Settings.load(environ))
    shutil.rmtree(tmp_path / "mine")

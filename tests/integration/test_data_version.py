"""The store's data version; a release refuses a version it cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.fakes.paid_worker import ROOT, inherited, paid_environ
from worker.local.valkey import EmbeddedStore, free_port
from worker.store import data_version
from worker.store.data_model import Keys
from worker.store.data_version import (
    DATA,
    OLDEST_BESIDE,
    OLDEST_IN_NEW_STORE,
    DataVersion,
    WrongDataVersion,
    all_have,
    read_data_version,
    use_store,
)

KEYS = Keys()


def test_new_store_is_marked_with_its_version(client: redis.Redis) -> None:
    """The first process that uses a store writes its version there, and that no older one has used it."""
    use_store(client, KEYS)
    assert read_data_version(client, KEYS) == DataVersion(DATA, OLDEST_IN_NEW_STORE)
    use_store(client, KEYS)
    assert all_have(client, KEYS, OLDEST_IN_NEW_STORE)


def test_store_that_an_older_release_has_marked_stays_open_to_it(client: redis.Redis) -> None:
    """Whatever it holds."""
    client.set(KEYS.data_version, f"{DATA - 1} {OLDEST_BESIDE}")
    use_store(client, KEYS)
    assert read_data_version(client, KEYS) == DataVersion(DATA, OLDEST_BESIDE)
    assert not all_have(client, KEYS, OLDEST_IN_NEW_STORE)


def test_unmarked_store_counts_as_version_one(client: redis.Redis) -> None:
    """An unmarked store has version 1, which this release still reads; it is then marked."""
    client.hset("w:x:an-execution", "state", "pending")
    use_store(client, KEYS)
    assert client.get(KEYS.data_version) == f"{DATA} {OLDEST_BESIDE}".encode()


def test_newer_compatible_version_is_left_alone(client: redis.Redis) -> None:
    """During a rolling deploy an old process starts on a store that a newer release has marked."""
    client.set(KEYS.data_version, f"{DATA + 1} {DATA}")
    use_store(client, KEYS)
    assert client.get(KEYS.data_version) == f"{DATA + 1} {DATA}".encode()


def test_store_needing_a_newer_worker_is_refused(client: redis.Redis) -> None:
    """The error names both versions and what to do."""
    client.set(KEYS.data_version, f"{DATA + 2} {DATA + 1}")
    with pytest.raises(
        WrongDataVersion, match=f"version {DATA + 1} or newer.*deploy the newer release again"
    ):
        use_store(client, KEYS)


def test_too_old_store_is_refused(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that no longer reads version 1 names the missing migration step."""
    monkeypatch.setattr(data_version, "OLDEST_READ", 2)
    with pytest.raises(
        WrongDataVersion, match="can upgrade from version 2: first deploy a release that supports both"
    ):
        use_store(client, KEYS)


@pytest.mark.parametrize(
    "command", [["gunicorn", "-c", "config/gunicorn.py"], ["worker", "work"]], ids=["web", "work"]
)
def test_no_process_starts_on_a_newer_store(
    command: list[str], valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path
) -> None:
    """Web and work processes exit, with the reason in their logs and nothing written."""
    client.set(KEYS.data_version, f"{DATA + 2} {DATA + 1}")
    environ = paid_environ(tmp_path, valkey.url, "http://127.0.0.1:9", PORT=str(free_port()))
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        env={**inherited(), **environ, "PATH": os.environ["PATH"]},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    output = ended.stdout + ended.stderr
    assert "deploy the newer release again" in output and "Traceback" not in output
    assert client.keys("w:*") == [b"w:data-version"]

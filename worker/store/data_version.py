"""The version of the data in a store, and whether this worker may use it.

The store records which version wrote it and the oldest version that can run alongside. A release that
changes a record, a key or a script's use of them raises DATA; one that older processes cannot handle also
raises OLDEST_BESIDE, in the release after the one that learnt to read both. See CONTRIBUTING.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import redis

from worker.core.errors import Unavailable
from worker.store.data_model import Keys

# The version this code writes.
DATA = 5
# The oldest code that can share a store with this code.
OLDEST_BESIDE = 1
# The oldest store that this code can read.
OLDEST_READ = 1
# The oldest code that can read what this code writes into a store in which no older code has worked.
OLDEST_IN_NEW_STORE = 5
# Since this version contracts and settled payments are read in packed form (see worker/store/packed_text.py).
PACKED = 5


class WrongDataVersion(Unavailable):
    """This release must not use this store."""

    code = "WRONG_DATA_VERSION"
    message = "this release cannot use the data in the store"


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version marks in a store. A store without marks is new, or of the first version."""

    written: int = 1
    oldest_beside: int = 1

    def refusal(self) -> str:
        """Says why this code must not use the store, and what to do; '' when it may."""
        if self.oldest_beside > DATA:
            return (
                f"the store holds data of version {self.written}, which needs a worker of version "
                f"{self.oldest_beside} or newer; this one has {DATA}: deploy the newer release again"
            )
        if self.written < OLDEST_READ:
            return (
                f"the store holds data of version {self.written}; this worker can upgrade from version "
                f"{OLDEST_READ}: first deploy a release that supports both, and let it run until no "
                "execution is open"
            )
        return ""


def read_data_version(client: redis.Redis, keys: Keys) -> DataVersion:
    """Reads the version marks."""
    found = client.get(keys.data_version)
    if not isinstance(found, bytes):
        return DataVersion()
    written, oldest_beside = found.decode().split(" ")
    return DataVersion(int(written), int(oldest_beside))


def all_have(client: redis.Redis, keys: Keys, version: int) -> bool:
    """Whether no process older than this version can use the store: what it reads may then be written."""
    return read_data_version(client, keys).oldest_beside >= version


def use_store(client: redis.Redis, keys: Keys) -> None:
    """Marks the store with this worker's version; raises if this worker may not use it.

    Every process calls this before it serves or works. Versions only grow, so two processes that mark at
    the same time write the same.
    """
    version = read_data_version(client, keys)
    refusal = version.refusal()
    if refusal:
        raise WrongDataVersion(refusal)
    marked = client.exists(keys.data_version)
    if version.written < DATA or not marked:
        oldest = OLDEST_BESIDE if marked or _used(client, keys) else OLDEST_IN_NEW_STORE
        client.set(keys.data_version, f"{DATA} {max(oldest, version.oldest_beside)}")


def _used(client: redis.Redis, keys: Keys) -> bool:
    return next(client.scan_iter(f"{keys.prefix}:*", count=1_000), None) is not None

"""Scripts under a store user who may touch the keys that each of them declares, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from worker.executions.scripts import Arg, Call, Scripts


class Fenced(Scripts):
    """Opens the keys of every call to that user, then makes it as that user; knows what ran."""

    def __init__(self, admin: redis.Redis, *, also: Sequence[Path] = ()) -> None:
        admin.execute_command("ACL", "SETUSER", "fenced", "reset", "on", ">secret", "+@all", "&*")
        given = admin.connection_pool.connection_kwargs
        self.user = redis.Redis(given["host"], given["port"], username="fenced", password="secret")
        super().__init__(self.user, also=also)
        self._admin = admin
        self.ran: set[str] = set()

    def __call__(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        self.open(keys)
        self.ran.add(name)
        return super().__call__(name, keys, args)

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        return [self(*call) for call in calls]

    def open(self, keys: Sequence[str]) -> None:
        """Lets the user touch these keys, and no other any more."""
        rules = ["resetkeys", *(f"~{key}" for key in keys)]
        self._admin.execute_command("ACL", "SETUSER", "fenced", *rules)

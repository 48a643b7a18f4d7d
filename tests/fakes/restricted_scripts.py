"""Runs scripts as a store user that may access only the keys each script declares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis

from tests.fakes.no_money import NO_MONEY
from worker.engine.transitions import LUA, SHARED
from worker.store.data_model import Keys
from worker.store.scripts import ScriptCall, Scripts, Value


class RestrictedScripts(Scripts):
    """Permits the user the keys of each call, then makes the call as that user; records which scripts ran."""

    def __init__(
        self, admin: redis.Redis, folder: Path = LUA, libraries: Sequence[Path] = (SHARED, *NO_MONEY)
    ) -> None:
        admin.execute_command("ACL", "SETUSER", "fenced", "reset", "on", ">secret", "+@all", "&*")
        connection_options = admin.connection_pool.connection_kwargs
        self.user = redis.Redis(
            connection_options["host"], connection_options["port"], username="fenced", password="secret"
        )
        super().__init__(self.user, Keys(), folder, libraries=libraries)
        self._admin = admin
        self._names: dict[str, str] = {}
        self.ran: set[str] = set()

    def call(self, script: str, /, **arguments: Value) -> ScriptCall:
        call = super().call(script, **arguments)
        self._names[call.sha] = script
        return call

    def send(self, call: ScriptCall) -> Any:
        self.open(call.keys)
        self.ran.add(self._names[call.sha])
        return super().send(call)

    def batch(self, calls: Sequence[ScriptCall]) -> list[Any]:
        return [self.send(call) for call in calls]

    def open(self, keys: Sequence[str]) -> None:
        """Permits the user these keys and no others.

        Of a name that lacks its id, which only the store knows, those of all ids.
        """
        rules = ["resetkeys", *(f"~{key}*" if key.endswith(":") else f"~{key}" for key in keys)]
        self._admin.execute_command("ACL", "SETUSER", "fenced", *rules)

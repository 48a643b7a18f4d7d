"""Base class for money data in the store: client, key names, scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import redis

from worker.contracts.book import UNPAID_LUA
from worker.engine.transitions import SHARED
from worker.store.data_model import Keys
from worker.store.scripts import Scripts

_LUA = Path(__file__).parent / "lua"
# Hooks that the engine's scripts call for money, with the functions they need.
HOOKS = tuple(_LUA / f"{name}.lua" for name in ("_budget", "_life", "_money", "_refunds_and_fees", "_hooks"))
# Shared functions of this package's own scripts.
LIBRARIES = (
    SHARED,
    UNPAID_LUA,
    *HOOKS,
    _LUA / "_found.lua",
    _LUA / "_ordered_queue.lua",
)


@dataclass
class MoneyStore:
    """Money data in the store."""

    client: redis.Redis
    keys: Keys
    test_clock: bool = field(default=False, kw_only=True)
    _scripts: Scripts = field(init=False)

    def __post_init__(self) -> None:
        self._scripts = Scripts(self.client, self.keys, _LUA, libraries=LIBRARIES, test_clock=self.test_clock)

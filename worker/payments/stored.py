"""What every book about money is made of: the store, the names of its keys, the scripts of this room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from worker.executions.keys import Keys
from worker.executions.scripts import Arg, Scripts

_LUA = Path(__file__).parent / "lua"


@dataclass
class Stored:
    """A book in the store."""

    client: redis.Redis
    keys: Keys
    test_clock: bool = field(default=False, kw_only=True)
    _scripts: Scripts = field(init=False)

    def __post_init__(self) -> None:
        clock = self.keys.test_clock if self.test_clock else None
        self._scripts = Scripts(self.client, test_clock=clock, folder=_LUA)

    def _move(self, name: str, id: str, args: Sequence[Arg], more: Sequence[str] = ()) -> Any:
        """Runs a script about the money of one execution, or of one wallet's fees."""
        return self._scripts(name, [*self.keys.transition(id), *more], args)

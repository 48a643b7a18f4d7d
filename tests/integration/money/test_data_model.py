"""Every key that a paid run writes is declared in the data model."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.paid_worker import PaidWorker
from worker.store.data_model import Keys
from worker.store.key_types import Declared, Each

# Regular expressions for placeholders of patterns with the same prefix.
SHAPES = {"id": r"[0-9a-f-]{36}", "wallet": r"0x[0-9a-f]{40}", "ref": r"[0-9a-f]{32}"}
TYPES = {"zset": "sorted set"}


def pattern(declared: Declared) -> re.Pattern[str]:
    """The regular expression of a declared key."""
    if not isinstance(declared, Each):
        return re.compile(re.escape(f"w:{declared.pattern}"))
    before, _, after = declared.pattern.partition("{")
    of = "|".join(map(re.escape, declared.entries)) or SHAPES.get(after.partition("}")[0], "[^:]+(:[^:]+)?")
    return re.compile(f"{re.escape(f'w:{before}')}({of})")


MODEL = {name: key for name, key in vars(Keys).items() if isinstance(key, Declared)}


def test_a_paid_run_writes_only_keys_of_the_data_model(paid_worker: PaidWorker) -> None:
    """After a hire, payment and result, every key matches exactly one pattern and has its type."""
    hired = paid_worker.seeker().hire()
    assert hired.pay().status == 200
    client: Any = paid_worker.client
    names = [name.decode() for name in client.scan_iter("*")]
    ours = [name for name in names if not name.startswith("rq:")]
    found: dict[str, list[str]] = {
        name: [key for key, declared in MODEL.items() if pattern(declared).fullmatch(name)] for name in ours
    }
    assert {name: keys for name, keys in found.items() if len(keys) != 1} == {}
    types = {name: client.type(name).decode() for name in ours}
    declared = {name: str(MODEL[found[name][0]].type) for name in ours}
    assert {name: TYPES.get(type, type) for name, type in types.items() if type != "none"} == {
        name: type for name, type in declared.items() if types[name] != "none"
    }
    used = {keys[0] for keys in found.values()}
    assert {"record", "log", "money", "contract", "payment", "sums", "journal"} <= used

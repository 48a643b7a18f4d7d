"""Renders `docs/data-model.md` from the declared keys."""

from __future__ import annotations

import sys
from pathlib import Path

from worker.store.data_model import PREFIX, Keys
from worker.store.key_types import Declared, Each

_HEAD = f"""\
# Data model

Everything the worker keeps in its store. This page is made from `worker/store/data_model.py` and
`key_fields.py` by `make docs`; a test holds it to them.

Every name begins with `{PREFIX}:`. A word in braces stands for a part that varies; names chosen by others
(tools, agents, keys, addresses) appear there as a digest. A room owns the keys under its heading. Its scripts
write them; scripts of other rooms do so with its shared functions (`worker/*/lua/_*.lua`). *Life* is how long
a key is kept; a key that lives as long as its execution is removed with it. RQ owns what begins with `rq:`.

Values that must change together are changed by one script. Each script names its keys, in the words of the
column *name*, in the comment at its head (`worker/*/lua`); `worker/store/manifests.py` describes the format.
"""


def page() -> str:
    """Returns the whole page: keys by owner, then the fields of each hash."""
    keys = _declared()
    owners = list(dict.fromkeys(declared.owner for declared in keys.values()))
    parts = [_HEAD, *(_owned(owner, keys) for owner in owners), "## Fields\n", *_hashes(keys)]
    return "\n".join(parts)


def _declared() -> dict[str, Declared]:
    """Returns all keys in declaration order."""
    return {name: value for name, value in vars(Keys).items() if isinstance(value, Declared)}


def _owned(owner: str, keys: dict[str, Declared]) -> str:
    rows = [_row(name, key) for name, key in keys.items() if key.owner == owner]
    head = "| key | name | type | life | holds |\n|---|---|---|---|---|"
    return "\n".join([f"## {owner.capitalize()}\n", head, *rows, ""])


def _row(name: str, key: Declared) -> str:
    holds = key.holds
    if isinstance(key, Each) and key.entries:
        holds += f" ({', '.join(key.entries)})"
    return f"| `{PREFIX}:{key.pattern}` | `{name}` | {key.type} | {key.life} | {holds} |"


def _hashes(keys: dict[str, Declared]) -> list[str]:
    """Renders one table per set of fields, headed by the names of all keys that have them."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, key in keys.items():
        if key.fields:
            found.setdefault(key.fields, []).append(f"`{name}`")
    return [_fields(" and ".join(names), fields) for fields, names in found.items()]


def _fields(names: str, fields: tuple[tuple[str, str], ...]) -> str:
    rows = [f"| `{field}` | {holds} |" for field, holds in fields]
    return "\n".join([f"### {names}\n", "| field | holds |\n|---|---|", *rows, ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")

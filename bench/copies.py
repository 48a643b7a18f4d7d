"""Many finished executions, quickly: one is run, and what it left is written again under new ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.rounds import WorkMissing
from bench.stand import PATIENCE, Stand
from worker.core.ids import new_id

_BATCH = 500


def finished(stand: Stand, count: int) -> None:
    """So many, all of them complete: the record, the log, and a place in every index."""
    parts = stand.parts()
    with stand.processes([["-m", "worker", "work"]]):
        _, id = parts.executions.create("nothing-express", None, door="bench")
        if not parts.executions.wait(id, PATIENCE):
            raise WorkMissing("the execution to copy did not end")
    own, indexes = _left(stand, id.encode())
    for first in range(1, count, _BATCH):
        ids = [new_id().encode() for _ in range(first, min(first + _BATCH, count))]
        _write(stand, id.encode(), ids, own, indexes)
    if (found := parts.store.count(parts.keys.by_state("completed"))) != count:
        raise WorkMissing(f"{found} of {count} executions are finished")


def _left(stand: Stand, id: bytes) -> tuple[dict[bytes, Any], dict[bytes, float]]:
    """Keys of one execution with their content, and the indexes that it stands in with its score."""
    own, indexes, client = {}, {}, stand.admin
    for key in client.scan_iter(count=1_000):
        kind = client.type(key)
        if id in key:
            own[key] = client.hgetall(key) if kind == b"hash" else client.lrange(key, 0, -1)
        elif kind == b"zset" and (score := client.zscore(key, id)) is not None:
            indexes[key] = score
    return own, indexes


def _write(
    stand: Stand, id: bytes, ids: list[bytes], own: Mapping[bytes, Any], indexes: Mapping[bytes, float]
) -> None:
    with stand.admin.pipeline(transaction=False) as pipe:
        for new in ids:
            for key, content in own.items():
                at = key.replace(id, new)
                if isinstance(content, dict):
                    pipe.hset(at, mapping={name: text.replace(id, new) for name, text in content.items()})
                else:
                    pipe.rpush(at, *(text.replace(id, new) for text in content))
        for index, score in indexes.items():
            pipe.zadd(index, dict.fromkeys(ids, score))
        pipe.execute()

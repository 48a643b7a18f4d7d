"""The local chain's data, in one SQLite file.

The EVM's state tries, the blocks as shown, their logs and the pending transactions share one database, so a
block is stored with all of these or not at all. A commit is synced to disk before it is reported.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

SCHEMA = """
create table if not exists meta (name text primary key, value text not null) without rowid;
create table if not exists trie (key blob primary key, value blob not null) without rowid;
create table if not exists blocks (number integer primary key, hash text unique not null, body text not null);
create table if not exists transactions (
    hash text primary key, block integer not null, body text not null, receipt text not null
) without rowid;
create table if not exists logs (
    block integer not null, position integer not null, address text not null,
    topic0 text, topic1 text, topic2 text, topic3 text, body text not null,
    primary key (block, position)
) without rowid;
create index if not exists logs_by_topic on logs (address, topic0, block);
create table if not exists pool (
    arrival integer primary key autoincrement, hash text unique not null, raw blob not null
);
"""


class ChainInUse(RuntimeError):
    """Another process has the chain's file open."""


class ChainStore:
    """One file, one connection; the caller holds the chain's lock."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, check_same_thread=False, timeout=1.0)
        try:
            self._db.execute("pragma locking_mode=exclusive")
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            self._db.executescript(SCHEMA)
        except sqlite3.OperationalError as exc:
            self._db.close()
            raise ChainInUse(f"the chain in {path.name} is in use by another process") from exc

    def commit(self) -> None:
        self._db.commit()

    def rollback(self) -> None:
        self._db.rollback()

    def close(self) -> None:
        self._db.rollback()
        self._db.close()

    # facts about the chain itself

    def meta(self, name: str) -> Any:
        row = self._db.execute("select value from meta where name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def set_meta(self, name: str, value: Any) -> None:
        self._db.execute("insert or replace into meta values (?, ?)", (name, json.dumps(value)))

    # the tries

    def node(self, key: bytes) -> bytes | None:
        row = self._db.execute("select value from trie where key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def set_node(self, key: bytes, value: bytes) -> None:
        self._db.execute("insert or replace into trie values (?, ?)", (key, value))

    def drop_node(self, key: bytes) -> bool:
        return self._db.execute("delete from trie where key = ?", (key,)).rowcount > 0

    # blocks as they are shown

    def add_block(
        self,
        body: dict[str, Any],
        transactions: Iterable[dict[str, Any]],
        receipts: Sequence[dict[str, Any]],
    ) -> None:
        number = int(body["number"], 16)
        self._db.execute("insert into blocks values (?, ?, ?)", (number, body["hash"], json.dumps(body)))
        for shown, receipt in zip(transactions, receipts, strict=True):
            row = (shown["hash"], number, json.dumps(shown), json.dumps(receipt))
            self._db.execute("insert into transactions values (?, ?, ?, ?)", row)
            self._db.execute("delete from pool where hash = ?", (shown["hash"],))
            for log in receipt["logs"]:
                topics = [*log["topics"], None, None, None, None][:4]
                values = (number, int(log["logIndex"], 16), log["address"], *topics, json.dumps(log))
                self._db.execute("insert into logs values (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def head(self) -> dict[str, Any] | None:
        row = self._db.execute("select body from blocks order by number desc limit 1").fetchone()
        return None if row is None else json.loads(row[0])

    def block(self, number: int) -> dict[str, Any] | None:
        row = self._db.execute("select body from blocks where number = ?", (number,)).fetchone()
        return None if row is None else json.loads(row[0])

    def block_by_hash(self, digest: str) -> dict[str, Any] | None:
        row = self._db.execute("select body from blocks where hash = ?", (digest.lower(),)).fetchone()
        return None if row is None else json.loads(row[0])

    def transaction(self, digest: str) -> dict[str, Any] | None:
        row = self._db.execute("select body from transactions where hash = ?", (digest.lower(),)).fetchone()
        return None if row is None else json.loads(row[0])

    def receipt(self, digest: str) -> dict[str, Any] | None:
        row = self._db.execute(
            "select receipt from transactions where hash = ?", (digest.lower(),)
        ).fetchone()
        return None if row is None else json.loads(row[0])

    def logs(
        self, first: int, last: int, addresses: Sequence[str], topics: Sequence[Sequence[str]]
    ) -> list[dict[str, Any]]:
        """Logs of the blocks `first` to `last`; an empty list of addresses or of one topic matches any."""
        where, arguments = ["block between ? and ?"], [str(first), str(last)]
        wants = {"address": addresses} | {f"topic{place}": wanted for place, wanted in enumerate(topics)}
        for column, wanted in wants.items():
            if wanted:
                where.append(f"{column} in ({','.join('?' * len(wanted))})")
                arguments.extend(value.lower() for value in wanted)
        query = f"select body from logs where {' and '.join(where)} order by block, position"
        return [json.loads(row[0]) for row in self._db.execute(query, arguments)]

    # pending transactions

    def pool_add(self, digest: str, raw: bytes) -> None:
        self._db.execute("insert into pool (hash, raw) values (?, ?)", (digest, raw))

    def pool_drop(self, digest: str) -> None:
        self._db.execute("delete from pool where hash = ?", (digest,))

    def pool(self) -> list[tuple[str, bytes]]:
        rows = self._db.execute("select hash, raw from pool order by arrival").fetchall()
        return [(str(digest), bytes(raw)) for digest, raw in rows]

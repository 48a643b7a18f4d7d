"""The client library's interface on the process's link.

The library's own way takes a connection for each command and costs several times as much, for retries that we
do not want, decoding and metrics. Only what blocks or changes its connection uses one of the library's pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import redis
from redis.client import EMPTY_RESPONSE, NEVER_DECODE, Pipeline

from worker.store.commands import Word, packed
from worker.store.link import Link

_APART = frozenset(
    ["AUTH", "HELLO", "MONITOR", "QUIT", "RESET", "SELECT", "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"]
    + ["WATCH", "UNWATCH", "MULTI", "EXEC", "DISCARD", "WAIT", "WAITAOF", "XREAD", "XREADGROUP"]
    + ["BLPOP", "BRPOP", "BLMOVE", "BLMPOP", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX", "BZMPOP"]
)


class LinkedClient(redis.Redis):
    """A client whose commands are batched with those of the process's other callers."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        super().__init__(connection_pool=pool)
        self.link = Link(lambda: pool.connection_class(**pool.connection_kwargs))

    def execute_command(self, *args: Any, **options: Any) -> Any:
        words = _words(args)
        if str(words[0]).upper() in _APART:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        [reply] = self.link.ask(packed(words))
        if isinstance(reply, redis.ResponseError) and EMPTY_RESPONSE in options:
            return options[EMPTY_RESPONSE]
        if isinstance(reply, redis.RedisError):
            raise reply
        read: Any = self.response_callbacks.get(args[0])  # type: ignore[no-untyped-call]
        if read is None:
            return reply
        for unread in (NEVER_DECODE, EMPTY_RESPONSE, "keys"):
            options.pop(unread, None)
        return read(reply, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _LinkedPipeline(self, transaction, shard_hint)

    def close(self) -> None:
        self.link.close()
        super().close()


class _LinkedPipeline(Pipeline):
    """Commands that are sent together; a transaction is one call, so nothing comes between its commands."""

    def __init__(self, client: LinkedClient, transaction: bool, shard_hint: str | None) -> None:
        callbacks = client.response_callbacks
        super().__init__(client.connection_pool, callbacks, transaction, shard_hint)
        self._link = client.link
        self._atomic = transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if self.watching:
            return super().execute(raise_on_error)
        call: Any = _OneCall(self._link)
        try:
            if not self.command_stack:
                return []
            run: Any = self._execute_pipeline
            if self._atomic or self.explicit_transaction:
                run = self._execute_transaction
            replies: list[Any] = run(call, self.command_stack, raise_on_error)
            return replies
        finally:
            self.reset()


class _OneCall:
    """Stands for a connection: what is sent on it is one call of the link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._replies: deque[Any] = deque()

    def pack_commands(self, commands: Iterable[Sequence[Any]]) -> list[bytes]:
        return [packed(_words(command)) for command in commands]

    def send_packed_command(self, commands: list[bytes]) -> None:
        self._replies.extend(self._link.ask(b"".join(commands), len(commands)))

    def read_response(self, **_: object) -> Any:
        reply = self._replies.popleft()
        if isinstance(reply, redis.RedisError):
            raise reply
        return reply


def _words(command: Sequence[Any]) -> tuple[Word, ...]:
    """The library writes some names as two words in one."""
    return (*str(command[0]).split(), *command[1:])

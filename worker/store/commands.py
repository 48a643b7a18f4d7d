"""Sends commands on a client's link, or on one connection of its pool.

The library's own way costs several times as much, for retries that we do not want, decoding and metrics.
Nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hiredis
import redis

from worker.store.link import Begun

Word = str | bytes | int | float

_pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
_LARGE = 2**63


@dataclass(frozen=True, slots=True)
class OneConnection:
    """A connection for several commands that belong together, so it is not replaced between them."""

    connection: Any


@contextmanager
def one_connection(client: redis.Redis) -> Iterator[OneConnection]:
    """Takes a connection from the client's pool for the block, and replaces it first if it is dead."""
    taken: Any = client.connection_pool.get_connection()
    try:
        taken.check_health()
        yield OneConnection(taken)
    finally:
        client.connection_pool.release(taken)


def ask(client: redis.Redis | OneConnection, *words: Word) -> Any:
    """The reply to a command; raises what the client would raise."""
    if isinstance(client, OneConnection):
        return _exchange(client.connection, words)
    link = getattr(client, "link", None)
    if link is not None:
        return checked(link.ask(packed(words)))[0]
    with one_connection(client) as taken:
        return _exchange(taken.connection, words)


def ask_together(client: redis.Redis, *commands: tuple[Word, ...]) -> list[Any]:
    """The replies to several commands, in one round trip; raises the first error."""
    return checked(replies_together(client, *commands))


def replies_together(client: redis.Redis, *commands: tuple[Word, ...]) -> list[Any]:
    """The replies to several commands, in one round trip; errors are among them."""
    link = getattr(client, "link", None)
    if link is not None:
        replies: list[Any] = link.ask(b"".join(map(packed, commands)), len(commands))
        return replies
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
        return pipe.execute(raise_on_error=False)


def begin(client: redis.Redis, *words: Word) -> Begun:
    """Sends a command and does not wait; its reply is raised where it is an error.

    On a link the reply is read with that of its next command; without one, at once.
    """
    link = getattr(client, "link", None)
    if link is not None:
        sent = link.begin(packed(words))
        return Begun(lambda: checked([sent.reply()])[0], sent.refused)
    [reply] = replies_together(client, words)
    return Begun(lambda: checked([reply])[0], lambda: isinstance(reply, Exception))


def hear(client: redis.Redis) -> None:
    """Reads what has come of commands that were begun, without waiting."""
    link = getattr(client, "link", None)
    if link is not None:
        link.hear()


def checked(replies: list[Any]) -> list[Any]:
    """These replies, if none is an error; else raises the first."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _exchange(connection: Any, words: tuple[Word, ...]) -> Any:
    connection.send_packed_command([packed(words)], check_health=False)
    return connection.read_response()


def packed(words: tuple[Word, ...]) -> bytes:
    """A command in the store's protocol.

    The library in C writes numbers and text, too, but some that Python cannot write end the process: it gets
    them as they are only if they are certainly none of these.
    """
    for word in words:
        if isinstance(word, str):
            if not word.isascii():
                break
        elif isinstance(word, bytes) or type(word) is float:
            continue
        elif type(word) is not int or not -_LARGE < word < _LARGE:
            break
    else:
        return _pack(words)
    return _pack(tuple(map(_encoded, words)))


def _encoded(word: Word) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, str):
        return word.encode()
    if type(word) is int or type(word) is float:
        return repr(word).encode()
    raise redis.DataError(f"a command cannot contain a {type(word).__name__}")

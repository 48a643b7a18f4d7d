"""Sends one command on a connection of the client's pool.

The client's own way costs several times as much, for retries that we do not want, decoding and metrics. The
connection is the library's: it closes itself when an answer is lost, and nothing is sent twice.
"""

from __future__ import annotations

from typing import Any

import redis


def ask(client: redis.Redis, *words: str | bytes | int | float) -> Any:
    """The reply to a command; raises what the client would raise."""
    own: Any = client.connection
    connection: Any = own or client.connection_pool.get_connection()
    try:
        connection.send_packed_command([packed(words)])
        return connection.read_response()
    finally:
        if own is None:
            client.connection_pool.release(connection)


def packed(words: tuple[str | bytes | int | float, ...]) -> bytes:
    """A command in the store's protocol."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if isinstance(word, bytes):
            data = word
        elif isinstance(word, str):
            data = word.encode()
        elif type(word) is int or type(word) is float:
            data = repr(word).encode()
        else:
            raise redis.DataError(f"a command cannot contain a {type(word).__name__}")
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)

"""A linked client gives the client library's answers, against a real Valkey."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from worker.core.settings import Settings
from worker.local.valkey import EmbeddedStore
from worker.store.client import connect

Call = Callable[[Any], Any]

CALLS: dict[str, Call] = {
    "get": lambda c: (c.set("s", "v"), c.get("s"), c.get("none")),
    "options": lambda c: (c.set("o", "v", nx=True, ex=60), c.set("o", "v", nx=True), c.ttl("o") > 0),
    "hash": lambda c: (c.hset("h", mapping={"a": 1, "b": b"\xff"}), c.hgetall("h"), c.hmget("h", ["a", "c"])),
    "sorted set": lambda c: (c.zadd("z", {"a": 1, "b": 2.5}), c.zrange("z", 0, -1, withscores=True)),
    "pop": lambda c: (c.zadd("z2", {"a": 1}), c.zpopmin("z2"), c.zpopmin("z2")),
    "list": lambda c: (c.rpush("l", 1, 2), c.lrange("l", 0, -1), c.lpos("l", "2")),
    "set of members": lambda c: (c.sadd("m", "a"), c.smembers("m"), c.sismember("m", "a")),
    "scan": lambda c: (c.set("scan:1", 1), list(c.scan_iter("scan:*"))),
    "script": lambda c: c.eval("return {1, ARGV[1], false}", 0, "x"),
    "two words": lambda c: (c.config_get("maxclients"), c.memory_usage("none"), c.script_exists("a" * 40)),
    "info": lambda c: sorted(c.info("server")) and c.info("persistence")["loading"],
    "own connection": lambda c: isinstance(c.client_id(), int),
    "blocking": lambda c: (c.rpush("q", "x"), c.blpop(["q"], timeout=1)),
    "time": lambda c: len(c.time()),
    "together": lambda c: c.pipeline(transaction=False).set("p", 1).hgetall("h").incr("p").execute(),
    "transaction": lambda c: c.pipeline().set("t", 1).hgetall("h").incr("t").execute(),
    "nothing together": lambda c: (c.pipeline().execute(), c.pipeline(transaction=False).execute()),
    "errors together": lambda c: [
        type(each) for each in c.pipeline(transaction=False).set("e", "x").incr("e").get("e").execute(False)
    ],
    "errors in a transaction": lambda c: [
        type(each) for each in c.pipeline().set("e", "x").incr("e").get("e").execute(False)
    ],
    "watch": lambda c: c.transaction(lambda pipe: pipe.multi() or pipe.set("w", 1), "w"),
}


@pytest.fixture(name="embedded", scope="module")
def _embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path_factory.mktemp("linked")) as store:
        yield store


@pytest.mark.parametrize("name", CALLS)
def test_a_command_gives_what_the_library_gives(embedded: EmbeddedStore, name: str) -> None:
    """Values, their types and empty answers are the same."""
    answers = []
    for client in (redis.Redis.from_url(embedded.url, protocol=2), linked(embedded)):
        client.flushall()
        client.hset("h", "a", "1")
        answers.append(CALLS[name](client))
        client.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.execute_command("NOSUCH"),
        lambda c: c.hget("s", "a"),
        lambda c: c.evalsha("a" * 40, 0),
        lambda c: c.pipeline().set("e", "x").incr("e").execute(),
        lambda c: c.pipeline(transaction=False).set("e", "x").incr("e").execute(),
        lambda c: c.pipeline().execute_command("NOSUCH").execute(),
        lambda c: c.set("k", True),
    ],
)
def test_an_error_is_the_library_s(embedded: EmbeddedStore, call: Call) -> None:
    """Class and text are the same."""
    errors = []
    for client in (redis.Redis.from_url(embedded.url, protocol=2), linked(embedded)):
        client.flushall()
        client.set("s", "v")
        with pytest.raises(redis.RedisError) as caught:
            call(client)
        errors.append((type(caught.value), str(caught.value).partition("Convert")[0]))
        client.close()
    assert errors[0][0] == errors[1][0]
    if errors[0][0] is not redis.DataError:
        assert errors[0][1] == errors[1][1]


def test_an_aborted_transaction_runs_none_of_its_commands(embedded: EmbeddedStore) -> None:
    """Also those before the one that the store refused."""
    client = linked(embedded)
    client.flushall()
    with pytest.raises(redis.ResponseError):
        client.pipeline().set("a", 1).execute_command("NOSUCH").execute()  # type: ignore[no-untyped-call]
    assert client.get("a") is None


def linked(embedded: EmbeddedStore) -> redis.Redis:
    return connect(Settings.load({"REDIS_URL": embedded.url}), role="cli")

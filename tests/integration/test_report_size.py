"""The money report over many payments: its cost in the store."""

from __future__ import annotations

import redis

from worker.core.settings import Settings
from worker.parts import Parts

PAYMENTS = 100_000
FACTS = ("claimed", "verified", "settling", "settled")


def test_report_of_many_payments_costs_the_store_less_than_a_second(client: redis.Redis, valkey) -> None:
    """100,000 payments are read in pages; no single command is slow enough to block others."""
    parts = Parts(Settings.load({"REDIS_URL": valkey.url}), "cli")
    key = "eip155:84532/0x036cbd53842c5426634e7929541ec2318f3dcf7e/0x" + "11" * 20 + "/0x" + "22" * 32
    lines = [f"{at} {fact} id{at} 1 10 {key}" for at in range(PAYMENTS) for fact in FACTS]
    for start in range(0, len(lines), 20_000):
        client.rpush(parts.keys.journal, *lines[start : start + 20_000])
    client.config_resetstat()
    assert parts.journal.snapshot().books.totals().settled == 10 * PAYMENTS
    stats = client.info("commandstats")
    used = sum(each["usec"] for name, each in stats.items() if name != "cmdstat_config|resetstat")
    assert used < 1_000_000, f"{used} us"
    longest = stats["cmdstat_lrange"]["usec_per_call"]
    assert longest < 20_000, f"{longest} us in one command"

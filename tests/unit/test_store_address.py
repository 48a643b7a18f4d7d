"""Parsing REDIS_URL."""

from __future__ import annotations

import pytest

from worker.core.store_address import StoreAddress, parse
from worker.core.values import bare


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://store", StoreAddress(hosts=(("store", 6379),))),
        (
            "rediss://u:p%40ss@store.example:6380/3",
            StoreAddress(
                tls=True, hosts=(("store.example", 6380),), database=3, username="u", password="p@ss"
            ),
        ),
        ("redis://:p@[::1]:7000/?db=2", StoreAddress(hosts=(("::1", 7000),), database=2, password="p")),
        ("unix://:p@/run/store?db=1", StoreAddress(path="/run/store", database=1, password="p")),
        (
            "redis+sentinel://one,other:26380/shop",
            StoreAddress(hosts=(("one", 26379), ("other", 26380)), service="shop"),
        ),
        (
            "rediss+sentinel://u:p@one:1,[fe80::2]:2/my-shop/15?sentinel_username=w&sentinel_password=a+b%26",
            StoreAddress(
                tls=True,
                hosts=(("one", 1), ("fe80::2", 2)),
                service="my-shop",
                database=15,
                username="u",
                password="p",
                sentinel_username="w",
                sentinel_password="a+b&",
            ),
        ),
    ],
)
def test_store_urls_are_parsed(url: str, expected: StoreAddress) -> None:
    """Every part is parsed, and a plus sign in a password stays a plus sign."""
    assert parse(url) == expected


def test_sentinel_url_is_shown_without_secrets() -> None:
    """Messages show only the hosts."""
    shown = bare("redis+sentinel://u:secret@one:1,other:2/shop/0?sentinel_password=secret")
    assert shown == "redis+sentinel://one:1,other:2/..."

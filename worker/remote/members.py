"""Members for connections in lists: consumers of an agent or runner, and runners of a tool."""

from __future__ import annotations

# Length of an epoch (a UUID); a zero byte precedes it.
_EPOCH = 36


def consumer_member(consumer: str, epoch: str) -> str:
    return f"{consumer}\0{epoch}"


def offer_member(runner: str, consumer: str, epoch: str) -> str:
    return f"{runner}\0{consumer}\0{epoch}"


def epoch_of(member: str) -> str:
    """Returns the epoch of either form of member."""
    return member[-_EPOCH:]


def consumer_of(member: str) -> str:
    return member[: -_EPOCH - 1]


def runner_of(offer: str) -> str:
    return offer.split("\0")[0]

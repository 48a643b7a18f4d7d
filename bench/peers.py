"""RQ as its users run it: `python -m bench.peers Worker|SimpleWorker QUEUE`, on the store of REDIS_URL."""

from __future__ import annotations

import os
import sys

import redis
import rq

KINDS = {"Worker": rq.Worker, "SimpleWorker": rq.SimpleWorker}


def nothing() -> None:
    """The empty job."""


def main(kind: str, queue: str) -> None:
    client = redis.Redis.from_url(os.environ["REDIS_URL"])
    # Quieter than RQ's default, which costs it time.
    KINDS[kind]([queue], connection=client).work(logging_level="WARNING")


if __name__ == "__main__":
    main(*sys.argv[1:])

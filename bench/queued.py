"""Throughput of empty executions per second, paid ones too, from creation to their end, two processes each.

The processes are up and warm when the clock starts; it stops when the last result is in the store. One
producer creates the work while it is already being processed, as a web process does. Paid work comes from a
web process, for requests that were signed beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import redis
import rq
from rq.job import Job as RqJob
from rq.results import Result

from bench import sellers
from bench.paid import loaded, paid_requests, send
from bench.peers import nothing
from bench.purchases import WALLETS, wallets
from bench.rounds import Contender, Measurement, Reading, interleave
from bench.sellers import Seller, served
from bench.stand import Stand, until
from worker.core.states import Lane, State
from worker.engine.service import Executions

NAME = "throughput"
EVENTS = ["execution.created", "execution.started", "execution.completed"]
_PROCESSES = 2
_CONNECTIONS = 64
_WARM_UP = 20


@dataclass(frozen=True)
class Side:
    """One contender: its processes, how to submit work, how to see its end, and what counts as complete."""

    commands: list[list[str]]
    environ: dict[str, str]
    ready: Callable[[], bool]
    give: Callable[[], str]
    done: Callable[[], int]
    complete: Callable[[list[str]], int]


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    scale, rounds = (0.05, 1) if quick else (1.0, 5)
    jobs = {"rq-worker": 250, "rq-simple": 1000, "queue": 1000, "express": 2000}
    paid = Contender("paid-queue", lambda: _paid(stand, max(24, int(800 * scale))))

    def contender(name: str, side: Callable[[Stand], Side]) -> Contender:
        return Contender(name, lambda: _round(stand, side(stand), max(10, int(jobs[name] * scale))))

    readings = interleave(
        [
            contender("rq-worker", lambda at: _rq(at, "Worker")),
            contender("rq-simple", lambda at: _rq(at, "SimpleWorker")),
            contender("queue", lambda at: _house(at, "nothing-queued")),
            contender("express", lambda at: _house(at, "nothing-express")),
            paid,
        ],
        rounds,
        told,
    )
    found = Measurement(NAME, "empty executions end to end, two processes each", readings)
    found.at_least("queued paid work against RQ Worker (fork)", "paid-queue", "rq-worker", "per_second", 3.0)
    found.at_least("queued paid work against RQ SimpleWorker", "paid-queue", "rq-simple", "per_second", 1.5)
    found.at_least("unpaid work in the queue against RQ Worker", "queue", "rq-worker", "per_second", 3.0)
    found.at_least(
        "unpaid work in the queue against RQ SimpleWorker", "queue", "rq-simple", "per_second", 1.5
    )
    found.at_least("express lane against RQ SimpleWorker", "express", "rq-simple", "per_second", 1.5)
    found.notes += [
        "trips, commands and processor time (µs) are for one execution, creation included",
        f"paid-queue: one web process, {_CONNECTIONS} connections, request to settled answer",
        "paid-queue: its charges were counted at the facilitator",
    ]
    return found


def _paid(stand: Stand, jobs: int) -> Reading:
    few = Seller("paid-queue", sellers.PLAIN.command, "/buy/nothing-paid-queued")
    with served(stand, few, QUEUE_PROCESSES=str(_PROCESSES)) as at:
        first, requests = paid_requests(at, "nothing-paid-queued", wallets(), [WALLETS, jobs])
        send(at, stand, first, 4)
        cost = loaded(at, stand, requests, _CONNECTIONS)
        settled = at.settled()
    return {"asked": WALLETS + jobs, "done": settled, **cost}


def _round(stand: Stand, side: Side, jobs: int) -> Reading:
    stand.empty()
    with stand.processes(side.commands, side.environ) as crowd:
        until(side.ready, "the processes did not start")
        for _ in range(_WARM_UP):
            side.give()
        until(lambda: side.done() == _WARM_UP, "the warm-up was not done")
        cpu, own, spent = crowd.cpu(), time.process_time(), stand.spent()
        began = time.monotonic()
        given = [side.give() for _ in range(jobs)]
        created = time.monotonic() - began
        asked = until(lambda: side.done() >= _WARM_UP + jobs, "not all work was done")
        took = time.monotonic() - began
        spent, own, cpu = stand.spent().since(spent), time.process_time() - own, crowd.cpu() - cpu
        complete = side.complete(given)
    return {
        "asked": jobs,
        "done": complete,
        "per_second": jobs / took,
        "given_per_second": jobs / created,
        "trips": (spent.trips - asked) / jobs,
        "commands": (spent.commands - asked) / jobs,
        "store_us": spent.seconds / jobs * 1e6,
        "work_us": cpu / jobs * 1e6,
        "giver_us": own / jobs * 1e6,
    }


def _rq(stand: Stand, kind: str) -> Side:
    client = redis.Redis.from_url(stand.url)
    queue = rq.Queue("bench", connection=client)

    def complete(given: list[str]) -> int:
        jobs = RqJob.fetch_many(given, connection=client)
        return sum(job is not None and succeeded(job.latest_result()) for job in jobs)

    return Side(
        commands=[["-m", "bench.peers", kind, queue.name]] * _PROCESSES,
        environ=stand.environ(),
        ready=lambda: rq.Worker.count(queue=queue) == _PROCESSES,
        give=lambda: queue.enqueue(nothing).id,
        done=lambda: int(client.zcard(queue.finished_job_registry.key)),
        complete=complete,
    )


def _house(stand: Stand, agent: str) -> Side:
    parts = stand.parts()
    lane = Lane.EXPRESS if agent == "nothing-express" else Lane.QUEUE

    def give() -> str:
        made, id = parts.executions.create(agent, None, door="bench")
        assert made
        return id

    def done() -> int:
        return parts.store.count(parts.keys.by_state("completed"))

    def complete(given: list[str]) -> int:
        return sum(is_complete(parts.executions, id) for id in given)

    return Side(
        commands=[["-m", "worker", "work"]],
        environ=stand.environ(**{f"{lane.upper()}_PROCESSES": str(_PROCESSES)}),
        ready=lambda: parts.store.takers(lane) == _PROCESSES,
        give=give,
        done=done,
        complete=complete,
    )


def is_complete(executions: Executions, id: str) -> bool:
    """Whether it completed at its first lease, with every required event in its log, in order."""
    execution = executions.get(id)
    kinds = [event.kind for event in executions.events(id)]
    return execution.state is State.COMPLETED and execution.fence == 1 and kinds == EVENTS


def succeeded(result: Result | None) -> bool:
    return result is not None and result.type is Result.Type.SUCCESSFUL

"""RQ carries long work: a message is the id of an execution and nothing else, and only a hint.

The record is the truth. So RQ's own bookkeeping of a running job (registries, heartbeats, results) is
left out; what a message can be lost to is healed by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
import structlog
from redis.exceptions import RedisError
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as Message
from rq.serializers import JSONSerializer
from rq.utils import as_text
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

log = structlog.get_logger()

QUEUE = "work"
# How long RQ waits on its queue at a stretch is this less 15 seconds.
_WORKER_TTL = 20
# How often RQ's own sign of life is written.
_BEAT_SECONDS = 5.0


class RunQueue:
    """The queue of long work: push ids, look for lost ones."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
        self._intermediate = IntermediateQueue.get_intermediate_queue_key(self._queue.key)

    def push(self, id: str) -> None:
        """Tells RQ workers that this execution waits. Twice is harmless; not at all costs two seconds."""
        try:
            self._queue.enqueue_call(
                "worker.queue.rq.message",
                args=(id,),
                job_id=id,
                timeout=-1,
                result_ttl=0,
                failure_ttl=60,
                description=id,
            )
        except RedisError:
            # The record is written and the clock will find it: whoever created it need not hear of this.
            log.warning("queue.push_failed", execution_id=id)

    def __len__(self) -> int:
        return int(self._client.llen(self._queue.key))

    def lost(self, ids: list[str]) -> list[str]:
        """Those that no message names; a message taken but not yet acted on counts as none."""
        if not ids:
            return []
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.lpos(self._queue.key, id)
            return [id for id, place in zip(ids, pipe.execute(), strict=True) if place is None]

    def taken(self) -> list[str]:
        """Messages taken from the queue whose taker has not said what became of them."""
        return [as_text(id) for id in self._client.lrange(self._intermediate, 0, 99)]

    def forget(self, id: str) -> None:
        """Removes what a taken message left; its taker has all it needs, or is dead."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.lrem(self._intermediate, 0, id)
            pipe.delete(Message.key_for(id))
            pipe.execute()


def message(id: str) -> None:
    """What a message names as its function. Only `QueueWorker` runs executions."""
    raise RuntimeError("run `worker work`: this queue is not for other RQ workers")


class QueueWorker(Worker):
    """An RQ worker that runs executions in its own process, without a fork per job."""

    # A store that was away is asked again soon, however long it was away.
    max_connection_wait_time = 1.0

    def __init__(
        self, client: redis.Redis, *, name: str, run: Callable[[str], Any], sign: Callable[[], None]
    ) -> None:
        self._run = run
        self._sign = sign
        self._beats_at = 0.0
        queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
        super().__init__(
            [queue], name=name, connection=client, serializer=JSONSerializer, worker_ttl=_WORKER_TTL
        )

    def execute_job(self, job: Message, queue: Queue) -> None:
        try:
            self._run(job.id)
        finally:
            self._forget(job, queue)

    def _forget(self, job: Message, queue: Queue) -> None:
        try:
            with self.connection.pipeline(transaction=False) as pipe:
                pipe.delete(job.key)
                pipe.lrem(queue.intermediate_queue_key, 0, job.id)
                pipe.execute()
        except RedisError:
            log.warning("rq.store_away")  # the clock cleans up

    def stop(self) -> None:
        """Take no more messages."""
        self._stop_requested = True

    # RQ's own signal handlers, command channel, log handlers and registry sweeps have no use here.

    def _install_signal_handlers(self) -> None:
        return

    def subscribe(self) -> None:
        return

    def unsubscribe(self) -> None:
        return

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Replaces a namesake (a container's numbers repeat) and strikes the killed off the list."""
        self.connection.delete(self.key)
        self.register_birth()  # type: ignore[no-untyped-call]
        clean_worker_registry(self.queues[0])

    def teardown(self) -> None:
        try:
            self.register_death()  # type: ignore[no-untyped-call]
        except RedisError:
            log.warning("rq.store_away")

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return False

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ asks for three of these a job, each two writes; its key lives for more than a minute."""
        try:
            self._sign()
            if time.monotonic() >= self._beats_at:
                self._beats_at = time.monotonic() + _BEAT_SECONDS
                super().heartbeat(timeout, pipeline)
        except RedisError:
            log.warning("rq.heartbeat_failed")

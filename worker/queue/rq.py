"""RQ carries long work: a message is an execution id, nothing else, and only a hint.

The record is the truth, so RQ's own bookkeeping of a running job (registries, heartbeats, results) is
left out; the clock recovers lost messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError
from rq import Queue
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as Message
from rq.serializers import JSONSerializer
from rq.utils import as_text
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from worker.store.outage import note

QUEUE = "work"
# RQ blocks on its queue for this minus 15 seconds at a time.
_WORKER_TTL = 20
# Pause after passing work to another tree, to give it time to take the work.
PASSED_ON_PAUSE = 0.05
# How often RQ's own heartbeat is written.
_BEAT_SECONDS = 5.0


class RunQueue:
    """The queue of long work: push ids, find lost ones."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
        self._intermediate = IntermediateQueue.get_intermediate_queue_key(self._queue.key)

    @property
    def key(self) -> str:
        """The list of ids."""
        return str(self._queue.key)

    def push(self, id: str) -> None:
        """Queues this execution for RQ workers. Twice is harmless; a lost message costs two seconds."""
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
        except RedisError as error:
            # The record is written and the clock will find it: its creator need not see this error.
            note(error, "queue.push", execution_id=id)

    def __len__(self) -> int:
        return int(self._client.llen(self._queue.key))

    def lost(self, ids: list[str]) -> list[str]:
        """Returns the ids that no message names; a message taken but not yet acted on does not count."""
        if not ids:
            return []
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.lpos(self._queue.key, id)
            return [id for id, place in zip(ids, pipe.execute(), strict=True) if place is None]

    def messages(self) -> list[str]:
        """Returns the ids of all waiting messages."""
        return [as_text(id) for id in self._client.lrange(self._queue.key, 0, -1)]

    def length_and_taken(self) -> tuple[int, list[str]]:
        """Number of waiting messages, and some that were taken without a reported outcome."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.llen(self._queue.key)
            pipe.lrange(self._intermediate, 0, 99)
            length, taken = pipe.execute()
        return int(length), [as_text(id) for id in taken]

    def forget(self, id: str) -> None:
        """Deletes what a taken message left behind; its taker has all it needs, or is dead."""
        with self._client.pipeline(transaction=False) as pipe:
            pipe.lrem(self._intermediate, 0, id)
            pipe.delete(Message.key_for(id))
            pipe.execute()


def message(id: str) -> None:
    """The function that messages name. Only `QueueWorker` runs executions."""
    raise RuntimeError("run `worker work`: other RQ workers cannot run this queue")


class QueueWorker(Worker):
    """An RQ worker that runs executions in its own process, without a fork per job."""

    # Retry an unavailable store soon, however long it was away.
    max_connection_wait_time = 1.0

    def __init__(
        self,
        client: redis.Redis,
        *,
        name: str,
        run: Callable[[str], Any],
        sign: Callable[[], None],
        passes_on: Callable[[str], bool] = lambda id: False,
    ) -> None:
        self._run = run
        self._passes_on = passes_on
        self._sign = sign
        self._beats_at = 0.0
        queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
        super().__init__(
            [queue], name=name, connection=client, serializer=JSONSerializer, worker_ttl=_WORKER_TTL
        )

    def execute_job(self, job: Message, queue: Queue) -> None:
        passed_on = False
        try:
            passed_on = self._passes_on(job.id)
            if not passed_on:
                self._run(job.id)
        finally:
            self._forget(job, queue)
        if passed_on:
            RunQueue(self.connection).push(job.id)
            time.sleep(PASSED_ON_PAUSE)

    def _forget(self, job: Message, queue: Queue) -> None:
        try:
            with self.connection.pipeline(transaction=False) as pipe:
                pipe.delete(job.key)
                pipe.lrem(queue.intermediate_queue_key, 0, job.id)
                pipe.execute()
        except RedisError as error:
            note(error, "rq.forget")  # the clock cleans up

    def stop(self) -> None:
        """Stop taking messages."""
        self._stop_requested = True

    # RQ's signal handlers, command channel, log handlers and registry sweeps are not needed here.

    def _install_signal_handlers(self) -> None:
        return

    def subscribe(self) -> None:
        return

    def unsubscribe(self) -> None:
        return

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Replaces a namesake (container pids repeat) and removes killed workers from the registry."""
        self.connection.delete(self.key)
        self.register_birth()  # type: ignore[no-untyped-call]
        clean_worker_registry(self.queues[0])

    def teardown(self) -> None:
        try:
            self.register_death()  # type: ignore[no-untyped-call]
        except RedisError as error:
            note(error, "rq.teardown")

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return False

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ asks for three of these per job, two writes each; its key lives for more than a minute."""
        try:
            self._sign()
            if time.monotonic() >= self._beats_at:
                self._beats_at = time.monotonic() + _BEAT_SECONDS
                super().heartbeat(timeout, pipeline)
        except RedisError as error:
            note(error, "rq.heartbeat")

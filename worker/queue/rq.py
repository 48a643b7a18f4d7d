"""RQ carries long work: a message is an execution id, nothing else, and only a hint.

The record is the truth, so RQ's own bookkeeping of a running job (registries, heartbeats, results) is
left out; the clock recovers lost messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import DequeueTimeout
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job as Message
from rq.job import JobStatus
from rq.serializers import JSONSerializer
from rq.utils import as_text, now, utcformat
from rq.worker import Worker
from rq.worker_registration import clean_worker_registry

from worker.store.client import as_bytes
from worker.store.commands import Word, ask, ask_together, checked
from worker.store.outage import holds, note
from worker.store.scripts import ScriptCall, Scripts

QUEUE = "work"
_FUNCTION = "worker.queue.rq.message"
# RQ blocks on its queue for this minus 15 seconds at a time.
_WORKER_TTL = 20
# Pause after passing work to another tree, to give it time to take the work.
PASSED_ON_PAUSE = 0.05
Command = tuple[Word, ...]

# How often RQ's own heartbeat is written, and how often it is asked whether its workers are suspended.
_BEAT_SECONDS, _SUSPENDED_SECONDS = 5.0, 1.0


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

    def push(self, id: str, send: Callable[[list[Command]], object] | None = None) -> None:
        """Queues this execution for RQ workers. Twice is harmless; a lost message costs two seconds.

        `send` sends the commands that do so, and what must follow in the same round trip.
        """
        try:
            (send or self._send)(self.message(id))
        except RedisError as error:
            # The record is written and the clock will find it: its creator need not see this error.
            note(error, "queue.push", execution_id=id)

    def _send(self, commands: list[Command]) -> None:
        ask_together(self._client, *commands)

    def message(self, id: str) -> list[Command]:
        """What appends a message as RQ writes it, for its tools; its own way takes four times as long."""
        at = utcformat(now())
        message: dict[str, Word] = {
            "created_at": at,
            "enqueued_at": at,
            "data": json.dumps((_FUNCTION, None, (id,), {})),  # RQ compresses it, and reads both
            "description": id,
            "origin": QUEUE,
            "status": JobStatus.QUEUED.value,
            "timeout": -1,
            "result_ttl": 0,
            "failure_ttl": 60,
        }
        fields = [word for field in message.items() for word in field]
        return [
            ("SADD", Queue.redis_queues_keys, self.key),
            ("HSET", Message.key_for(id), *fields),
            ("RPUSH", self.key, id),
        ]

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


class TakenMessage:
    """The message of the run under way, forgotten in the round trip of the run's seal, if there is one.

    The next message comes with the same trip. One that is lost with its process is found by the clock.
    """

    def __init__(self, takes_more: Callable[[], bool] = lambda: True) -> None:
        # Whether this process may take another message.
        self.takes_more = takes_more
        self._forget: tuple[tuple[Word, ...], ...] = ()
        self._keys = "", ""
        self._ahead = ""

    def begin(self, id: str, queue: Queue) -> None:
        self._keys = queue.key, queue.intermediate_queue_key
        self._forget = ("DEL", Message.key_for(id)), ("LREM", queue.intermediate_queue_key, 0, id)

    def seal(self, scripts: Scripts, call: ScriptCall) -> Any:
        """Sends the script that ends the run; one that is tried again takes no other message."""
        forget, self._forget = self._forget, ()
        if not forget or not holds(self.takes_more, "queue"):
            return scripts.send_together(call, *forget)[0]
        reply, *_, next = scripts.send_each(call, *forget, ("LMOVE", *self._keys, "LEFT", "RIGHT"))
        # An error here, as of a full store, would hide the seal; whoever takes a message meets it again.
        self._ahead = next.decode() if isinstance(next, bytes) else ""
        return checked([reply])[0]

    def take_ahead(self) -> str:
        """The message that came with a seal, or ''."""
        ahead, self._ahead = self._ahead, ""
        return ahead

    def end(self, client: redis.Redis) -> None:
        """Forgets a message whose run was not sealed."""
        forget, self._forget = self._forget, ()
        if forget:
            ask_together(client, *forget)

    def give_back(self, client: redis.Redis) -> None:
        """Leaves the message that this process will not run to the others."""
        ahead = self.take_ahead()
        if ahead:
            queue, intermediate = self._keys
            ask_together(client, ("LPUSH", queue, ahead), ("LREM", intermediate, 0, ahead))


class _Messages(Queue):
    """RQ's queue without its reading of each message: the id is all that there is to know."""

    taken: TakenMessage

    @classmethod
    def dequeue_any(  # type: ignore[override]
        cls, queues: list[Queue], timeout: int | None, connection: redis.Redis, **_: object
    ) -> tuple[Message, Queue] | None:
        [queue] = queues
        ahead = queue.taken.take_ahead() if isinstance(queue, _Messages) else ""
        if ahead:
            return Message(ahead, connection, JSONSerializer), queue
        way = queue.key, queue.intermediate_queue_key, "LEFT", "RIGHT"
        id = ask(connection, *(("LMOVE", *way) if timeout is None else ("BLMOVE", *way, timeout)))
        if id is not None:
            return Message(as_bytes(id).decode(), connection, JSONSerializer), queue
        if timeout is not None:
            raise DequeueTimeout(timeout, queue.key)
        return None


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
        taken: TakenMessage | None = None,
    ) -> None:
        self._run = run
        self._taken = taken or TakenMessage()
        self._written_state = ""
        self._asks_at = 0.0
        self._passes_on = passes_on
        self._sign = sign
        self._beats_at = 0.0
        queue = _Messages(QUEUE, connection=client, serializer=JSONSerializer)
        queue.taken = self._taken
        super().__init__(
            [queue],
            name=name,
            connection=client,
            serializer=JSONSerializer,
            worker_ttl=_WORKER_TTL,
            queue_class=_Messages,
        )

    def execute_job(self, job: Message, queue: Queue) -> None:
        passed_on = False
        self._taken.begin(job.id, queue)
        try:
            passed_on = self._passes_on(job.id)
            if not passed_on:
                self._run(job.id)
        finally:
            self._forget()
        if passed_on:
            RunQueue(self.connection).push(job.id)
            time.sleep(PASSED_ON_PAUSE)

    def _forget(self) -> None:
        try:
            self._taken.end(self.connection)
        except RedisError as error:
            note(error, "rq.forget")  # the clock cleans up

    def stop(self) -> None:
        """Stop taking messages."""
        self._stop_requested = True

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """RQ writes it before each message."""
        if state != self._written_state:
            super().set_state(state, pipeline)
            self._written_state = state

    def check_for_suspension(self, burst: bool) -> None:
        if time.monotonic() >= self._asks_at:
            self._asks_at = time.monotonic() + _SUSPENDED_SECONDS
            super().check_for_suspension(burst)

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

"""Keys under which a kernel's repeated requests find their first run."""

from __future__ import annotations

import hashlib

from worker.swarm import serde
from worker.swarm.wire import ExecuteRequest


def idempotency_key(kernel: str, request: ExecuteRequest) -> str:
    """One run per kernel, task, execution and attempt; no choice of ids can imitate another one."""
    parts = [kernel, request.task_id, request.execution_id, request.attempt_id]
    return f"swarm-{serde.digest(parts)}"


def task_key(request: ExecuteRequest) -> str:
    """Stays the same when a kernel re-sends a task under new ids, as it does after a step's lease expired.

    Another stage is another request: a kernel that diverges wants something else.
    """
    return f"task-{serde.digest([request.task_id, request.task_type, request.profile, request.stage])}"


def body_digest(raw: bytes) -> str:
    """Tells a repeated request from another under the same key; a kernel repeats its bytes exactly."""
    return hashlib.sha256(raw).hexdigest()

"""The names under which repeated requests of a kernel find their first run."""

from __future__ import annotations

import hashlib

from worker.swarm import serde
from worker.swarm.wire import ExecuteRequest


def idempotency_key(kernel: str, request: ExecuteRequest) -> str:
    """One run per kernel, task, execution and attempt; no choice of ids can imitate another combination."""
    parts = [kernel, request.task_id, request.execution_id, request.attempt_id]
    return f"swarm-{serde.digest(parts)}"


def body_digest(raw: bytes) -> str:
    """Tells a repeated request from another one under the same key; a kernel repeats its bytes exactly."""
    return hashlib.sha256(raw).hexdigest()

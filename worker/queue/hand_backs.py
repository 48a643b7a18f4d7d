"""Hands back leases whose processes have not begun the work."""

from __future__ import annotations

from worker.core.states import State
from worker.engine.transitions import ExecutionStore
from worker.store.client import as_bytes


def hand_back(store: ExecutionStore, id: str, session: str) -> None:
    """Hands back the lease that was granted under this session, if it was, and is held.

    Without an id, of the execution that a waiting process was handed under the session.
    """
    if not id:
        handed = store.client.lpop(store.keys.handed(session))
        if handed is None:
            return
        id = as_bytes(handed).decode()
    # No more of the record is read: what is spoiled in it must not stop the caller.
    state, fence, of = store.client.hmget(store.keys.record(id), ["state", "fence", "session"])
    if state == State.RUNNING.encode() and of == session.encode():
        store.requeue(id, int(as_bytes(fence)), "not_begun")

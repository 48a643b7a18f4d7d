"""The swarm door compared with the floor: verdicts and empty executions a second, one web process each."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import GUNICORN, Stand, client, until
from worker.local.valkey import free_port
from worker.swarm.policies import KERNEL_HASHES, SCHEMA_ONLY

NAME = "swarm"
_CONNECTIONS = 16
_KEY = "bench-password"
_SCHEMA = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "string"}}}
_VERIFY = {
    "candidate": {
        "candidate_id": "cand-#N#",
        "execution_id": "exec-#N#",
        "output_ref": {
            "uri": "artifact://reference/c1",
            "digest": "sha256:0000",
            "size_bytes": 15,
            "mime": "application/json",
            "created_at": 1,
            "producer": "bench",
        },
        "output": {"answer": "ok", "confidence": 0.8, "check_summary": "looked at it"},
        "evidence_inline": [{"mime": "text/plain", "content": "trace:1"}],
        "evidence_refs": [],
    },
    "output_schema": _SCHEMA,
    "policy": {
        "policy_id": SCHEMA_ONLY,
        "policy_version": "1",
        "policy_hash": KERNEL_HASHES[SCHEMA_ONLY],
        "policy_params": {},
    },
}
_EXECUTE = {
    "task_id": "task-#N#",
    "execution_id": "exec-#N#",
    "attempt_id": "exec-#N#",
    "task_type": "swarm",
    "inputs": {"prompt": "hello"},
    "profile": "default",
    "stage": "EXPLORE",
    "seed_bundle": None,
    "task_contract": {"output_schema": {"type": "object"}, "budget": {"time_ms": 30_000}},
}
_OPEN = '[capability.nothing-express]\nswarm = true\ntask_types = ["*"]\n'


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds = 1 if quick else 5
    asked = {"floor": 3_000, "verify": 3_000, "execute": 500}
    requests = {name: 40 if quick else count for name, count in asked.items()}
    (stand.folder / "open.toml").write_text(_OPEN)
    readings = interleave(
        [
            Contender("floor", lambda: _floor(stand, requests["floor"])),
            Contender("verify", lambda: _verify(stand, requests["verify"])),
            Contender("execute", lambda: _execute(stand, requests["execute"])),
        ],
        rounds,
        told,
    )
    found = Measurement(NAME, f"one web process, {_CONNECTIONS} connections that post", readings)
    found.at_least("verify against the floor", "verify", "floor", "per_second", 0.6)
    found.notes += [
        "floor: bare Flask under the same server, one GET from the store",
        "execute: an agent that does nothing, two express processes; the swarm uses one of them",
    ]
    return found


def _floor(stand: Stand, requests: int) -> Reading:
    return _web(stand, "bench.floors:create_app()", "/floor", _VERIFY, requests)


def _verify(stand: Stand, requests: int) -> Reading:
    return _web(stand, "worker.app:create_app()", "/verify", _VERIFY, requests)


def _execute(stand: Stand, requests: int) -> Reading:
    return _web(stand, "worker.app:create_app()", "/swarm/execute", _EXECUTE, requests, work=True)


def _web(
    stand: Stand, app: str, path: str, body: dict[str, Any], requests: int, *, work: bool = False
) -> Reading:
    stand.empty()
    port = free_port()
    environ = stand.environ(
        PORT=str(port),
        SWARM_KEYS=f"bench:{_KEY}",
        SWARM_LIMITS="*:900000000:100",
        WORKER_CONFIG=str(stand.folder / "open.toml"),
        EXPRESS_PROCESSES="2",
    )
    commands = [[*GUNICORN, app]]
    commands += [["-m", "worker", "work"]] if work else []
    with stand.processes(commands, environ) as crowd:
        parts = stand.parts()
        until(lambda: _listens(port), "the server did not start")
        if work:
            until(lambda: parts.store.takers("express") == 2, "the processes did not start")
            until(lambda: parts.store.clock_age() is not None, "no clock ticks")
        _post(stand, port, path, body, max(_CONNECTIONS, requests // 10))
        cpu, before = crowd.cpu(), parts.store.count(parts.keys.by_state("completed"))
        seen = _post(stand, port, path, body, requests)
        cpu = crowd.cpu() - cpu
        if work and parts.store.count(parts.keys.by_state("completed")) - before != requests:
            raise WorkMissing("not every request made an execution")
    return {
        "asked": requests,
        "done": seen["answered"],
        "per_second": requests / seen["seconds"],
        "p50_ms": seen["p50_ms"],
        "p99_ms": seen["p99_ms"],
        "cpu_us": cpu / requests * 1e6,
    }


def _listens(port: int) -> bool:
    """Accept any response: the floor has no address but its own."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _post(stand: Stand, port: int, path: str, body: dict[str, Any], requests: int) -> dict[str, float]:
    file = stand.folder / "body.json"
    file.write_text(json.dumps(body, separators=(",", ":")))
    seen = client("bench.posts", port, path, f"Bearer {_KEY}", _CONNECTIONS, requests, file)
    if seen["answered"] != requests:
        raise WorkMissing("not every request was answered")
    return seen

"""The operator's stricter check: a candidate is held to its whole JSON Schema, not only to a kernel's part.

A stranger's schema is compiled in a warm process, against the clock, as an internal capability on the
express lane. It can only fail a candidate more.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from worker.agents.declare import agent
from worker.contracts.schema import SchemaRefused, compile_schema, is_open, validate
from worker.errors import Problem, Unavailable
from worker.executions.service import Executions
from worker.executions.states import Lane, State
from worker.ids import new_id
from worker.swarm.kernels import Kernel
from worker.swarm.places import DOOR, Places, Request
from worker.swarm.task import ended

NAME = "_swarm-schema"
SECONDS = 8.0
_SCOPE = "swarm-schema"


@agent(NAME, inline=True, time_limit=2.0, attempts=2)
def check(job: Any) -> dict[str, bool]:
    """Whether an output fits a schema; a schema that cannot be compiled fits nothing."""
    schema = job.input["schema"]
    try:
        return {"fits": is_open(schema) or not validate(compile_schema(schema), job.input["output"])}
    except SchemaRefused:
        return {"fits": False}


class FullSchema:
    """Asks for the check."""

    def __init__(self, executions: Executions, places: Places) -> None:
        self._executions = executions
        self._places = places

    def fits(self, kernel: Kernel, output: Any, schema: Any) -> bool:
        """Whether the output fits; Unavailable when that cannot be found out now."""
        taken = self._places.take(Request(kernel, Lane.EXPRESS, _SCOPE, new_id(), counted=False))
        self._executions.create(NAME, {"schema": schema, "output": output}, door=DOOR, id=taken.id)
        execution = ended(self._executions, taken.id, time.monotonic() + SECONDS)
        if execution is None:
            with suppress(Problem):
                self._executions.cancel(taken.id, "nobody waits for it any more")
        self._places.release(Lane.EXPRESS, taken.id, kernel.name)
        if execution is None:
            raise Unavailable("the schema could not be checked in time")
        if execution.error.get("code") == "CAPABILITY_UNAVAILABLE":
            raise Unavailable("schemas cannot be checked right now")
        # A check that hung, or broke its process twice, was made to: such a schema fits nothing.
        return execution.state is State.COMPLETED and bool(self._executions.output(execution)["fits"])

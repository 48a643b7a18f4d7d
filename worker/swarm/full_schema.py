"""The operator's stricter check: a candidate against its whole JSON Schema, not just a kernel's part.

An untrusted schema is compiled in a warm process under a time limit, as an internal capability on the express
lane. The check can only add failures.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from worker.capabilities.declare import agent
from worker.core.errors import Problem, Unavailable
from worker.core.ids import new_id
from worker.core.states import Lane, State
from worker.engine.service import Executions
from worker.schemas.validators import SchemaRefused, compile_schema, is_open, validate
from worker.swarm.admission import DOOR, Admission, AdmissionRequest
from worker.swarm.kernels import Kernel
from worker.swarm.task import ended

NAME = "_swarm-schema"
SECONDS = 8.0
# A verdict cannot wait long: both together must fit the 30 s that a kernel waits.
PATIENCE = 20.0
_SCOPE = "swarm-schema"


@agent(NAME, inline=True, time_limit=2.0, attempts=2)
def check(job: Any) -> dict[str, bool]:
    """Whether an output fits a schema; nothing fits a schema that cannot be compiled."""
    schema = job.input["schema"]
    try:
        return {"fits": is_open(schema) or not validate(compile_schema(schema), job.input["output"])}
    except SchemaRefused:
        return {"fits": False}


class FullSchema:
    """Runs the check on the express lane."""

    def __init__(self, executions: Executions, places: Admission) -> None:
        self._executions = executions
        self._admission = places

    def fits(self, kernel: Kernel, output: Any, schema: Any) -> bool:
        """Whether the output fits; raises Unavailable if that cannot be determined now."""
        wanted = AdmissionRequest(kernel, Lane.EXPRESS, _SCOPE, new_id(), agent=NAME, counted=False)
        taken = self._admission.take(wanted, until=time.monotonic() + PATIENCE)
        self._executions.create(NAME, {"schema": schema, "output": output}, door=DOOR, id=taken.id)
        execution = ended(self._executions, taken.id, time.monotonic() + SECONDS)
        if execution is None:
            with suppress(Problem):
                self._executions.cancel(taken.id, "no request waits for it any more")
        self._admission.release(Lane.EXPRESS, taken.id, kernel.name)
        if execution is None:
            raise Unavailable("the schema was not checked in time")
        if execution.error.get("code") == "CAPABILITY_UNAVAILABLE":
            raise Unavailable("schema checks are unavailable")
        # A schema that hangs the check, or crashes its process twice, is hostile: nothing fits it.
        fits = execution.state is State.COMPLETED and bool(self._executions.output(execution)["fits"])
        self._executions.discard(execution)
        return fits

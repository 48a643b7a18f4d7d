"""Compiles untrusted schemas under a time limit.

A schema of 1 kB can take seconds to compile and a pattern can hang the interpreter, so the web process
never compiles one. The check process checks a contract's schemas before any payment. An internal capability
on the express lane checks the output that a remote agent delivered to a paying seeker.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from worker.capabilities.declare import agent
from worker.contracts.terms import Terms
from worker.core.errors import Conflict, Unavailable
from worker.core.json import encode
from worker.core.states import State
from worker.engine.record import Execution
from worker.queue.checks import CheckQueue, CheckRequester, busy
from worker.schemas.validators import SchemaRefused, compile_schema, is_open, validate

NAME = "_schema-check"
OUTPUT_NAME = "_output-check"
SECONDS = 5.0
MOST_PASSED = 1_000


@agent(NAME, inline=True, time_limit=2.0, attempts=1)
def check(job: Any) -> dict[str, Any]:
    """Compile the schemas of a contract and try the output one on the published example."""
    for name in ("input_schema", "output_schema"):
        if not is_open(job.input[name]):
            compile_schema(job.input[name], field=f"task.{name}")
    schema, example = job.input["output_schema"], job.input["example"]
    if not is_open(schema) and example is not None:
        problems = validate(compile_schema(schema, field="task.output_schema"), example)
        if problems:
            raise SchemaRefused(
                "the schema does not accept this capability's output",
                field="task.output_schema",
                expected="a schema that accepts the published example output",
                received=problems[0],
            )
    return {}


@agent(OUTPUT_NAME, inline=True, time_limit=2.0, attempts=1)
def check_output(job: Any) -> dict[str, Any]:
    """Validate a remote agent's output against its contract's schema."""
    problems = validate(compile_schema(job.input["schema"], field="task.output_schema"), job.input["output"])
    return {"problem": problems[0] if problems else None}


class CheckEngine(Protocol):
    """Engine calls needed to check an output."""

    def create(self, agent: str, input: Any, *, door: str) -> tuple[bool, str]: ...
    def wait(self, id: str, seconds: float) -> bool: ...
    def get(self, id: str) -> Execution: ...
    def output(self, execution: Execution) -> Any: ...
    def cancel(self, id: str) -> Execution: ...
    def discard(self, execution: Execution) -> None: ...


@dataclass
class SchemaCheck:
    """Checks a contract's schemas in the check process; schemas that passed are remembered."""

    checks: CheckQueue
    example: Callable[[str], Any]
    has_paid: Callable[[str], bool]
    _passed: OrderedDict[str, None] = field(default_factory=OrderedDict, init=False)

    def __call__(self, capability: str, terms: Terms, network: str) -> None:
        """Raises SchemaRefused; CPU time is charged to the requester's network and wallet."""
        schemas = {"input_schema": terms.input_schema, "output_schema": terms.output_schema}
        check = {**schemas, "example": self.example(capability)}
        key = hashlib.sha256(encode(check)).hexdigest()
        if key in self._passed:
            return
        requester = CheckRequester(network, terms.seeker_wallet, self.has_paid(terms.seeker_wallet))
        result = self.checks.ask(NAME, check, requester)
        if result.problem is not None and result.problem["code"] == SchemaRefused.code:
            raise SchemaRefused(result.problem["error"], **result.problem["details"])
        if result.too_long:
            raise SchemaRefused("checking the schemas takes too long", field="task.output_schema")
        if result.answer is None:
            raise busy("schemas cannot be checked right now")
        self._passed[key] = None
        while len(self._passed) > MOST_PASSED:
            self._passed.popitem(last=False)


def output_checker(runs: CheckEngine) -> Callable[[Any, Any], str | None]:
    """Returns the check of a remote agent's output against its contract: the problem, or None."""

    def check(schema: Any, output: Any) -> str | None:
        _, id = runs.create(OUTPUT_NAME, {"schema": schema, "output": output}, door="internal")
        try:
            if not runs.wait(id, SECONDS):
                raise Unavailable("the output could not be checked in time")
            execution = runs.get(id)
            found = runs.output(execution) if execution.state is State.COMPLETED else None
        finally:
            _forget(runs, id)
        if found is None:
            return "the output could not be checked against its schema"
        problem = found["problem"]
        if problem is None:
            return None
        return f"the output does not fit its schema: {problem['field']} is not {problem['expected']}"

    return check


def _forget(runs: CheckEngine, id: str) -> None:
    """Discards an internal execution without a trace."""
    execution = runs.get(id)
    if not execution.state.terminal:
        with suppress(Conflict):  # it has just ended
            runs.cancel(id)
        execution = runs.get(id)
    runs.discard(execution)

"""Compiles a stranger's schemas where that can do no harm: in a warm process, against the clock.

A schema of a kilobyte can take seconds to compile and a pattern can hang an interpreter, so the web
process never does it. It asks this internal capability over the express lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from worker.agents.declare import agent
from worker.contracts.schema import SchemaRefused, compile_schema, is_open, validate
from worker.contracts.terms import Terms
from worker.errors import Unavailable
from worker.executions.states import State

NAME = "_schema-check"
OUTPUT_NAME = "_output-check"
SECONDS = 5.0


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
                "the schema does not accept what this capability delivers",
                field="task.output_schema",
                expected="a schema that accepts the published example output",
                received=problems[0],
            )
    return {}


@agent(OUTPUT_NAME, inline=True, time_limit=2.0, attempts=1)
def check_output(job: Any) -> dict[str, Any]:
    """Hold what a remote agent delivered to the schema of its contract."""
    problems = validate(compile_schema(job.input["schema"], field="task.output_schema"), job.input["output"])
    return {"problem": problems[0] if problems else None}


class Runs(Protocol):
    """What is needed of the engine: create, wait, look."""

    def create(self, agent: str, input: Any, *, door: str) -> tuple[bool, str]: ...
    def wait(self, id: str, seconds: float) -> bool: ...
    def get(self, id: str) -> Any: ...
    def output(self, execution: Any) -> Any: ...


def checker(runs: Runs, example: Callable[[str], Any]) -> Callable[[str, Terms], None]:
    """The check as the contract book calls it."""

    def check_schemas(capability: str, terms: Terms) -> None:
        schemas = {"input_schema": terms.input_schema, "output_schema": terms.output_schema}
        _, id = runs.create(NAME, {**schemas, "example": example(capability)}, door="internal")
        if not runs.wait(id, SECONDS):
            raise Unavailable("the contract's schemas could not be checked in time")
        execution = runs.get(id)
        if execution.state is State.COMPLETED:
            return
        error = execution.error
        if error.get("code") == "SCHEMA_REFUSED":
            raise SchemaRefused(error["error"], **error["details"])
        raise SchemaRefused("the schemas take too long to check", field="task.output_schema")

    return check_schemas


def output_checker(runs: Runs) -> Callable[[Any, Any], str | None]:
    """The check of a remote agent's output against its contract: what is wrong, or None."""

    def check(schema: Any, output: Any) -> str | None:
        _, id = runs.create(OUTPUT_NAME, {"schema": schema, "output": output}, door="internal")
        if not runs.wait(id, SECONDS):
            raise Unavailable("the output could not be checked in time")
        execution = runs.get(id)
        if execution.state is not State.COMPLETED:
            return "the output could not be held to its schema"
        problem = runs.output(execution)["problem"]
        if problem is None:
            return None
        return f"the output does not fit its schema: {problem['field']} is not {problem['expected']}"

    return check

"""Checks an agent's output against the capability's schema and the contract's or kernel's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from worker.agents.causes import OutputUnfit
from worker.agents.job import Job
from worker.capabilities.declare import Capability
from worker.core.errors import Failed
from worker.engine.output import Output, OutputType
from worker.remote.outcomes import OUTPUT_UNFIT
from worker.schemas.validators import CompiledSchemas, SchemaRefused, validate

log = structlog.get_logger()


class OutputCheck:
    """Caches the compiled schemas of a process."""

    def __init__(self) -> None:
        self._schemas = CompiledSchemas()

    def check(self, capability: Capability, job: Job, output: Output) -> None:
        """Validates JSON output against its schemas; text and files do not satisfy a schema."""
        for schema in (capability.output_schema, job.output_schema):
            if not isinstance(schema, Mapping) or not schema:
                continue
            # The swarm door wraps output that is not an object in an answer first.
            kernels = job.swarm is not None and schema is job.output_schema
            if kernels and not isinstance(output.value, Mapping):
                continue
            if not output.has_value or output.type is OutputType.TEXT:
                raise _unfit(capability, [{"expected": "json", "received": output.type}])
            try:
                problems = validate(self._schemas.get(schema), output.value)
            except SchemaRefused as refused:
                if kernels:
                    continue  # kernels support only part of JSON Schema and refuse no schema
                raise _unfit(capability, [{"expected": refused.message}]) from refused
            if problems:
                raise _unfit(capability, problems)


def _unfit(capability: Capability, problems: Sequence[Mapping[str, Any]]) -> Failed:
    """The error for output that violates a schema. Nobody is charged; only the log says where it failed."""
    places = [{name: problem.get(name) for name in ("field", "expected")} for problem in problems[:5]]
    log.warning("execution.output_rejected", agent=capability.name, places=places)
    unfit = Failed("OUTPUT_SCHEMA_INVALID", OUTPUT_UNFIT)
    unfit.__cause__ = OutputUnfit(
        "; ".join(f"{each['field'] or 'output'}: {each['expected']}" for each in places)
    )
    return unfit

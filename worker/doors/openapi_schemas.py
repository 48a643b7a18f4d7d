"""The shapes that the description of the HTTP interface names."""

from __future__ import annotations

from typing import Any

from worker.executions.states import Phase, State

Node = dict[str, Any]

_TEXT: Node = {"type": "string"}
_WHOLE: Node = {"type": "integer", "minimum": 0}
_OBJECT: Node = {"type": "object"}
_TIME: Node = {"type": "string", "format": "date-time"}
_CHECKSUM: Node = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_FAILURE_STATUS: Node = {"const": "failed"}


def ref(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def _record(required: str, **properties: Node) -> Node:
    """An object; anything not named may be there too."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(of: Node) -> Node:
    return {"type": "array", "items": of}


_DELIVERABLE = _record(
    "name url checksum",
    name=_TEXT,
    url={"type": "string", "format": "uri"},
    checksum=_CHECKSUM,
    mime=_TEXT,
    size=_WHOLE,
    sealed={"type": "boolean"},
)
_OUTPUT: Node = {
    "oneOf": [
        _record("type content", type={"const": "text"}, content=_TEXT),
        _record("type content", type={"const": "json"}),
        _record("type url mime size checksum", type={"const": "file"}, checksum=_CHECKSUM, size=_WHOLE),
        _record("type items", type={"const": "multiple"}, items=_list(_OBJECT)),
        _record("type url format", type={"const": "stream"}, format={"const": "sse"}),
    ]
}
_ERROR = _record("code message details", code=_TEXT, message=_TEXT, details=_OBJECT)
_METADATA = _record(
    "execution_time_ms queue_time_ms model_used attempts",
    execution_time_ms=_WHOLE,
    queue_time_ms=_WHOLE,
    model_used=_TEXT,
    attempts=_WHOLE,
)
_OF_EVERY_TASK = {
    "contract_id": _TEXT,
    "task_id": _TEXT,
    "sequence": _WHOLE,
    "phase": {"enum": [*Phase]},
    "links": _OBJECT,
}
_EVERY = "status contract_id task_id sequence phase links"
_SUMMARY = {
    "id": _TEXT,
    "status": {"enum": [*State]},
    "agent_id": _TEXT,
    "labels": {"type": "object", "additionalProperties": _TEXT},
    "created_at": _TIME,
    "updated_at": _TIME,
}
_SUMMED = "id status agent_id labels created_at updated_at"
_EVENT = _record(
    "id execution_id type timestamp payload sequence",
    id=_TEXT,
    execution_id=_TEXT,
    step_id=_TEXT,
    type=_TEXT,
    timestamp=_TIME,
    payload=_OBJECT,
    sequence={"type": "integer", "minimum": 1},
)

SCHEMAS: Node = {
    "Manifest": _record(
        "version agent capabilities endpoint metadata",
        version={"const": "1.0"},
        agent=_record("id name owner"),
        capabilities=_list(_record("name description pricing")),
        endpoint=_record("url protocol auth"),
        metadata=_OBJECT,
    ),
    "Contract": _record(
        "version created_at parties task terms",
        version=_TEXT,
        contract_id=_TEXT,
        created_at=_TIME,
        parties=_record("seeker worker", seeker=_OBJECT, worker=_OBJECT),
        task=_record("description", description=_TEXT),
        terms=_record("price deadline payment_trigger platform_fee", price=_OBJECT, deadline=_TIME),
        sla=_OBJECT,
        signatures=_OBJECT,
        hash=_CHECKSUM,
    ),
    "ContractView": _record(
        "state contract hash",
        state={"enum": ["SIGNED", "EXECUTING", "COMPLETED"]},
        contract=ref("Contract"),
        hash=_CHECKSUM,
    ),
    "Task": {
        "oneOf": [
            _record(
                f"{_EVERY} deliverables output metadata expires_at",
                status={"const": "completed"},
                **_OF_EVERY_TASK,
                deliverables=_list(_DELIVERABLE),
                output=_OUTPUT,
                metadata=_METADATA,
                receipt={"type": ["object", "null"]},
                expires_at=_TIME,
            ),
            _record(
                f"{_EVERY} error metadata",
                status=_FAILURE_STATUS,
                **_OF_EVERY_TASK,
                error=_ERROR,
                metadata=_METADATA,
                expires_at=_TIME,
            ),
            _record(
                f"{_EVERY} poll_url estimated_completion poll_after_ms state",
                status={"enum": ["pending", "partial"]},
                **_OF_EVERY_TASK,
                poll_url={"type": "string", "format": "uri"},
                estimated_completion=_TIME,
                poll_after_ms=_WHOLE,
                state={"enum": [*State]},
                deliverables=_list(_DELIVERABLE),
                progress=_OBJECT,
                queue_position=_WHOLE,
                output=_OUTPUT,
                payment=_TEXT,
            ),
        ]
    },
    "Problem": _record(
        "status contract_id error",
        status=_FAILURE_STATUS,
        contract_id={"type": ["string", "null"]},
        error=_ERROR,
    ),
    "PaymentRequired": _record(
        "x402Version accepts error status code details",
        x402Version={"const": 1},
        accepts=_list(_OBJECT),
        error=_TEXT,
        status=_FAILURE_STATUS,
        code=_TEXT,
        details=_OBJECT,
    ),
    "Status": _record("status", status=_TEXT, checks=_OBJECT, failing=_list(_TEXT)),
    "KernelProblem": _record(
        "error code details", error=_TEXT, code=_TEXT, details={"type": ["object", "null"]}
    ),
    "NewExecution": _record(
        "agent_id",
        agent_id={"type": "string", "minLength": 1, "maxLength": 256},
        labels={"type": "object", "additionalProperties": _TEXT},
    ),
    "Signal": _record("signal_type", signal_type={"type": "string", "minLength": 1, "maxLength": 256}),
    "Execution": _record(f"{_SUMMED} input output", **_SUMMARY),
    "ExecutionPage": _record(
        "executions next_cursor", executions=_list(_record(_SUMMED, **_SUMMARY)), next_cursor=_TEXT
    ),
    "EventPage": _record("events latest_sequence", events=_list(_EVENT), latest_sequence=_WHOLE),
}

"""The shapes of the hire and ops doors, as the description of the HTTP interface names them."""

from __future__ import annotations

from worker.doors.openapi_nodes import OBJECT, TEXT, TIME, WHOLE, Node, list_of, record, ref
from worker.executions.states import Phase, State

_CHECKSUM: Node = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
_FAILURE_STATUS: Node = {"const": "failed"}

_DELIVERABLE = record(
    "name url checksum",
    name=TEXT,
    url={"type": "string", "format": "uri"},
    checksum=_CHECKSUM,
    mime=TEXT,
    size=WHOLE,
    sealed={"type": "boolean"},
)
_OUTPUT: Node = {
    "oneOf": [
        record("type content", type={"const": "text"}, content=TEXT),
        record("type content", type={"const": "json"}),
        record("type url mime size checksum", type={"const": "file"}, checksum=_CHECKSUM, size=WHOLE),
        record("type items", type={"const": "multiple"}, items=list_of(OBJECT)),
        record("type url format", type={"const": "stream"}, format={"const": "sse"}),
    ]
}
_ERROR = record("code message details", code=TEXT, message=TEXT, details=OBJECT)
_METADATA = record(
    "execution_time_ms queue_time_ms model_used attempts",
    execution_time_ms=WHOLE,
    queue_time_ms=WHOLE,
    model_used=TEXT,
    attempts=WHOLE,
)
_OF_EVERY_TASK = {
    "contract_id": TEXT,
    "task_id": TEXT,
    "sequence": WHOLE,
    "phase": {"enum": [*Phase]},
    "links": OBJECT,
}
_EVERY = "status contract_id task_id sequence phase links"
SCHEMAS: Node = {
    "Manifest": record(
        "version agent capabilities endpoint metadata",
        version={"const": "1.0"},
        agent=record("id name owner"),
        capabilities=list_of(record("name description pricing")),
        endpoint=record("url protocol auth"),
        metadata=OBJECT,
    ),
    "Contract": record(
        "version created_at parties task terms",
        version=TEXT,
        contract_id=TEXT,
        created_at=TIME,
        parties=record("seeker worker", seeker=OBJECT, worker=OBJECT),
        task=record("description", description=TEXT),
        terms=record("price deadline payment_trigger platform_fee", price=OBJECT, deadline=TIME),
        sla=OBJECT,
        signatures=OBJECT,
        hash=_CHECKSUM,
    ),
    "ContractView": record(
        "state contract hash",
        state={"enum": ["SIGNED", "EXECUTING", "COMPLETED"]},
        contract=ref("Contract"),
        hash=_CHECKSUM,
    ),
    "Task": {
        "oneOf": [
            record(
                f"{_EVERY} deliverables output metadata expires_at",
                status={"const": "completed"},
                **_OF_EVERY_TASK,
                deliverables=list_of(_DELIVERABLE),
                output=_OUTPUT,
                metadata=_METADATA,
                receipt={"type": ["object", "null"]},
                expires_at=TIME,
            ),
            record(
                f"{_EVERY} error metadata",
                status=_FAILURE_STATUS,
                **_OF_EVERY_TASK,
                error=_ERROR,
                metadata=_METADATA,
                expires_at=TIME,
            ),
            record(
                f"{_EVERY} poll_url estimated_completion poll_after_ms state",
                status={"enum": ["pending", "partial"]},
                **_OF_EVERY_TASK,
                poll_url={"type": "string", "format": "uri"},
                estimated_completion=TIME,
                poll_after_ms=WHOLE,
                state={"enum": [*State]},
                deliverables=list_of(_DELIVERABLE),
                progress=OBJECT,
                queue_position=WHOLE,
                output=_OUTPUT,
                payment=TEXT,
            ),
        ]
    },
    "Problem": record(
        "status contract_id error",
        status=_FAILURE_STATUS,
        contract_id={"type": ["string", "null"]},
        error=_ERROR,
    ),
    "PaymentRequired": record(
        "x402Version accepts error status code details",
        x402Version={"const": 1},
        accepts=list_of(OBJECT),
        error=TEXT,
        status=_FAILURE_STATUS,
        code=TEXT,
        details=OBJECT,
    ),
    "Status": record("status", status=TEXT, checks=OBJECT, failing=list_of(TEXT)),
}

"""The shapes of the kernel door: bodies, answers, and what comes over the streams of agents and runners."""

from __future__ import annotations

from worker.doors.openapi_nodes import ANYTHING, FLAG, OBJECT, TEXT, TIME, WHOLE, Node, list_of, record
from worker.executions.events import Kind
from worker.executions.states import State

NAME: Node = {"type": "string", "minLength": 1, "maxLength": 256}
_MAYBE: Node = {"type": ["string", "null"]}

_SUMMARY = {
    "id": TEXT,
    "status": {"enum": [*State]},
    "agent_id": TEXT,
    "labels": {"type": "object", "additionalProperties": TEXT},
    "created_at": TIME,
    "updated_at": TIME,
}
_SUMMED = "id status agent_id labels created_at updated_at"
_EVENT = record(
    "id execution_id type timestamp payload sequence",
    id=TEXT,
    execution_id=TEXT,
    step_id=TEXT,
    type=TEXT,
    timestamp=TIME,
    payload=OBJECT,
    sequence={"type": "integer", "minimum": 1},
)
# In the log and beside it a step ends in one of these ways.
_ENDED: Node = {"enum": ["succeeded", "failed", "timed_out", "cancelled"]}
_PAST_STEP = record(
    "step_id tool_id status completed_at",
    step_id=TEXT,
    tool_id=TEXT,
    status=_ENDED,
    arguments=ANYTHING,
    result=ANYTHING,
    error=TEXT,
    completed_at=TIME,
)
_INTENTS = {
    "invoke_tool": record(
        "type tool_id",
        type={"const": "invoke_tool"},
        tool_id=NAME,
        arguments=ANYTHING,
        remote={"type": ["boolean", "null"]},
        idempotency_key=_MAYBE,
    ),
    "wait": record("type signal_type", type={"const": "wait"}, signal_type=NAME, idempotency_key=_MAYBE),
    "complete": record("type", type={"const": "complete"}, output=ANYTHING, idempotency_key=_MAYBE),
    "fail": record(
        "type error",
        type={"const": "fail"},
        error={"type": "string", "minLength": 1, "maxLength": 4096},
        idempotency_key=_MAYBE,
    ),
}
# What comes over the streams, by the events' names.
AGENT_EVENTS: dict[str, str] = {
    Kind.EXECUTION_ASSIGNED: "Assignment",
    Kind.TOOL_RESULT: "ToolResult",
    Kind.SIGNAL_RECEIVED: "ReceivedSignal",
    Kind.APPROVAL_RESOLVED: "ResolvedApproval",
    Kind.EXECUTION_CANCELLED: "CancelledWork",
}
RUNNER_EVENTS: dict[str, str] = {Kind.JOB_ASSIGNED: "Job"}

SCHEMAS: Node = {
    "KernelProblem": record(
        "error code details", error=TEXT, code=TEXT, details={"type": ["object", "null"]}
    ),
    "NewExecution": record(
        "agent_id", agent_id=NAME, labels={"type": "object", "additionalProperties": TEXT}
    ),
    "Signal": record("signal_type", signal_type=NAME),
    "Execution": record(f"{_SUMMED} input output", **_SUMMARY),
    "ExecutionPage": record(
        "executions next_cursor", executions=list_of(record(_SUMMED, **_SUMMARY)), next_cursor=TEXT
    ),
    "EventPage": record("events latest_sequence", events=list_of(_EVENT), latest_sequence=WHOLE),
    "IntentRequest": record(
        "execution_id session_id intent",
        execution_id=TEXT,
        session_id=TEXT,
        intent={"oneOf": [*_INTENTS.values()]},
    ),
    "IntentAnswer": {
        "oneOf": [
            record("accepted", accepted={"const": True}, step_id=TEXT, pending_approval={"const": True}),
            record("accepted error", accepted={"const": False}, error=TEXT),
        ]
    },
    "StepResult": record(
        "execution_id session_id step_id success",
        execution_id=TEXT,
        session_id=TEXT,
        step_id=TEXT,
        success=FLAG,
        data=ANYTHING,
        error=_MAYBE,
    ),
    "JobResult": record(
        "job_id execution_id step_id success",
        job_id=TEXT,
        execution_id=TEXT,
        step_id=TEXT,
        success=FLAG,
        data=ANYTHING,
        error=_MAYBE,
        retryable={"type": ["boolean", "null"]},
        consumer_id=_MAYBE,
        started_at=TIME,
        completed_at=TIME,
    ),
    "StepStarted": record("execution_id runner_id", execution_id=TEXT, runner_id=NAME),
    "ToolIds": record("tools", tools=list_of({"type": "string", "maxLength": 256})),
    "Tools": record("tools", tools=list_of(record("id", id=NAME, description=_MAYBE, input_schema=ANYTHING))),
    "ToolList": list_of(
        record(
            "id description input_schema runner_id registered_at",
            id=TEXT,
            description=TEXT,
            input_schema=ANYTHING,
            runner_id=TEXT,
            registered_at=TIME,
        )
    ),
    "Assignment": record(
        "execution_id session_id agent_id input",
        execution_id=TEXT,
        session_id=TEXT,
        agent_id=TEXT,
        input=ANYTHING,
        labels={"type": "object", "additionalProperties": TEXT},
        history=list_of(_PAST_STEP),
    ),
    "ToolResult": record(
        "execution_id step_id status",
        execution_id=TEXT,
        step_id=TEXT,
        status=_ENDED,
        result=ANYTHING,
        error=TEXT,
    ),
    "ReceivedSignal": record(
        "execution_id signal_type payload", execution_id=TEXT, signal_type=TEXT, payload=ANYTHING
    ),
    "ResolvedApproval": record(
        "execution_id step_id approved session_id",
        execution_id=TEXT,
        step_id=TEXT,
        approved=FLAG,
        session_id=TEXT,
    ),
    "CancelledWork": record("execution_id", execution_id=TEXT, reason=TEXT),
    "Job": record(
        "id execution_id step_id attempt tool_id tool_version arguments deadline not_before",
        id=TEXT,
        execution_id=TEXT,
        step_id=TEXT,
        attempt={"type": "integer", "minimum": 1},
        tool_id=TEXT,
        tool_version=WHOLE,
        arguments=ANYTHING,
        deadline=TIME,
        not_before=TIME,
    ),
}

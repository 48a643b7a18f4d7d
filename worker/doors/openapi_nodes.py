"""The pieces of the description of the HTTP interface: shapes, operations, answers, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Node = dict[str, Any]

TEXT: Node = {"type": "string"}
FLAG: Node = {"type": "boolean"}
WHOLE: Node = {"type": "integer", "minimum": 0}
OBJECT: Node = {"type": "object"}
TIME: Node = {"type": "string", "format": "date-time"}
ANYTHING: Node = {}


# Shapes


def ref(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def record(required: str, **properties: Node) -> Node:
    """An object; anything not named may be there too."""
    return {"type": "object", "required": required.split(), "properties": properties}


def list_of(each: Node) -> Node:
    return {"type": "array", "items": each}


# Operations


def operation(
    name: str,
    summary: str,
    answers: Mapping[int, Node],
    always: Mapping[int, str],
    problem: str = "Problem",
    *,
    parameters: list[Node] | None = None,
    body: Node | None = None,
) -> Node:
    """One verb of a path; `always` are the reasons that any operation of the door may have to refuse."""
    refused = {status: json(problem, why) for status, why in always.items()}
    if body:
        refused[408] = json(problem, "The body took longer than a minute; nothing was done.")
    made: Node = {
        "operationId": name,
        "summary": summary,
        "responses": {str(status): answer for status, answer in sorted({**refused, **answers}.items())},
    }
    if parameters:
        made["parameters"] = parameters
    if body:
        made["requestBody"] = body
    return made


def open_to(made: Node, *schemes: str) -> Node:
    """The same for whoever has one of these credentials."""
    return {**made, "security": [{scheme: []} for scheme in schemes]}


def sent(schema: str) -> Node:
    """A body of this shape."""
    return {"required": True, "content": {"application/json": {"schema": ref(schema)}}}


# Answers


def json(schema: str, description: str, headers: Iterable[str] = ()) -> Node:
    made: Node = {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
    if headers:
        made["headers"] = {name: {"schema": TEXT} for name in headers}
    return made


def failed(*statuses: int) -> dict[int, Node]:
    return {status: json("Problem", "Refused, or failed; the code says why.") for status in statuses}


def bare(*statuses: int) -> dict[int, Node]:
    return {status: {"description": "Refused."} for status in statuses}


def content(description: str) -> Node:
    return {"description": description, "content": {"*/*": {}}}


def events(data: Mapping[str, str] | None = None) -> Node:
    """A stream; `data` are the shapes of its events' data by the events' names."""
    made: Node = {"description": "Events.", "content": {"text/event-stream": {"schema": TEXT}}}
    if data:
        # OpenAPI has no word of its own for what a stream's events hold.
        made["x-events"] = {event: ref(schema) for event, schema in data.items()}
    return made


# Parameters


def header(name: str, description: str, *, required: bool = False) -> Node:
    return {"in": "header", "name": name, "required": required, "description": description, "schema": TEXT}


def in_path(name: str, schema: Node | None = None) -> Node:
    return {"in": "path", "name": name, "required": True, "schema": schema or {**TEXT, "minLength": 1}}


def in_query(name: str, schema: Node, *, required: bool = False) -> Node:
    return {"in": "query", "name": name, "required": required, "schema": schema}

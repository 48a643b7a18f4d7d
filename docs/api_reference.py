"""The API reference in Markdown, made from the OpenAPI documents that a worker serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from worker.doors.openapi.documents import Publisher, operator_document, seeker_document

Node = dict[str, Any]

WORKER = "https://worker.example"
_SEEKERS = """\
# API reference

What seekers call. Made from a worker's OpenAPI document by `make docs`; do not edit. Every worker serves its
own at `/openapi.json`, with a path for each capability that it sells. The routes of the operator, of agents
and of kernels are in [another reference](api-operator.md).

Every error has a code, and advice: [error codes](errors.md).
"""
_OPERATORS = """\
# API reference: operator, agents, kernels

What the operator, remote agents, runners and swarm kernels call. Made from a worker's OpenAPI document by
`make docs`; do not edit. Every worker serves its own at `/openapi/operator.json`. [Kernel](kernel.md) and
[Swarm](swarm.md) say how the routes are used; those of seekers are in [another reference](api.md).
"""


def seekers_page() -> str:
    """docs/api.md."""
    return _page(_SEEKERS, json.loads(seeker_document(Publisher(WORKER))))


def operators_page() -> str:
    """docs/api-operator.md."""
    return _page(_OPERATORS, json.loads(operator_document(WORKER, swarm=True)))


def _page(head: str, document: Node) -> str:
    lines = [head, "## Credentials", "", *_credentials(document), "", "## Routes", ""]
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            lines += _operation(f"{verb.upper()} {path}", operation)
    lines += ["## Shared answers", "", *_shared_answers(document)]
    lines += ["## Schemas", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", *_schema(schema)]
    return "\n".join(lines)


def _credentials(document: Node) -> Iterator[str]:
    for name, scheme in document["components"]["securitySchemes"].items():
        kind = f"header `{scheme['name']}`" if scheme["type"] == "apiKey" else scheme["scheme"]
        yield f"- **{name}** ({kind}): {scheme['description']}"


def _operation(title: str, operation: Node) -> Iterator[str]:
    yield from (f"### {title}", "", operation["summary"].rstrip(".") + ".", "")
    if "description" in operation:
        yield from (operation["description"], "")
    if operation.get("security"):
        needed = " or ".join(" with ".join(each) or "none" for each in operation["security"])
        yield from (f"Credentials: {needed}.", "")
    yield from _parameters(operation.get("parameters", []))
    if "requestBody" in operation:
        yield from _body(operation["requestBody"])
    yield from _answers(operation["responses"])


def _parameters(parameters: list[Node]) -> Iterator[str]:
    if parameters:
        rows = [
            (
                f"`{each['name']}`",
                each["in"] + (", required" if each.get("required") else ""),
                _type(each["schema"]),
                each.get("description", ""),
            )
            for each in parameters
        ]
        yield from _table(("parameter", "in", "type", "meaning"), rows)


def _body(body: Node) -> Iterator[str]:
    for mime, content in body["content"].items():
        said = body.get("description") or content["schema"].get("description", "")
        yield from (f"Body: `{mime}`, {_type(content['schema'])}. {said}".rstrip(), "")
        if "example" in content:
            yield from _json(content["example"])


def _answers(responses: Node) -> Iterator[str]:
    own = {status: answer for status, answer in responses.items() if "$ref" not in answer}
    rows = [(status, answer["description"], _bodies(answer)) for status, answer in sorted(own.items())]
    yield from _table(("status", "meaning", "body"), rows)
    if shared := sorted(responses.keys() - own.keys()):
        yield from (f"Also {', '.join(shared)}: [shared answers](#shared-answers).", "")


def _shared_answers(document: Node) -> Iterator[str]:
    """A row for each answer that routes refer to, with the statuses that it has somewhere."""
    statuses: dict[str, set[str]] = {}
    for verbs in document["paths"].values():
        for operation in verbs.values():
            for status, answer in operation["responses"].items():
                if "$ref" in answer:
                    statuses.setdefault(_name(answer), set()).add(status)
    rows = []
    for name, answer in document["components"]["responses"].items():
        rows.append((", ".join(sorted(statuses[name])), answer["description"], _bodies(answer)))
    yield from _table(("status", "meaning", "body"), sorted(rows))


def _bodies(answer: Node) -> str:
    bodies = answer.get("content", {}).items()
    return ", ".join(f"{_type(content.get('schema', {}))} (`{mime}`)" for mime, content in bodies)


def _schema(schema: Node) -> Iterator[str]:
    if "description" in schema:
        yield from (schema["description"], "")
    if schema.get("properties"):
        required = schema.get("required", [])
        rows = [
            (f"`{name}`", _type(each), "yes" if name in required else "", each.get("description", ""))
            for name, each in schema["properties"].items()
        ]
        yield from _table(("field", "type", "required", "meaning"), rows)
    else:
        yield from (_type(schema), "")
    for example in schema.get("examples", [])[:1]:
        yield from _json(example)


def _type(schema: Node) -> str:
    """A schema in a few words; a named one as a link."""
    if "$ref" in schema:
        return f"[{_name(schema)}](#{_name(schema).lower()})"
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[choice])))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kinds = schema.get("type", "any value")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def _name(reference: Node) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |"
    yield ""


def _json(value: Any) -> Iterator[str]:
    yield from ("```json", json.dumps(value, ensure_ascii=False, indent=2), "```", "")

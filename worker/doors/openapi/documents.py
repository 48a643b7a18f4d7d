"""The OpenAPI 3.1 documents: one for seekers, one for the operator and kernels.

The YAML files beside this module define routes and schemas; tests compare them with the running service.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from worker.capabilities.catalog import describe, from_description
from worker.capabilities.declare import Capability
from worker.core.version import __version__
from worker.doors.openapi.purchases import payment_info, purchase_path
from worker.hiring.discovery import CHAT, COMPLETIONS, PATH

Node = dict[str, Any]

_HERE = Path(__file__).parent
_SEEKER = ("buy", "chat", "hire", "hire_contracts", "hire_tasks", "hire_problems", "public", "site", "pages")
_OPERATOR = ("kernel", "kernel_executions", "kernel_remote", "kernel_agents", "ops", "dashboard")
_SWARM = ("swarm", "swarm_schemas")
# The C parser is ten times as fast; PyYAML may be built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Publisher:
    """The publisher of the document. `asset` is the dollar's address, `guidance` is text for models."""

    url: str
    asset: str = ""
    guidance: str = ""
    email: str | None = None


def seeker_document(publisher: Publisher, sold: Iterable[Capability] = ()) -> bytes:
    """The seeker's document as JSON, with a path for each of the capabilities for sale."""
    capabilities = [describe(each) for each in sold]
    return _seeker_document(publisher, json.dumps(capabilities, ensure_ascii=False))


# The capabilities for sale change when work processes of another version start.
@lru_cache(maxsize=2)
def _seeker_document(publisher: Publisher, capabilities: str) -> bytes:
    sold = [from_description(each) for each in json.loads(capabilities)]
    description = (
        "Hire a worker over HTTPS and pay it per task in USDC (x402). `/manifest` has the schemas of each "
        "capability's input and output; the operator's and kernels' routes are in `/openapi/operator.json`."
    )
    document = _document("HIRE worker", description, publisher.url, _SEEKER)
    _publish(document, publisher)
    examples = {
        each.name: {"summary": each.description or each.name, "value": each.example_input}
        for each in sold
        if each.example_input is not None
    }
    if examples:
        body = document["paths"]["/execute"]["post"]["requestBody"]["content"]["application/json"]
        del body["example"]
        body["examples"] = examples
    if sold:
        _show_chat(document, sold, publisher)
        # Each capability's own path replaces the generic one.
        general = document["paths"].pop(PATH + "{capability}")["post"]
        paths = {
            PATH + each.name: purchase_path(general, each, PATH + each.name, publisher.asset) for each in sold
        }
        document["paths"] = {**paths, **document["paths"]}
    return _encoded(document)


def _show_chat(document: Node, sold: Iterable[Capability], publisher: Publisher) -> None:
    """Gives the chat door its price, or leaves it out where no chat is on sale."""
    chat = next((each for each in sold if each.name == CHAT), None)
    if chat is None:
        del document["paths"][COMPLETIONS]
        for schema in ("ChatRequest", "ChatMessage", "ChatCompletion"):
            del document["components"]["schemas"][schema]
    else:
        document["paths"][COMPLETIONS]["post"]["x-payment-info"] = payment_info(chat, publisher.asset)


def _publish(document: Node, publisher: Publisher) -> None:
    """Adds fields for catalogs and agents: contact, guidance, and that no route needs an account."""
    if publisher.email:
        document["info"]["contact"] = {"email": publisher.email}
    if publisher.guidance:
        document["info"]["x-guidance"] = publisher.guidance
    llms = f"{publisher.url}/llms.txt"
    document["x-agentcash-guidance"] = {"llmsTxtUrl": llms}
    document["x-service-info"] = {
        "categories": ["agents"],
        "docs": {"apiReference": f"{publisher.url}/openapi.json", "llms": llms},
    }
    for verbs in document["paths"].values():
        for operation in verbs.values():
            operation.setdefault("security", [])


@cache
def seeker_operations() -> list[Node]:
    """Every operation of the seeker's document in a line: verb, path, id and summary."""
    paths = _document("", "", "", _SEEKER)["paths"]
    return [
        {"verb": verb.upper(), "path": path, "id": each["operationId"], "summary": each["summary"]}
        for path, verbs in paths.items()
        for verb, each in verbs.items()
    ]


@cache
def operator_document(public_url: str, *, swarm: bool) -> bytes:
    """The document for the operator, kernels, agents and runners, as JSON; `swarm` adds the swarm door."""
    description = "Run a HIRE worker and connect agents, runners and kernels to it."
    parts = _OPERATOR + _SWARM if swarm else _OPERATOR
    return _encoded(_document("HIRE worker: operator", description, public_url, parts))


def _document(title: str, description: str, public_url: str, parts: tuple[str, ...]) -> Node:
    paths: Node = {}
    components: dict[str, Node] = {}
    for part in map(_read, parts):
        paths |= part.get("paths", {})
        for kind, named in part.get("components", {}).items():
            components.setdefault(kind, {}).update(named)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": description},
        "servers": [{"url": public_url}],
        "paths": paths,
        "components": components,
    }


def _encoded(document: Node) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _read(part: str) -> Node:
    """Reads one file; it may define YAML anchors under `x-shared`, which no document includes."""
    read: Node = yaml.load((_HERE / f"{part}.yaml").read_bytes(), _LOADER)
    return read

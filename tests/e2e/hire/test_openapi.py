"""The OpenAPI documents describe every route and every response of the running service."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.hire.hire_session import HireSession, hire_tree
from tests.fakes.kernel_request import VERIFY, contract, execute_body
from worker.app import create_app
from worker.core.settings import Settings
from worker.core.states import Phase as ExecutionPhase
from worker.core.states import State
from worker.doors.openapi import documents
from worker.doors.openapi.documents import Publisher, operator_document, seeker_document
from worker.engine.events import Kind
from worker.swarm.policies import KERNEL_HASHES, VERSION

ADDRESSES = ("/openapi.json", "/openapi/operator.json")
VERBS = ("get", "put", "post", "delete", "head")
STORE = "redis://127.0.0.1:9"
CONFIG = """
[capability.score]
swarm = true
task_types = ["score", "*"]
"""
# One capability's path represents all of them.
BOUGHT = "/buy/score"
OPEN_STREAMS = (
    "/v0/agents/stream",
    "/v0/runners/stream",
    "/dashboard/stream",
    "/dashboard/executions/{id}/stream",
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("swarm", [(), (("kernel", "k" * 32),)], ids=["closed", "open"])
def test_every_route_is_documented_and_every_documented_route_exists(swarm: tuple[Any, ...]) -> None:
    """Every route of the application is documented, and every documented route exists."""
    app = create_app(Settings(redis_url=STORE, worker_env="test", swarm_keys=swarm))
    routes = {
        (verb.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for verb in rule.methods or ()
        if verb != "OPTIONS" and not (verb == "HEAD" and not rule.rule.startswith("/files/"))
    }
    described = [app.test_client().get(address).get_json()["paths"] for address in ADDRESSES]
    seekers, operators = [
        {(verb, path) for path, verbs in paths.items() for verb in verbs if verb in VERBS}
        for paths in described
    ]
    assert routes == seekers | operators
    assert not seekers & operators
    assert not any(path.startswith(("/v0/", "/swarm/", "/metrics", "/ready")) for _, path in seekers)
    assert any(path.startswith("/swarm/") for _, path in operators) is bool(swarm)


WHOLE = {
    "seeker": json.loads(seeker_document(Publisher("https://worker.example"))),
    "operator": json.loads(operator_document("https://worker.example", swarm=True)),
    "operator without swarm": json.loads(operator_document("https://worker.example", swarm=False)),
}
each_document = pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE.keys())


def operations(whole: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, verbs in whole["paths"].items() for operation in verbs.values()]


def answers(whole: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """An operation's responses by status, including shared ones."""
    shared = whole["components"].get("responses", {})
    return {
        status: shared[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        for status, answer in operation["responses"].items()
    }


@each_document
def test_documents_are_valid_openapi(whole: dict[str, Any]) -> None:
    """The official validator accepts the document."""
    validate(whole)


@each_document
def test_no_duplicate_operation_ids_or_dangling_references(whole: dict[str, Any]) -> None:
    """Operation ids differ, path parameters are declared, and every component exists and is used."""
    names = [operation["operationId"] for _, operation in operations(whole)]
    assert len(names) == len(set(names))
    for path, operation in operations(whole):
        declared = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))
    components = whole["components"]
    for kind in ("schemas", "responses"):
        assert set(re.findall(rf"#/components/{kind}/(\w+)", repr(whole))) == set(components[kind])
    schemes = {
        name for _, each in operations(whole) for security in each.get("security", []) for name in security
    }
    assert schemes == set(components.get("securitySchemes", {}))


def test_yaml_files_are_all_used_and_do_not_overlap() -> None:
    """Everything named in the YAML files is in one of the documents: no entry replaces another."""
    files = [yaml.safe_load(path.read_text()) for path in Path(documents.__file__).parent.glob("*.yaml")]
    whole = [WHOLE["seeker"], WHOLE["operator"]]

    def named(parts: list[dict[str, Any]], kind: str) -> int:
        return sum(len(each.get("components", {}).get(kind, {})) for each in parts)

    assert sum(len(each.get("paths", {})) for each in files) == sum(len(each["paths"]) for each in whole)
    for kind in ("schemas", "responses", "securitySchemes"):
        assert named(files, kind) == named(whole, kind)


@each_document
def test_operations_with_a_body_document_408(whole: dict[str, Any]) -> None:
    """Every operation with a body documents the 408 for a slow sender, in its door's error format."""
    for path, operation in operations(whole):
        described = answers(whole, operation)
        slow = described.get("408")
        assert (slow is not None) is ("requestBody" in operation), path
        assert slow is None or slow["content"] == described["500"]["content"], path


@each_document
def test_every_schema_has_examples_that_fit_it(whole: dict[str, Any]) -> None:
    """Each named schema has at least one example, and all examples are valid."""
    for name, schema in whole["components"]["schemas"].items():
        assert schema.get("examples"), name
        rules = {"$ref": f"#/components/schemas/{name}", "components": whole["components"]}
        for example in schema["examples"]:
            Draft202012Validator(rules, format_checker=FormatChecker()).validate(example)


@each_document
def test_every_operation_has_request_and_response_examples(whole: dict[str, Any]) -> None:
    """Parameters have valid examples; bodies and responses have their own or their named schema's."""
    for path, operation in operations(whole):
        for each in operation.get("parameters", []):
            Draft202012Validator(each["schema"]).validate(each["example"])
        shown = [operation.get("requestBody", {}), *answers(whole, operation).values()]
        for kind, media in [pair for each in shown for pair in each.get("content", {}).items()]:
            named = "$ref" in media.get("schema", {})
            # A deliverable can be any bytes.
            assert named or "example" in media or kind == "*/*", (path, kind)


def test_returned_schemas_are_named_components() -> None:
    """Schemas from which a client generator makes classes are named components, under these names."""
    seeker, operator = WHOLE["seeker"]["components"]["schemas"], WHOLE["operator"]["components"]["schemas"]
    wanted = "Manifest Capability Contract Task CompletedTask FailedTask OpenTask Deliverable Receipt Event"
    assert {*wanted.split(), "Problem", "PaymentRequired"} <= set(seeker)
    assert {"Execution", "Event", "Intent", "Tool", "Job", "KernelProblem", "Verdict"} <= set(operator)
    for name in (*seeker, *operator):
        for form in (seeker | operator)[name].get("oneOf", []):
            assert "$ref" in form, name


def test_documented_enums_match_the_code() -> None:
    """States, phases, verification policies and stream events match the code."""
    seeker, operator = WHOLE["seeker"]["components"]["schemas"], WHOLE["operator"]["components"]["schemas"]
    states = [*State]
    assert seeker["Phase"]["enum"] == [*ExecutionPhase]
    assert seeker["OpenTask"]["properties"]["state"]["enum"] == states
    assert operator["Execution"]["properties"]["status"]["enum"] == states
    assert operator["ExecutionSummary"]["properties"]["status"]["enum"] == states
    assert operator["PolicyBinding"]["properties"]["policy_id"]["enum"] == [*KERNEL_HASHES]
    assert operator["PolicyBinding"]["properties"]["policy_version"]["const"] == VERSION
    events = {
        event
        for _, operation in operations(WHOLE["operator"])
        for answer in operation["responses"].values()
        for event in answer.get("x-events", {})
    }
    assert events - {"*"} <= {*Kind}
    charged = seeker["ErrorDetails"]["properties"]["charged"]["type"]
    assert charged == ["boolean", "null"]


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker of this module's own; one of its agents is enabled for kernels too."""
    home = tmp_path_factory.mktemp("described")
    (home / "swarm.toml").write_text(CONFIG)
    with hire_tree(home, WORKER_ENV="test", WORKER_CONFIG=str(home / "swarm.toml")) as session:
        yield session


@pytest.fixture(name="samples", scope="module")
def _samples(session: HireSession) -> dict[str, list[str]]:
    """Existing ids, for use in generated requests."""
    contract, body = session.done("image", {})
    open_contract = session.contract("score")
    file = body["deliverables"][0]["url"].split("/")[-4:]
    created = requests.post(
        f"{session.url}/v0/executions",
        json={"agent_id": "text", "input": {"text": "x"}},
        headers={"Authorization": f"Bearer {session.facts['kernel_token']}"},
        timeout=10,
    )
    assert created.status_code == 201, created.text
    return {
        "X-Contract-ID": [contract, open_contract, "ctr_unknown"],
        "task_id": [body["task_id"]],
        "capability": ["score"],
        "id": [created.json()["id"]],
        "file": file,
    }


def with_samples(case: Any, samples: dict[str, list[str]], turn: int) -> None:
    """Gives every other request existing ids and a plausible execute body."""
    if turn % 2:
        return
    path = dict(case.path_parameters or {})
    for name in path:
        if name in samples:
            path[name] = samples[name][0]
    if case.operation.path.startswith("/files"):
        path = dict(zip(("execution_id", "which", "token", "name"), samples["file"], strict=True))
    case.path_parameters = path
    named = samples["X-Contract-ID"]
    case.headers = {**(case.headers or {}), "X-Contract-ID": named[turn // 2 % len(named)]}
    if case.operation.path in ("/execute", BOUGHT):
        for name in ("PAYMENT-SIGNATURE", "X-PAYMENT", "X-Webhook-URL"):
            case.headers.pop(name, None)
        case.body = {"score": turn} if turn % 4 else {}
    if case.operation.path == "/swarm/execute":
        case.body = proposing(turn)
    if case.operation.path.endswith("/verify"):
        case.body = VERIFY[0]["request"]


def proposing(turn: int) -> dict[str, Any]:
    """A kernel's request for a candidate."""
    ids = dict.fromkeys(("task_id", "execution_id", "attempt_id"), f"exec-{turn}")
    rules = contract(output_schema={})
    return execute_body(**ids, task_type="score", inputs={"score": turn}, task_contract=rules)


def credentials(session: HireSession, operation: Any) -> dict[str, str]:
    """The credentials of an operation: a kernel's password, else the operator's bearer token."""
    asked = operation.definition.raw.get("security", [])
    if {"kernelPassword": []} not in asked:
        return {"Authorization": f"Bearer {session.facts['kernel_token']}"}
    user, password = session.facts["swarm"]["user"], session.facts["swarm"]["password"]
    shown = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {shown}"}


def call(case: Any, headers: dict[str, str]) -> Any:
    """Returns the response; of a stream that stays open, only the beginning."""
    if case.operation.path not in OPEN_STREAMS:
        return case.call(headers=headers, timeout=10)
    transport = case.as_transport_kwargs(headers=headers)
    answer = requests.request(**transport, stream=True, timeout=10)
    if answer.status_code == 200:
        assert next(answer.iter_lines()) == b"retry: 5000"
        answer.raw.close()
        answer._content = b"retry: 5000\n\n"
    return Response.from_requests(answer, verify=True)


def test_execute_shows_each_capabilitys_example_input(session: HireSession) -> None:
    """The seeker's document shows each capability's own example, by name, and stays valid."""
    whole = session.http.get(f"{session.url}/openapi.json").json()
    validate(whole)
    body = whole["paths"]["/execute"]["post"]["requestBody"]["content"]["application/json"]
    assert body["examples"] == {"score": {"summary": "Returns JSON.", "value": {"score": 7}}}


def test_responses_match_the_documentation(session: HireSession, samples: dict[str, list[str]]) -> None:
    """Generated requests, some with existing ids, get only documented responses."""
    schemas = [schemathesis.openapi.from_url(session.url + address) for address in ADDRESSES]
    seen: set[tuple[str, int]] = set()
    turns = count()

    def hold(operation: Any, mode: GenerationMode) -> None:
        follows = operation.path.endswith("/stream") or operation.path.startswith("/stream")
        shown = credentials(session, operation) | ({"Last-Event-ID": "999"} if follows else {})

        @seed(20260101)
        @settings(
            max_examples=12,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            with_samples(case, samples, next(turns))
            response = call(case, shown)
            seen.add((operation.label, response.status_code))
            case.validate_response(response, checks=CHECKS)

        send()

    for result in chain.from_iterable(schema.get_all_operations() for schema in schemas):
        operation = result.ok()
        if operation.path.startswith("/buy/") and operation.path != BOUGHT:
            continue
        hold(operation, GenerationMode.POSITIVE)
        # A purchase accepts any body, so none is invalid.
        if operation.path != BOUGHT and (list(operation.query) or list(operation.body)):
            hold(operation, GenerationMode.NEGATIVE)
    assert {status for _, status in seen} >= {200, 201, 400, 402, 404, 409}, seen
    assert {("GET /tasks/{task_id}", 200), ("POST /execute", 402)} <= seen
    assert {(f"POST {BOUGHT}", status) for status in (402, 422)} <= seen
    assert ("GET /tasks", 401) in seen
    kernels = {(f"POST {path}", 200) for path in ("/swarm/execute", "/swarm/verify", "/verify")}
    streams = {(f"GET {path}", 200) for path in OPEN_STREAMS}
    assert kernels | streams | {("GET /capabilities", 200), ("GET /v0/tools", 200)} <= seen, seen

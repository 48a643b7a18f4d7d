"""The description of the interface is true: of every route, and of what the running service answers."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.hire.exchange import Shop, hire_tree
from tests.fakes.kernel_request import VERIFY, contract, execute_body
from worker.app import create_app
from worker.doors.openapi import document
from worker.settings import Settings

VERBS = ("get", "put", "post", "delete", "head")
STORE = "redis://127.0.0.1:9"
CONFIG = """
[capability.score]
swarm = true
task_types = ["score", "*"]
"""
OPEN_STREAMS = ("/v0/agents/stream", "/v0/runners/stream")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize("swarm", [(), (("kernel", "k" * 32),)], ids=["closed", "open"])
def test_every_route_is_described_and_every_description_is_a_route(swarm: tuple[Any, ...]) -> None:
    """No route of the application is missing from the document, and it names none that does not exist."""
    app = create_app(Settings(redis_url=STORE, worker_env="test", swarm_keys=swarm))
    routes = {
        (verb.lower(), re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for verb in rule.methods or ()
        if verb != "OPTIONS" and not (verb == "HEAD" and not rule.rule.startswith("/files/"))
    }
    paths = app.test_client().get("/openapi.json").get_json()["paths"]
    named = {(verb, path) for path, verbs in paths.items() for verb in verbs if verb in VERBS}
    assert routes == named
    assert any(path.startswith("/swarm/") for _, path in named) is bool(swarm)


def test_names_are_unique_and_references_lead_somewhere() -> None:
    """Operation ids differ, path parameters are declared, and every reference has its schema."""
    whole = document("https://worker.example", swarm=True)
    operations = [(path, operation) for path, verbs in whole["paths"].items() for operation in verbs.values()]
    names = [operation["operationId"] for _, operation in operations]
    assert len(names) == len(set(names))
    for path, operation in operations:
        declared = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))
    components = whole["components"]
    assert set(re.findall(r"#/components/schemas/(\w+)", repr(whole))) == set(components["schemas"])
    schemes = {name for _, each in operations for given in each.get("security", []) for name in given}
    assert schemes == set(components["securitySchemes"])


def test_whatever_takes_a_body_may_find_it_too_slow() -> None:
    """Every operation with a body has the 408 of a sender who takes too long, in its own door's form."""
    paths = document("https://worker.example", swarm=True)["paths"]
    for path, verbs in paths.items():
        for operation in verbs.values():
            forms = {
                str(answer.get("content"))
                for status, answer in operation["responses"].items()
                if status == "500"
            }
            slow = operation["responses"].get("408")
            assert (slow is not None) is ("requestBody" in operation), path
            assert slow is None or str(slow["content"]) in forms, path


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A worker of this module's own: one of its agents is open to kernels too."""
    home = tmp_path_factory.mktemp("described")
    (home / "swarm.toml").write_text(CONFIG)
    with hire_tree(home, WORKER_ENV="test", WORKER_CONFIG=str(home / "swarm.toml")) as shop:
        yield shop


@pytest.fixture(name="samples", scope="module")
def _samples(shop: Shop) -> dict[str, list[str]]:
    """Ids that exist, for generated requests to use."""
    contract, body = shop.done("image", {})
    open_contract = shop.contract("score")
    file = body["deliverables"][0]["url"].split("/")[-4:]
    made = requests.post(
        f"{shop.url}/v0/executions",
        json={"agent_id": "text", "input": {"text": "x"}},
        headers={"Authorization": f"Bearer {shop.facts['kernel_token']}"},
        timeout=10,
    )
    assert made.status_code == 201, made.text
    return {
        "X-Contract-ID": [contract, open_contract, "ctr_unknown"],
        "task_id": [body["task_id"]],
        "id": [made.json()["id"]],
        "file": file,
    }


def with_samples(case: Any, samples: dict[str, list[str]], turn: int) -> None:
    """Every other request gets ids that exist, and is an execute that could be meant."""
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
    if case.operation.path == "/execute":
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


def credentials(shop: Shop, operation: Any) -> dict[str, str]:
    """What an operation asks for: a kernel's password, else the operator's bearer."""
    asked = operation.definition.raw.get("security", [])
    if {"kernelPassword": []} not in asked:
        return {"Authorization": f"Bearer {shop.facts['kernel_token']}"}
    user, password = shop.facts["swarm"]["user"], shop.facts["swarm"]["password"]
    shown = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {shown}"}


def call(case: Any, headers: dict[str, str]) -> Any:
    """The answer; of a stream that stays open the beginning is all that is read."""
    if case.operation.path not in OPEN_STREAMS:
        return case.call(headers=headers, timeout=10)
    given = case.as_transport_kwargs(headers=headers)
    answer = requests.request(**given, stream=True, timeout=10)
    if answer.status_code == 200:
        assert next(answer.iter_lines()) == b"retry: 5000"
        answer.raw.close()
        answer._content = b"retry: 5000\n\n"
    return Response.from_requests(answer, verify=True)


def test_the_service_answers_as_described(shop: Shop, samples: dict[str, list[str]]) -> None:
    """Generated requests, with real ids among them, get only answers that the document describes."""
    schema = schemathesis.openapi.from_url(f"{shop.url}/openapi.json")
    seen: set[tuple[str, int]] = set()
    turns = count()

    def hold(operation: Any, mode: GenerationMode) -> None:
        follows = operation.path.endswith("/stream") or operation.path.startswith("/stream")
        shown = credentials(shop, operation) | ({"Last-Event-ID": "999"} if follows else {})

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

    for result in schema.get_all_operations():
        operation = result.ok()
        hold(operation, GenerationMode.POSITIVE)
        if list(operation.query) or list(operation.body):
            hold(operation, GenerationMode.NEGATIVE)
    assert {status for _, status in seen} >= {200, 201, 400, 402, 404, 409}, seen
    assert {("GET /tasks/{task_id}", 200), ("POST /execute", 402)} <= seen
    kernels = {(f"POST {path}", 200) for path in ("/swarm/execute", "/swarm/verify", "/verify")}
    streams = {(f"GET {path}", 200) for path in OPEN_STREAMS}
    assert kernels | streams | {("GET /capabilities", 200), ("GET /v0/tools", 200)} <= seen, seen

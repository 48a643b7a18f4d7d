"""Our contract and manifest schemas, and the limits on third-party schemas."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from worker.core.errors import BadRequest, Problem
from worker.schemas.validators import (
    MAX_REFERENCES,
    MAX_SCHEMA_BYTES,
    MAX_SUBSCHEMAS,
    CompiledSchemas,
    SchemaRefused,
    bound_schema,
    check_contract,
    check_manifest,
    compile_schema,
    is_open,
    validate,
)

ROOT = Path(__file__).parents[2]
SIGNED = {
    "signatures": {"seeker": "0x01", "worker": "0x02", "timestamp": "2026-01-30T10:31:00Z"},
    "hash": "sha256:" + "0" * 64,
}
ABSENT = object()


def read(name: str) -> Any:
    return json.loads((ROOT / "contracts" / name).read_text("utf-8"))


def changed(doc: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with the value at a dotted path replaced or, for ABSENT, removed."""
    document = copy.deepcopy(doc)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = document
    for part in way:
        place = place[part]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.fixture(name="draft")
def _draft():
    return read("examples/contract-draft.json")


@pytest.fixture(name="manifest")
def _manifest():
    return read("examples/agent-manifest.json")


@pytest.mark.parametrize("name", ["contract.json", "agent-manifest.json"])
def test_published_schemas_are_valid(name):
    """Both schemas are self-contained JSON Schema 2020-12."""
    schema = read(f"schema/{name}")
    Draft202012Validator.check_schema(schema)
    bound_schema(schema)


def test_the_examples_are_valid(draft, manifest):
    """The shipped draft and manifest are valid, and the signed draft is a valid contract."""
    check_contract(draft, draft=True)
    check_contract({**draft, **SIGNED}, draft=False)
    check_manifest(manifest)


def test_published_vectors_are_valid_drafts():
    """The contracts of the hash vectors are valid drafts."""
    for vector in json.loads((ROOT / "tests/vectors/hire-contracts.json").read_text("utf-8"))["vectors"]:
        check_contract(vector["unsigned_contract"], draft=True)


def test_draft_needs_no_signatures_hash_or_id(draft):
    """Missing and empty signatures both make a draft; a contract needs signatures, hash and id."""
    del draft["contract_id"]
    check_contract(draft, draft=True)
    check_contract({**draft, "signatures": {}, "hash": ""}, draft=True)
    with pytest.raises(BadRequest) as caught:
        check_contract(draft, draft=False)
    fields = {violation["field"] for violation in caught.value.details["violations"]}
    assert fields == {"contract_id", "signatures", "hash"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("contract_id", "0b0e8a2e-1c6f-4b1c-9a55-1c2d3e4f5a6b"),
        ("contract_id", "Ctr_Unique-ID"),
        ("parties.seeker.agent_id", "@studio/agent one"),
        ("sla.retry_policy", 3),
        ("sla.retry_policy", "whenever"),
        ("sla.max_latency_ms", 60000.0),
        ("sla", ABSENT),
        ("task.input_schema", True),
        ("task.output_schema", ABSENT),
        ("task.capability", ABSENT),
        ("terms.price.currency", "EURC"),
        ("terms.payment_trigger", "milestone"),
        ("terms.platform_fee.percentage", 0),
        ("terms.platform_fee.percentage", 1.5),
        ("terms.anything", {"else": [1]}),
        ("extension", None),
        ("version", "HIRE/12.34"),
    ],
)
def test_unknown_fields_are_accepted(draft, path, value):
    """Foreign ids, a bare retry count, extra fields and terms we do not sign are still valid contracts."""
    check_contract(changed(draft, path, value), draft=True)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("version", "1.0", "version"),
        ("version", ABSENT, "version"),
        ("contract_id", "a b", "contract_id"),
        ("contract_id", "", "contract_id"),
        ("contract_id", "x" * 129, "contract_id"),
        ("contract_id", "ctr_abc\n", "contract_id"),
        ("created_at", "yesterday", "created_at"),
        ("created_at", "2026-02-30T00:00:00Z", "created_at"),
        ("created_at", 1769769000, "created_at"),
        ("parties.worker", ABSENT, "parties.worker"),
        ("parties.worker.wallet", ABSENT, "parties.worker.wallet"),
        ("parties.seeker.wallet", 5, "parties.seeker.wallet"),
        ("task.description", ABSENT, "task.description"),
        ("task.requirements", ["a", 2], "task.requirements[1]"),
        ("task.output_schema", "object", "task.output_schema"),
        ("terms.price.amount", 0.5, "terms.price.amount"),
        ("terms.price.network", ABSENT, "terms.price.network"),
        ("terms.deadline", ABSENT, "terms.deadline"),
        ("terms.platform_fee", ABSENT, "terms.platform_fee"),
        ("terms.platform_fee.percentage", "1", "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", True, "terms.platform_fee.percentage"),
        ("terms.platform_fee.percentage", 101, "terms.platform_fee.percentage"),
        ("sla.max_latency_ms", -1, "sla.max_latency_ms"),
        ("sla.max_latency_ms", 1.5, "sla.max_latency_ms"),
        ("sla.retry_policy", {"times": 3}, "sla.retry_policy"),
        ("sla.refund_conditions", ["no_response", "rain"], "sla.refund_conditions[1]"),
        ("webhook.url", "file:///etc/passwd", "webhook.url"),
        ("webhook.url", ABSENT, "webhook.url"),
    ],
)
def test_malformed_field_is_named(draft, path, value, field):
    """Each invalid field is refused under its own path, with the expected value."""
    with pytest.raises(BadRequest) as caught:
        check_contract(changed(draft, path, value), draft=True)
    assert caught.value.details["field"] == field
    assert caught.value.details["expected"]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("hash", "sha256:" + "A" * 64, "hash"),
        ("hash", "sha256:" + "0" * 64 + "\n", "hash"),
        ("signatures.worker", "", "signatures.worker"),
        ("signatures.seeker", ABSENT, "signatures.seeker"),
        ("signatures.timestamp", "soon", "signatures.timestamp"),
    ],
)
def test_signed_contract_needs_complete_signatures(draft, path, value, field):
    """A contract with a missing or malformed signature part is refused under its path."""
    with pytest.raises(BadRequest) as caught:
        check_contract(changed({**draft, **SIGNED}, path, value), draft=False)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("doc", [None, [], "contract", 5, True, {}])
def test_other_documents_are_refused(doc):
    """A document of another kind is neither a contract nor a manifest."""
    for check in (lambda: check_contract(doc, True), lambda: check_contract(doc, False)):
        with pytest.raises(BadRequest):
            check()
    with pytest.raises(BadRequest):
        check_manifest(doc)


def test_error_list_is_limited(draft):
    """All errors are reported at once, at most twenty, in document order."""
    draft["task"]["requirements"] = [1] * 100_000
    draft["version"] = 1
    with pytest.raises(BadRequest) as caught:
        check_contract(draft, draft=True)
    fields = [violation["field"] for violation in caught.value.details["violations"]]
    assert len(fields) == 20
    assert fields[:3] == ["task.requirements[0]", "task.requirements[1]", "task.requirements[2]"]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("version", "HIRE/1.0", "version"),
        ("agent.publisher", "studio", "agent.publisher"),
        ("agent.name", "", "agent.name"),
        ("agent.description", "x" * 501, "agent.description"),
        ("agent.owner.wallet", ABSENT, "agent.owner.wallet"),
        ("agent.owner.contact", "nobody", "agent.owner.contact"),
        ("capabilities", [], "capabilities"),
        ("capabilities.0.pricing", ABSENT, "capabilities[0].pricing"),
        ("capabilities.0.name", "Logo Design", "capabilities[0].name"),
        ("capabilities.0.pricing.type", "per-hour", "capabilities[0].pricing.type"),
        ("capabilities.0.pricing.amount", 5, "capabilities[0].pricing.amount"),
        ("capabilities.0.pricing.amount", "0.0000001", "capabilities[0].pricing.amount"),
        ("capabilities.0.sla.availability", 1.1, "capabilities[0].sla.availability"),
        ("capabilities.0.settle", "later", "capabilities[0].settle"),
        ("endpoint.url", "worker.example", "endpoint.url"),
        ("endpoint.auth", "oauth", "endpoint.auth"),
        ("metadata.updated_at", ABSENT, "metadata.updated_at"),
        ("metadata.languages", ["en", "eng"], "metadata.languages[1]"),
    ],
)
def test_invalid_manifest_field_is_named(manifest, path, value, field):
    """Each invalid field of a manifest is refused under its own path."""
    with pytest.raises(BadRequest) as caught:
        check_manifest(changed(manifest, path, value))
    assert caught.value.details["field"] == field


def test_a_minimal_manifest_is_valid(manifest):
    """Only the required fields are required."""
    for path in ("agent.owner.contact", "metadata.tags", "metadata.languages"):
        manifest = changed(manifest, path, ABSENT)
    for key in ("input_schema", "output_schema", "settle", "sla"):
        manifest = changed(manifest, f"capabilities.0.{key}", ABSENT)
    check_manifest(manifest)


@pytest.mark.parametrize("schema", [None, True, {}])
def test_missing_schema_accepts_anything(schema):
    """Missing, true and {} mean no schema."""
    assert is_open(schema)
    bound_schema(schema)
    assert validate(compile_schema(schema), {"any": ["thing", None]}) == []


@pytest.mark.parametrize("schema", [False, 0, 1, "", "object", [], [{}]])
def test_invalid_schema_is_refused(schema):
    """Other types are refused, and so is false, which no output could satisfy."""
    assert not is_open(schema)
    with pytest.raises(SchemaRefused):
        bound_schema(schema)


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"$ref": "http://127.0.0.1/x"}, "task.output_schema.$ref"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "task.output_schema.$ref"),
        ({"$ref": "file:///etc/passwd"}, "task.output_schema.$ref"),
        ({"$ref": "other.json#/a"}, "task.output_schema.$ref"),
        ({"$ref": ""}, "task.output_schema.$ref"),
        ({"allOf": [{}, {"$dynamicRef": "x#y"}]}, "task.output_schema.allOf[1].$dynamicRef"),
        ({"properties": {"a": {"$recursiveRef": "x"}}}, "task.output_schema.properties.a.$recursiveRef"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "task.output_schema.$schema"),
        ({"$schema": "https://example.org/my-own"}, "task.output_schema.$schema"),
        ({"$schema": 7}, "task.output_schema.$schema"),
        ({"$defs": {"a": {"$schema": "x:y"}}}, "task.output_schema.$defs.a.$schema"),
        ({"$defs": {"a": {"$id": "http://127.0.0.1/"}}}, "task.output_schema.$defs.a.$id"),
    ],
)
def test_remote_references_and_unknown_dialects_are_refused(schema, field):
    """Any reference to another document is refused by its location, at any depth, without compiling."""
    with pytest.raises(SchemaRefused) as caught:
        bound_schema(schema, field="task.output_schema")
    assert caught.value.code == "SCHEMA_REFUSED"
    assert caught.value.details["field"] == field
    with pytest.raises(SchemaRefused):
        compile_schema(schema)


def test_size_is_measured_in_canonical_form():
    """Exactly 32 KiB pass, a byte more does not."""
    schema = {"description": ""}
    schema["description"] = "é" * ((MAX_SCHEMA_BYTES - len('{"description":""}')) // 2)
    bound_schema(schema)
    schema["description"] += "xx"
    with pytest.raises(SchemaRefused, match="large"):
        bound_schema(schema)


def nested(levels: int) -> dict[str, Any]:
    """Return a schema with this many levels of objects and arrays."""
    schema: dict[str, Any] = {}
    for _ in range((levels - 1) // 2):
        schema = {"allOf": [schema]}
    return schema if levels % 2 else {"not": schema}


def test_depth_is_bounded():
    """64 levels pass, 65 do not, and a hundred thousand do not crash."""
    bound_schema(nested(64))
    for levels in (65, 200_001):
        with pytest.raises(SchemaRefused, match="deep"):
            bound_schema(nested(levels))


def test_schema_limits_are_checked_without_compiling():
    """A small invalid schema passes the limits; only compiling detects it."""
    for schema in ({"type": "nope"}, {"pattern": "("}, {"$ref": "#/nowhere"}):
        bound_schema(schema)
        with pytest.raises(SchemaRefused):
            compile_schema(schema)


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "nope"}, "s.type"),
        ({"properties": {"a": {"pattern": "("}}}, "s.properties.a.pattern"),
        ({"patternProperties": {"(": {}}}, "s.patternProperties"),
        ({"minimum": "1"}, "s.minimum"),
        ({"$ref": 5}, "s.$ref"),
        ({"properties": {"a": {"$ref": "#/nowhere"}}}, "s.properties.a.$ref"),
        ({"$ref": "#no-such-anchor"}, "s.$ref"),
        ({"multipleOf": 0}, "s.multipleOf"),
    ],
)
def test_uncompilable_schema_names_its_place(schema, field):
    """An invalid schema is refused under the wrong keyword, dangling references included."""
    with pytest.raises(SchemaRefused) as caught:
        compile_schema(schema, field="s")
    assert caught.value.details["field"] == field


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {"(": {}}},
    ],
)
def test_schema_that_breaks_the_validator_is_refused(schema):
    """Endless references and late regular-expression errors are a Problem, not a crash."""
    with pytest.raises(SchemaRefused):
        validate(compile_schema(schema), {"a": 1})


def test_deep_schema_does_not_crash_the_process():
    """Even with the recursion limit at 100,000, endless and very long references end in a refusal."""
    code = """
import sys
sys.setrecursionlimit(100_000)
from worker.schemas.validators import SchemaRefused, compile_schema, validate
chain = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(700)}
schemas = [
    {"$ref": "#"},
    {"unevaluatedItems": False, "$ref": "#"},
    {"items": {"$ref": "#/$defs/d0"}, "$ref": "#/$defs/d0", "$defs": {**chain, "d700": {"type": "integer"}}},
]
for schema in schemas:
    try:
        validate(compile_schema(schema), [1])
    except SchemaRefused:
        print("refused", sys.getrecursionlimit())
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (finished.returncode, finished.stdout.split("\n")) == (0, ["refused 100000"] * 3 + [""]), (
        finished.stderr
    )


def test_recursive_schema_accepts_deep_values():
    """A tree of 64 levels is checked to its leaves under a schema that refers to itself."""
    schema = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert validate(compile_schema(schema), value) == []


class Listener(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")


@pytest.fixture(name="listener")
def _listener() -> Iterator[str]:
    Listener.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), Listener)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_references_are_never_fetched(listener):
    """Schemas that set a remote base are compiled and applied without a single request."""
    schemas = [
        {"$id": listener + "a", "$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}},
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "items": {"id": listener + "b", "allOf": [{"$ref": "#/definitions/n"}]},
            "definitions": {"n": {"type": "integer"}},
        },
        {"$schema": "http://json-schema.org/draft-07/schema#", "$id": listener, "items": {"$ref": "#"}},
    ]
    outcomes = []
    for schema in schemas:
        try:
            outcomes.append(bool(validate(compile_schema(schema), ["x"])))
        except SchemaRefused:
            outcomes.append("refused")
    assert outcomes[0] is True
    assert Listener.asked == []


def test_schema_dialect_is_respected():
    """An array under items is positional in draft-07 and invalid in 2020-12, the default."""
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert validate(compile_schema(old), ["x"])[0]["field"] == "[0]"
    assert validate(compile_schema(old), [1, "x"]) == []
    with pytest.raises(SchemaRefused):
        compile_schema({"items": [{"type": "integer"}]})
    assert validate(compile_schema({"prefixItems": [{"type": "integer"}]}), ["x"])


def test_formats_are_not_asserted():
    """`format` is an annotation only."""
    assert validate(compile_schema({"format": "email"}), "nobody") == []


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"type": "integer"}, "x", {"field": "$", "expected": "integer", "received": "x"}),
        ({"type": ["integer", "null"]}, "x", {"field": "$", "expected": "integer or null", "received": "x"}),
        ({"required": ["a"]}, {}, {"field": "a", "expected": "a value", "received": "nothing"}),
        (
            {"properties": {"colors": {"items": {"pattern": "^#"}}}},
            {"colors": ["#1", "red"]},
            {"field": "colors[1]", "expected": "text that matches ^#", "received": "red"},
        ),
        ({"enum": ["a", None]}, "b", {"field": "$", "expected": ["a", "null"], "received": "b"}),
        ({"maximum": 10}, 11, {"field": "$", "expected": "at most 10", "received": 11}),
        (
            {"additionalProperties": False},
            {"x": 1},
            {"field": "$", "expected": "no other properties", "received": "an object"},
        ),
        (
            {"anyOf": [{"type": "null"}, {"const": 1}]},
            2,
            {"field": "$", "expected": "one of the alternatives", "received": 2},
        ),
    ],
)
def test_violation_names_field_expected_and_received(schema, value, expected):
    """A violation gives its location, the expected and the received value."""
    [violation] = validate(compile_schema(schema), value)
    assert violation | expected == violation
    assert set(violation) == {"field", "expected", "received"}


def test_violations_are_ordered_and_limited():
    """At most twenty violations are reported, in the order of the value, each location once."""
    found = validate(compile_schema({"items": {"type": "integer", "minimum": 5}}), ["x"] * 1000)
    assert [violation["field"] for violation in found] == [f"[{index}]" for index in range(20)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keywords = st.sampled_from(
    ["type", "properties", "items", "$ref", "$schema", "enum", "pattern", "allOf", "not", "required", "$id"]
)
schemas = st.recursive(
    json_values | st.sampled_from(["#", "#/items", "object", "^a", {"type": "string"}]),
    lambda inner: st.dictionaries(keywords, inner | st.lists(inner, max_size=2), max_size=3),
    max_leaves=8,
)


@given(schemas, json_values)
def test_any_schema_is_answered_or_refused(schema, value):
    """Arbitrary schemas and values raise nothing but a Problem."""
    try:
        found = validate(compile_schema(schema), value)
    except Problem:
        return
    json.dumps(found)


def test_compiled_validators_are_cached_by_content():
    """Equal schemas share one compiled validator, whatever their key order."""
    schemas = CompiledSchemas(max=4)
    first = schemas.get({"type": "object", "required": ["a"]})
    assert schemas.get({"required": ["a"], "type": "object"}) is first
    assert len(schemas) == 1


def test_validator_cache_is_lru():
    """The cache never exceeds its size, and keeps the most recently used."""
    schemas = CompiledSchemas(max=2)
    first = schemas.get({"minimum": 1})
    schemas.get({"minimum": 2})
    assert schemas.get({"minimum": 1}) is first
    schemas.get({"minimum": 3})
    assert len(schemas) == 2
    assert schemas.get({"minimum": 1}) is first
    for number in range(50):
        schemas.get({"minimum": number})
    assert len(schemas) == 2


def test_oversized_schemas_are_refused_before_hashing():
    """The cache refuses a schema that exceeds the limits too, and does not store it."""
    schemas = CompiledSchemas()
    for schema in (nested(100_001), {"$ref": "http://127.0.0.1/"}, {"type": "nope"}):
        with pytest.raises(SchemaRefused):
            schemas.get(schema)
    assert len(schemas) == 0
    assert validate(schemas.get(None), 1) == []


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"allOf": [{}] * (MAX_SUBSCHEMAS + 1)}, "parts"),
        ({"allOf": [True] * (MAX_SUBSCHEMAS + 1)}, "parts"),
        ({"properties": {f"p{n}": {} for n in range(MAX_SUBSCHEMAS + 1)}}, "parts"),
        ({"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}] * (MAX_REFERENCES + 1)}, "references"),
    ],
    ids=["objects", "booleans", "properties", "references"],
)
def test_schemas_of_too_many_parts_are_refused_uncompiled(schema: dict[str, Any], word: str) -> None:
    """Each part costs compile time, so the parts are counted first."""
    with pytest.raises(SchemaRefused, match=f"too many {word}") as caught:
        bound_schema(schema, field="task.output_schema")
    assert caught.value.details["field"] == "task.output_schema"


def test_long_enumerations_are_no_parts() -> None:
    """The values of an enumeration cost no compile time."""
    bound_schema({"enum": list(range(5_000))})

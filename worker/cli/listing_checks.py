"""Runs the checks that catalogs run on a paid endpoint, with one unpaid, empty request.

Check names follow Coinbase's preflight where it has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.errors import BadRequest, Problem
from worker.schemas.validators import SchemaRefused, compile_schema, validate
from worker.seeker.http import ConnectionDropped, HttpAnswer, Transport
from worker.x402.bazaar import BAZAAR, is_public_url, service_metadata
from worker.x402.headers import MAX_WRITE_CHARS, PAYMENT_REQUIRED, decode
from worker.x402.offer import MAX_DESCRIPTION

_SECURE = "https://"


@dataclass(frozen=True, slots=True)
class ListingCheck:
    """One check; `fault` is '' when it passes. An advisory fault does not prevent a listing."""

    name: str
    fault: str = ""
    required: bool = True


def check_endpoint(http: Transport, url: str) -> list[ListingCheck]:
    """Ask the endpoint as a crawler does, without a payment and with an empty body."""
    public = "" if url.startswith(_SECURE) and is_public_url(url) else "not https at a public host name"
    try:
        answer = http.send("POST", url, body=b"", headers={})
    except (ConnectionDropped, Problem) as fault:
        why = fault.why if isinstance(fault, ConnectionDropped) else fault.message
        return [ListingCheck("public_address", public), ListingCheck("reachable", why)]
    return [ListingCheck("public_address", public), ListingCheck("reachable"), *_challenge(answer, url)]


def _challenge(answer: HttpAnswer, url: str) -> Iterator[ListingCheck]:
    if answer.status != 402:
        yield ListingCheck("returns_402", f"status {answer.status}")
        return
    yield ListingCheck("returns_402")
    header = answer.headers.get(PAYMENT_REQUIRED.lower(), "")
    try:
        document = decode(header, PAYMENT_REQUIRED)
    except BadRequest as fault:
        yield ListingCheck("parse", f"PAYMENT-REQUIRED: {fault.details.get('expected', 'unreadable')}")
        return
    yield ListingCheck("parse")
    yield ListingCheck("header_size", f"{len(header)} characters" if len(header) >= MAX_WRITE_CHARS else "")
    yield from _resource(document, url)
    extension = (document.get("extensions") or {}).get(BAZAAR)
    if not isinstance(extension, dict):
        yield ListingCheck("has_bazaar_extension", "extensions.bazaar is missing")
        return
    yield ListingCheck("has_bazaar_extension")
    yield ListingCheck("schema_holds", _schema_fault(extension))


def _resource(document: Mapping[str, Any], url: str) -> Iterator[ListingCheck]:
    resource = document.get("resource") or {}
    named = resource.get("url")
    yield ListingCheck("resource_url", "" if named == url else f"names {str(named)[:100]}")
    accepts = document.get("accepts")
    yield ListingCheck("accepts", "" if isinstance(accepts, list) and accepts else "no way to pay")
    description = resource.get("description", "")
    long = f"{len(description)} characters" if len(description) > MAX_DESCRIPTION else ""
    yield ListingCheck("description", long or ("" if description else "empty"), required=False)
    metadata = {name: resource[name] for name in ("serviceName", "tags", "iconUrl") if name in resource}
    shown = service_metadata(
        metadata.get("serviceName", ""), metadata.get("tags", ()), metadata.get("iconUrl")
    )
    dropped = [name for name in metadata if shown.get(name) != metadata[name]]
    yield ListingCheck("metadata", f"dropped: {', '.join(dropped)}" if dropped else "", required=False)


def _schema_fault(extension: Mapping[str, Any]) -> str:
    """Why `info` violates its `schema`: the check that a facilitator runs before it lists."""
    schema, info = extension.get("schema"), extension.get("info")
    if not isinstance(schema, dict):
        return "no schema"
    try:
        problems = validate(compile_schema(schema, field="schema"), info)
    except SchemaRefused as refused:
        return refused.message
    return f"{problems[0]['field']}: expected {problems[0]['expected']}" if problems else ""


def holds(checks: list[ListingCheck], tell: Callable[[str], object]) -> bool:
    """Print each check's result; return whether all required ones passed."""
    for each in checks:
        word = "ok" if not each.fault else ("FAILS" if each.required else "advice")
        tell(f"  {word:<7}{each.name}{': ' + each.fault if each.fault else ''}")
    return not any(each.fault and each.required for each in checks)

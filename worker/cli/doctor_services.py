"""The doctor's checks of external services: facilitator, chain node, bucket."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

from worker.cli.doctor_results import CheckResult, Level, causes
from worker.core.settings import CDP_FACILITATOR, Settings
from worker.core.values import bare
from worker.files.store import Files, files_from
from worker.payments.chain import ChainEvidence, ChainUnavailable
from worker.x402.facilitator_answers import FacilitatorAnswer, supports

CERTIFICATE = "its certificate is not trusted, is for another name, or it speaks no TLS"
_LATER = (408, 425, 429)
_SILENT = {"EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"}
# A sweep that finds nothing: it only tests the permission to list uploads.
_LONG_AGO = 10 * 365 * 86_400.0


def money(settings: Settings) -> list[CheckResult]:
    """Checks the facilitator and the chain node; without a key no payment is taken."""
    from worker.parts import Parts

    parts = Parts(settings, "cli")
    try:
        facilitator = parts.facilitator
    except ValueError as unreadable:  # its text names the forms that can be read, never the key
        return [CheckResult("facilitator", "wrong", "CDP_API_KEY_SECRET cannot be read", str(unreadable))]
    return [_facilitator(facilitator.supported(), settings), _node(parts.chain, settings)]


def _facilitator(answer: FacilitatorAnswer, settings: Settings) -> CheckResult:
    where = bare(settings.facilitator_url)

    def result(level: Level, found: str, expected: str) -> CheckResult:
        return CheckResult("facilitator", level, f"{where} {found}", expected)

    expected = f"a facilitator that settles exact payments on {settings.network} at FACILITATOR_URL"
    if supports(answer, settings.network):
        return result("ok", f"settles exact payments on {settings.network}", expected)
    if answer.fault == "tls":
        return result("wrong", f"cannot be trusted: {CERTIFICATE}", expected)
    if answer.status is None:
        return result("unreachable", f"does not answer: {answer.fault or 'no answer'}", expected)
    if answer.status >= 500 or answer.status in _LATER:
        return result("unreachable", f"answers {answer.status}", expected)
    if answer.status in (401, 403):
        key = (
            "CDP_API_KEY_ID and CDP_API_KEY_SECRET" if settings.facilitator_url == CDP_FACILITATOR else "its"
        )
        return result("wrong", f"answers {answer.status}", f"{key} credentials that it accepts")
    if isinstance((answer.body or {}).get("kinds"), list):
        return result("wrong", "does not list them", expected)
    return result("wrong", f"is no facilitator: /supported answers {answer.status} without a list", expected)


def _node(chain: ChainEvidence | None, settings: Settings) -> CheckResult:
    expected = f"a node of {settings.network} at RPC_URL, or lost answers of the facilitator stay unknown"
    if chain is None:
        return CheckResult("chain", "warn", "no RPC_URL", expected)
    where = bare(settings.rpc_url or "")
    try:
        head = chain.head()
    except ChainUnavailable as away:
        served = away.details.get("received")
        if served is not None:
            return CheckResult("chain", "wrong", f"{where} serves eip155:{served}", expected)
        return CheckResult("chain", *_node_trouble(where, away), expected)
    return CheckResult("chain", "ok", f"{where} is at block {head.block}", expected)


def _node_trouble(where: str, away: ChainUnavailable) -> tuple[Level, str]:
    """Distinguishes an unreachable node from something that is not a node, or denies us access."""
    from requests.exceptions import ConnectionError, HTTPError, SSLError, Timeout

    found = list(causes(away))
    if any(isinstance(each, SSLError | ssl.SSLError) for each in found):
        return "wrong", f"{where} cannot be trusted: {CERTIFICATE}"
    refused = next((each for each in found if isinstance(each, HTTPError)), None)
    if refused is not None and refused.response is not None:
        status = refused.response.status_code
        later = status >= 500 or status in _LATER
        return (
            ("unreachable", f"{where} answers {status}") if later else ("wrong", f"{where} answers {status}")
        )
    if any(isinstance(each, ConnectionError | Timeout) for each in found):
        return "unreachable", f"{where} does not answer"
    return "wrong", f"{where} does not answer like an Ethereum node"


def files(settings: Settings) -> CheckResult:
    """Writes, reads and deletes a file and lists unfinished uploads, like the worker."""
    expected = "a directory or bucket (FILES_URL) in which we may write, read, delete and list uploads"
    doing = "opening"
    try:
        for doing, step in _file_steps(files_from(settings.files_url)):  # noqa: B007 - told below
            step()
    except ValueError as unfit:
        return CheckResult("files", "wrong", str(unfit), expected)
    except Exception as failed:  # providers' libraries raise anything; one check must not end the others
        level, why = _file_trouble(failed)
        return CheckResult("files", level, f"{_place(settings)}: {doing} failed: {why}", expected)
    return CheckResult("files", "ok", f"{_place(settings)} can be written and read", expected)


def _place(settings: Settings) -> str:
    return settings.files_url if "://" not in settings.files_url else bare(settings.files_url)


def _file_steps(store: Files) -> Iterator[tuple[str, Callable[[], object]]]:
    probe = b"worker doctor"
    written: list[str] = []
    yield "writing", lambda: written.append(store.put(probe, name="probe.txt", mime="text/plain").key)
    yield "reading", lambda: b"".join(store.open(written[0]))
    yield "deleting", lambda: store.delete(written[0])
    yield "listing uploads", lambda: store.sweep(_LONG_AGO)


def _file_trouble(failed: BaseException) -> tuple[Level, str]:
    """A bucket's or disk's error by its code only, because its text may contain names and addresses."""
    found = list(causes(failed))
    names = {type(each).__name__ for each in found}
    if "SSLError" in names or any(isinstance(each, ssl.SSLError) for each in found):
        return "wrong", CERTIFICATE
    if names & {"NoCredentialsError", "PartialCredentialsError"}:
        return "wrong", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set"
    for each in found:
        answer = getattr(each, "response", None)
        if isinstance(answer, dict):
            return _bucket_refusal(answer)
    if names & _SILENT or any(isinstance(each, ConnectionError | TimeoutError) for each in found):
        return "unreachable", "it does not answer"
    cause = next((each for each in found if isinstance(each, OSError)), found[-1])
    return "wrong", type(cause).__name__


def _bucket_refusal(answer: dict[str, Any]) -> tuple[Level, str]:
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in ("NoSuchBucket", "404", "NotFound"):
        return "wrong", "there is no such bucket"
    if status >= 500 or code in ("SlowDown", "RequestTimeout"):
        return "unreachable", f"it answers {status or code}"
    return "wrong", f"it refuses our key: {code if code.isalnum() else status}"

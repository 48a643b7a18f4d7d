"""Body and headers of the 402, in both versions of x402."""

from __future__ import annotations

from typing import Any

from worker.doors.answers import PlainAnswer, problem_answer
from worker.hiring.task import PaymentRequired
from worker.x402.headers import response_headers


def payment_required_answer(
    problem: PaymentRequired, contract_id: str | None, details: dict[str, Any]
) -> PlainAnswer:
    """The offer, and why the payment sent did not match. The body is also valid V1 for old clients."""
    body = {
        **problem.offer.v1_body(problem.message),
        "status": "failed",
        "contract_id": contract_id,
        "details": details,
        "code": problem.code,
    }
    headers = problem.offer.headers(problem.message)
    if problem.response is not None:
        headers |= both_versions(dict(problem.response))
    return problem_answer(problem, body, {**headers, "Cache-Control": "no-store"})


def both_versions(document: dict[str, Any]) -> dict[str, str]:
    """The headers that report a payment's outcome."""
    return {**response_headers(document), **response_headers(document, version=1)}

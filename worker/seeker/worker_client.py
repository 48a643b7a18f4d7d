"""HIRE requests to one worker over HTTP, from a client that trusts no response.

The contract id is a credential, so it goes only to the worker's own address, wherever its responses point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from worker.core.canonical import parse
from worker.core.errors import BadRequest
from worker.seeker.http import ConnectionDropped, HttpAnswer, Transport, origin_of
from worker.seeker.problems import AnswerUnreadable, NoManifest, WorkerRefused, WorkerUnreachable, plain
from worker.seeker.stream import StreamFollower

CONTRACT = "X-Contract-ID"
# Short work is answered within this time; for longer work, progress should be visible.
LIVE_SECONDS = 2
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SURE_TRIES = 4


class WorkerClient:
    """The worker at one address."""

    def __init__(self, http: Transport, base: str) -> None:
        self._http = http
        self.base = base

    def manifest(self) -> dict[str, Any]:
        answer = self._insist("GET", "/manifest")
        if answer.status == 404:
            answer = self._insist("GET", "/.well-known/hire-manifest.json")
        document = answer.document()
        if answer.status != 200 or document is None:
            raise NoManifest(received=answer.status)
        return document

    def signing_keys(self) -> list[str]:
        """The addresses in /.well-known/did.json; none if it cannot be read."""
        try:
            document = self._insist("GET", "/.well-known/did.json").document() or {}
        except WorkerUnreachable:
            return []
        methods = document.get("verificationMethod")
        listed = methods if isinstance(methods, list) else []
        accounts = [each.get("blockchainAccountId") for each in listed if isinstance(each, dict)]
        return [each.rpartition(":")[2] for each in accounts if isinstance(each, str)]

    def countersign(self, draft: Mapping[str, Any]) -> Any:
        """The worker's response to a draft; safe to send twice, because an id identifies one draft."""
        answer = self._insist("POST", "/contracts", _bytes(draft))
        if answer.status not in (200, 201):
            raise _refusal(answer)
        try:
            return parse(answer.body)
        except BadRequest as fault:
            raise AnswerUnreadable("the signed contract cannot be read") from fault

    def register(self, contract: Mapping[str, Any]) -> None:
        """Register the contract with both signatures; safe to repeat."""
        answer = self._insist("PUT", "/contracts", _bytes(contract))
        if answer.status not in (200, 201):
            raise _refusal(answer)

    def execute(
        self, contract_id: str, body: bytes, payment: tuple[str, str] | None, *, wait_s: int | None
    ) -> HttpAnswer:
        """Send one request once; `answers` classifies the response. Raises `ConnectionDropped`.

        `wait_s` asks for a response after that many seconds, so that longer work can be watched.
        """
        headers = {CONTRACT: contract_id, "Content-Type": "application/json"}
        if wait_s is not None:
            headers["Prefer"] = f"wait={wait_s}"
        if payment is not None:
            headers[payment[0]] = payment[1]
        return self._http.send("POST", f"{self.base}/execute", body=body, headers=headers)

    def poll(self, contract_id: str, url: str, etag: str) -> HttpAnswer:
        headers = {CONTRACT: contract_id}
        if etag:
            headers["If-None-Match"] = etag
        return self._http.send("GET", url, headers=headers)

    def follow(self, contract_id: str, task_id: str) -> StreamFollower:
        return StreamFollower(self._http, f"{self.base}/stream/{task_id}", {CONTRACT: contract_id})

    def task_url(self, body: Mapping[str, Any], task_id: str) -> str:
        """Where to poll: the URL the worker gives if at its own address, else the one HIRE defines."""
        if not _TASK_ID.fullmatch(task_id):
            raise AnswerUnreadable(
                "the answer contains no task id", field="task_id", received=plain(task_id, 80)
            )
        named = body.get("poll_url")
        if isinstance(named, str) and origin_of(named) == origin_of(self.base):
            return named
        return f"{self.base}/tasks/{task_id}"

    def _insist(self, method: str, path: str, body: bytes | None = None) -> HttpAnswer:
        """Send a request that may be repeated and moves no money, with retries."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        why = ""
        for _ in range(_SURE_TRIES):
            try:
                answer = self._http.send(method, self.base + path, body=body, headers=headers)
            except ConnectionDropped as dropped:
                why = dropped.why
                continue
            if answer.status not in (502, 503, 504):
                return answer
            refused = _refusal(answer)
            why = f"{refused.code}: {refused.message}"
        raise WorkerUnreachable(f"the worker does not answer ({why})")


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(answer: HttpAnswer) -> WorkerRefused:
    document = answer.document() or {}
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    details = error.get("details")
    details = details if isinstance(details, dict) else {}
    advice = details.get("advice")
    return WorkerRefused(
        plain(error.get("message") or f"the worker answered {answer.status}"),
        code=plain(error.get("code") or f"HTTP_{answer.status}", 80),
        field=plain(details["field"], 200) if "field" in details else None,
        expected=plain(details["expected"]) if "expected" in details else None,
        received=plain(details["received"]) if "received" in details else None,
        advice=plain(advice) if isinstance(advice, str) else None,
    )

"""One worker over HTTP: the requests of HIRE, made by somebody who trusts no answer.

The contract id is a credential, so it goes to the worker's own address only, wherever its answers point.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from worker.contracts.canonical import parse
from worker.errors import BadRequest
from worker.seeker.http import Answer, Dropped, Transport, origin_of
from worker.seeker.problems import AnswerUnreadable, WorkerRefused, WorkerUnreachable, plain
from worker.seeker.stream import Follower

CONTRACT = "X-Contract-ID"
# Quick work is answered within this; of longer work one wants to see the progress.
LIVE_SECONDS = 2
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SURE_TRIES = 4


class Remote:
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
            raise AnswerUnreadable("there is no manifest at this address", received=answer.status)
        return document

    def countersign(self, draft: Mapping[str, Any]) -> Any:
        """The worker's answer to a draft; it may be sent twice, because an id means one draft."""
        answer = self._insist("POST", "/contracts", _bytes(draft))
        if answer.status not in (200, 201):
            raise _refusal(answer)
        try:
            return parse(answer.body)
        except BadRequest as fault:
            raise AnswerUnreadable("the signed contract cannot be read") from fault

    def register(self, contract: Mapping[str, Any]) -> None:
        """Hands in the contract with both signatures; as often as it takes."""
        answer = self._insist("PUT", "/contracts", _bytes(contract))
        if answer.status not in (200, 201):
            raise _refusal(answer)

    def execute(
        self, contract_id: str, body: bytes, payment: tuple[str, str] | None, *, live: bool
    ) -> Answer:
        """One request, once: what it came to is for `readings` to say. Raises `Dropped`.

        `live` asks for an early answer where the work takes long, so that it can be watched.
        """
        headers = {CONTRACT: contract_id, "Content-Type": "application/json"}
        if live:
            headers["Prefer"] = f"wait={LIVE_SECONDS}"
        if payment is not None:
            headers[payment[0]] = payment[1]
        return self._http.send("POST", f"{self.base}/execute", body=body, headers=headers)

    def poll(self, contract_id: str, url: str, etag: str) -> Answer:
        headers = {CONTRACT: contract_id}
        if etag:
            headers["If-None-Match"] = etag
        return self._http.send("GET", url, headers=headers)

    def follow(self, contract_id: str, task_id: str) -> Follower:
        return Follower(self._http, f"{self.base}/stream/{task_id}", {CONTRACT: contract_id})

    def task_url(self, body: Mapping[str, Any], task_id: str) -> str:
        """Where to poll: as the worker says if that is at its own address, else as HIRE says."""
        if not _TASK_ID.fullmatch(task_id):
            raise AnswerUnreadable("the answer names no task", field="task_id", received=plain(task_id, 80))
        named = body.get("poll_url")
        if isinstance(named, str) and origin_of(named) == origin_of(self.base):
            return named
        return f"{self.base}/tasks/{task_id}"

    def _insist(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """For requests that may be repeated and move no money."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        why = ""
        for _ in range(_SURE_TRIES):
            try:
                answer = self._http.send(method, self.base + path, body=body, headers=headers)
            except Dropped as dropped:
                why = dropped.why
                continue
            if answer.status not in (502, 503, 504):
                return answer
            why = f"status {answer.status}"
        raise WorkerUnreachable(f"the worker does not answer ({why})")


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(answer: Answer) -> WorkerRefused:
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

"""A streamed call of an OpenAI-compatible endpoint over HTTP, and what its failures mean.

Too busy, unreachable, cut off and 5xx are passing faults; every other 4xx is final. The endpoint's own
words are read for nothing but the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from worker.core.errors import Failed, Transient
from worker.core.nesting import deeper_than

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
MAX_LINE = 1_000_000
MOST_DEPTH = 64
MAX_ANSWER = 1_000_000
MAX_RETRY_AFTER = 60.0
_CHUNK = 8192

_FINAL = {
    400: ("CHAT_REJECTED", "the model's endpoint refused this conversation"),
    401: ("CHAT_UNAUTHORIZED", "the model's endpoint refused this worker's credentials"),
    402: ("CHAT_UNAUTHORIZED", "the model's endpoint refused this worker's account"),
    403: ("CHAT_UNAUTHORIZED", "the model's endpoint refused this worker's credentials"),
    404: ("CHAT_NOT_CONFIGURED", "the model's endpoint does not know this address or model"),
    413: ("CHAT_TOO_LONG", "the conversation is too long for the model"),
    422: ("CHAT_REJECTED", "the model's endpoint refused this conversation"),
}
_PASSING = {408, 409, 425, 429}


@dataclass(frozen=True)
class Endpoint:
    """Where to call; the key is kept out of the representation."""

    url: str
    model: str
    key: str = field(default="", repr=False)


def stream(endpoint: Endpoint, body: dict[str, Any], left: Callable[[], float]) -> Iterator[str]:
    """Yield the answer as it arrives; `left` tells how many seconds remain for all of it."""
    import urllib3

    seconds = left()
    if seconds <= 0:
        raise Transient("no time is left to ask the model's endpoint")
    timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, seconds), read=min(READ_TIMEOUT, seconds))
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    sent = json.dumps({**body, "model": endpoint.model, "stream": True}).encode()
    with urllib3.PoolManager(retries=False, timeout=timeout) as pool:
        try:
            response = pool.request(
                "POST", endpoint.url, body=sent, headers=headers, redirect=False, preload_content=False
            )
            try:
                _refuse(response)
                yield from _answer(response, left)
            finally:
                response.close()
        except (urllib3.exceptions.HTTPError, OSError):
            # From None: the cause names the address, and may quote the endpoint.
            raise Transient("the model's endpoint could not be reached or broke off") from None


def _refuse(response: BaseHTTPResponse) -> None:
    """Raise for every status that is not a plain success."""
    status = response.status
    if status == 200:
        return
    if status in _PASSING or status >= 500:
        raise Transient("the model's endpoint is busy or failing", retry_after=_retry_after(response))
    code, message = _FINAL.get(status, ("CHAT_REJECTED", "the model's endpoint gave an unexpected answer"))
    raise Failed(code, message, upstream_status=status)


def _retry_after(response: BaseHTTPResponse) -> float | None:
    wished = response.headers.get("Retry-After", "")
    return min(float(wished), MAX_RETRY_AFTER) if wished.isascii() and wished.isdigit() else None


def _answer(response: BaseHTTPResponse, left: Callable[[], float]) -> Iterator[str]:
    """The text of the stream; a truncated or empty answer is a transient failure."""
    if response.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json":
        yield _whole(response, left)
        return
    length = 0
    ended = False
    for data in _events(response, left):
        if data == "[DONE]":
            ended = True
            break
        text, last = _delta(data)
        ended = ended or last
        if text:
            length += len(text)
            if length > MAX_ANSWER:
                raise Failed("CHAT_TOO_LONG", "the model's answer is longer than this worker passes on")
            yield text
    if not ended:
        raise Transient("the model's endpoint broke off in the middle of its answer")
    if not length:
        raise Failed("CHAT_EMPTY", "the model gave no answer")


def _events(response: BaseHTTPResponse, left: Callable[[], float]) -> Iterator[str]:
    """The data of each server-sent event; lines are decoded only when whole, so no character is split."""
    data: list[str] = []
    for line in _lines(response, left):
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
            if sum(map(len, data)) > MAX_LINE:
                raise Failed("CHAT_INVALID", "the model's endpoint sent an event that is too large")
    if data:
        yield "\n".join(data)


def _lines(response: BaseHTTPResponse, left: Callable[[], float]) -> Iterator[str]:
    held = b""
    for chunk in _chunks(response, left):
        *lines, held = (held + chunk).split(b"\n")
        if len(held) > MAX_LINE:
            raise Failed("CHAT_INVALID", "the model's endpoint sent a line that is too long")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
    if held:
        yield held.removesuffix(b"\r").decode("utf-8", "replace")


def _chunks(response: BaseHTTPResponse, left: Callable[[], float]) -> Iterator[bytes]:
    """Bytes as they arrive; a read time-out alone would let a slow trickle continue endlessly."""
    while chunk := response.read1(_CHUNK):
        if left() <= 0:
            raise Transient("the model's endpoint was too slow")
        yield chunk


def _delta(data: str) -> tuple[str, bool]:
    """The text of one event, and whether it says that the answer is complete."""
    event = _parsed(data)
    if event.get("error") is not None:
        raise Transient("the model's endpoint failed in the middle of its answer")
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return "", False
    delta = first.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    return (text if isinstance(text, str) else ""), first.get("finish_reason") is not None


def _whole(response: BaseHTTPResponse, left: Callable[[], float]) -> str:
    """The answer of an endpoint that does not stream."""
    body = b""
    for chunk in _chunks(response, left):
        body += chunk
        if len(body) > 4 * MAX_ANSWER:
            raise Failed("CHAT_TOO_LONG", "the model's answer is longer than this worker passes on")
    parsed = _parsed(body.decode("utf-8", "replace"))
    choices = parsed.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise Failed("CHAT_INVALID", "the model's endpoint answered in a form that is not understood")
    if not text:
        raise Failed("CHAT_EMPTY", "the model gave no answer")
    return text


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = None if deeper_than(text, MOST_DEPTH) else json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Failed("CHAT_INVALID", "the model's endpoint answered in a form that is not understood")
    return value

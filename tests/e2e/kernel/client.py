"""Plain HTTP and server-sent events, as any kernel client uses them."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tests.waiting import eventually

TERMINAL = {"execution.completed", "execution.failed", "execution.cancelled"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass(frozen=True)
class Sent:
    """One server-sent event."""

    event: str
    data: Any
    id: str = ""


class Sse:
    """An open stream, read by its own thread."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        lines = [f"GET {path} HTTP/1.1", "Host: kernel", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.answer = http.client.HTTPResponse(self.socket, method="GET")
        self.answer.begin()
        self.socket.settimeout(None)
        self.status = self.answer.status
        self.events: queue.Queue[Sent | None] = queue.Queue()
        self.seen: list[Sent] = []
        self.comments: list[str] = []
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        try:
            while line := self._line():
                text = line.decode().rstrip("\n")
                if text.startswith((":", "retry:")):
                    self.comments.append(text)
                elif text:
                    name, _, value = text.partition(": ")
                    fields[name] = value
                elif fields:
                    data = json.loads(fields["data"])
                    self.events.put(Sent(fields["event"], data, fields.get("id", "")))
                    fields = {}
            self.closed.set()  # not when an event could not be read
        finally:
            self.events.put(None)

    def _line(self) -> bytes:
        """The next line; b"" when either side has closed the connection, in whatever way."""
        try:
            return self.answer.readline()
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return b""

    def next(self, event: str | None = None, seconds: float = 10.0) -> Any:
        """Returns the data of the next event (of this kind)."""
        until = time.monotonic() + seconds
        while True:
            try:
                found = self.events.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {event} within {seconds:g} s, but {self.seen}") from None
            assert found is not None, f"the stream ended before {event}; it had {self.seen}"
            self.seen.append(found)
            if event is None or found.event == event:
                return found.data

    def quiet(self, seconds: float) -> bool:
        """Whether no event arrives for so long."""
        try:
            found = self.events.get(timeout=seconds)
        except queue.Empty:
            return True
        if found is not None:
            self.seen.append(found)
        return False

    def all(self, seconds: float = 10.0) -> list[Sent]:
        """Returns all events up to the end of the stream."""
        assert self.closed.wait(seconds), "the stream did not end"
        while (found := self.events.get()) is not None:
            self.seen.append(found)
        return self.seen

    def close(self) -> None:
        """Closes the connection as an exiting process does."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Api:
    """One web process as seen by an operator, an agent or a runner."""

    def __init__(self, port: int, token: str | None) -> None:
        self.port = port
        self.token = token

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            http_headers.setdefault("Authorization", f"Bearer {self.token}")
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            link.request(method, path, raw, http_headers)
            answer = link.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            link.close()

    def ok(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.call(method, path, body)
        assert answer.status == status, (answer.status, answer.raw)
        return answer.body if answer.raw else None

    def sse(self, path: str, **headers: str) -> Sse:
        token = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return Sse(self.port, path, {**token, **{k.replace("_", "-"): v for k, v in headers.items()}})

    # Executions

    def create(self, agent: str, input: Any = None, **labels: str) -> dict[str, Any]:
        body = {"agent_id": agent, "input": input, **({"labels": labels} if labels else {})}
        found: dict[str, Any] = self.ok("POST", "/v0/executions", body, 201)
        return found

    def get(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ok("GET", f"/v0/executions/{id}")
        return found

    def status(self, id: str) -> str:
        return str(self.get(id)["status"])

    def events(self, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ok("GET", f"/v0/executions/{id}/events?limit=1000")["events"]
        return found

    def kinds(self, id: str) -> list[str]:
        return [event["type"] for event in self.events(id)]

    def event(self, id: str, kind: str) -> dict[str, Any]:
        return next(event for event in reversed(self.events(id)) if event["type"] == kind)

    def signal(self, id: str, kind: str, payload: Any = None) -> Answer:
        return self.call("POST", f"/v0/executions/{id}/signal", {"signal_type": kind, "payload": payload})

    def until(self, id: str, *statuses: str, seconds: float = 10.0) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            execution = self.get(id)
            return execution if execution["status"] in statuses else None

        execution = eventually(found, seconds, f"{id} {'/'.join(statuses)}: {self.kinds(id)}")
        assert execution is not None
        return execution

    # Agents

    def agent(self, agent: str, consumer: str) -> Sse:
        stream = self.sse("/v0/agents/stream?" + urlencode({"agent_id": agent, "consumer_id": consumer}))
        assert stream.status == 200
        return stream

    def intent(self, session: dict[str, Any], type: str, **about: Any) -> Answer:
        body = {
            "execution_id": session["execution_id"],
            "session_id": session["session_id"],
            "intent": {"type": type, **about},
        }
        return self.call("POST", "/v0/agents/intent", body)

    def accepted(self, session: dict[str, Any], type: str, **about: Any) -> dict[str, Any]:
        answer = self.intent(session, type, **about)
        assert answer.status == 200 and answer.body["accepted"], answer.raw
        found: dict[str, Any] = answer.body
        return found

    def step_result(self, session: dict[str, Any], step: str, **about: Any) -> Answer:
        body = {
            "execution_id": session["execution_id"],
            "session_id": session["session_id"],
            "step_id": step,
            **about,
        }
        return self.call("POST", "/v0/agents/step-result", body)

    # Runners

    def runner(self, runner: str, consumer: str, *tools: str) -> Sse:
        about = {"runner_id": runner, "consumer_id": consumer, "capabilities": ",".join(tools)}
        stream = self.sse("/v0/runners/stream?" + urlencode(about))
        assert stream.status == 200
        return stream

    def job_result(self, runner: str, job: dict[str, Any], **about: Any) -> Answer:
        body = {"job_id": job["id"], "execution_id": job["execution_id"], "step_id": job["step_id"], **about}
        return self.call("POST", f"/v0/runners/{quote(runner)}/results", body)

"""Deliverables for the seeker: names, URLs and checksums, and the bytes behind them.

A URL carries a 128-bit token that only we can make, so its holder may read. Nothing opens before the
payment has settled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from worker.capabilities.declare import Capability
from worker.core.canonical import canonical
from worker.core.errors import Forbidden, NotFound
from worker.core.keyed_hash import is_keyed_hash, keyed_hash
from worker.core.states import State
from worker.delivery.event_streams import opens_early
from worker.engine.events import Event, Kind, iso
from worker.engine.record import Execution
from worker.engine.service import Executions
from worker.files.ranges import FileAnswer, reply_for
from worker.files.store import FileRef, Files

OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class ShownResult:
    """A result in both of HIRE's forms."""

    deliverables: list[dict[str, Any]]
    output: dict[str, Any]


@dataclass(frozen=True)
class Deliverables:
    """Builds URLs for an execution's deliverables and serves them."""

    executions: Executions
    files: Files
    public_url: str
    secret: str
    retention_us: int
    accepted_secrets: tuple[str, ...] = ()

    def task_url(self, id: str) -> str:
        return f"{self.public_url}/tasks/{id}"

    def links(self, id: str) -> dict[str, str]:
        task = self.task_url(id)
        stream = f"{self.public_url}/stream/{id}"
        return {"self": task, "stream": stream, "cancel": task, "evidence": f"{task}/evidence"}

    def expires_at(self, execution: Execution) -> str:
        return iso(execution.ended + self.retention_us)

    def shown(self, execution: Execution) -> ShownResult:
        """The deliverables of a completed execution."""
        result = execution.result
        refs = [FileRef(**described) for described in result["files"]]
        listed = [self._listed(execution, str(at), ref) for at, ref in enumerate(refs)]
        if result["type"] == "stream":
            return ShownResult(listed, self.stream_output(execution))
        items = [self._file_item(each) for each in listed]
        value = self._value(execution)
        if value is None:
            output = items[0] if len(items) == 1 else {"type": "multiple", "items": items}
            return ShownResult(listed, output)
        content, ref = value
        kind = "text" if isinstance(content, str) else "json"
        own = self._listed(execution, OUTPUT, ref)
        item = {"type": kind, "content": content}
        if not items:
            return ShownResult([own], item)
        return ShownResult([*listed, own], {"type": "multiple", "items": [*items, item]})

    def parts(self, execution: Execution) -> list[dict[str, Any]]:
        """Every part of a completed result with its checksum, streamed text included."""
        listed = self.shown(execution).deliverables
        streamed = self._value(execution) if execution.result["type"] == "stream" else None
        return listed if streamed is None else [*listed, self._listed(execution, OUTPUT, streamed[1])]

    def ready(self, execution: Execution, *, until: int = 0) -> list[dict[str, Any]]:
        """Files closed while the work is still running; with `until`, those closed up to that event.

        Omits size and checksum of a sealed file: they would reveal the content of a small one.
        """
        if not execution.started:
            return []
        opened = self._opened(execution)
        listed = []
        for event in self.executions.events(execution.id, limit=until or 10_000):
            if not is_ready(event):
                continue
            data = event.data()
            url = self._url(execution.id, f"ready-{event.sequence}", data["name"])
            content = {"checksum": f"sha256:{data['sha256']}", "size": data["size"]} if opened else {}
            listed.append(
                {"name": data["name"], "url": url, "mime": data["mime"], **content, "sealed": not opened}
            )
        return listed

    def _opened(self, execution: Execution) -> bool:
        """Whether files may be read: all after completion, closed ones if the execution opens early."""
        if execution.state.terminal:
            return execution.state is State.COMPLETED
        return opens_early(execution) and execution.started > 0

    def stream_output(self, execution: Execution) -> dict[str, Any]:
        token = self._token("stream", execution.id)
        return {
            "type": "stream",
            "url": f"{self.public_url}/stream/{execution.id}?token={token}",
            "format": "sse",
        }

    def opens_stream(self, id: str, token: str) -> bool:
        return self._fits("stream", id, token)

    def page_token(self, id: str) -> str:
        """Opens the pages of one task, instead of a contract's id, which is never kept in a browser."""
        return self._token("page", id)

    def opens_page(self, id: str, token: str) -> bool:
        return self._fits("page", id, token)

    def open(
        self, id: str, which: str, token: str, method: str, headers: Mapping[str, str]
    ) -> tuple[FileAnswer, Iterable[bytes]]:
        """Answers a request for a file: status, headers and bytes."""
        if not self._fits(which, id, token):
            raise NotFound("no such file")
        execution = self.executions.get(id)
        if not self._opened(execution):
            raise Forbidden(
                "the file is sealed until its payment has settled",
                code="SEALED",
                charge_known=False,
                advice="Poll the task; the same URL opens when it is completed.",
            )
        if which == OUTPUT:
            return self._open_value(execution, method, headers)
        ref = self._ref(execution, which)
        reply = reply_for(ref, method, headers)
        return reply, self.files.open(ref.key, *reply.span) if reply.span else ()

    def _open_value(
        self, execution: Execution, method: str, headers: Mapping[str, str]
    ) -> tuple[FileAnswer, Iterable[bytes]]:
        found = self._value(execution)
        if found is None:
            raise NotFound("no such file")
        content, ref = found
        reply = reply_for(ref, method, headers)
        start, end = reply.span or (0, 0)
        return reply, [_bytes(content)[start:end]] if reply.span else ()

    def _ref(self, execution: Execution, which: str) -> FileRef:
        if which.startswith("ready-") and which[6:].isdigit():
            events = self.executions.events(execution.id, int(which[6:]) - 1, 1)
            names = [event.data()["name"] for event in events if is_ready(event)]
            ref = self.executions.written(execution.id, names[0]) if names else None
            if ref is not None:
                return ref
        refs = execution.result.get("files", [])
        if not which.isdigit() or int(which) >= len(refs):
            raise NotFound("no such file")
        return FileRef(**refs[int(which)])

    def _value(self, execution: Execution) -> tuple[Any, FileRef] | None:
        """The text or JSON value, and a description of the file that it is offered as."""
        if not execution.output and not execution.result.get("value_ref"):
            return None
        content = self.executions.output(execution)
        raw = _bytes(content)
        text = isinstance(content, str)
        return content, FileRef(
            key="",
            name="output.txt" if text else "output.json",
            mime="text/plain; charset=utf-8" if text else "application/json",
            size=len(raw),
            sha256=hashlib.sha256(raw).hexdigest(),
        )

    def _listed(self, execution: Execution, which: str, ref: FileRef) -> dict[str, Any]:
        return {
            "name": ref.name,
            "url": self._url(execution.id, which, ref.name),
            "checksum": f"sha256:{ref.sha256}",
            "mime": ref.mime,
            "size": ref.size,
        }

    def _file_item(self, listed: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": "file", **{name: listed[name] for name in ("url", "mime", "size", "checksum")}}

    def _url(self, id: str, which: str, name: str) -> str:
        return f"{self.public_url}/files/{id}/{which}/{self._token(which, id)}/{quote(name, safe='')}"

    def _token(self, which: str, id: str) -> str:
        return keyed_hash(self.secret, f"file:{which}:{id}")

    def _fits(self, which: str, id: str, token: str) -> bool:
        return is_keyed_hash((self.secret, *self.accepted_secrets), f"file:{which}:{id}", token)


def is_ready(event: Event) -> bool:
    """Whether the event closes a deliverable."""
    return event.kind == Kind.FILE_WRITTEN and bool(event.data().get("ready"))


def _bytes(content: Any) -> bytes:
    return content.encode() if isinstance(content, str) else canonical(content)


def metadata(execution: Execution, capability: Capability | None) -> dict[str, Any]:
    """Execution metadata, shared by poll, answer and webhook."""
    sealed = execution.sealed or execution.ended
    began = execution.started or sealed
    named = f"{execution.agent}/{execution.version}"
    return {
        "execution_time_ms": max(0, sealed - began) // 1000,
        "queue_time_ms": max(0, (execution.first_started or sealed) - execution.created) // 1000,
        "model_used": (capability.model if capability else "") or named,
        "attempts": execution.attempt,
    }

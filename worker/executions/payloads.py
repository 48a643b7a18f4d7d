"""How the log tells of a tool call: the same words for a remote agent's and a local function's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from worker.agents.blobs import described, reference
from worker.agents.output import encode, short

# As much of an error as an agent may give in an intent.
MOST_ERROR = 4096


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call before it is made. `packed` are its arguments as they are stored, or None when it has none."""

    tool: str
    packed: bytes | None
    remote: bool
    key: str = ""

    def accepted(self) -> bytes:
        """The payload of intent.accepted."""
        details = [b'"tool_id":' + encode(self.tool)]
        if self.packed is not None:
            details.append(self._arguments())
        if self.key:
            details.append(b'"idempotency_key":' + encode(self.key))
        return b'{"intent_type":"invoke_tool","details":{%s}}' % b",".join(details)

    def denied(self, reason: str, rule_id: str) -> bytes:
        """The payload of intent.denied."""
        parts = [b'"intent_type":"invoke_tool"', b'"tool_id":' + encode(self.tool)]
        if self.packed is not None:
            parts.append(self._arguments())
        if self.key:
            parts.append(b'"idempotency_key":' + encode(self.key))
        parts += [b'"reason":' + encode(reason), b'"rule_id":' + encode(rule_id)]
        return b"{%s}" % b",".join(parts)

    def created(self, attempts: int) -> bytes:
        """The payload of step.created, up to where the deadline belongs."""
        parts = (encode(self.tool), self._arguments(), attempts)
        return b'{"tool_id":%s,"tool_version":0,%s,"max_attempts":%d,"attempt":1,"deadline":' % parts

    def approval_required(self, reason: str) -> bytes:
        """The payload of step.approval_required."""
        parts = (encode(self.tool), self._arguments(), encode(self.remote), encode(reason))
        return b'{"tool_id":%s,%s,"remote":%s,"reason":%s}' % parts

    def blocked(self, step: str) -> bytes:
        """The payload of execution.blocked."""
        parts = (encode(step), encode(self.tool), self._arguments(), encode(self.remote))
        return b'{"reason":"approval","ref":%s,"tool_id":%s,%s,"remote":%s}' % parts

    def _arguments(self) -> bytes:
        return shown_arguments(self.packed if self.packed is not None else b"null")


def shown_arguments(packed: bytes) -> bytes:
    """Arguments as an event has them; long ones by size and digest."""
    ref = reference(packed)
    if ref is None:
        return b'"arguments":' + packed
    about = {"size": ref.size, "sha256": ref.sha256}
    return b'"arguments":null,"arguments_omitted":' + encode(about)


def shown_value(packed: bytes) -> bytes:
    """A tool's result as an event has it; a long one by its file."""
    ref = reference(packed)
    if ref is None:
        return b'{"result":%s}' % packed
    return encode({"result": None, "result_file": described(ref)})


def shown_error(error: str, *, retryable: bool = False) -> bytes:
    """What went wrong with a tool, as an event has it; whoever called the tool is told all of it."""
    return encode({"error": short(error, MOST_ERROR), "retryable": retryable})


def waits(kind: str) -> tuple[bytes, bytes, bytes]:
    """The payloads of intent.accepted, execution.blocked and execution.resumed of a wait for a signal."""
    return (
        encode({"intent_type": "wait", "details": {"signal_type": kind}}),
        encode({"reason": "signal", "ref": kind}),
        encode({"reason": f"signal received: {kind}"}),
    )


def digest(*parts: object) -> str:
    """A short name for what is the same."""
    return hashlib.sha256(encode(parts)).hexdigest()[:32]

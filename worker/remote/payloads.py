"""Log events of tool calls, the same for remote agents and local functions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from worker.core.json import encode, short
from worker.files.blobs import INLINE_BYTES, described, reference

# Longest error that an agent may send in an intent, in bytes.
MOST_ERROR = 4096
# Longest arguments shown in step.created (longer ones go to a file), and in the other events.
SHOWN_ARGUMENTS, REPEATED_ARGUMENTS = 4096, 1024


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call before it is made.

    `arguments` is JSON, or None if there are none; `packed` is the form stored beside the log.
    """

    tool: str
    arguments: bytes | None
    remote: bool
    key: str = ""
    packed: bytes = b"null"

    @property
    def is_long(self) -> bool:
        """Whether the arguments are stored in a file."""
        return self.arguments is not None and len(self.arguments) > SHOWN_ARGUMENTS

    def accepted(self) -> bytes:
        """The payload of intent.accepted."""
        details = [b'"tool_id":' + encode(self.tool)]
        if self.arguments is not None:
            details.append(self._arguments(REPEATED_ARGUMENTS))
        if self.key:
            details.append(b'"idempotency_key":' + encode(self.key))
        return b'{"intent_type":"invoke_tool","details":{%s}}' % b",".join(details)

    def denied(self, reason: str, rule_id: str) -> bytes:
        """The payload of intent.denied."""
        parts = [b'"intent_type":"invoke_tool"', b'"tool_id":' + encode(self.tool)]
        if self.arguments is not None:
            parts.append(self._arguments(SHOWN_ARGUMENTS))
        if self.key:
            parts.append(b'"idempotency_key":' + encode(self.key))
        parts += [b'"reason":' + encode(reason), b'"rule_id":' + encode(rule_id)]
        return b"{%s}" % b",".join(parts)

    def created(self, attempts: int) -> bytes:
        """The payload of step.created, up to the value of its deadline."""
        parts = (encode(self.tool), self._arguments(SHOWN_ARGUMENTS), attempts)
        return b'{"tool_id":%s,"tool_version":0,%s,"max_attempts":%d,"attempt":1,"deadline":' % parts

    def approval_required(self, reason: str) -> bytes:
        """The payload of step.approval_required; shows the approver more of the arguments."""
        parts = (encode(self.tool), self._arguments(INLINE_BYTES), encode(self.remote), encode(reason))
        return b'{"tool_id":%s,%s,"remote":%s,"reason":%s}' % parts

    def blocked(self, step: str) -> bytes:
        """The payload of execution.blocked."""
        parts = (encode(step), encode(self.tool), self._arguments(REPEATED_ARGUMENTS), encode(self.remote))
        return b'{"reason":"approval","ref":%s,"tool_id":%s,%s,"remote":%s}' % parts

    def _arguments(self, most: int) -> bytes:
        """Arguments as shown in an event; longer ones by size and digest."""
        arguments = b"null" if self.arguments is None else self.arguments
        if len(arguments) <= most:
            return b'"arguments":' + arguments
        about = {"size": len(arguments), "sha256": hashlib.sha256(arguments).hexdigest()}
        return b'"arguments":null,"arguments_omitted":' + encode(about)


def shown_value(packed: bytes) -> bytes:
    """A tool's result as shown in an event; a long one by its file."""
    ref = reference(packed)
    if ref is None:
        return b'{"result":%s}' % packed
    return encode({"result": None, "result_file": described(ref)})


def shown_error(error: str, *, retryable: bool = False) -> bytes:
    """A tool's error as shown in an event; the caller of the tool receives it in full."""
    return encode({"error": short(error, MOST_ERROR), "retryable": retryable})


def waits(kind: str) -> tuple[bytes, bytes, bytes]:
    """The payloads of intent.accepted, execution.blocked and execution.resumed of a wait for a signal."""
    return (
        encode({"intent_type": "wait", "details": {"signal_type": kind}}),
        encode({"reason": "signal", "ref": kind}),
        encode({"reason": f"signal received: {kind}"}),
    )


def digest(*parts: object) -> str:
    """A short digest that is equal for equal parts."""
    return hashlib.sha256(encode(parts)).hexdigest()[:32]

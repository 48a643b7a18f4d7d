"""One intent of a remote agent, as received."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from worker.core.errors import BadRequest
from worker.core.json import encode
from worker.remote.payloads import ToolCall


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent. `caller` is the only agent that the caller may act for, or ''."""

    id: str
    session: str
    type: str
    tool: str = ""
    arguments: Any = None
    has_arguments: bool = False
    key: str = ""
    signal_type: str = ""
    output: Any = None
    error: str = ""
    remote: bool = False
    caller: str = ""

    @property
    def digest(self) -> str:
        """Digest of the content: equal digests under one key mean the same intent. '' without a key."""
        if not self.key:
            return ""
        about = [self.type, self.tool, self.arguments, self.signal_type, self.output, self.error, self.remote]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def call_id(self) -> str:
        """Identifies copies of one intent; '' without a key, so that each counts as its own call."""
        return f"{self.session}:{self.hidden_key}:{self.digest}" if self.key else ""

    @property
    def hidden_key(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()[:40] if self.key else ""


def tool_call(intent: Intent) -> ToolCall:
    arguments = encode(intent.arguments) if intent.has_arguments else None
    return ToolCall(intent.tool, arguments, intent.remote, intent.key)


def missing_content(intent: Intent) -> BadRequest | None:
    """Returns the error for an intent that lacks what its type requires."""
    match intent.type:
        case "invoke_tool":
            missing = "" if intent.tool else "tool_id"
        case "fail":
            missing = "" if intent.error else "error"
        case "wait":
            missing = "" if intent.signal_type else "signal_type"
        case "complete":
            missing = ""
        case _:
            return BadRequest(f"unknown intent type {intent.type[:64]!r}", field="intent.type")
    if missing:
        return BadRequest(f"intent.{missing} is required for {intent.type}", field=f"intent.{missing}")
    return None

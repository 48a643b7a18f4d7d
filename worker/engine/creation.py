"""A new execution: its initial data, and the result of creating it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from worker.core.states import Lane, Phase
from worker.store.scripts import Arg


@dataclass(frozen=True, slots=True)
class NewExecution:
    """Initial data of an execution. JSON values are given as bytes."""

    id: str
    agent: str
    door: str
    lane: Lane
    input: bytes
    labels: Mapping[str, str]
    timeout_us: int
    run_limit_us: int
    attempts: int = 3
    phase: Phase = Phase.WORKING
    input_ref: bytes = b""
    context: bytes = b""
    digest: str = ""
    version: str = ""
    scope: str = ""
    key: str = ""

    @property
    def payload(self) -> bytes:
        """The payload of the event `execution.created`."""
        agent, file, labels = (
            json.dumps(self.agent).encode(),
            _input_file(self.input_ref),
            self._labels.encode(),
        )
        return b'{"agent_id":%s,"input":%s%s,"labels":%s}' % (agent, self.input, file, labels)

    @property
    def fields(self) -> dict[str, Arg]:
        """The fields of the record; empty ones are left out."""
        fields: dict[str, Arg] = {
            "agent": self.agent,
            "door": self.door,
            "labels": self._labels,
            "input": self.input,
            "attempts": self.attempts,
            "run_limit": self.run_limit_us,
        }
        optional: dict[str, Arg] = {
            "input_ref": self.input_ref,
            "context": self.context,
            "digest": self.digest,
            "version": self.version,
        }
        fields |= {name: value for name, value in optional.items() if value}
        if self.key:
            fields.update(scope=self.scope, key=self.key)
        return fields

    @property
    def _labels(self) -> str:
        return json.dumps(dict(self.labels), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class CreatedExecution:
    """A new execution: when it was created, and when an agent got it, if one did."""

    is_new: bool
    id: str
    created: int
    assigned: int | None = None


def _input_file(input_ref: bytes) -> bytes:
    """Describes an input stored in a file, for the log."""
    if not input_ref:
        return b""
    public = {name: value for name, value in json.loads(input_ref).items() if name != "key"}
    return b',"input_file":' + json.dumps(public, separators=(",", ":")).encode()

"""A runtime for swarm kernels: proposes candidates with the worker's own agents, judges others' candidates.

A kernel's client waits 30 s for an answer and, when none comes, posts the same bytes again, five times in
all. An HTTP error it takes as said: 4xx ends the task, 5xx makes it a new one. So work that takes longer
than a kernel waits is answered with silence: the request is held past those 30 s, the kernel's own time-out
is the transport error that makes it ask again, and the repeated request joins the run or collects its
result. Closing the connection earlier would use up its five tries faster, and become a 5xx behind a router.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from worker.agents.catalog import Catalog
from worker.agents.declare import Capability
from worker.delivery.deliverables import Deliverables
from worker.delivery.files import FileRef, Files
from worker.errors import BadRequest, Unavailable
from worker.executions.record import Execution
from worker.executions.service import Executions, lane_of
from worker.executions.states import State
from worker.swarm import answers, candidate, fetching, keys, policies, serde, task, wire
from worker.swarm.answers import Identity, Work
from worker.swarm.fetching import Fetch
from worker.swarm.full_schema import FullSchema
from worker.swarm.kernels import Kernel
from worker.swarm.places import DOOR, Expired, Places, Request, Taken
from worker.swarm.policies import Reason, Verdict
from worker.swarm.wire import ArtifactRef, ExecuteRequest, InlineEvidence, VerifyRequest

log = structlog.get_logger()

# Longer than a kernel's client waits, so that it is always the client that gives up.
HOLD_SECONDS = 35.0
# All reading of one candidate's evidence; the answer must be there within a kernel's 30 s.
EVIDENCE_SECONDS = 20.0
MOST_PIECES = 8


class StillRunning(Unavailable):
    """For clients that wait longer than a kernel does."""

    code = "STILL_RUNNING"
    message = "the task is still running"
    advice = "Post the same request again to get its result."


class UnknownProfile(BadRequest):
    code = "UNKNOWN_PROFILE"
    message = "the agent has no such profile"
    advice = "Use one of the profiles in expected; the task was not run."


@dataclass(frozen=True)
class Stricter:
    """What verification checks beyond the policies, if the operator wants it."""

    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    full_schema: FullSchema | None = None
    origins: tuple[str, ...] = ()
    fetch: Fetch | None = None


@dataclass(frozen=True)
class Serving:
    """The four answers of a runtime, as bytes."""

    executions: Executions
    catalog: Catalog
    places: Places
    files: Files
    deliverables: Deliverables
    identity: Identity
    stricter: Stricter
    hold: float = HOLD_SECONDS

    def capabilities(self) -> bytes:
        """What the opened agents serve, and the profiles they have."""
        opened = task.opened(self.catalog.all())
        types = {each: None for agent in opened for each in task.types(agent) if each != "*"}
        profiles = {each: None for agent in opened for each in agent.profiles}
        return serde.response(
            {
                "task_types": list(types),
                "profiles": list(profiles),
                "provider_family": self.identity.provider_family,
                "model_id": self.identity.model_id,
            }
        )

    # Execute

    def execute(self, kernel: Kernel, raw: bytes) -> bytes:
        """The candidate for a task; the same request gets the same bytes as long as the record is kept."""
        until = time.monotonic() + self.hold
        request = wire.parse_execute(wire.read_json(raw))
        digest = keys.body_digest(raw)
        key = keys.idempotency_key(kernel.name, request)
        known = self.places.known(_scope(kernel), key)
        taken = self._begin(kernel, request, key, digest) if known is None else Taken(known, True)
        return self._answer(self._ended(kernel, taken, digest, until))

    def _begin(self, kernel: Kernel, request: ExecuteRequest, key: str, digest: str) -> Taken:
        capability = self._capability(request)
        candidate.require_possible(request.contract.output_schema)
        context = task.context(request, self.identity, digest)
        if request.contract.time_ms == 0:
            raise Expired(
                "the task leaves no time", field="task_contract.budget.time_ms", expected="1 or more"
            )
        expires_us = task.expires_us(request)
        wanted = Request(kernel, lane_of(capability), _scope(kernel), key, expires_us)
        taken = self.places.take(wanted)
        if taken.known:
            return taken
        limits = [expires_us - taken.at] if expires_us else []
        if request.contract.time_ms is not None:
            limits.append(request.contract.time_ms * 1000)
        made, id = self.executions.create(
            capability.name,
            request.inputs,
            door=DOOR,
            labels={"door": DOOR, "task_type": request.task_type[:256], "kernel": kernel.name},
            context=context,
            scope=_scope(kernel),
            key=key,
            id=taken.id,
            timeout_us=min(limits, default=None),
        )
        if made:
            log.info("swarm.execute", kernel=kernel.name, execution_id=id, agent=capability.name)
        return Taken(id, not made)

    def _capability(self, request: ExecuteRequest) -> Capability:
        capability = task.chosen(self.catalog.all(), request.task_type)
        if capability is None:
            raise Unavailable(
                "no agent serves this task type now", code="CAPABILITY_UNAVAILABLE", field="task_type"
            )
        if request.profile not in capability.profiles:
            raise UnknownProfile(
                f"profile {request.profile[:80]!r} is not offered",
                field="profile",
                expected=list(capability.profiles),
                received=request.profile[:80],
            )
        return capability

    def _ended(self, kernel: Kernel, taken: Taken, digest: str, until: float) -> Execution:
        """The execution when it has ended; silence until then."""
        id = taken.id
        if taken.known:
            execution = self.executions.get(id)
            if task.body_digest_of(execution) != digest:
                log.warning("swarm.other_body", kernel=kernel.name, execution_id=id)
            if execution.state.terminal:
                return execution
        over = task.ended(self.executions, id, until)
        if over is None:
            raise StillRunning(retry_after=1)
        self.places.release(over.lane, id, kernel.name)
        return over

    def _answer(self, execution: Execution) -> bytes:
        request = task.request_of(execution)
        if execution.state is not State.COMPLETED:
            raise task.refusal(execution, request)
        work = Work(self._said(execution), tuple(self._pieces(execution, request)), self._refs(execution))
        answer = answers.execute_answer(work, request)
        for note in answer.notes:
            log.info("swarm.evidence", execution_id=execution.id, note=note)
        return answer.body

    def _said(self, execution: Execution) -> candidate.Said:
        result = execution.result
        if result["type"] == "stream":
            return candidate.Said(text=self._read(_files(execution)[-1], candidate.MAX_OUTPUT_BYTES))
        value = self.executions.output(execution)
        return candidate.Said(text=value) if result["type"] == "text" else candidate.Said(value)

    def _pieces(self, execution: Execution, request: ExecuteRequest) -> Iterator[InlineEvidence]:
        """A trace to our record, then what the agent wrote as text."""
        yield InlineEvidence("text/plain", f"trace:{request.attempt_id} execution:{execution.id}")
        written = [ref for ref in _files(execution) if _is_text(ref.mime)]
        if execution.result["type"] == "stream":
            written.pop()
        for ref in written[:MOST_PIECES]:
            yield InlineEvidence(ref.mime, self._read(ref, request.contract.max_inline_bytes))

    def _read(self, ref: FileRef, most: int) -> str:
        """The text of a file, a little more than `most` bytes of it if it has more."""
        data = b"".join(self.files.open(ref.key, 0, min(ref.size, most + 4)))
        return data.decode("utf-8", "ignore")

    def _refs(self, execution: Execution) -> list[ArtifactRef]:
        """What was made, under URLs of ours that open for whoever has them."""
        try:
            listed = self.deliverables.shown(execution).deliverables
        except BadRequest:
            # The output holds numbers that the form of our files has no words for.
            log.info("swarm.evidence", execution_id=execution.id, note="no reference: not canonical JSON")
            return []
        return [
            answers.reference(
                each["url"],
                sha256=each["checksum"].removeprefix("sha256:"),
                size=each["size"],
                mime=each["mime"],
                created_at_ms=execution.ended // 1000,
                identity=task.identity_of(execution),
            )
            for each in listed
        ]

    # Verify

    def verify(self, kernel: Kernel, raw: bytes) -> bytes:
        """The verdict on a candidate: the bound policy's, and what the operator checks beyond it."""
        request = wire.parse_verify(wire.read_json(raw))
        policies.require_binding(request.policy, self.stricter.hashes)
        output, schema = request.candidate.output, request.output_schema
        verdict = policies.evaluate(request.policy, output, schema)
        if self._fails_more(kernel, request, verdict):
            verdict = policies.evaluate(request.policy, output, schema, full_schema_ok=False)
        return answers.verify_answer(self._with_evidence(request, verdict), request, self.identity)

    def _fails_more(self, kernel: Kernel, request: VerifyRequest, verdict: Verdict) -> bool:
        full = self.stricter.full_schema
        if full is None or Reason.SCHEMA_OK not in verdict.reason_codes:
            return False
        return not full.fits(kernel, request.candidate.output, request.output_schema)

    def _with_evidence(self, request: VerifyRequest, verdict: Verdict) -> Verdict:
        fetch, until = self.stricter.fetch, time.monotonic() + EVIDENCE_SECONDS
        if fetch is None:
            return verdict
        refs = request.candidate.evidence_refs
        codes = fetching.judge(refs, fetch, self.stricter.origins, lambda: until - time.monotonic())
        return policies.with_evidence(verdict, codes)


def _scope(kernel: Kernel) -> str:
    return f"swarm:{kernel.name}"


def _files(execution: Execution) -> list[FileRef]:
    return [FileRef(**described) for described in execution.result["files"]]


def _is_text(mime: str) -> bool:
    base = mime.partition(";")[0].strip().lower()
    return base.startswith("text/") or base == "application/json" or base.endswith("+json")

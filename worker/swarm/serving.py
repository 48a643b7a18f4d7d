"""A runtime for swarm kernels: proposes candidates with the worker's own agents, judges others' candidates.

A kernel's client waits 30 s for a response; if none comes, it posts the same bytes again, five times in all.
It does not retry HTTP errors: 4xx ends the task, 5xx makes it a new one. So when work takes longer than a
kernel waits, the request is held open past those 30 s. The kernel's own time-out is the transport error that
makes it ask again, and the repeated request joins the run or collects its result. Closing the connection
earlier would use up its five tries faster, and become a 5xx behind a router.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.core.errors import BadRequest, InvalidInput, Problem, Unavailable
from worker.core.states import State
from worker.delivery.deliverables import Deliverables
from worker.engine.record import Execution
from worker.engine.service import Executions, lane_of
from worker.files.store import FileRef, Files
from worker.schemas.validators import CompiledSchemas, validate
from worker.swarm import answers, candidate, fetching, policies, run_names, serde, task, wire
from worker.swarm.admission import DOOR, Admission, AdmissionRequest, AdmittedExecution, TaskExpired
from worker.swarm.answers import ProposedWork, RuntimeIdentity
from worker.swarm.fetching import Fetch
from worker.swarm.full_schema import FullSchema
from worker.swarm.kernels import Kernel
from worker.swarm.policies import Verdict, VerdictReason
from worker.swarm.wire import ArtifactRef, ExecuteRequest, InlineEvidence, VerifyRequest

log = structlog.get_logger()

# Longer than a kernel's client waits, so that the client always gives up first.
HOLD_SECONDS = 35.0
# Budget for reading one candidate's evidence; the response must arrive within a kernel's 30 s.
EVIDENCE_SECONDS = 20.0
MOST_PIECES = 8


class StillRunning(Unavailable):
    """Raised for clients that wait longer than a kernel does."""

    code = "STILL_RUNNING"
    message = "the task is still running"
    advice = "Post the same request again to get its result."


class UnknownProfile(BadRequest):
    code = "UNKNOWN_PROFILE"
    message = "the agent has no such profile"
    advice = "Use one of the profiles in expected; the task was not run."


class UnknownTaskType(BadRequest):
    code = "UNKNOWN_TASK_TYPE"
    message = "no agent serves this task type"
    advice = "Use one of the task types in expected; the task was not run."


@dataclass(frozen=True)
class ExtraChecks:
    """Optional checks the operator adds to the policies at verification."""

    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    full_schema: FullSchema | None = None
    origins: tuple[str, ...] = ()
    fetch: Fetch | None = None


@dataclass(frozen=True)
class SwarmRuntime:
    """The four responses of a runtime, as bytes."""

    executions: Executions
    catalog: Catalog
    places: Admission
    files: Files
    deliverables: Deliverables
    identity: RuntimeIdentity
    stricter: ExtraChecks
    validators: CompiledSchemas
    connected: Callable[[str], bool]
    hold: float = HOLD_SECONDS

    def capabilities(self) -> bytes:
        """The task types that opened agents serve, and their profiles."""
        opened = self._present().values()
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
        digest = run_names.body_digest(raw)
        key = run_names.idempotency_key(kernel.name, request)
        known = self.places.known(_scope(kernel), key)
        taken = (
            self._begin(kernel, request, key, digest, until)
            if known is None
            else AdmittedExecution(known, True)
        )
        return self._answer(self._ended(kernel, taken, request, digest, until))

    def _begin(
        self, kernel: Kernel, request: ExecuteRequest, key: str, digest: str, until: float
    ) -> AdmittedExecution:
        capability = self._capability(request)
        self._require_input(capability, request.inputs)
        candidate.require_possible(request.contract.output_schema)
        context = task.context(request, self.identity, digest)
        if request.contract.time_ms == 0:
            raise TaskExpired(
                "the task's time limit is too short",
                field="task_contract.budget.time_ms",
                expected="1 or more",
            )
        expires_us = task.expires_us(request)
        wanted = AdmissionRequest(
            kernel,
            lane_of(capability),
            _scope(kernel),
            key,
            agent=capability.name,
            task=run_names.task_key(request),
            expires_us=expires_us,
        )
        taken = self.places.take(wanted, until=until)
        if taken.known:
            return taken
        limits = [expires_us - taken.at] if expires_us else []
        if request.contract.time_ms is not None:
            limits.append(request.contract.time_ms * 1000)
        is_new, id = self.executions.create(
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
        if is_new:
            log.info("swarm.task_created", kernel=kernel.name, execution_id=id, agent=capability.name)
        return AdmittedExecution(id, not is_new)

    def _present(self) -> dict[str, Capability]:
        """The opened agents that can be called now; remote ones only while connected."""
        return {
            each.name: each
            for each in task.opened(self.catalog.all())
            if not each.remote or self.connected(each.name)
        }

    def _capability(self, request: ExecuteRequest) -> Capability:
        capability = task.chosen(self.catalog.all(), request.task_type)
        if capability is None:
            raise self._not_served(request.task_type)
        if request.profile not in capability.profiles:
            raise UnknownProfile(
                f"profile {request.profile[:80]!r} is not offered",
                field="profile",
                expected=list(capability.profiles),
                received=request.profile[:80],
            )
        if capability.remote and not self.connected(capability.name):
            raise _away()
        return capability

    def _not_served(self, task_type: str) -> Problem:
        """Final if the operator opened agents for other types; transient before any was published."""
        opened = task.opened(self.catalog.all())
        if not opened:
            return _away()
        return UnknownTaskType(
            field="task_type",
            expected=[each for agent in opened for each in task.types(agent)],
            received=task_type[:80],
        )

    def _require_input(self, capability: Capability, inputs: Any) -> None:
        """Refuse inputs that break the author's schema, ignoring keys that a kernel adds by itself."""
        schema = capability.input_schema
        if not schema:
            return
        validator = self.validators.get(schema)
        if not validate(validator, inputs):
            return
        wrong = validate(validator, task.authors_part(inputs, schema))
        if wrong:
            path = str(wrong[0].pop("field")).removeprefix("$")
            where = f"inputs.{path}" if path and path[0] not in ".[" else f"inputs{path}"
            raise InvalidInput(field=where, advice="Change the inputs; the task was not run.", **wrong[0])

    def _ended(
        self, kernel: Kernel, taken: AdmittedExecution, request: ExecuteRequest, digest: str, until: float
    ) -> Execution:
        """Return the execution once it has ended; hold the request without an answer until then."""
        id = taken.id
        if taken.known:
            execution = self.executions.get(id)
            if not task.is_same(execution, request):
                log.info("swarm.request_joined", kernel=kernel.name, execution_id=id)
            elif task.body_digest_of(execution) != digest:
                log.warning("swarm.body_changed", kernel=kernel.name, execution_id=id)
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
        work = ProposedWork(
            self._result(execution), tuple(self._pieces(execution, request)), self._refs(execution)
        )
        answer = answers.execute_answer(work, request)
        for note in answer.notes:
            log.info("swarm.evidence_adjusted", execution_id=execution.id, note=note)
        return answer.body

    def _result(self, execution: Execution) -> candidate.AgentResult:
        result = execution.result
        if result["type"] == "stream":
            return candidate.AgentResult(text=self._read(_files(execution)[-1], candidate.MAX_OUTPUT_BYTES))
        value = self.executions.output(execution)
        return candidate.AgentResult(text=value) if result["type"] == "text" else candidate.AgentResult(value)

    def _pieces(self, execution: Execution, request: ExecuteRequest) -> Iterator[InlineEvidence]:
        """A trace to our record, then the text the agent wrote."""
        yield InlineEvidence("text/plain", f"trace:{request.attempt_id} execution:{execution.id}")
        written = [ref for ref in _files(execution) if _is_text(ref.mime)]
        if execution.result["type"] == "stream":
            written.pop()
        for ref in written[:MOST_PIECES]:
            yield InlineEvidence(ref.mime, self._read(ref, request.contract.max_inline_bytes))

    def _read(self, ref: FileRef, most: int) -> str:
        """The text of a file; of a longer file, a little more than `most` bytes."""
        data = b"".join(self.files.open(ref.key, 0, min(ref.size, most + 4)))
        return data.decode("utf-8", "ignore")

    def _refs(self, execution: Execution) -> list[ArtifactRef]:
        """References to the output and files, under capability URLs of ours."""
        try:
            listed = self.deliverables.shown(execution).deliverables
        except BadRequest:
            # The output contains numbers that our file format cannot express.
            note = "no reference: not canonical JSON"
            log.info("swarm.evidence_adjusted", execution_id=execution.id, note=note)
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
        """The verdict on a candidate: the bound policy's, plus the operator's extra checks."""
        request = wire.parse_verify(wire.read_json(raw))
        policies.require_binding(request.policy, self.stricter.hashes)
        output, schema = request.candidate.output, request.output_schema
        verdict = policies.evaluate(request.policy, output, schema)
        if self._fails_more(kernel, request, verdict):
            verdict = policies.evaluate(request.policy, output, schema, full_schema_ok=False)
        return answers.verify_answer(self._with_evidence(request, verdict), request, self.identity)

    def _fails_more(self, kernel: Kernel, request: VerifyRequest, verdict: Verdict) -> bool:
        full = self.stricter.full_schema
        if full is None or VerdictReason.SCHEMA_OK not in verdict.reason_codes:
            return False
        return not full.fits(kernel, request.candidate.output, request.output_schema)

    def _with_evidence(self, request: VerifyRequest, verdict: Verdict) -> Verdict:
        fetch, until = self.stricter.fetch, time.monotonic() + EVIDENCE_SECONDS
        if fetch is None:
            return verdict
        refs = request.candidate.evidence_refs
        codes = fetching.judge(refs, fetch, self.stricter.origins, lambda: until - time.monotonic())
        return policies.with_evidence(verdict, codes)


def _away() -> Unavailable:
    return Unavailable(
        "no agent serves this task type now",
        code="CAPABILITY_UNAVAILABLE",
        field="task_type",
        advice="Run the task again; it was not run.",
    )


def _scope(kernel: Kernel) -> str:
    return f"swarm:{kernel.name}"


def _files(execution: Execution) -> list[FileRef]:
    return [FileRef(**described) for described in execution.result["files"]]


def _is_text(mime: str) -> bool:
    base = mime.partition(";")[0].strip().lower()
    return base.startswith("text/") or base == "application/json" or base.endswith("+json")

"""`run`: runs one agent with one input on the in-memory engine, and answers its waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from worker.capabilities.declare import REGISTRY, Capability, Tool
from worker.core.errors import InvalidInput, Transient
from worker.core.json import encode
from worker.core.settings import BadStart
from worker.engine.record import Execution
from worker.engine.service import Executions
from worker.policy import file as policy_file
from worker.policy.judge import PERMISSIVE, Decision, Policy, PolicyCall, judge
from worker.remote.signals import STEP_APPROVE
from worker.schemas.validators import compile_schema, validate
from worker.testing.engine import InProcessEngine, shared_engine
from worker.testing.result import Run, RunFile

_MOST_RUNS = 1_000
_MOST_EVENTS = 20_000

Agent = str | Callable[..., Any]
PolicyRules = str | Path | Policy | Callable[[PolicyCall], Decision] | None


class Expires:
    """An answer for `signals`: no signal arrives, and the wait times out."""


def run(
    agent: Agent,
    input: Any = None,
    *,
    tools: Mapping[str, Callable[..., Any]] | None = None,
    policy: PolicyRules = None,
    signals: Mapping[str, Any] | None = None,
    approvals: bool | Mapping[str, bool | str] | None = None,
    settings: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    **context: Any,
) -> Run:
    """Runs an agent once, like a seeker's request. The agent's exceptions are in the Run, not raised here.

    `input` defaults to the agent's example input. `tools` replaces tools by name, and also serves calls
    with `remote=True`. `policy` is a file or a directory of rules, or a function; without one every
    call is allowed. `signals` has a payload (or a list of them, one per wait) for each signal type, or
    `Expires`; `approvals` has True, False or a reason to deny for each tool, or one of them for all.
    `context` is what a door adds: `profile`, `terms`, `stage`, `seed`, `swarm`, `output_schema`.

    Retries of agents and tools after `Transient` take no time.
    """
    capability = _capability(agent)
    if settings:
        capability = replace(capability, settings={**capability.settings, **settings})
    value = capability.example_input if input is None else input
    refused = _refusal(capability, value)
    if refused is not None:
        return refused
    answers = _Answers(dict(signals or {}), approvals)
    attempt = _AgentRun(shared_engine(), capability, _tools(tools), policy, answers)
    return attempt.run(value, labels, context)


@dataclass
class _Answers:
    """The test's answers to waits and approvals."""

    signals: dict[str, Any]
    approvals: bool | Mapping[str, bool | str] | None
    _used: dict[str, int] = field(default_factory=dict)

    def signal(self, kind: str) -> tuple[bool, Any]:
        """Returns whether there is an answer to the next wait for this signal, and the payload."""
        if kind not in self.signals:
            return False, None
        answer = self.signals[kind]
        if not isinstance(answer, list):
            return True, answer
        used = self._used[kind] = self._used.get(kind, 0) + 1
        return used <= len(answer), answer[used - 1] if used <= len(answer) else None

    def approval(self, tool: str) -> dict[str, Any] | None:
        """Returns the payload of the decision about a call of this tool; None if the test has none."""
        decided = self.approvals
        decision = decided.get(tool) if isinstance(decided, Mapping) else decided
        if decision is None:
            return None
        if isinstance(decision, str):
            return {"approved": False, "reason": decision}
        return {"approved": decision}


class _AgentRun:
    """Runs one execution from its creation to its end, or to a wait without an answer."""

    def __init__(
        self,
        engine: InProcessEngine,
        capability: Capability,
        tools: Mapping[str, Tool],
        policy: PolicyRules,
        answers: _Answers,
    ) -> None:
        self._engine = engine
        self._raised: list[BaseException] = []
        self._capability = replace(capability, run=self._watched(_function_of(capability)))
        self._tools = tools
        self._decide = _decider(engine, policy)
        self._answers = answers

    def run(self, value: Any, labels: Mapping[str, str] | None, context: Mapping[str, Any]) -> Run:
        executions = self._engine.executions(self._capability)
        present = {name: part for name, part in context.items() if part is not None}
        name = self._capability.name
        _, id = executions.create(name, value, door="test", labels=labels, context=present or None)
        runner = self._engine.runner(self._capability, self._tools, self._decide)
        waits_for = ""
        for _ in range(_MOST_RUNS):
            runner.run(id)
            execution = executions.get(id)
            if execution.state.terminal:
                break
            if execution.state == "blocked":
                waits_for = self._answer(executions, id)
                if waits_for:
                    break
            elif execution.state == "pending":
                self._engine.pass_time(id)
        return self._result(executions, executions.get(id), waits_for)

    def _answer(self, executions: Executions, id: str) -> str:
        """Answers the wait, or returns what the execution waits for."""
        blocked = [
            event for event in executions.events(id, limit=_MOST_EVENTS) if event.kind.endswith("blocked")
        ]
        data = blocked[-1].data()
        if data["reason"] == "approval":
            tool = data["tool_id"]
            decision = self._answers.approval(tool)
            if decision is None:
                return f"the approval of {tool}"
            executions.signal(id, STEP_APPROVE, {"step_id": data["ref"], **decision})
            return ""
        kind = str(data["ref"])
        found, payload = self._answers.signal(kind)
        if found and payload is Expires:
            return "" if self._engine.pass_time(id) else f"the signal {kind}, without a timeout"
        if found:
            executions.signal(id, kind, payload)
        return "" if found else f"the signal {kind}"

    def _result(self, executions: Executions, execution: Execution, waits_for: str) -> Run:
        events = executions.events(execution.id, limit=_MOST_EVENTS)
        completed = execution.state == "completed"
        files = {ref["name"]: self._file(ref) for ref in execution.result.get("files", ())}
        return Run(
            agent=self._capability.name,
            state=str(execution.state),
            charge=self._capability.price if completed else "0",
            error=execution.error,
            raised=None if completed or not self._raised else self._raised[-1],
            files=files,
            said="".join(event.data()["text"] for event in events if event.kind == "output.chunk"),
            events=events,
            attempts=execution.attempt,
            waits_for=waits_for,
            id=execution.id,
            value=executions.output(execution) if completed else None,
        )

    def _file(self, described: Mapping[str, Any]) -> RunFile:
        data = b"".join(self._engine.files.open(described["key"]))
        return RunFile(described["name"], described["mime"], data)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the agent's function to record what it raises."""

        def chunks(stream: Iterator[Any]) -> Iterator[Any]:
            try:
                yield from stream
            except Exception as error:
                self._raised.append(error)
                raise

        @wraps(function)
        def call(job: Any) -> Any:
            try:
                returned = function(job)
            except Exception as error:
                self._raised.append(error)
                raise
            return chunks(returned) if isinstance(returned, Iterator) else returned

        return call


def _function_of(capability: Capability) -> Callable[..., Any]:
    if capability.run is None:
        raise LookupError(f"{capability.name} runs elsewhere, so no test can run it here")
    return capability.run


def _capability(agent: Agent) -> Capability:
    """The declared agent of this name or function; reports rejected declarations first."""
    problems = REGISTRY.take_problems()
    if problems:
        raise BadStart(problems)
    if isinstance(agent, str):
        found = REGISTRY.capabilities.get(agent)
    else:
        declared = REGISTRY.capabilities.values()
        found = next((each for each in declared if each.run is agent), None)
    if found is None:
        names = ", ".join(sorted(name for name in REGISTRY.capabilities if not name.startswith("_")))
        raise LookupError(
            f"{agent!r} is no declared agent; declared are: {names or 'none'}. Import its module."
        )
    return found


def _tools(replaced: Mapping[str, Callable[..., Any]] | None) -> dict[str, Tool]:
    tools = dict(REGISTRY.tools)
    for name, function in (replaced or {}).items():
        declared = tools.get(name)
        tools[name] = replace(declared, run=function) if declared else Tool(name, function)
    return {name: replace(tool, run=_without_pauses(tool.run)) for name, tool in tools.items()}


def _without_pauses(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the tool to retry at once after a Transient."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Transient as fault:
            fault.retry_after = 0.0
            raise

    return call


def _decider(engine: InProcessEngine, policy: PolicyRules) -> Callable[[PolicyCall], Decision]:
    if callable(policy):
        return policy
    rules = policy if isinstance(policy, Policy) else PERMISSIVE
    if isinstance(policy, str | Path):
        rules = policy_file.load(policy)
    return partial(_judge, rules, engine)


def _judge(policy: Policy, engine: InProcessEngine, call: PolicyCall) -> Decision:
    return judge(policy, call, engine.rate_limiter)


def _refusal(capability: Capability, value: Any) -> Run | None:
    """The seeker's error for an invalid input, before any payment; None if it is valid."""
    value = json.loads(encode(value))
    try:
        if capability.input_schema:
            for problem in validate(compile_schema(capability.input_schema), value):
                raise InvalidInput(**{name: problem[name] for name in ("field", "expected", "received")})
        if capability.check is not None:
            capability.check(value)
    except InvalidInput as invalid:
        error = {"code": invalid.code, "error": invalid.message, "details": invalid.details}
        return Run(capability.name, "refused", error=error, raised=invalid)
    return None

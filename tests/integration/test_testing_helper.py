"""The shipped helper for authors' tests: every outcome of an agent, on the real engine, fast."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration import author_agents as authors
from worker.core.errors import Transient
from worker.policy.judge import Decision
from worker.testing import AgentFailed, Expires, run


def test_a_run_gives_everything_an_author_may_ask_for() -> None:
    """Output, files, text, progress, events and charge of one run, with the example input by default."""
    done = run(authors.doubling)
    assert (done.state, done.output, done.charge) == ("completed", {"n": 8}, "0.05")
    assert done.files["n.txt"].text == "4"
    assert done.files["n.txt"].mime == "text/plain"
    assert (done.said, done.progress) == ("hello there", [(0.5, "doubling")])
    assert done.kinds[0] == "execution.created" and done.kinds[-1] == "execution.completed"
    assert run("authors-double", {"n": 6}).output == {"n": 12}


@pytest.mark.parametrize("given", [{}, {"n": "4"}, {"n": 3}])
def test_an_input_that_does_not_fit_is_refused_for_nothing(given: object) -> None:
    """Schema and check apply as at the door, before any payment."""
    done = run(authors.doubling, given)
    assert (done.state, done.charge, done.error["code"]) == ("refused", "0", "INVALID_INPUT")
    assert done.events == ()


def test_a_failure_shows_the_author_where_it_was_raised() -> None:
    """The seeker's error stays vague; the author gets the exception, and reading the output raises."""
    done = run(authors.broken, 0)
    assert (done.state, done.charge, done.error["code"]) == ("failed", "0", "INTERNAL_ERROR")
    assert isinstance(done.raised, ZeroDivisionError)
    with pytest.raises(AgentFailed, match="authors-broken failed: INTERNAL_ERROR") as failed:
        _ = done.output
    assert failed.value.__cause__ is done.raised
    assert isinstance(run(authors.stream, "break").raised, ValueError)


def test_a_failure_with_a_code_is_told_as_it_is() -> None:
    """Code, message and details are those that the agent raised."""
    error = run(authors.gives_up, {}).error
    assert (error["code"], error["details"]) == ("NO_ANSWER", {"tried": 3})


def test_a_stream_is_text_and_a_file() -> None:
    """A generator's chunks are joined and delivered as a file."""
    done = run(authors.stream, {})
    assert (done.said, done.files["output.txt"].text) == ("abc", "abc")


def test_waits_are_answered() -> None:
    """One payload per wait, in order; an unanswered wait is reported, and a timeout passes instantly."""
    assert run(authors.patient, {}, signals={"review": ["a", {"b": 1}]}).output == ["a", {"b": 1}]
    waiting = run(authors.patient, {}, signals={"review": ["a"]})
    assert (waiting.state, waiting.waits_for, waiting.charge) == ("blocked", "the signal review", "0")
    with pytest.raises(AgentFailed, match="waits for the signal review"):
        _ = waiting.output
    began = time.monotonic()
    assert run(authors.patient, {}, signals={"review": ["a", Expires]}).output == ["a", "late"]
    assert time.monotonic() - began < 60


def test_approvals_are_decided(tmp_path: Path) -> None:
    """A policy file asks, the test approves or denies; without a decision the run names what it waits for."""
    rules = tmp_path / "policy.yaml"
    rules.write_text("default: {decision: require_approval, reason: people decide}\n")
    assert run(authors.asks, {}, policy=rules, approvals=True).output == 10
    assert run(authors.asks, {}, policy=rules, approvals={"authors.double": "too dear"}).output == "too dear"
    assert run(authors.asks, {}, policy=str(rules)).waits_for == "the approval of authors.double"


def test_a_policy_may_be_a_function() -> None:
    """It receives the call, and what it denies is denied."""
    seen = []

    def decide(call: object) -> Decision:
        seen.append(call)
        return Decision("deny", "r", "never")

    assert "never" in run(authors.asks, {}, policy=decide).output
    assert len(seen) == 1


def test_tools_are_replaced_and_runners_are_played() -> None:
    """A function in the test replaces a registered tool, or a runner's tool."""
    assert run(authors.asks, {}, tools={"authors.double": lambda n: n + 1}).output == 6
    assert run(authors.remote, {}, tools={"gpu.render": lambda frame: {"frame": frame}}).output == {
        "frame": 3
    }
    missing = run(authors.remote, {})
    assert missing.error["code"] == "TOOL_FAILED"
    assert "gpu.render" in str(missing.raised)


def test_a_remote_call_may_need_an_approval(tmp_path: Path) -> None:
    """After its approval the test's function runs it, once."""
    rules, calls = tmp_path / "policy.yaml", []
    rules.write_text("default: {decision: require_approval}\n")
    render = {"gpu.render": lambda frame: calls.append(frame) or frame}
    assert run(authors.remote, {}, policy=rules, approvals=True, tools=render).output == 3
    assert calls == [3]


def test_retries_take_no_time() -> None:
    """Three attempts with pauses of seconds between them finish in a moment."""
    began = time.monotonic()
    done = run(authors.flaky, {})
    assert (done.output, done.attempts, done.charge) == (3, 3, "0.10")
    assert time.monotonic() - began < 5


def test_retries_of_tools_take_no_time() -> None:
    """A tool is retried as often as declared, without pauses; a tool that takes the job receives it."""
    tries = []

    def double(job: object, n: int) -> int:
        tries.append(job)
        if len(tries) < 3:
            raise Transient("busy")
        return 2 * n

    began = time.monotonic()
    assert run(authors.asks, {}, tools={"authors.double": double}).output == 10
    assert len(tries) == 3 and tries[0] is not None
    assert time.monotonic() - began < 2.5


def test_settings_profile_and_terms_reach_the_agent() -> None:
    """Values that a door or the operator adds are passed by name."""
    assert run(authors.configured, {}, profile="deep", terms={"price": "1"}).output == [
        9,
        "deep",
        {"price": "1"},
    ]
    assert run(authors.configured, {}, settings={"depth": 3}).output == [3, "default", None]


def test_an_unknown_agent_is_named_with_the_known() -> None:
    """An undeclared function raises immediately, naming the known agents."""
    with pytest.raises(LookupError, match="authors-double"):
        run(lambda job: None)

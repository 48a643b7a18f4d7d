"""Agents as authors write them, for the tests of `worker.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worker import Failed, InvalidInput, ToolDenied, Transient, WaitExpired, agent, tool


@tool("authors.double")
def double(n: int) -> int:
    return 2 * n


def _even(given: Any) -> None:
    if given["n"] % 2:
        raise InvalidInput("the number is odd", field="n", expected="an even number", received=given["n"])


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@agent("authors-double", price="0.05", input_schema=SCHEMA, check=_even, example_input={"n": 4})
def doubling(job: Any) -> dict[str, int]:
    job.progress(0.5, "doubling")
    job.say("hello ")
    job.say("there")
    job.file("n.txt", str(job.input["n"]), mime="text/plain")
    return {"n": job.tool("authors.double", n=job.input["n"])}


@agent("authors-stream")
def stream(job: Any) -> Iterator[str]:
    yield from ("a", "b", "c")
    if job.input == "break":
        raise ValueError("broken stream")


@agent("authors-broken", price="1")
def broken(job: Any) -> float:
    return 1 / int(job.input)


@agent("authors-patient")
def patient(job: Any) -> Any:
    first = job.wait("review")
    try:
        return [first, job.wait("review", timeout=3600)]
    except WaitExpired:
        return [first, "late"]


@agent("authors-asks")
def asks(job: Any) -> Any:
    try:
        return job.tool("authors.double", n=5)
    except ToolDenied as denied:
        return str(denied.reason)


@agent("authors-remote")
def remote(job: Any) -> Any:
    return job.tool("gpu.render", remote=True, frame=3)


@agent("authors-flaky", price="0.10", attempts=3)
def flaky(job: Any) -> int:
    if job.attempt < 3:
        raise Transient("the other side is away")
    return int(job.attempt)


@agent("authors-gives-up", price="0.10")
def gives_up(job: Any) -> None:
    raise Failed("NO_ANSWER", "nothing was found", tried=3)


@agent("authors-settings", settings={"depth": 1}, profiles={"default": {}, "deep": {"depth": 9}})
def configured(job: Any) -> Any:
    return [job.settings["depth"], job.profile, job.terms]

"""Agents for tests with real processes, on both lanes; each fails in one way."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from worker import InvalidInput, Transient, agent, tool


def trace(job: Any, word: str) -> None:
    """Appends a line to a file that outlives a killed process; appending is atomic."""
    line = f"{job.id} {job.attempt} {os.getpid()} {time.monotonic():.6f} {word}\n"
    file = os.open(os.environ["E2E_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def both(name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function on the express lane and, with `-queued` added to its name, on the queue."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        agent(name, inline=True, **options)(function)
        agent(f"{name}-queued", **options)(function)
        return function

    return register


@both("quick")
def quick(job: Any) -> dict[str, Any]:
    """Returns at once."""
    trace(job, "begin")
    return {"n": job.input["n"], "attempt": job.attempt}


@both("nap")
def nap(job: Any) -> dict[str, Any]:
    """Sleeps `seconds` in its first `attempts` attempts (by default in all), without calling its job."""
    trace(job, "begin")
    if job.attempt <= job.input.get("attempts", 99):
        time.sleep(job.input["seconds"])
    trace(job, "end")
    return {"attempt": job.attempt}


@both("crash")
def crash(job: Any) -> dict[str, Any]:
    """Kills its own process in its first `times` attempts."""
    trace(job, "begin")
    if job.attempt <= job.input["times"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": job.attempt}


@both("overtime", time_limit=1.0)
def overtime(job: Any) -> None:
    """Sleeps far beyond its limit, and so does its child program."""
    program = subprocess.Popen(["sleep", "600"])
    trace(job, f"child:{program.pid}")
    time.sleep(600)


@both("forked")
def forked(job: Any) -> dict[str, Any]:
    """Leaves a fork with all its open files behind, and dies in its first attempt."""
    if job.attempt == 1:
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        trace(job, f"child:{pid}")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": job.attempt}


@both("deaf")
def deaf(job: Any) -> None:
    """Computes forever and never calls its job."""
    trace(job, "begin")
    while True:
        pass


@both("story")
def story(job: Any) -> Iterator[str]:
    """Streams `lines` lines with a pause before each; dies before line `dies_at` of its first attempt."""
    trace(job, "begin")
    for number in range(job.input["lines"]):
        time.sleep(job.input.get("pause", 0.0))
        if job.attempt == 1 and number == job.input.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        job.progress((number + 1) / job.input["lines"], f"line {number}")
        yield f"line {number}\n"


@tool("add")
def add(job: Any, a: int, b: int) -> int:
    trace(job, f"tool:{job.step_key.rpartition(':')[2]}")
    return a + b


@both("chores", time_limit=120.0)
def chores(job: Any) -> dict[str, Any]:
    """Mixes steps, progress, text and a file, with pauses in which its process may be killed."""
    trace(job, "begin")
    number, pause = job.input["n"], job.input["pause"]
    job.progress(0.1, "begun")
    token = job.once("token", lambda: secrets.token_hex(4))
    first = job.tool("add", a=number, b=1)
    job.say(f"first {first}\n")
    time.sleep(pause)
    job.progress(0.5, "half")
    second = job.tool("add", a=first, b=1)
    job.file("sum.txt", str(second), mime="text/plain")
    job.say(f"second {second}\n")
    time.sleep(pause)
    job.progress(1.0, "done")
    return {"n": number, "sum": second, "token": token}


@both("files")
def files(job: Any) -> dict[str, Any]:
    """Delivers two files and a value."""
    job.file("note.txt", "a note\n", mime="text/plain")
    job.file("noise.bin", secrets.token_bytes(100_000))
    return {"files": 2}


@both("picky")
def picky(job: Any) -> None:
    """Rejects every input."""
    raise InvalidInput(field="n", expected="a whole number", received=job.input.get("n"))


@both("broken")
def broken(job: Any) -> None:
    """Has a bug."""
    raise KeyError("a-text-that-must-stay-in-the-log")


@both("shaky")
def shaky(job: Any) -> dict[str, Any]:
    """Fails transiently in its first attempt."""
    trace(job, "begin")
    if job.attempt == 1:
        raise Transient("the line was busy")
    return {"attempt": job.attempt}

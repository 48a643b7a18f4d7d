"""Agents that leak: files, memory, processes, forks of themselves, endless prints."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.e2e.agents_for_tests import both, trace

LEFT: list[Any] = []


def resident_mb() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


@both("leaky")
def leaky(job: Any) -> dict[str, int]:
    """Leaks the given number of open files and MB of memory."""
    LEFT.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(job.input.get("files", 0)))
    LEFT.append(os.urandom(1 << 20) * job.input.get("mb", 0))
    return {"pid": os.getpid(), "resident": resident_mb()}


@both("orphans")
def orphans(job: Any) -> dict[str, int]:
    """Leaves behind a child, one in its own session, and an orphaned grandchild."""
    sleeping = f"{sys.executable} -c 'import time; time.sleep(600)'"
    plain = subprocess.Popen(["sleep", "600"])
    apart = subprocess.Popen(["setsid", "sleep", "600"])
    found = subprocess.run(
        ["sh", "-c", f"setsid {sleeping} >/dev/null 2>&1 & echo $!"], capture_output=True, text=True
    )
    for pid in (plain.pid, apart.pid, int(found.stdout)):
        trace(job, f"child:{pid}")
    return {"pid": os.getpid()}


@both("returns-twice")
def returns_twice(job: Any) -> dict[str, Any]:
    """Forks, and lets the copy return, fail or exit like the original."""
    original = os.getpid()
    copy = os.fork()
    trace(job, f"child:{copy}" if copy else "copy")
    if copy:
        os.waitpid(copy, 0)
    elif job.input["how"] == "raises":
        raise RuntimeError("in the copy")
    elif job.input["how"] == "exits":
        sys.exit(0)
    return {"pid": original, "copy": copy == 0}


@both("chatty")
def chatty(job: Any) -> dict[str, Any]:
    """Prints the given number of MB, itself and through a program it starts."""
    print("first words")
    for _ in range(job.input["mb"]):
        sys.stdout.write(("x" * 1023 + "\n") * 1024)
    subprocess.run(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' y; echo by a program >&2"])
    return {"printed": job.input["mb"]}

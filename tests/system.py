"""The programs that tests need from the system beside Python.

`python tests/system.py` installs what is missing where it can, which is as root on Debian and its kin; `make
test` begins with it. Where a program is missing its tests are skipped and say why. With CI=true all must run,
so there they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess

# program: the Debian package that has it
NEEDED = {
    "chromium": "chromium",
    "redis-server": "redis-server",
    "redis-sentinel": "redis-sentinel",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "zsh": "zsh",
}
# Little patience with a network that is away, a minute's with somebody else who installs, and no question
# about configuration that an earlier installation left.
OPTIONS = (
    *("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20"),
    *("-o", "DPkg::Lock::Timeout=60", "-o", "Dpkg::Options::=--force-confold"),
)


def program(name: str) -> str:
    """Where it is; without it the test that asks is skipped, or fails where all must run."""
    import pytest

    found = shutil.which(name)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail(f"{name} is missing; install the package {NEEDED[name]}", pytrace=False)
    if found is None:
        pytest.skip(f"needs {name}, which this machine does not have (package {NEEDED[name]})")
    return found


def missing() -> list[str]:
    """The packages whose programs are not here."""
    return sorted({package for name, package in NEEDED.items() if shutil.which(name) is None})


def install() -> None:
    """Installs what is missing if we may. Never fails: what is still missing is said, also by the tests."""
    if not missing():
        return
    if shutil.which("apt-get") is None:
        why = "there is no apt-get to install them with"
    elif os.geteuid() != 0:
        why = "only root may install them"
    else:
        print(f"installing {', '.join(missing())} for tests (once)", flush=True)
        trouble = [get("update"), get("install", "--yes", "--no-install-recommends", *missing())]
        why = "; ".join(filter(None, trouble)) or "their programs are not on PATH"
    if missing():
        consequence = "fail" if os.environ.get("CI") == "true" else "are skipped"
        print(f"tests that need {', '.join(missing())} {consequence}: {why}", flush=True)


def get(*words: str) -> str | None:
    """Calls apt-get, which asks nothing; what went wrong, if anything did."""
    # RUNLEVEL keeps the packages from starting servers of their own.
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    try:
        done = subprocess.run(
            ["apt-get", "-qq", *OPTIONS, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"apt-get {words[0]}: {type(error).__name__}"
    if done.returncode == 0:
        return None
    pip_output = done.stdout.decode(errors="replace")[-500:].strip()
    return f"apt-get {words[0]} ended with {done.returncode}: {pip_output}"


if __name__ == "__main__":
    install()

"""How soon the web process responds after its start, and what it has loaded by then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import Stand, answers, fetch, until
from bench.webapp import MODULES
from worker.local.valkey import free_port

NAME = "web"
# Must not be loaded to handle a request; authors' modules are extra.
FOREIGN = ("web3", "x402", "eth_account", "bench.agents", "worker.shipped")


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    rounds = 1 if quick else 9
    readings = interleave([Contender("web", lambda: _round(stand))], rounds, told)
    found = Measurement(NAME, "gunicorn with config/gunicorn.py, from start to the first answer", readings)
    found.below("seconds to the first answer", "web", "first_answer_s", 0.7)
    found.below("MB held by the process that answers", "web", "rss_mb", 80.0)
    found.below("MB of gunicorn's parent and that process together", "web", "tree_mb", 80.0)
    found.notes.append("when it first answered, none of these was loaded: " + ", ".join(FOREIGN))
    return found


def _round(stand: Stand) -> Reading:
    stand.empty()
    port = free_port()
    began = time.monotonic()
    with stand.processes([_gunicorn()], stand.environ(PORT=str(port))) as crowd:
        until(lambda: answers(port, "/health"), "the web process did not answer", every=0.002)
        first = time.monotonic() - began
        [web] = crowd.roots[0].children()
        healthy = json.loads(fetch(port, "/health"))["status"] == "ok"
        held, tree = web.memory_info().rss, crowd.memory()
    modules = _modules(stand)
    loaded = [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in FOREIGN)]
    if loaded:
        raise WorkMissing(f"the web process has loaded {', '.join(loaded[:5])}")
    return {
        "asked": 1,
        "done": int(healthy),
        "first_answer_s": first,
        "rss_mb": held / 1e6,
        "tree_mb": tree / 1e6,
        "modules": len(modules),
    }


def _modules(stand: Stand) -> list[str]:
    """The modules that another start of the same application has loaded at its first response."""
    port = free_port()
    with stand.processes([_gunicorn("bench.webapp:create_app()")], stand.environ(PORT=str(port))):
        until(lambda: answers(port, MODULES), "the web process did not answer", every=0.002)
        names: list[str] = json.loads(fetch(port, MODULES))
        return names


def _gunicorn(*app: str) -> list[str]:
    return ["-m", "gunicorn", "--config", "config/gunicorn.py", *app]

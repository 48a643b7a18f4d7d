"""How soon the web process responds after its start, what it has loaded by then, and what processes hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.rounds import Contender, Measurement, Reading, WorkMissing, interleave
from bench.stand import GUNICORN, PATIENCE, Stand, answers, fetch, until
from bench.webapp import MODULES
from worker.local.valkey import free_port

NAME = "web"
# Must not be loaded to handle a request; authors' modules are extra.
FOREIGN = ("web3", "x402", "eth_account", "bench.agents", "worker.shipped")


def measure(stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement:
    contenders = [Contender("web", lambda: _web(stand)), Contender("work", lambda: _work(stand))]
    readings = interleave(contenders, 1 if quick else 5, told)
    about = "gunicorn with config/gunicorn.py and `worker work`, from start to the first answer"
    found = Measurement(NAME, about, readings)
    found.below("seconds to the first answer", "web", "first_answer_s", 0.7)
    found.below("MB (PSS) of the process that answers", "web", "pss_mb", 80.0)
    found.below("MB of gunicorn's parent and that process together", "web", "tree_mb", 80.0)
    found.below("MB (PSS) of the largest process of the work tree", "work", "pss_mb", 60.0)
    found.notes += [
        "when it first answered, none of these was loaded: " + ", ".join(FOREIGN),
        "work: after its first tasks; first_answer_s is the first task's end",
    ]
    return found


def _web(stand: Stand) -> Reading:
    stand.empty()
    port = free_port()
    began = time.monotonic()
    with stand.processes([GUNICORN], stand.environ(PORT=str(port))) as crowd:
        until(lambda: answers(port, "/health"), "the web process did not answer", every=0.002)
        first = time.monotonic() - began
        [web] = crowd.roots[0].children()
        healthy = json.loads(fetch(port, "/health"))["status"] == "ok"
        held, tree = web.memory_full_info().pss, crowd.memory()
    modules = _modules(stand)
    loaded = [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in FOREIGN)]
    if loaded:
        raise WorkMissing(f"the web process has loaded {', '.join(loaded[:5])}")
    return {
        "asked": 1,
        "done": int(healthy),
        "first_answer_s": first,
        "pss_mb": held / 1e6,
        "tree_mb": tree / 1e6,
        "modules": len(modules),
    }


def _work(stand: Stand) -> Reading:
    stand.empty()
    parts = stand.parts()
    began = time.monotonic()
    with stand.processes([["-m", "worker", "work"]]) as crowd:
        _, first = parts.executions.create("nothing-express", None, door="bench")
        done = [parts.executions.wait(first, PATIENCE)]
        took = time.monotonic() - began
        for agent in ("nothing-queued", "nothing-express"):
            _, id = parts.executions.create(agent, None, door="bench")
            done.append(parts.executions.wait(id, PATIENCE))
        tree = [crowd.roots[0], *crowd.roots[0].children(recursive=True)]
        held = max(process.memory_full_info().pss for process in tree)
        return {
            "asked": len(done),
            "done": sum(done),
            "first_answer_s": took,
            "pss_mb": held / 1e6,
            "tree_mb": crowd.memory() / 1e6,
        }


def _modules(stand: Stand) -> list[str]:
    """The modules that another start of the same application has loaded at its first response."""
    port = free_port()
    with stand.processes([[*GUNICORN, "bench.webapp:create_app()"]], stand.environ(PORT=str(port))):
        until(lambda: answers(port, MODULES), "the web process did not answer", every=0.002)
        names: list[str] = json.loads(fetch(port, MODULES))
        return names

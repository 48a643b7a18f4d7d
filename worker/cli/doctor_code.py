"""The doctor's checks of the authors' modules, `worker.toml` and the tool policy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from worker.agents.loading import LoadedAgents, load_agents
from worker.cli.doctor_results import CheckResult, Level
from worker.core.settings import BadStart, Settings


def code(settings: Settings) -> Iterator[CheckResult]:
    """Loads what `worker work` loads, so that its errors show up here first."""
    try:
        loaded = load_agents(settings)
    except BadStart as bad:
        for each in bad.problems:
            yield CheckResult(each.name, "wrong", each.found, each.expected)
        return
    names = sorted(name for name in loaded.capabilities if not name.startswith("_"))
    expected = "modules in WORKER_AGENTS that declare agents"
    yield CheckResult("agents", "ok" if names else "warn", ", ".join(names) or "none", expected)
    yield _overrides(settings, loaded, names)
    yield CheckResult("policy", "ok", settings.policy or "none is set", "a tool policy without mistakes")


def _overrides(settings: Settings, loaded: LoadedAgents, names: list[str]) -> CheckResult:
    """Reports tables of undeclared capabilities, which would have no effect, silently."""
    file, expected = settings.worker_config, "tables of capabilities that are declared, or remote = true"
    if not Path(file).exists():
        return CheckResult("overrides", "ok", f"none, there is no {file}", expected)
    if not loaded.unused:
        return CheckResult("overrides", "ok", f"all of {file} count", expected)
    near = {name: difflib.get_close_matches(name, names, n=1) for name in loaded.unused}
    shown = ", ".join(f"{name} ({found[0]}?)" if found else name for name, found in near.items())
    # The default file names the shipped agents, which a worker with other agents does not have.
    level: Level = "wrong" if any(near.values()) else "warn"
    return CheckResult("overrides", level, f"{file} names what nobody declares: {shown}", expected)

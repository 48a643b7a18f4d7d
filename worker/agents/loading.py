"""Loads agents, tools, `worker.toml` and the tool policy.

All mistakes in all of them are reported together, before anything starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.capabilities.catalog import offered
from worker.capabilities.declare import Capability, Registry, load
from worker.capabilities.overrides import configured_modules, load_overrides
from worker.core.settings import BadSetting, BadStart, Settings
from worker.policy.file import PolicyInvalid, policy_for
from worker.policy.judge import SECURE, Policy

SHIPPED = "worker.shipped"
# Former module names that deployments may still have in WORKER_AGENTS.
FORMER_NAMES = {"worker.agents.shipped": SHIPPED}


@dataclass(frozen=True)
class LoadedAgents:
    """The declared agents and tools, the capabilities as configured, and the policy about tool calls."""

    registry: Registry
    capabilities: dict[str, Capability]
    policy: Policy
    # Tables of worker.toml without effect, because no agent of that name is loaded.
    unused: tuple[str, ...] = ()


def module_names(settings: Settings) -> tuple[str, ...]:
    """The authors' modules: from WORKER_AGENTS, else from the configuration, else the agents that ship."""
    named = settings.worker_agents or configured_modules(settings.worker_config) or (SHIPPED,)
    return tuple(FORMER_NAMES.get(name, name) for name in named)


def load_agents(settings: Settings, internal: Iterable[str] = ()) -> LoadedAgents:
    """Loads everything; raises BadStart with all mistakes. `internal` modules are this package's own."""
    problems: list[BadSetting] = []
    registry, overrides, policy = Registry(), {}, SECURE
    source = "WORKER_AGENTS" if settings.worker_agents else f"{settings.worker_config} agents"
    try:
        registry = load((*internal, *module_names(settings)), source)
    except BadStart as bad:
        problems += bad.problems
    try:
        overrides = load_overrides(settings.worker_config)
    except BadStart as bad:
        problems += bad.problems
    try:
        policy = policy_for(settings.policy, production=settings.deployed)
    except PolicyInvalid as invalid:
        problems += [BadSetting(f"{f.file}:{f.line}", "a mistake", f.message) for f in invalid.findings]
    if problems:
        raise BadStart(problems)
    capabilities = offered(registry, overrides)
    unused = tuple(name for name in overrides if name not in capabilities)
    return LoadedAgents(registry, capabilities, policy, unused)

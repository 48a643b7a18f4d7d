"""The doctor's checks of the environment: mistyped names, half-configured agents, laptop-only settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from worker.cli.doctor_results import CheckResult
from worker.core.agent_keys import EXPECTED, to_rewrite
from worker.core.settings import Settings

# Settings of the shipped chat agent; it is offered when the first two are set.
CHAT = ("CHAT_BASE_URL", "CHAT_MODEL", "CHAT_API_KEY")
# Prefixes of our settings; any other name resembling a setting may belong to another program.
_OURS = (
    "WORKER_",
    "SWARM_",
    "LIMIT_",
    "CHAT_",
    "REDIS_TLS_",
    "FACILITATOR_",
    "CDP_API_",
    "AGENT_",
    "FEE_",
)
_ALIKE, _ALIKE_OURS = 0.86, 0.6
_OTHERS = frozenset({"FACILITATOR_GAS_KEY", "WORKER_CHECKPOINTS"})


def surroundings(settings: Settings | None, environ: Mapping[str, str]) -> list[CheckResult]:
    """Checks that need no service; without settings, those that need only the environment."""
    found = [*_mistyped(environ), *_chat(environ)]
    if settings is not None and (entries := to_rewrite(settings.agent_keys)):
        found.append(CheckResult("agent keys", "warn", entries, EXPECTED))
    return found


def _mistyped(environ: Mapping[str, str]) -> list[CheckResult]:
    """Names that nearly match a setting, unless that setting is set as well."""
    known = [*Settings.names(), *CHAT]
    found = []
    for name in sorted(environ.keys() - set(known) - _OTHERS):
        close = difflib.get_close_matches(name, known, n=1, cutoff=_alike(name))
        if close and not environ.get(close[0], "").strip():
            found.append(CheckResult(name, "wrong", "no setting has this name", f"{close[0]}?"))
    return found


def _alike(name: str) -> float:
    return _ALIKE_OURS if name.startswith(_OURS) else _ALIKE


def _chat(environ: Mapping[str, str]) -> list[CheckResult]:
    """The chat agent needs both an address and a model; with only one it is not offered."""
    configured = [name for name in CHAT if environ.get(name, "").strip()]
    missing = [name for name in CHAT[:2] if name not in configured]
    if not configured or not missing:
        return []
    found = f"{' and '.join(configured)} without {' and '.join(missing)}: the chat agent is not offered"
    return [CheckResult("chat", "wrong", found, f"{' and '.join(missing)} too, or none of them")]

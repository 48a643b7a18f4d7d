"""A worker that agents and people hire over HTTPS and pay per task in USDC.

The names below are for authors of agents. Each is imported when it is first asked for: the web process
patches the standard library before anything else is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flask import Flask

    from worker.agents.job import Job
    from worker.capabilities.declare import agent, tool
    from worker.core.errors import Failed, InvalidInput, ToolDenied, ToolFailed, Transient, WaitExpired


__all__ = [
    "Failed",
    "InvalidInput",
    "Job",
    "ToolDenied",
    "ToolFailed",
    "Transient",
    "WaitExpired",
    "agent",
    "create_app",
    "tool",
]

_HOMES = {
    "Job": "worker.agents.job",
    "agent": "worker.capabilities.declare",
    "tool": "worker.capabilities.declare",
}


def create_app(settings: Any = None) -> Flask:
    """The web application; imported only when asked for, because authors do not need it."""
    from worker.app import create_app as create

    return create(settings)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "worker.core.errors")), name)

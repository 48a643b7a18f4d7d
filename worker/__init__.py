"""A worker that agents and people hire over HTTPS and pay per task in USDC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.agents.declare import agent, tool
from worker.errors import Failed, InvalidInput, ToolDenied, ToolFailed, Transient, WaitExpired

if TYPE_CHECKING:
    from flask import Flask

__version__ = "0.1.0"

__all__ = [
    "Failed",
    "InvalidInput",
    "ToolDenied",
    "ToolFailed",
    "Transient",
    "WaitExpired",
    "agent",
    "create_app",
    "tool",
]


def create_app(settings: Any = None) -> Flask:
    """The web application; imported only when asked for, because authors do not need it."""
    from worker.app import create_app as create

    return create(settings)

"""Checks the signatures of agent and tool functions when they are declared, not when they are hired."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from worker.capabilities.declaration import Fault

_ASYNC = "def instead of async def: a job has a process of its own, where asyncio.run(...) works"


def agent_function_faults(function: Any) -> Iterator[Fault]:
    """Yields the reasons why this is not an agent: a function that takes the job."""
    shape = _shape(function)
    if shape is not None:
        yield "", shape[0], shape[1] or "a function that takes the job: def NAME(job)"
        return
    signature = _signature(function)
    try:
        if signature is not None:
            signature.bind(None)
    except TypeError:
        yield "", f"{_name(function)}{signature}", "a function that takes the job alone: def NAME(job)"


def tool_function_faults(function: Any) -> Iterator[Fault]:
    """Yields the reasons why this is not a tool: a function whose arguments can be passed by name."""
    shape = _shape(function)
    if shape is not None:
        yield "", shape[0], shape[1] or "a function: def NAME(argument, ...)"
        return
    signature = _signature(function)
    parameters = signature.parameters.values() if signature is not None else ()
    if any(each.kind is inspect.Parameter.POSITIONAL_ONLY for each in parameters):
        yield "", f"{_name(function)}{signature}", "arguments that can be given by name, without /"


def _shape(function: Any) -> tuple[str, str] | None:
    """Says what this is instead of a plain function, and what to write; None for a function."""
    if isinstance(function, type):
        return "a class", ""
    if not callable(function):
        return f"a {type(function).__name__}", ""
    called = function if inspect.isroutine(function) else vars(type(function)).get("__call__", function)
    if any(_is_async(each) for each in (inspect.unwrap(function), called, getattr(function, "func", None))):
        return "an async function", _ASYNC
    return None


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return None


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))

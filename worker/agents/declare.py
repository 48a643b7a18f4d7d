"""How an author declares work: `@agent` for what is sold, `@tool` for what agents may call."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from worker.agents.config import Override
from worker.contracts.amounts import to_text

Function = TypeVar("Function", bound=Callable[..., Any])

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Capability:
    """What is sold: an agent with a name, a price and schemas.

    `settle` is `after_work` or `before_work`, or empty for the worker's own setting. `run` is empty for
    an agent that lives elsewhere and connects over SSE (`remote`). `resumes` says that this version goes
    on with what an earlier one began before a wait.
    """

    name: str
    run: Callable[..., Any] | None = field(default=None, repr=False)
    description: str = ""
    price: str = "0"
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    example_input: Any = None
    example_output: Any = None
    inline: bool = False
    stream: bool = False
    time_limit: float = 10 * MINUTE
    max_latency_ms: int | None = None
    attempts: int = 3
    settle: str = ""
    model: str = ""
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    settings: Mapping[str, Any] = field(default_factory=dict)
    swarm: bool = False
    task_types: tuple[str, ...] = ()
    remote: bool = False
    version: str = ""
    resumes: bool = False
    tags: tuple[str, ...] = ()

    def with_override(self, override: Override) -> Capability:
        """This capability as the operator's configuration has it."""
        price = None if override.price is None else to_text(override.price)
        latency = None if override.max_latency is None else int(override.max_latency * 1000)
        changes: dict[str, Any] = {
            "price": price,
            "time_limit": override.time_limit,
            "max_latency_ms": latency,
            "swarm": override.swarm,
            "task_types": override.task_types or None,
            "profiles": {**self.profiles, **override.profiles} if override.profiles else None,
        }
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Tool:
    """Something agents call through `job.tool`. `attempts` counts the first try."""

    name: str
    run: Callable[..., Any] = field(repr=False)
    attempts: int = 3


class Registry:
    """The capabilities and tools that modules declared."""

    def __init__(self) -> None:
        self.capabilities: dict[str, Capability] = {}
        self.tools: dict[str, Tool] = {}

    def agent(self, name: str, **options: Any) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            if name in self.capabilities and self.capabilities[name].run is not function:
                raise ValueError(f"two agents are called {name!r}")
            given = dict(options)
            given.setdefault("description", inspect.cleandoc(function.__doc__ or "").split("\n\n")[0])
            given.setdefault("stream", inspect.isgeneratorfunction(function))
            given.setdefault("version", _version(function))
            self.capabilities[name] = Capability(name=name, run=function, **given)
            return function

        return register

    def tool(self, name: str, *, attempts: int = 3) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            if name in self.tools and self.tools[name].run is not function:
                raise ValueError(f"two tools are called {name!r}")
            self.tools[name] = Tool(name=name, run=function, attempts=attempts)
            return function

        return register


REGISTRY = Registry()
agent = REGISTRY.agent
tool = REGISTRY.tool


def load(modules: Iterable[str]) -> Registry:
    """Imports the authors' modules, which declare themselves while they are imported."""
    for name in modules:
        importlib.import_module(name)
    return REGISTRY


def _version(function: Callable[..., Any]) -> str:
    """Changes when the function's source does: a run after a crash must meet the same code."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # typed into a shell, or not a plain function
        source = getattr(function, "__qualname__", type(function).__qualname__)
    return hashlib.sha256(source.encode()).hexdigest()[:12]

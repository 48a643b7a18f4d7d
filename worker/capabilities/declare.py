"""Decorators for authors: `@agent` declares a capability to sell, `@tool` a tool that agents may call."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from worker.capabilities.declaration import Fault, Place, agent_faults, schema_faults, tool_faults
from worker.capabilities.functions import agent_function_faults, tool_function_faults
from worker.capabilities.modules import import_modules
from worker.capabilities.overrides import Override
from worker.core.amounts import to_text
from worker.core.settings import BadSetting, BadStart

Function = TypeVar("Function", bound=Callable[..., Any])

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Capability:
    """What is sold: an agent with a name, a price and schemas.

    `settle` is `after_work` or `before_work`, or empty for the worker's own setting. `run` is empty for
    an agent that runs elsewhere and connects over SSE (`remote`). `resumes`: this version can continue
    executions that an earlier one began before a wait. `check` validates an input before any payment is
    requested and raises InvalidInput; `checks_input` tells other processes that `check` exists.
    `title`, `icon` and `tags` are for catalogs and people; `example_files`, text by file name, for pages.
    `price_of` returns the price of an input, at most `price`; `prices_input` tells others that it exists.
    """

    name: str
    run: Callable[..., Any] | None = field(default=None, repr=False)
    check: Callable[[Any], object] | None = field(default=None, repr=False)
    checks_input: bool = False
    price_of: Callable[[Any], str] | None = field(default=None, repr=False)
    prices_input: bool = False
    description: str = ""
    price: str = "0"
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    example_input: Any = None
    example_output: Any = None
    example_files: Mapping[str, str] = field(default_factory=dict)
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
    title: str = ""
    icon: str = ""

    def with_override(self, override: Override) -> Capability:
        """Returns this capability with the operator's overrides applied."""
        price = None if override.price is None else to_text(override.price)
        latency = None if override.max_latency is None else int(override.max_latency * 1000)
        changes: dict[str, Any] = {
            "price": price,
            # The operator's price is fixed.
            "prices_input": None if price is None else False,
            "time_limit": override.time_limit,
            "max_latency_ms": latency,
            "swarm": override.swarm,
            "task_types": override.task_types or None,
            "profiles": {**self.profiles, **override.profiles} if override.profiles else None,
        }
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that agents call through `job.tool`. `attempts` counts the first try."""

    name: str
    run: Callable[..., Any] = field(repr=False)
    attempts: int = 3


class Registry:
    """The declared capabilities and tools, and the declarations that were rejected."""

    def __init__(self) -> None:
        self.capabilities: dict[str, Capability] = {}
        self.tools: dict[str, Tool] = {}
        self.problems: list[BadSetting] = []

    def agent(self, name: str, **options: Any) -> Callable[[Function], Function]:
        place = Place.of_caller(1)

        def register(function: Function) -> Function:
            faults = [*agent_faults(name, options), *agent_function_faults(function)]
            faults = faults or [*schema_faults(options), *_taken(self.capabilities, name, function)]
            if self._refused(place, name, faults):
                return function
            declared = dict(options)
            declared.setdefault("description", inspect.cleandoc(function.__doc__ or "").split("\n\n")[0])
            declared.setdefault("stream", inspect.isgeneratorfunction(function))
            declared.setdefault("version", _version(function))
            if callable(declared.get("price")):
                declared |= {"price_of": declared["price"], "prices_input": True}
                declared["price"] = declared.pop("max_price")
            declared["checks_input"] = declared.get("check") is not None
            declared |= {key: tuple(declared[key]) for key in ("tags", "task_types") if key in declared}
            self.capabilities[name] = Capability(name=name, run=function, **declared)
            return function

        if not isinstance(name, str):  # written without parentheses, it decorates nothing
            self._refused(place, getattr(name, "__name__", name), agent_faults(name, {}))
        return register

    def tool(self, name: str, **options: Any) -> Callable[[Function], Function]:
        place = Place.of_caller(1)

        def register(function: Function) -> Function:
            faults = [*tool_faults(name, options), *tool_function_faults(function)]
            faults = faults or [*_taken(self.tools, name, function)]
            if not self._refused(place, name, faults):
                self.tools[name] = Tool(name=name, run=function, **options)
            return function

        if not isinstance(name, str):
            self._refused(place, getattr(name, "__name__", name), tool_faults(name, options))
        return register

    def take_problems(self) -> list[BadSetting]:
        """Returns the declarations rejected since the last call."""
        problems, self.problems = self.problems, []
        return [*dict.fromkeys(problems)]

    def _refused(self, place: Place, name: Any, faults: Iterable[Fault]) -> bool:
        found = [place.problem(name, fault) for fault in faults]
        self.problems += found
        return bool(found)


def _taken(declared: Mapping[str, Capability | Tool], name: str, function: Any) -> Iterable[Fault]:
    if name in declared and declared[name].run is not function:
        yield "", f"a second {name}", "each name declared once"


REGISTRY = Registry()
agent = REGISTRY.agent
tool = REGISTRY.tool


def load(modules: Iterable[str], source: str = "WORKER_AGENTS") -> Registry:
    """Imports the authors' modules, which register themselves; reports all of their mistakes at once."""
    unusable = import_modules(modules, source)
    problems = [*REGISTRY.take_problems(), *unusable]
    if problems:
        raise BadStart(problems)
    return REGISTRY


def _version(function: Callable[..., Any]) -> str:
    """Derives a version from the function's source: a run after a crash must meet the same code."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # defined in a shell, or not a plain function
        source = getattr(function, "__qualname__", type(function).__qualname__)
    return hashlib.sha256(source.encode()).hexdigest()[:12]

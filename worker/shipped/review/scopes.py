"""Which names a piece of Python binds and reads, scope by scope.

Flow is ignored: a name bound anywhere in a scope counts as bound in all of it. That gives up some
findings and makes those that remain worth reading.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from worker.shipped.review.source import FUNCTIONS, Function, SourceCode

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MAX_ANNOTATION = 500


@dataclass(frozen=True)
class NameBinding:
    name: str
    line: int
    kind: str
    node: ast.AST


@dataclass(eq=False)
class Scope:
    """One module, class, function or comprehension."""

    kind: str
    node: ast.AST
    parent: Scope | None = None
    bindings: dict[str, list[NameBinding]] = field(default_factory=dict)
    reads: list[tuple[str, int]] = field(default_factory=list)
    outer: dict[str, str] = field(default_factory=dict)
    used: dict[str, list[int]] = field(default_factory=dict)

    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


@dataclass
class Names:
    """The result: every scope, and the reads that nothing binds.

    A read inside a string (an annotation, `__all__`) makes a name used, but is never unresolved: it may
    name a submodule or something that exists only for type checkers.
    """

    scopes: list[Scope]
    unresolved: list[tuple[str, int]]
    star: bool


class _Collector:
    def __init__(self, tree: ast.Module) -> None:
        self.top = Scope("module", tree)
        self.scopes = [self.top]
        self.star = False
        self.stack: list[tuple[ast.AST, Scope]] = []
        self.push(tree.body, self.top)

    def push(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        """What comes first is visited first, before anything pushed earlier."""
        self.stack.extend((node, scope) for node in reversed([n for n in nodes if n is not None]))

    def inner(self, kind: str, node: ast.AST, parent: Scope) -> Scope:
        scope = Scope(kind, node, parent)
        self.scopes.append(scope)
        return scope

    def bind(self, scope: Scope, name: str, node: ast.AST, kind: str) -> None:
        home = scope
        if scope.outer.get(name) == "global":
            home = self.top
        elif scope.outer.get(name) == "nonlocal":
            scope.reads.append((name, getattr(node, "lineno", 1)))
            return
        home.bindings.setdefault(name, []).append(NameBinding(name, getattr(node, "lineno", 1), kind, node))

    def run(self) -> None:
        while self.stack:
            node, scope = self.stack.pop()
            if isinstance(node, (*FUNCTIONS, ast.Lambda)):
                self.function(node, scope)
            elif isinstance(node, ast.ClassDef):
                self.bind(scope, node.name, node, "class")
                self.push([*node.decorator_list, *node.bases, *node.keywords], scope)
                self.push(node.body, self.inner("class", node, scope))
            elif isinstance(node, COMPREHENSIONS):
                self.comprehension(node, scope)
            elif isinstance(node, ast.Name):
                self.name(node, scope, "other")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports(node, scope)
            elif isinstance(node, ast.Global | ast.Nonlocal):
                kind = "global" if isinstance(node, ast.Global) else "nonlocal"
                scope.outer.update(dict.fromkeys(node.names, kind))
            else:
                self.statement(node, scope)

    def function(self, node: Function | ast.Lambda, scope: Scope) -> None:
        arguments = node.args
        inner = Scope("function", node, scope)
        self.scopes.append(inner)
        everyone = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        everyone += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        for argument in everyone:
            self.bind(inner, argument.arg, argument, "parameter")
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self.push(body, inner)
        self.push([*arguments.defaults, *arguments.kw_defaults], scope)
        if not isinstance(node, ast.Lambda):
            self.bind(scope, node.name, node, "function")
            self.push(node.decorator_list, scope)
            for annotation in [node.returns, *(argument.annotation for argument in everyone)]:
                self.annotation(annotation, scope)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: Scope
    ) -> None:
        inner = self.inner("comprehension", node, scope)
        first = node.generators[0]
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.push(results, inner)
        for generator in reversed(node.generators):
            iterable = [] if generator is first else [generator.iter]
            self.push([*iterable, generator.target, *generator.ifs], inner)
        self.push([first.iter], scope)

    def name(self, node: ast.Name, scope: Scope, kind: str) -> None:
        if isinstance(node.ctx, ast.Store):
            self.bind(scope, node.id, node, kind)
        else:
            scope.reads.append((node.id, node.lineno))

    def imports(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return
        for item in node.names:
            if item.name == "*":
                self.star = True
                continue
            kind = "reexport" if item.asname == item.name else "import"
            self.bind(scope, item.asname or item.name.partition(".")[0], node, kind)

    def statement(self, node: ast.AST, scope: Scope) -> None:
        """What binds a name in its own way; the rest is only passed through."""
        rest = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Assign):
            plain = [t for t in node.targets if isinstance(t, ast.Name)]
            for target in plain:
                self.name(target, scope, "assign")
                if target.id == "__all__":
                    self.exported(node.value)
            rest = [node.value, *(t for t in node.targets if not isinstance(t, ast.Name))]
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            scope.reads.append((node.target.id, node.lineno))
            self.bind(scope, node.target.id, node.target, "other")
            if node.target.id == "__all__":
                self.exported(node.value)
            rest = [node.value]
        elif isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation, scope)
            if isinstance(node.target, ast.Name):
                self.name(node.target, scope, "assign" if node.value else "declared")
            else:
                self.push([node.target], scope)
            rest = [node.value] if node.value else []
        elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            self.name(node.optional_vars, scope, "with")
            rest = [node.context_expr]
        elif isinstance(node, ast.NamedExpr):
            home = scope
            while home.kind == "comprehension" and home.parent is not None:
                home = home.parent
            self.name(node.target, home, "other")
            rest = [node.value]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self.bind(scope, node.name, node, "except")
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            self.bind(scope, node.name, node, "other")
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self.bind(scope, node.rest, node, "other")
        self.push(rest, scope)

    def annotation(self, node: ast.expr | None, scope: Scope) -> None:
        """An annotation, and the names inside one that is written as a string."""
        if node is None:
            return
        self.push([node], scope)
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                scope.reads += [(name, -part.lineno) for name in _names_in(part.value)]

    def exported(self, value: ast.expr) -> None:
        for part in ast.walk(value):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.top.reads.append((part.value, -part.lineno))


def _names_in(text: str) -> Iterator[str]:
    if len(text) > _MAX_ANNOTATION:
        return
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id


def resolve(source: SourceCode) -> Names:
    """Collect every scope, then find the home of every read."""
    collector = _Collector(source.tree)
    collector.run()
    unresolved: list[tuple[str, int]] = []
    for scope in collector.scopes:
        for name, line in scope.reads:
            home = _home(scope, name)
            if home is not None:
                home.used.setdefault(name, []).append(abs(line))
            elif line > 0:
                unresolved.append((name, line))
    return Names(collector.scopes, unresolved, collector.star)


def _home(scope: Scope, name: str) -> Scope | None:
    """The scope a read refers to: its own, else the next outside that is not a class."""
    if scope.outer.get(name) == "global":
        top = scope.module()
        return top if name in top.bindings else None
    here: Scope | None = scope
    while here is not None:
        if name in here.bindings and (here is scope or here.kind != "class"):
            return here
        here = here.parent
    return None

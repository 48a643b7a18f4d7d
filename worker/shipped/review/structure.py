"""Rules about the shape of code: how long, how branched, how deep, what can never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from worker.shipped.review.rules import rule
from worker.shipped.review.source import FUNCTIONS, Function, SourceCode, bodies, own, short

Hits = Iterator[tuple[int, str]]

MAX_COMPLEXITY = 10
MAX_LINES = 60
MAX_ARGUMENTS = 7
MAX_DEPTH = 4

_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_EXITS = {"sys.exit", "os._exit", "os.abort", "exit", "quit"}


def complexity(function: ast.AST) -> int:
    """McCabe's number: one, plus one for every place where the way can part."""
    count = 1
    for node in own(function):
        if isinstance(
            node,
            ast.If
            | ast.For
            | ast.AsyncFor
            | ast.While
            | ast.ExceptHandler
            | ast.IfExp
            | ast.match_case
            | ast.Assert,
        ):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


@rule("too-complex", "warning", "complexity")
def too_complex(source: SourceCode) -> Hits:
    for function in source.functions():
        number = complexity(function)
        if number > MAX_COMPLEXITY:
            yield (
                function.lineno,
                f"`{short(function.name)}` has a cyclomatic complexity of {number}, over {MAX_COMPLEXITY}",
            )


@rule("too-long", "info", "complexity")
def too_long(source: SourceCode) -> Hits:
    for function in source.functions():
        size = (function.end_lineno or function.lineno) - function.lineno + 1
        if size > MAX_LINES:
            yield function.lineno, f"`{short(function.name)}` is {size} lines long, over {MAX_LINES}"


@rule("too-many-arguments", "info", "complexity")
def too_many_arguments(source: SourceCode) -> Hits:
    for function in source.functions():
        arguments = function.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        if count > MAX_ARGUMENTS:
            yield function.lineno, f"`{short(function.name)}` takes {count} arguments, over {MAX_ARGUMENTS}"


@rule("too-deep", "info", "complexity")
def too_deep(source: SourceCode) -> Hits:
    """One finding per function, where its nesting first passes the limit; an elif counts as its if."""
    for function in source.functions():
        queue: list[tuple[ast.AST, int]] = [(node, 0) for node in function.body]
        deep: int | None = None
        while queue:
            node, depth = queue.pop()
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                continue
            elif_of = isinstance(node, ast.If) and _is_elif(source, node)
            depth += int(isinstance(node, _BLOCKS) and not elif_of)
            if depth > MAX_DEPTH and isinstance(node, _BLOCKS):
                deep = min(deep or node.lineno, node.lineno)
                continue
            queue.extend(
                (child, depth) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)
            )
        if deep is not None:
            yield deep, f"`{short(function.name)}` is nested more than {MAX_DEPTH} levels deep here"


@rule("unreachable", "warning", "bugs")
def unreachable(source: SourceCode) -> Hits:
    for block in bodies(source):
        for index, node in enumerate(block[:-1]):
            if not _goes_on(source, node):
                yield block[index + 1].lineno, "this can never run: the block has ended before it"
                break


@rule("inconsistent-return", "warning", "bugs")
def inconsistent_return(source: SourceCode) -> Hits:
    for function in source.functions():
        inside = list(own(function))
        returns = [node for node in inside if isinstance(node, ast.Return)]
        if not any(node.value is not None for node in returns):
            continue
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside):
            continue
        bare = [node.lineno for node in returns if node.value is None]
        if bare or _runs_through(source, function.body):
            name = short(function.name)
            yield (
                min(bare, default=function.lineno),
                f"`{name}` returns a value on some ways and nothing on others",
            )


@rule("misplaced-statement", "error", "bugs")
def misplaced_statement(source: SourceCode) -> Hits:
    """What the parser lets pass and the compiler would refuse."""
    outside: list[ast.stmt | ast.expr] = [*source.nodes(ast.Return), *source.nodes(ast.Yield)]
    outside += [*source.nodes(ast.YieldFrom), *source.nodes(ast.Await)]
    for node in outside:
        if not isinstance(
            _around(source, node, *FUNCTIONS, ast.Lambda, ast.ClassDef), (*FUNCTIONS, ast.Lambda)
        ):
            yield node.lineno, f"`{_word(node)}` outside a function"
    jumps: list[ast.stmt] = [*source.nodes(ast.Break), *source.nodes(ast.Continue)]
    for jump in jumps:
        around = _around(source, jump, ast.For, ast.AsyncFor, ast.While, *FUNCTIONS, ast.ClassDef)
        if not isinstance(around, ast.For | ast.AsyncFor | ast.While):
            yield jump.lineno, f"`{_word(jump)}` outside a loop"


def _word(node: ast.AST) -> str:
    return {"YieldFrom": "yield from"}.get(type(node).__name__, type(node).__name__.lower())


def _around(source: SourceCode, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
    """The nearest node of these kinds outside this one."""
    here = source.parents.get(node)
    while here is not None and not isinstance(here, kinds):
        here = source.parents.get(here)
    return here


def _is_elif(source: SourceCode, node: ast.If) -> bool:
    parent = source.parents.get(node)
    return isinstance(parent, ast.If) and parent.orelse == [node]


def _runs_through(source: SourceCode, block: list[ast.stmt]) -> bool:
    """Whether control can come out at the end of a block."""
    return all(_goes_on(source, node) for node in block)


def _goes_on(source: SourceCode, node: ast.stmt) -> bool:
    """Whether control can reach what follows a statement."""
    if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return source.dotted(node.value.func) not in _EXITS
    if isinstance(node, ast.If):
        return _if_goes_on(source, node)
    if isinstance(node, ast.While):
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)
        return not forever or _has_break(node)
    if isinstance(node, ast.Try):
        if node.finalbody and not _runs_through(source, node.finalbody):
            return False
        straight = _runs_through(source, node.body) and _runs_through(source, node.orelse)
        return straight or any(_runs_through(source, handler.body) for handler in node.handlers)
    if isinstance(node, ast.Match):
        last = node.cases[-1]
        whole = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        return not whole or any(_runs_through(source, case.body) for case in node.cases)
    return True


def _if_goes_on(source: SourceCode, node: ast.If) -> bool:
    """A chain of elif is followed in a loop: it may be longer than the stack is deep."""
    while True:
        if _runs_through(source, node.body) or not node.orelse:
            return True
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            continue
        return _runs_through(source, node.orelse)


def _has_break(loop: ast.While) -> bool:
    """A break of this loop, not of one inside it."""
    queue: list[ast.AST] = list(loop.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            queue.extend(node.orelse)
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            queue.extend(ast.iter_child_nodes(node))
    return False


def signature_arguments(function: Function) -> list[str]:
    """The names a caller sees, with stars."""
    arguments = function.args
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    if arguments.vararg:
        names.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append("**" + arguments.kwarg.arg)
    return names

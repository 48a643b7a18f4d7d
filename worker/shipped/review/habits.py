"""Rules about habits that bite: shared defaults, swallowed errors, comparisons that lie."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from worker.shipped.review.rules import rule
from worker.shipped.review.source import SourceCode, own, short

Hits = Iterator[tuple[int, str]]

_BROAD = {"Exception", "BaseException"}
_MAKERS = {"list", "dict", "set", "bytearray", "collections.defaultdict", "collections.deque"}
_CHANGES = {"append", "insert", "remove", "pop", "clear", "extend", "add", "discard", "update", "popitem"}


@rule("mutable-default", "warning", "bugs")
def mutable_default(source: SourceCode) -> Hits:
    literals = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    for function in [*source.functions(), *source.nodes(ast.Lambda)]:
        for default in [*function.args.defaults, *function.args.kw_defaults]:
            is_new_container = isinstance(default, ast.Call) and source.dotted(default.func) in _MAKERS
            if default is not None and (isinstance(default, literals) or is_new_container):
                yield (
                    default.lineno,
                    "a mutable default is shared by all calls; use None and create it inside",
                )


@rule("bare-except", "warning", "bugs")
def bare_except(source: SourceCode) -> Hits:
    for node in source.nodes(ast.ExceptHandler):
        if node.type is None:
            yield node.lineno, "a bare except also catches KeyboardInterrupt and SystemExit"


@rule("swallowed-error", "warning", "bugs")
def swallowed_error(source: SourceCode) -> Hits:
    for node in source.nodes(ast.ExceptHandler):
        broad = node.type is None or source.dotted(node.type) in _BROAD
        silent = all(isinstance(s, ast.Pass | ast.Continue) or _is_doc(s) for s in node.body)
        if broad and silent:
            yield node.lineno, "every error is caught here and silently dropped"


@rule("compare-none", "warning", "bugs")
def compare_none(source: SourceCode) -> Hits:
    for line, operator, one, other in _pairs(source):
        if isinstance(operator, ast.Eq | ast.NotEq) and (_is(one, None) or _is(other, None)):
            yield line, "compare with None by `is` or `is not`"


@rule("compare-bool", "info", "style")
def compare_bool(source: SourceCode) -> Hits:
    for line, operator, one, other in _pairs(source):
        if isinstance(operator, ast.Eq | ast.NotEq) and any(
            _is(x, True) or _is(x, False) for x in (one, other)
        ):
            yield line, "comparing with True or False: use the value itself, or `not`"


@rule("is-literal", "error", "bugs")
def is_literal(source: SourceCode) -> Hits:
    for line, operator, one, other in _pairs(source):
        literal = any(
            isinstance(x, ast.Constant) and isinstance(x.value, str | bytes | int | float) and not _is_bool(x)
            for x in (one, other)
        )
        if isinstance(operator, ast.Is | ast.IsNot) and literal:
            yield line, "`is` compares identity, not value; use `==`"


@rule("compare-self", "warning", "bugs")
def compare_self(source: SourceCode) -> Hits:
    for line, _, one, other in _pairs(source):
        if source.dotted(one) and source.dotted(one) == source.dotted(other):
            yield line, f"`{short(source.dotted(one))}` is compared with itself"


@rule("compare-type", "info", "style")
def compare_type(source: SourceCode) -> Hits:
    for line, operator, one, other in _pairs(source):
        if isinstance(operator, ast.Eq | ast.NotEq) and any(
            isinstance(x, ast.Call) and source.dotted(x.func) == "type" and len(x.args) == 1
            for x in (one, other)
        ):
            yield line, "compare types with isinstance, or by `is` when subclasses must not count"


@rule("useless-comparison", "warning", "bugs")
def useless_comparison(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Expr):
        if isinstance(node.value, ast.Compare):
            yield (
                node.lineno,
                "this comparison's result is thrown away; was an assignment or an assert meant?",
            )


@rule("not-in", "info", "style")
def not_in(source: SourceCode) -> Hits:
    for node in source.nodes(ast.UnaryOp):
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            if isinstance(inner.ops[0], ast.In):
                yield node.lineno, "write `x not in y` instead of `not x in y`"
            elif isinstance(inner.ops[0], ast.Is):
                yield node.lineno, "write `x is not y` instead of `not x is y`"


@rule("assert-tuple", "error", "bugs")
def assert_tuple(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Assert):
        if isinstance(node.test, ast.Tuple) and node.test.elts:
            yield node.lineno, "an assert on a tuple is always true; remove the parentheses"


@rule("fstring-without-placeholder", "info", "style")
def fstring_without_placeholder(source: SourceCode) -> Hits:
    for node in source.nodes(ast.JoinedStr):
        inside_format = isinstance(source.parents.get(node), ast.FormattedValue)
        if not inside_format and not any(isinstance(part, ast.FormattedValue) for part in node.values):
            yield node.lineno, "an f-string without any placeholder"


@rule("duplicate-key", "warning", "bugs")
def duplicate_key(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Dict):
        seen: set[tuple[str, object]] = set()
        for key in node.keys:
            if not isinstance(key, ast.Constant):
                continue
            mark = (type(key.value).__name__, key.value)
            if mark in seen:
                yield key.lineno, f"the key {short(repr(key.value))} is given twice; the last one wins"
            seen.add(mark)


@rule("open-without-with", "warning", "bugs")
def open_without_with(source: SourceCode) -> Hits:
    """`open()` that nobody closes: not in a with, not returned or handed on, no close() on its name."""
    closed = {
        node.value.id
        for node in source.nodes(ast.Attribute)
        if node.attr == "close" and isinstance(node.value, ast.Name)
    }
    managed = {
        node.context_expr.id for node in source.nodes(ast.withitem) if isinstance(node.context_expr, ast.Name)
    }
    for call in source.nodes(ast.Call):
        if source.dotted(call.func) not in {"open", "io.open", "codecs.open"}:
            continue
        parent = source.parents.get(call)
        if isinstance(parent, ast.withitem | ast.Return | ast.Call | ast.keyword | ast.Yield | ast.Lambda):
            continue
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            if any(not isinstance(t, ast.Name) or t.id in closed | managed for t in targets):
                continue
        yield call.lineno, "a file opened without `with` may stay open when something fails"


@rule("jump-in-finally", "warning", "bugs")
def jump_in_finally(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Try):
        for statement in node.finalbody:
            for inner in [statement, *own(statement)]:
                if isinstance(inner, ast.Return):
                    yield inner.lineno, "a return in finally swallows the error that is passing through"


@rule("raise-not-implemented", "error", "bugs")
def raise_not_implemented(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if source.dotted(raised) == "NotImplemented":
            yield node.lineno, "NotImplemented is a value, not an error; raise NotImplementedError"


@rule("assign-self", "warning", "bugs")
def assign_self(source: SourceCode) -> Hits:
    for node in source.nodes(ast.Assign):
        name = source.dotted(node.value)
        in_class = isinstance(source.parents.get(node), ast.ClassDef)
        if name and not in_class and len(node.targets) == 1 and source.dotted(node.targets[0]) == name:
            yield node.lineno, f"`{short(name)}` is assigned to itself"


@rule("changed-while-iterated", "warning", "bugs")
def changed_while_iterated(source: SourceCode) -> Hits:
    for loop in source.nodes(ast.For):
        if not isinstance(loop.iter, ast.Name) or loop.iter.id == "self":
            continue
        inside = [node for statement in loop.body for node in (statement, *own(statement))]
        if any(
            isinstance(node, ast.Name) and node.id == loop.iter.id and isinstance(node.ctx, ast.Store)
            for node in inside
        ):
            continue
        for node in inside:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _CHANGES
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == loop.iter.id
                and not _leaves(source, node)
            ):
                yield node.lineno, f"`{short(loop.iter.id)}` is changed while the loop walks it"


@rule("invalid-escape", "warning", "bugs")
def invalid_escape(source: SourceCode) -> Hits:
    for line in source.escapes:
        yield line, "an unknown escape in a string; use a raw string or double the backslash"


def _pairs(source: SourceCode) -> Iterator[tuple[int, ast.cmpop, ast.expr, ast.expr]]:
    """Every operator of every comparison with what stands on its two sides."""
    for node in source.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for index, operator in enumerate(node.ops):
            yield node.lineno, operator, sides[index], sides[index + 1]


def _leaves(source: SourceCode, call: ast.Call) -> bool:
    """Whether the loop ends right after the change, which makes it harmless."""
    statement = source.parents.get(call)
    block = getattr(source.parents.get(statement), "body", []) if isinstance(statement, ast.Expr) else []
    after = block[block.index(statement) + 1 :] if statement in block else []
    return bool(after) and isinstance(after[0], ast.Break | ast.Return | ast.Raise)


def _is(node: ast.expr, value: bool | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_bool(node: ast.Constant) -> bool:
    return isinstance(node.value, bool)


def _is_doc(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

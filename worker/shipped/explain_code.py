"""The walk-through agent: it streams a guided tour of a Python module, section by section.

All statements come from the syntax tree: the module's dependencies, what each part takes, calls, raises and
touches outside itself, and a reading order. The code is never run.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from worker.capabilities.declare import agent
from worker.core.errors import InvalidInput
from worker.shipped.review.source import (
    FUNCTIONS,
    MAX_CODE,
    Function,
    SourceCode,
    Unreadable,
    own,
    read,
    short,
)
from worker.shipped.review.structure import MAX_COMPLEXITY, complexity, signature_arguments
from worker.shipped.text.sentences import cut

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_PARTS = 150

_TOUCHES = {
    "reads or writes files": {"open", "io", "pathlib", "shutil", "tempfile", "os"},
    "talks to the network": {
        "requests",
        "urllib",
        "urllib3",
        "httpx",
        "socket",
        "aiohttp",
        "http",
        "smtplib",
        "ssl",
    },
    "starts other programs": {"subprocess", "multiprocessing"},
    "talks to a store": {"sqlite3", "psycopg", "psycopg2", "redis", "sqlalchemy", "pymongo"},
    "depends on time or chance": {"time", "datetime", "random", "secrets", "uuid"},
    "talks to the terminal": {"print", "input", "sys", "getpass"},
    "writes logs": {"logging", "structlog", "warnings"},
}

EXAMPLE_INPUT = {"code": 'def greet(name):\n    """Say hello."""\n    print(\'hello\', name)\n'}
EXAMPLE_OUTPUT = """# Walk-through

A module of 3 lines with 1 function and no class.

## What it leans on

Nothing but the language itself.

## Its parts

### function `greet(name)` (lines 1 to 3)

Say hello.
- talks to the terminal (`print`)

Nothing in it is too branched to follow in one reading.
"""


@agent(
    "explain-code",
    price="0.05",
    description="Streams a tour of a Python module: its parts, what they touch, where to start reading.",
    input_schema={
        "type": "object",
        "required": ["code"],
        "properties": {"code": {"type": "string", "minLength": 1, "maxLength": MAX_CODE}},
        "additionalProperties": False,
    },
    output_schema=None,
    inline=True,
    example_input=EXAMPLE_INPUT,
    example_output=EXAMPLE_OUTPUT,
    model="readerbot-v1",
    time_limit=30,
)
def explain_code(job: Job) -> Iterator[str]:
    """Yield the tour in Markdown, one section at a time."""
    source = _source(job.input)
    parts = [node for node in source.tree.body if isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    yield _opening(source, parts)
    yield _imports(source)
    yield from _parts(job, source, parts[:MAX_PARTS])
    if len(parts) > MAX_PARTS:
        yield f"{len(parts) - MAX_PARTS} more parts are not shown.\n\n"
    order = _order(source, parts[:MAX_PARTS])
    if order:
        yield order
    yield _hard(source)


def _source(given: Any) -> SourceCode:
    code = given.get("code") if isinstance(given, dict) else None
    if not isinstance(code, str) or not code.strip() or len(code) > MAX_CODE:
        raise InvalidInput(
            field="code", expected=f"Python source of 1 to {MAX_CODE} characters", received=_kind(code)
        )
    try:
        return read(code)
    except Unreadable as refusal:
        raise InvalidInput(
            field="code",
            expected="Python source that parses",
            received=f"{refusal.message} (line {refusal.line})",
        ) from None


def _opening(source: SourceCode, parts: list[Any]) -> str:
    functions = sum(isinstance(part, FUNCTIONS) for part in parts)
    classes = len(parts) - functions
    lines = len(source.lines) - (source.lines[-1] == "")
    text = (
        f"# Walk-through\n\nA module of {_count(lines, 'line')} with {_count(functions, 'function')} "
        f"and {_count(classes, 'class')}.\n"
    )
    said = _doc(source.tree)
    if said:
        text += f"It says of itself: {said}\n"
    if any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test)[:300] for node in source.tree.body):
        text += "It can be started as a program.\n"
    return text + "\n"


def _imports(source: SourceCode) -> str:
    roots = {a.name.partition(".")[0] for node in source.nodes(ast.Import) for a in node.names}
    own_package = False
    for node in source.nodes(ast.ImportFrom):
        own_package = own_package or node.level > 0
        if node.level == 0 and node.module:
            roots.add(node.module.partition(".")[0])
    roots.discard("__future__")
    standard = sorted(root for root in roots if root in sys.stdlib_module_names)
    others = sorted(roots - set(standard))
    if not roots and not own_package:
        return "## What it leans on\n\nNothing but the language itself.\n\n"
    text = "## What it leans on\n\n"
    if standard:
        text += f"- the standard library: {_names(standard)}\n"
    if others:
        text += f"- other packages: {_names(others)}\n"
    if own_package:
        text += "- its own package, by relative imports\n"
    return text + "\n"


def _parts(job: Job, source: SourceCode, parts: list[Any]) -> Iterator[str]:
    if parts:
        yield "## Its parts\n\n"
    known = {part.name for part in parts}
    for index, part in enumerate(parts):
        job.progress(0.1 + 0.8 * index / len(parts), f"reading {short(part.name)}")
        if isinstance(part, ast.ClassDef):
            yield _class(source, part, known)
        else:
            yield _function(source, part, known, "###")


def _class(source: SourceCode, node: ast.ClassDef, known: set[str]) -> str:
    bases = [source.dotted(base) for base in node.bases if source.dotted(base)]
    methods = [item for item in node.body if isinstance(item, FUNCTIONS)]
    text = f"### class `{short(node.name)}` (line {node.lineno})\n\n"
    text += f"{_doc(node)}\n" if _doc(node) else ""
    text += f"- builds on {_names(bases)}\n" if bases else ""
    public = [m.name for m in methods if not m.name.startswith("_")]
    if public:
        text += f"- offers {_names(public)}\n"
    fields = [
        n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    ]
    if fields:
        text += f"- holds {_names(fields)}\n"
    text += "".join(_about(source, method, known, f"`{short(method.name)}` ") for method in methods[:40])
    return text + "\n"


def _function(source: SourceCode, node: Function, known: set[str], mark: str) -> str:
    word = "async function" if isinstance(node, ast.AsyncFunctionDef) else "function"
    arguments = short(", ".join(signature_arguments(node)), 200)
    end = node.end_lineno or node.lineno
    text = f"{mark} {word} `{short(node.name)}({arguments})` (lines {node.lineno} to {end})\n\n"
    text += f"{_doc(node)}\n" if _doc(node) else ""
    about = _about(source, node, known, "")
    return text + (about or "- works on its arguments alone\n") + "\n"


def _about(source: SourceCode, node: Function, known: set[str], prefix: str) -> str:
    """What a function calls in this module, raises, returns and touches outside."""
    inside = list(own(node))
    called = Counter(source.dotted(n.func) for n in inside if isinstance(n, ast.Call))
    text = ""
    ours = [name for name in called if name in known and name != node.name]
    if ours:
        text += f"- {prefix}calls {_names(ours)}\n"
    if node.name in called:
        text += f"- {prefix}calls itself\n"
    raised = {
        source.dotted(n.exc.func if isinstance(n.exc, ast.Call) else n.exc)
        for n in inside
        if isinstance(n, ast.Raise) and n.exc is not None
    } - {""}
    if raised:
        text += f"- {prefix}raises {_names(sorted(raised))}\n"
    if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inside):
        text += f"- {prefix}yields its results one by one\n"
    roots = {name.partition(".")[0] for name in called if name}
    for effect, modules in _TOUCHES.items():
        if roots & modules:
            text += f"- {prefix}{effect} ({_names(sorted(roots & modules))})\n"
    changed = [name for n in inside if isinstance(n, ast.Global) for name in n.names]
    if changed:
        text += f"- {prefix}changes module state: {_names(changed)}\n"
    return text


def _order(source: SourceCode, parts: list[Any]) -> str:
    """Callers before callees: starts with parts that nothing else in the module uses."""
    known = {part.name: part for part in parts}
    wanted: dict[str, list[str]] = {}
    for part in parts:
        names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        wanted[part.name] = [name for name in known if name in names and name != part.name]
    pointed = {name for names in wanted.values() for name in names}
    queue = [name for name in known if name not in pointed]
    queue += [name for name in known if name in pointed]
    order: list[str] = []
    seen: set[str] = set()
    stack = list(reversed(queue))
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            order.append(name)
            stack.extend(reversed(wanted[name]))
    if len(order) < 2:
        return ""
    return (
        "## Where to start\n\nRead in this order: "
        + " → ".join(f"`{short(name)}`" for name in order[:30])
        + "\n\n"
    )


def _hard(source: SourceCode) -> str:
    hard = sorted(
        ((complexity(f), f) for f in source.functions()), key=lambda pair: (-pair[0], pair[1].lineno)
    )
    hard = [(number, function) for number, function in hard if number > MAX_COMPLEXITY][:5]
    if not hard:
        return "Nothing in it is too branched to follow in one reading.\n"
    text = "## Take your time with\n\n"
    for number, function in hard:
        text += f"- `{short(function.name)}` on line {function.lineno}: {number} ways through it\n"
    return text


def _doc(node: Any) -> str:
    """The first line of a docstring, unable to act as markup."""
    said = ast.get_docstring(node) or ""
    first = " ".join(said.strip().split("\n\n")[0].split())
    plain = "".join(c for c in cut(first, 200) if c.isprintable())
    return "".join("\\" + c if c in "\\`*_[]<>#|!" else c for c in plain)


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{short(name)}`" for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number or 'no'} {noun if number in (0, 1) else plural}"


def _kind(value: Any) -> str:
    return f"{len(value)} characters" if isinstance(value, str) else type(value).__name__

"""The code review agent and every one of its rules."""

from __future__ import annotations

import sys
from typing import Any

import jsonschema
import pytest

from tests.fakes.job import FakeJob, run
from worker.core.errors import InvalidInput
from worker.core.nesting import MAX_FRAMES
from worker.shipped.code_review import INPUT_SCHEMA, MAX_ISSUES, OUTPUT_SCHEMA, code_review
from worker.shipped.review.rules import RULES, ReviewFinding, findings, rule, score
from worker.shipped.review.source import MAX_CODE, Unreadable, read

FOLLOWED = "def f(a):\n" + "    if a: pass\n" * 10
DEEP = """def f(a):
    if a:
        for b in a:
            while b:
                with b:
                    if b:
                        pass
"""

# rule, code that breaks it, the lines it names, similar code that is correct
CASES: list[tuple[str, str, list[int], str]] = [
    ("unused-import", "import os\nimport sys\nsys.exit()", [1], "import os\nprint(os.sep)"),
    ("unused-import", "from a import b as c", [1], "from a import b\n__all__ = ['b']"),
    ("unused-import", "import a.b.c", [1], "import a.b.c\na.b.c.d()"),
    ("unused-import", "def f():\n    import os", [2], "import os\ndef f(x: 'os.PathLike'): pass"),
    ("unused-import", "import os", [1], "try:\n    import os\nexcept ImportError:\n    pass"),
    ("unused-import", "import os", [1], "from __future__ import annotations"),
    ("unused-variable", "def f():\n    x = 1", [2], "def f():\n    x = 1\n    return lambda: x"),
    (
        "unused-variable",
        "def f():\n    try: g()\n    except E as e: pass",
        [3],
        "def f():\n    a, b = g()\n    return a",
    ),
    (
        "unused-variable",
        "def f():\n    with g() as x: pass",
        [2],
        "def f():\n    _x = 1\n    y = 2\n    return locals()",
    ),
    ("unused-variable", "def f():\n    x: int = 1", [2], "def f():\n    global x\n    x = 1"),
    (
        "unused-variable",
        "def f():\n    x = 1",
        [2],
        "def f():\n    x = 0\n    def g():\n        nonlocal x\n        x = 1",
    ),
    ("undefined-name", "print(y)", [1], "y = 1\nprint(y)"),
    ("undefined-name", "def f():\n    return later", [2], "def f():\n    return later\nlater = 1"),
    (
        "undefined-name",
        "class A:\n    x = 1\n    def f(self): return x",
        [3],
        "class A:\n    x = 1\n    y = x",
    ),
    ("undefined-name", "[i for i in range(3)]\nprint(i)", [2], "[(j := i) for i in range(3)]\nprint(j)"),
    ("undefined-name", "print(q)", [1], "from z import *\nprint(q)"),
    ("undefined-name", "print(q)", [1], "try:\n    unicode\nexcept NameError:\n    unicode = str"),
    (
        "undefined-name",
        "print(q)",
        [1],
        "match 1:\n    case {'a': b, **c}: print(b, c)\n    case [*d]: print(d)",
    ),
    ("undefined-name", "print(q)", [1], "def f(a, /, *b, c=1, **d): return a, b, c, d\nprint(__file__)"),
    (
        "undefined-name",
        "print(q)",
        [1],
        "class A:\n    def f(self) -> 'B': pass\n    def g(self): return __class__",
    ),
    ("redefined", "def f(): pass\ndef f(): pass", [2], "def f(): pass\nf()\ndef f(): pass"),
    (
        "redefined",
        "class A:\n    def g(self): 1\n    def g(self): 2",
        [3],
        "@o\ndef f(): pass\n@o\ndef f(): pass",
    ),
    ("redefined", "import a\nimport a", [2], "if x:\n    def f(): pass\nelse:\n    def f(): pass"),
    ("shadowed-builtin", "def f(list): return list", [1], "class A:\n    id = 1\n    def list(self): pass"),
    ("wildcard-import", "from os import *", [1], "from os import path"),
    (
        "naming",
        "def doThing(): pass",
        [1],
        "def do_thing(): pass\nclass TestCase:\n    def setup_x(self): pass",
    ),
    ("naming", "class my_class: pass", [1], "class _MyClass2: pass"),
    ("mutable-default", "def f(a=[]): pass", [1], "def f(a=()): pass"),
    ("mutable-default", "f = lambda a={}: a", [1], "def f(a=None, *, b=0): pass"),
    ("mutable-default", "def f(*, a=dict()): pass", [1], "def f(a=frozenset()): pass"),
    ("bare-except", "try: f()\nexcept: raise", [2], "try: f()\nexcept ValueError: raise"),
    ("swallowed-error", "try: f()\nexcept Exception: pass", [2], "try: f()\nexcept KeyError: pass"),
    ("swallowed-error", "try: f()\nexcept: ...", [2], "try: f()\nexcept Exception: log()"),
    ("compare-none", "x = 1\nx == None", [2], "x = 1\nx is None"),
    ("compare-none", "y = None != f()", [1], "y = 0 != f()"),
    ("compare-bool", "if f() == True: pass", [1], "if f() is True: pass\nif f() == 1: pass"),
    ("is-literal", "y = x is 'a'", [1], "y = x is None\nz = x is True\nw = x is ..."),
    ("is-literal", "y = 1 is not x", [1], "y = x is not y"),
    ("compare-self", "y = a.b == a.b", [1], "y = a.b == a.c\nz = f() == f()"),
    ("compare-type", "y = type(a) == int", [1], "y = isinstance(a, int)\nz = type(a) is int"),
    ("useless-comparison", "x == 1", [1], "assert x == 1\ny = x == 1"),
    ("not-in", "y = not a in b", [1], "y = a not in b\nz = not (a == b)"),
    ("not-in", "y = not a is b", [1], "y = a is not b"),
    ("assert-tuple", "assert (x, 'no')", [1], "assert x, 'no'\nassert ()"),
    ("fstring-without-placeholder", "y = f'abc'", [1], "y = f'{a:>{b}}' f'{a:>10}'"),
    ("duplicate-key", "y = {'a': 1, 'b': 2, 'a': 3}", [1], "y = {1: 1, '1': 2, True: 3, **z, **z}"),
    ("open-without-with", "x = open('a').read()", [1], "with open('a') as f: pass"),
    ("open-without-with", "f = open('a')\nf.read()", [1], "f = open('a')\nf.close()"),
    (
        "open-without-with",
        "for line in open('a'): pass",
        [1],
        "def g(): return open('a')\nwith closing(open('b')): pass",
    ),
    ("open-without-with", "open('a', 'w').write(x)", [1], "self.f = open('a')"),
    (
        "jump-in-finally",
        "def f():\n    try: g()\n    finally:\n        return 1",
        [4],
        "def f():\n    try: return 1\n    finally: g()",
    ),
    ("raise-not-implemented", "raise NotImplemented", [1], "raise NotImplementedError('x')"),
    ("raise-not-implemented", "raise NotImplemented('x')", [1], "def __eq__(a, b): return NotImplemented"),
    ("assign-self", "x = x", [1], "x = self.x\nclass A:\n    y = y"),
    ("changed-while-iterated", "for x in xs:\n    xs.remove(x)", [2], "for x in list(xs):\n    xs.remove(x)"),
    (
        "changed-while-iterated",
        "for x in xs:\n    if x: xs.pop()",
        [2],
        "for x in xs:\n    xs.remove(x)\n    break",
    ),
    (
        "changed-while-iterated",
        "for x in d:\n    d.update(x)",
        [2],
        "for x in xs:\n    xs = []\n    xs.append(x)",
    ),
    ("invalid-escape", "x = 'a'\ny = '\\d'", [2], "x = r'\\d'\ny = '\\n'"),
    ("eval", "eval(x)", [1], "ast.literal_eval(x)\nmodel.eval()"),
    ("eval", "exec('x')", [1], "self.exec(x)"),
    ("unpickle", "import pickle as p\np.loads(x)", [2], "import pickle as p\np.dumps(x)"),
    ("unpickle", "from pickle import loads as l\nl(x)", [2], "from json import loads as l\nl(x)"),
    ("shell", "import os\nos.system(x)", [2], "import os\nos.path.join(x)"),
    (
        "shell",
        "import subprocess as s\ns.run(x, shell=True)",
        [2],
        "import subprocess as s\ns.run([x], shell=False)",
    ),
    ("shell", "from subprocess import Popen\nPopen(x, shell=True)", [2], "run(x, shell=True)"),
    ("yaml-load", "import yaml\nyaml.load(x)", [2], "import yaml\nyaml.load(x, Loader=yaml.SafeLoader)"),
    ("yaml-load", "import yaml\nyaml.load(x, yaml.Loader)", [2], "import yaml\nyaml.safe_load(x)"),
    ("yaml-load", "import yaml\nyaml.unsafe_load(x)", [2], "import yaml\nyaml.load(x, yaml.CSafeLoader)"),
    (
        "hardcoded-secret",
        "password = 'hunter2hunter2'",
        [1],
        "password = os.environ['PASSWORD']\npassword = ''",
    ),
    ("hardcoded-secret", "connect(api_key='abcdef123456')", [1], "connect(api_key='<your key>')"),
    ("hardcoded-secret", "x = {'db_password': 's3cr3tvalue'}", [1], "x = {'password_hint': 'your dog'}"),
    ("hardcoded-secret", "def f(token='', secret='aaaaaabbbb'): pass", [1], "secret = 'changeme'"),
    ("hardcoded-secret", "x = 'AKIAABCDEFGHIJKLMNOP'", [1], "x = 'AKIA'"),
    ("tls-unchecked", "requests.get(u, verify=False)", [1], "requests.get(u, verify=True)"),
    (
        "weak-hash",
        "import hashlib\nhashlib.md5(x)",
        [2],
        "import hashlib\nhashlib.md5(x, usedforsecurity=False)",
    ),
    ("sql-from-text", "c.execute(f'select {x}')", [1], "c.execute('select ?', [x])"),
    ("sql-from-text", "c.execute('select %s' % x)", [1], "c.execute('select ' + '1')"),
    ("sql-from-text", "c.execute('select {}'.format(x))", [1], "c.execute(f'select')"),
    ("temporary-name", "import tempfile\ntempfile.mktemp()", [2], "import tempfile\ntempfile.mkstemp()"),
    ("debug-server", "app.run(debug=True)", [1], "app.run(debug=False)"),
    ("too-complex", FOLLOWED, [1], "def f(a):\n" + "    if a: pass\n" * 9),
    ("too-long", "def f():\n" + "    g()\n" * 60, [1], "def f():\n" + "    g()\n" * 59),
    (
        "too-many-arguments",
        "def f(a, b, c, d, e, f, g, h): pass",
        [1],
        "def f(a, b, c, d, e, f, g, *h): pass",
    ),
    ("too-deep", DEEP, [6], "def f(a):\n    if a: pass\n" + "    elif a: pass\n" * 9),
    ("unreachable", "def f():\n    return 1\n    g()", [3], "def f():\n    if x: return 1\n    g()"),
    ("unreachable", "while True:\n    f()\ng()", [3], "while True:\n    if f(): break\ng()"),
    ("unreachable", "import sys\nsys.exit(1)\ng()", [3], "exit_code = f()\ng()"),
    ("unreachable", "for x in y:\n    continue\n    g()", [3], "try:\n    raise E\nexcept E:\n    pass\ng()"),
    (
        "unreachable",
        "def f():\n    if a: return 1\n    else: raise E\n    g()",
        [4],
        "while f():\n    pass\ng()",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    if a:\n        return 1",
        [1],
        "def f(a):\n    if a:\n        return 1\n    return None",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    if a:\n        return 1\n    return",
        [4],
        "def f(a):\n    if a:\n        return\n    g()",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    for x in a:\n        return x",
        [1],
        "def f(a):\n    while True:\n        if a: return 1",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    try: return 1\n    except E: pass",
        [1],
        "def f(a):\n    try: return 1\n    except E: raise",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    match a:\n        case 1: return 1",
        [1],
        "def f(a):\n    match a:\n        case 1: return 1\n        case _: return 2",
    ),
    (
        "inconsistent-return",
        "def f(a):\n    if a: return 1",
        [1],
        "def f(a):\n    yield a\n    if a: return 1",
    ),
    ("misplaced-statement", "return 1", [1], "def f(): return 1"),
    ("misplaced-statement", "class A:\n    yield 1", [2], "f = lambda: (yield)"),
    ("misplaced-statement", "if x:\n    break", [2], "for x in y:\n    if x: break"),
    ("misplaced-statement", "for x in y:\n    def f(): continue", [2], "while x:\n    with y: continue"),
    ("long-line", "x = 1\ny = " + "1 + " * 40 + "1", [2], "x = '" + "a" * 100 + "'"),
    ("open-note", "x = 1  # TODO: more", [1], "x = '# TODO'\n# all done"),
    ("mixed-indent", "if x:\n    y\nif z:\n\tw", [4], "if x:\n    y\nif z:\n    w"),
]


def hits(code: str, rule_id: str) -> list[int]:
    return [finding.line for finding in findings(read(code)) if finding.rule == rule_id]


@pytest.mark.parametrize(("rule_id", "bad", "lines", "good"), CASES)
def test_each_rule_has_true_and_false_cases(rule_id: str, bad: str, lines: list[int], good: str) -> None:
    """Each rule names the lines that break it, and does not report the correct form."""
    assert hits(bad, rule_id) == lines
    assert hits(good, rule_id) == []


def test_every_rule_has_a_case() -> None:
    """Every registered rule has a case in the table above."""
    assert {case[0] for case in CASES} == set(RULES)


def test_rules_cannot_be_registered_twice() -> None:
    """Two rules with one id would hide each other, and a rule with an unknown topic would never run."""
    with pytest.raises(ValueError, match="bare-except"):
        rule("bare-except", "info", "bugs")(lambda source: [])
    with pytest.raises(ValueError, match="new-rule"):
        rule("new-rule", "info", "taste")(lambda source: [])
    assert "new-rule" not in RULES


def review(code: str, **more: Any) -> dict[str, Any]:
    job = FakeJob({"code": code, **more})
    output = run(code_review, job)
    jsonschema.validate(output, OUTPUT_SCHEMA)
    assert isinstance(output, dict)
    return output


def test_output_is_scored_json() -> None:
    """The output contains score, issues with line, severity, message and rule, and a summary."""
    output = review("import os\n\ndef total(xs=[]):\n    return sum(xs)\n", language="python")
    assert output == {
        "score": 8.5,
        "issues": [
            {
                "line": 1,
                "severity": "warning",
                "message": "`os` is imported but never used",
                "rule": "unused-import",
            },
            {
                "line": 3,
                "severity": "warning",
                "message": "a mutable default is shared by all calls; use None and create it inside",
                "rule": "mutable-default",
            },
        ],
        "summary": "2 issues in 4 lines: 2 warnings.",
    }


def test_clean_code_scores_ten() -> None:
    """Code without issues gets the full score and an empty list."""
    code = "def add(a: int, b: int) -> int:\n    return a + b\n"
    assert review(code) == {"score": 10.0, "issues": [], "summary": "No issues in 2 lines."}


def test_repeated_issue_counts_three_times_at_most() -> None:
    """Ten repetitions of one warning cost as much as three; errors cost more; the minimum is 0."""

    def found(severity: str, rule_id: str, count: int) -> list[ReviewFinding]:
        return [ReviewFinding(n, severity, "m", rule_id) for n in range(1, count + 1)]

    assert score(found("warning", "a", 3)) == score(found("warning", "a", 10)) == 7.8
    assert score(found("error", "a", 1)) == 8.0
    assert score(found("info", "a", 1)) == 9.8
    assert score(found("error", "a", 3) + found("error", "b", 3)) == 0.0


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f(:\n    pass", 1),
        ("x = 1\ny = (", 2),
        ("if x:\npass", 2),
        ("x = 1\n  y = 2", 2),
        ("def f(a, a): pass", 1),
        ("x = 1\ndef f():\n    print(x)\n    global x", 4),
        ("print 'hello'", 1),
        ("x = \x00", 1),
        ("x = '\ud800'", 1),
        ("x = " + "9" * 5000, 1),
    ],
)
def test_syntax_errors_are_issues(code: str, line: int) -> None:
    """Unparsable code gets an answer, not a crash: score 0 and one error with its line."""
    output = review(code)
    assert output["score"] == 0
    assert [(issue["line"], issue["severity"], issue["rule"]) for issue in output["issues"]] == [
        (line, "error", "syntax")
    ]


BOMBS = {
    "parentheses": "(" * MAX_CODE,
    "unary": "-" * (MAX_CODE - 1) + "1",
    "sum": "+".join(["a"] * 90_000),
    "attributes": "a" + ".b" * 90_000,
    "calls": "a" + "()" * 90_000,
    "subscripts": "a" + "[0]" * 60_000,
    "powers": "a**" * 60_000 + "a",
    "lambdas": "lambda:" * 25_000 + "1",
    "conditions": "a if b else " * 16_000 + "c",
    "elifs": "if a:\n p\n" + "elif a:\n p\n" * 15_000,
    "indents": "".join(" " * i + "if a:\n" for i in range(200)) + " " * 200 + "p",
    "comprehensions": "[" * 60 + "x" + " for x in y]" * 60,
    "braces": "{a:" * 150,
}


@pytest.mark.parametrize("name", BOMBS)
def test_deep_nesting_is_handled(name: str) -> None:
    """Code nested to exhaust a parser or a walker gets an answer, not a crash."""
    output = review(BOMBS[name][:MAX_CODE])
    assert output["issues"] or output["score"] == 10.0


def test_trees_just_below_the_parsers_limit_are_walked() -> None:
    """The deepest trees that the parser accepts pass through all rules without a recursion error."""
    limit = min(sys.getrecursionlimit(), MAX_FRAMES)
    deepest = {"a.b": 0, "a+": 0}
    for unit in ("a.b", "a+"):
        for depth in range(limit - 400, limit * 4, 50):
            code = "x = " + ("a" + ".b" * depth if unit == "a.b" else "a+" * depth + "a")
            try:
                source = read(code)
            except Unreadable:
                break
            found = {finding.rule for finding in findings(source)}
            assert "undefined-name" in found and "not-analysed" not in found
            deepest[unit] = depth
    assert min(deepest.values()) >= limit - 400
    chain = "def f(a):\n if a: return 1\n" + " elif a: return 2\n" * 60 + " else: return 3\n x = 1"
    assert "unreachable" in {finding.rule for finding in findings(read(chain))}


def test_long_chains_of_elif_are_followed_to_their_end() -> None:
    """A chain of hundreds of elif counts as one decision, neither deep nor truncated."""
    chain = "def f(a):\n if a: return 1\n" + " elif a: return 2\n" * 90
    found = {finding.rule for finding in findings(read(chain))}
    assert "inconsistent-return" in found and "too-complex" in found and "too-deep" not in found


def test_huge_flat_code_is_bounded() -> None:
    """200 kB of faulty code gives at most the permitted number of issues; errors are kept before notes."""
    code = ("import os\n" * 3000 + "def F(list=[]): pass\n" * 3000)[: MAX_CODE - 20] + "\neval(x)\n"
    output = review(code)
    assert len(output["issues"]) <= MAX_ISSUES
    assert "eval" in {issue["rule"] for issue in output["issues"]}
    lines = [issue["line"] for issue in output["issues"]]
    assert lines == sorted(lines)


def test_long_names_are_shortened_in_messages() -> None:
    """A name of 100 kB is shortened, so that the output stays small."""
    output = review("import " + "a" * 100_000)
    assert len(output["issues"][0]["message"]) < 200


def test_secrets_are_never_repeated() -> None:
    """A finding about a secret gives its location and does not quote it."""
    output = review("password = 'hunter2hunter2'\nkey = 'ghp_" + "a" * 36 + "'\n")
    assert {issue["rule"] for issue in output["issues"]} == {"hardcoded-secret"}
    assert "hunter2" not in str(output) and "ghp_" not in str(output)


def test_code_is_never_run() -> None:
    """Reviewing code does not import, execute or evaluate it."""
    review("import sys\nsys.worker_review_ran = True\n1/0\nraise SystemExit\n")
    assert not hasattr(sys, "worker_review_ran")


def test_focus_option_limits_the_topics() -> None:
    """Only the requested topics are checked and scored."""
    code = "import os\neval(input())\n"
    assert {i["rule"] for i in review(code)["issues"]} == {"unused-import", "eval"}
    focused = review(code, focus=["security"])
    assert [i["rule"] for i in focused["issues"]] == ["eval"] and focused["score"] == 8.0
    assert review(code, focus=[])["issues"] == review(code)["issues"]


@pytest.mark.parametrize(
    ("input", "field"),
    [
        ({}, "code"),
        ({"code": ""}, "code"),
        ({"code": " \n "}, "code"),
        ({"code": 5}, "code"),
        ({"code": "x" * (MAX_CODE + 1)}, "code"),
        ({"code": "x", "language": "rust"}, "language"),
        ({"code": "x", "language": ["python"]}, "language"),
        ({"code": "x", "focus": "bugs"}, "focus"),
        ({"code": "x", "focus": ["bugs", "beauty"]}, "focus[1]"),
        ({"code": "x", "focus": [{}]}, "focus[0]"),
        ("x", ""),
    ],
)
def test_invalid_input_names_its_field(input: Any, field: str) -> None:
    """Input that the schema refuses is refused here too, with the field and without echoing the code."""
    with pytest.raises(InvalidInput) as caught:
        run(code_review, FakeJob(input))
    assert caught.value.details["field"] == field
    assert len(str(caught.value.details)) < 300


def test_closed_contract_schemas_are_satisfied() -> None:
    """If a contract's schema is closed, unlisted keys are left out, and integers are whole."""
    schema = {
        "type": "object",
        "required": ["score", "issues"],
        "properties": {
            "score": {"type": "integer", "minimum": 0, "maximum": 10},
            "issues": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"line": {"type": "integer"}, "message": {"type": "string"}},
                    "additionalProperties": False,
                },
            },
        },
        "additionalProperties": False,
    }
    output = run(code_review, FakeJob({"code": "import os\n"}, output_schema=schema))
    jsonschema.validate(output, schema)
    assert output == {"score": 9, "issues": [{"line": 1, "message": "`os` is imported but never used"}]}
    assert run(code_review, FakeJob({"code": "x ="}, output_schema=schema))["score"] == 0


def test_specification_schema_is_satisfied() -> None:
    """The output satisfies the schema in the HIRE specification."""
    schema = {
        "type": "object",
        "required": ["score", "issues"],
        "properties": {
            "score": {"type": "number", "minimum": 0, "maximum": 10},
            "issues": {"type": "array"},
        },
    }
    jsonschema.validate(run(code_review, FakeJob({"code": "import os"}, output_schema=schema)), schema)
    jsonschema.validate({"code": "x", "language": "python", "focus": ["bugs"]}, INPUT_SCHEMA)


def test_byte_order_mark_and_line_ends_do_not_matter() -> None:
    """A byte order mark and Windows line ends change neither findings nor line numbers."""
    assert review("\ufeffimport os\r\nimport sys\r\nsys.exit()\r\n")["issues"][0]["line"] == 1
    assert review("x = '''\x0c\n'''\nimport os\n")["issues"][0]["line"] == 3

"""Rules about security: code made from text, shells, unsafe loaders, secrets in the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from worker.shipped.review.rules import rule
from worker.shipped.review.source import SourceCode, short

Hits = Iterator[tuple[int, str]]

_UNPICKLERS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cPickle.loads",
    "dill.loads",
    "dill.load",
    "marshal.loads",
    "marshal.load",
    "shelve.open",
    "joblib.load",
}
_SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "commands.getoutput",
}
_SPAWNERS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")}
_SAFE_LOADERS = {"SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"}
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:password|passwd|pwd|secret|api_?key|apikey|auth_?token|access_?token|private_?key)s?$"
)
_SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{36}|sk-[A-Za-z0-9_-]{20,}|xox[abp]-[A-Za-z0-9-]{10,}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
)
_PLACEHOLDER = re.compile(
    r"^(?:|x+|\*+|\.+|none|null|changeme|test|example|dummy|todo|your[-_ ].*|<.*>|\$.*|\{.*)$", re.I
)
_MAX_VALUE = 4096


@rule("eval", "error", "security")
def evaluates(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name in {"eval", "exec", "builtins.eval", "builtins.exec"}:
            yield call.lineno, f"`{name}` runs text as code; whoever controls the text controls the program"


@rule("unpickle", "warning", "security")
def unpickle(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name in _UNPICKLERS:
            yield call.lineno, f"`{name}` can run code hidden in its data; use JSON for data from outside"


@rule("shell", "error", "security")
def shell(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name in _SHELLS:
            yield call.lineno, f"`{name}` passes text to a shell; use subprocess.run with a list"
        elif name in _SPAWNERS and _keyword_is(call, "shell", True):
            yield call.lineno, f"`{name}` with shell=True passes text to a shell; use a list"


@rule("yaml-load", "error", "security")
def yaml_load(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name in {"yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all"}:
            yield call.lineno, f"`{name}` can create any object; use yaml.safe_load"
        elif name in {"yaml.load", "yaml.load_all"}:
            loader = next((k.value for k in call.keywords if k.arg == "Loader"), None)
            loader = loader or (call.args[1] if len(call.args) > 1 else None)
            if source.dotted(loader).rpartition(".")[2] not in _SAFE_LOADERS:
                yield call.lineno, f"`{name}` can create any object; use yaml.safe_load"


@rule("hardcoded-secret", "error", "security")
def hardcoded_secret(source: SourceCode) -> Hits:
    """A literal under a name that promises a secret, or one that looks like a known key. Never quoted."""
    for name, value in _named_values(source):
        if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
            continue
        text = value.value.strip()
        secret = len(text) >= 6 and " " not in text and not _PLACEHOLDER.match(text[:200])
        if _SECRET_NAME.search(name.lower()) and secret:
            yield value.lineno, f"`{short(name)}` holds a secret in the source; read it from the environment"
    for node in source.nodes(ast.Constant):
        if isinstance(node.value, str) and _SECRET_VALUE.search(node.value[:_MAX_VALUE]):
            yield (
                node.lineno,
                "this literal looks like a real key; revoke it and read it from the environment",
            )


@rule("tls-unchecked", "error", "security")
def tls_unchecked(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if _keyword_is(call, "verify", False) or name == "ssl._create_unverified_context":
            yield (
                call.lineno,
                "certificates are not checked here: anybody on the way can read and change the data",
            )


@rule("weak-hash", "info", "security")
def weak_hash(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name in {"hashlib.md5", "hashlib.sha1"} and not _keyword_is(call, "usedforsecurity", False):
            yield call.lineno, f"`{name}` is broken for security; use sha256, or say usedforsecurity=False"


@rule("sql-from-text", "warning", "security")
def sql_from_text(source: SourceCode) -> Hits:
    for call in source.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in {"execute", "executemany"}:
            continue
        query = call.args[0] if call.args else None
        joined = isinstance(query, ast.JoinedStr) and any(
            isinstance(p, ast.FormattedValue) for p in query.values
        )
        added = (
            isinstance(query, ast.BinOp) and isinstance(query.op, ast.Mod | ast.Add) and not _constant(query)
        )
        formatted = (
            isinstance(query, ast.Call)
            and isinstance(query.func, ast.Attribute)
            and query.func.attr == "format"
        )
        if joined or added or formatted:
            yield (
                call.lineno,
                "a query glued together from text can be changed by its values; pass parameters",
            )


@rule("temporary-name", "warning", "security")
def temporary_name(source: SourceCode) -> Hits:
    for call, name in _calls(source):
        if name == "tempfile.mktemp":
            yield call.lineno, "`tempfile.mktemp` leaves a gap in which another process can take the name"


@rule("debug-server", "warning", "security")
def debug_server(source: SourceCode) -> Hits:
    for call in source.nodes(ast.Call):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "run"
            and _keyword_is(call, "debug", True)
        ):
            yield call.lineno, "a server with debug=True lets visitors run code"


def _calls(source: SourceCode) -> Iterator[tuple[ast.Call, str]]:
    for call in source.nodes(ast.Call):
        name = source.dotted(call.func)
        if name:
            yield call, name


def _keyword_is(call: ast.Call, name: str, value: bool) -> bool:
    return any(
        k.arg == name and isinstance(k.value, ast.Constant) and k.value.value is value for k in call.keywords
    )


def _constant(node: ast.BinOp) -> bool:
    """Whether a sum of strings has no variable part; one level is enough for literals split over lines."""
    return isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)


def _named_values(source: SourceCode) -> Iterator[tuple[str, ast.expr | None]]:
    """Names with the values given to them: assignments, keywords, defaults, dictionary keys."""
    for node in source.nodes(ast.Assign):
        for target in node.targets:
            yield source.dotted(target).rpartition(".")[2], node.value
    for declared in source.nodes(ast.AnnAssign):
        yield source.dotted(declared.target).rpartition(".")[2], declared.value
    for keyword in source.nodes(ast.keyword):
        yield keyword.arg or "", keyword.value
    for arguments in source.nodes(ast.arguments):
        positional = [*arguments.posonlyargs, *arguments.args]
        for argument, default in zip(reversed(positional), reversed(arguments.defaults), strict=False):
            yield argument.arg, default
    for table in source.nodes(ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value[:100], value

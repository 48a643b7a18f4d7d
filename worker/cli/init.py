"""`worker init NAME`: creates a deployable project that depends on this package."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from worker.cli.package_pin import installed_package, pinned
from worker.core.errors import BadRequest, Conflict
from worker.data import PROJECT

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,40}", re.ASCII)
_SUFFIX, _DOT = ".txt", "dot-"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = commands.add_parser(
        "init",
        help="begin a project of your own: an agent, its test, and all that a deployment needs",
        description="Writes a project that depends on this package. `make run` in it ends in a paid hire of "
        "its own agent, `make test` tests it, and a host that runs a Procfile can deploy it.",
    )
    init.add_argument("name", metavar="NAME", help="the directory to create")
    init.add_argument(
        "--package",
        metavar="PIN",
        help="what requirements.txt pins: a wheel's path or https:// address, or git+https://...@COMMIT "
        "(default: what is installed here)",
    )
    init.set_defaults(handler=run_init)


def run_init(args: argparse.Namespace) -> int:
    target = Path(args.name)
    if not _NAME.fullmatch(target.name):
        expected = "a name of letters, digits, - and _, beginning with a letter"
        raise BadRequest("the name cannot be used", field="NAME", expected=expected, received=target.name)
    _make_empty(target)
    package = pinned(args.package, target) if args.package else installed_package(target)
    write_project(target, package)
    print(f"{target} is ready. Next:\n")
    print(f"  cd {target}\n  make run     # ends in a paid hire of your own agent, then serves on")
    print("  make test    # its tests\n  make dev     # reloads while you edit agents.py")
    return 0


def write_project(target: Path, package: str) -> None:
    """Writes all files of a new project; `package` is the line that pins this package."""
    values = {
        "name": target.name,
        "agent_id": "agent_" + re.sub(r"[^a-z0-9]+", "_", target.name.lower()).strip("_"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "package": package,
    }
    for source in sorted(PROJECT.rglob("*" + _SUFFIX)):
        path = target / _target_of(source.relative_to(PROJECT))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(source.read_text(encoding="utf-8"), values), encoding="utf-8")


def _target_of(template: Path) -> Path:
    """`dot-github/test.yml.txt` becomes `.github/test.yml`: packages carry no hidden files."""
    parts = [f".{part.removeprefix(_DOT)}" if part.startswith(_DOT) else part for part in template.parts]
    return Path(*parts[:-1], parts[-1].removesuffix(_SUFFIX))


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _make_empty(target: Path) -> None:
    """Creates the directory; refuses one that is not empty."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        used = any(target.iterdir())
    except OSError as fault:
        raise BadRequest(f"{str(target)!r} cannot be created ({fault.strerror})", field="NAME") from fault
    if used:
        raise Conflict(f"{str(target)!r} is not empty", advice="Name a directory that does not exist yet.")

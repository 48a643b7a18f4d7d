"""Imports the authors' modules. A failed import is reported like any other mistake, as a row of the start-up
table with its location: the last line of the author's own code that ran."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from worker.core.settings import BadSetting

_SHOWN = 100


def import_modules(names: Iterable[str], source: str) -> list[BadSetting]:
    """Imports all modules and returns the errors of those that cannot be imported.

    `source` is where the names were configured. The current directory is always searched for modules, however
    this process was started.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    problems = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            problems.append(_problem(name, source, error))
    return [*dict.fromkeys(problems)]


def _problem(name: str, source: str, error: BaseException) -> BadSetting:
    if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
        return BadSetting(source, f"no module {error.name}", _nearest(name))
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{_shown_path(error.filename)}:{error.lineno}"
        return BadSetting(place, _short(f"{type(error).__name__}: {error.msg}"), "valid Python")
    place = _place(error.__traceback__) or name
    if isinstance(error, ModuleNotFoundError):
        return BadSetting(
            place, f"no module {error.name}", "an installed package; requirements.txt lists them"
        )
    return BadSetting(place, _short(f"{type(error).__name__}: {error}"), "code that can be imported")


def _nearest(name: str) -> str:
    modules = [path.stem for path in Path.cwd().glob("*.py")]
    near = difflib.get_close_matches(name, modules, 1)
    where = f"a module in {os.getcwd()} or on PYTHONPATH"
    return f"{near[0]}, or {where}" if near else where


def _place(trace: TracebackType | None) -> str:
    """The deepest line outside of the standard library and installed packages."""
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_authors(file):
            place = f"{_shown_path(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def is_authors(file: str) -> bool:
    """Whether a file is the author's own code, not this package's, Python's or an installed package's."""
    path = Path(file)
    if file.startswith("<") or "site-packages" in path.parts or "dist-packages" in path.parts:
        return False
    return not path.is_relative_to(_OURS) and not path.is_relative_to(_PYTHON)


def _shown_path(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."


_OURS = Path(__file__).parents[1]
_PYTHON = Path(os.__file__).parent

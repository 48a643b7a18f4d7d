"""Builds the line of requirements.txt that pins this unpublished package: a wheel or a git commit."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from worker.core.errors import BadRequest, Problem

DISTRIBUTION = "hire-worker"
EXPECTED = "a wheel's path or https:// address, or git+https://...@COMMIT with all 40 digits of the commit"
_COMMIT = re.compile(r"git\+(https|ssh|file)://\S+@[0-9a-f]{40}")
_WHEEL_URL = re.compile(r"https://\S+\.whl")
# What a wheel is built from.
_SOURCE = ("setup.cfg", "pyproject.toml", "README.md")
VENDOR = "vendor"
OLDEST_SETUPTOOLS = 80


def pinned(text: str, target: Path) -> str:
    """The requirement for an explicit pin; a local wheel is copied into the project."""
    if _COMMIT.fullmatch(text) or _WHEEL_URL.fullmatch(text):
        return f"{DISTRIBUTION} @ {text}"
    path = Path(text)
    if path.suffix != ".whl" or not path.is_file():
        raise BadRequest("this pins no package", field="--package", expected=EXPECTED, received=text)
    return _vendored(path, target)


def installed_package(target: Path) -> str:
    """The requirement for the package as it is installed here, or as it runs from a checkout."""
    origin = _origin() or _checkout()
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info")
    if isinstance(vcs, dict):
        return pinned(f"{vcs['vcs']}+{url}@{vcs['commit_id']}", target)
    path = Path(unquote(urlsplit(url).path))
    if url.startswith("file:") and path.suffix == ".whl" and path.is_file():
        return _vendored(path, target)
    if url.startswith("https:") and path.suffix == ".whl":
        return pinned(url, target)
    if url.startswith("file:") and (path / "setup.cfg").is_file():
        return _built(path, target)
    raise BadRequest(
        "where this package came from is not known any more", field="--package", expected=EXPECTED
    )


def _origin() -> dict[str, Any]:
    """pip's record of the installation; empty if there is none."""
    try:
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    found: dict[str, Any] = json.loads(recorded or "{}")
    return found


def _checkout() -> dict[str, Any]:
    """The checkout that this module runs from uninstalled; empty if it does not."""
    root = Path(__file__).parents[2]
    return {"url": root.as_uri()} if (root / "setup.cfg").is_file() else {}


def _vendored(wheel: Path, target: Path) -> str:
    folder = target / VENDOR
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, folder / wheel.name)
    return f"./{VENDOR}/{wheel.name}"


def _builds_wheels() -> bool:
    """Whether setuptools is installed and new enough for pyproject.toml."""
    try:
        return int(version("setuptools").partition(".")[0]) >= OLDEST_SETUPTOOLS
    except PackageNotFoundError:
        return False


def _built(source: Path, target: Path) -> str:
    """A wheel of a checkout, built from a copy because building leaves files behind."""
    print("building a wheel of this checkout for the project", file=sys.stderr)
    isolation = ["--no-build-isolation"] if _builds_wheels() else []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "source")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / "worker", copy / "worker", ignore=ignored)
        for name in _SOURCE:
            shutil.copy(source / name, copy)
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run([*command, *isolation, "-w", folder, str(copy)], capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip made none"])[-1][:300]
            raise Problem(
                f"no wheel could be built of this checkout: {reason}",
                code="NOT_BUILT",
                advice="Build one by hand (pip wheel --no-deps .) and name it with --package.",
            )
        return _vendored(wheels[0], target)

"""Every Lua script of the worker, checked against its manifest."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import worker
from tests.fakes.no_money import NO_MONEY
from worker.contracts.book import UNPAID_LUA
from worker.engine.transitions import LUA, SHARED
from worker.payments import money_store
from worker.remote import store as remote
from worker.store.manifests import assemble, read_manifest, unused_keys
from worker.store.scripts import LUA as STORE
from worker.store.scripts import Script

ROOT = Path(worker.__file__).parent
PAYMENTS = ROOT / "payments" / "lua"
# The packages whose scripts call the payment hooks, with their own functions.
HOOKED: dict[Path, Sequence[Path]] = {LUA: [SHARED], remote.LUA: remote.LIBRARIES}
SCRIPTS = sorted(path for path in ROOT.glob("*/lua/*.lua") if not path.stem.startswith("_"))
each_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parts[-3]}/{path.stem}")


def libraries(path: Path) -> Sequence[Path]:
    """Return the shared functions that the composition provides to a package's scripts."""
    if path.parent in HOOKED:
        return [*HOOKED[path.parent], *money_store.HOOKS]
    if path.parent == UNPAID_LUA.parent:
        return [UNPAID_LUA]
    return money_store.LIBRARIES if path.parent == PAYMENTS else []


def declared() -> dict[tuple[str, str], Script[Any]]:
    """Return every script whose answers the code declares, by package and name."""
    found = {}
    for module in pkgutil.walk_packages(worker.__path__, "worker."):
        if re.search(r"answers$|swarm\.scripts$", module.name):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Script):
                    room = module.name.split(".")[1]
                    found[room, value.name] = value
    return found


ANSWERS = declared()


def test_all_scripts_are_found() -> None:
    """The tests below cover every folder of scripts and every enum of answers."""
    assert {path.parts[-3] for path in SCRIPTS} >= {
        "contracts",
        "delivery",
        "engine",
        "payments",
        "remote",
        "store",
        "swarm",
    }
    assert {(path.parts[-3], path.stem) for path in SCRIPTS} >= ANSWERS.keys()


def test_no_room_hides_a_script_of_the_store() -> None:
    """A package's own script hides a common one of the same name, so names must not repeat."""
    common = {path.stem for path in SCRIPTS if path.parent == STORE}
    assert common and not common & {path.stem for path in SCRIPTS if path.parent != STORE}


@each_script
def test_script_uses_exactly_its_declared_keys(path: Path) -> None:
    """Assembling refuses undeclared keys, and every declared key is used by the script or its functions."""
    body = path.read_text()
    manifest = read_manifest(path.stem, body)
    assemble(manifest, body, libraries(path), "")
    assert unused_keys(manifest, body, libraries(path)) == set()


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p.parent in HOOKED], ids=lambda path: path.stem)
def test_hook_keys_are_used_by_hooks_only(path: Path) -> None:
    """Without payments the engine's scripts use all of their other keys and none of the hook keys."""
    body = path.read_text()
    manifest = read_manifest(path.stem, body)
    assert unused_keys(manifest, body, [*HOOKED[path.parent], *NO_MONEY]) == manifest.hook


@each_script
def test_script_answers_match_their_enum(path: Path) -> None:
    """A script that lists answers has an enum with the same ones, and lists none twice."""
    body = path.read_text()
    answers = read_manifest(path.stem, body).answers
    known = ANSWERS.get((path.parts[-3], path.stem))
    assert (set(answers) == set(known.answers)) if known else not answers
    assert len(set(answers)) == len(answers)


@each_script
def test_parameter_names_have_one_meaning(path: Path) -> None:
    """Arguments, the trailing list and caller-built names are all distinct."""
    manifest = read_manifest(path.stem, path.read_text())
    derived_names = [use.local.lower() for use in manifest.keys if use.built_by_caller]
    names = [*manifest.args, *derived_names, *([manifest.rest] if manifest.rest else [])]
    assert len(set(names)) == len(names)

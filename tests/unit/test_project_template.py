"""The project that `worker init` writes matches this repository's own deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path

from worker.core.settings import Settings
from worker.data import PROJECT

ROOT = Path(__file__).parents[2]


def test_app_json_has_the_same_settings_as_our_own() -> None:
    """The author's app.json has every variable of ours; POLICY comes with the project."""
    ours = json.loads((ROOT / "app.json").read_text())
    theirs = json.loads((PROJECT / "app.json.txt").read_text())
    assert set(theirs["env"]) == {*ours["env"], "POLICY"}
    for part in ("stack", "buildpacks", "addons", "formation"):
        assert theirs[part] == ours[part], part


def test_processes_are_the_same() -> None:
    """The same three processes; each runs in an environment with only the package installed."""
    names = [
        re.findall(r"^(\w+):", path.read_text(), re.MULTILINE)
        for path in (ROOT / "Procfile", PROJECT / "Procfile.txt")
    ]
    assert names[0] == names[1]
    assert "config/gunicorn.py" not in (PROJECT / "Procfile.txt").read_text()


def test_named_settings_exist() -> None:
    """Every setting in the project's .env.example exists."""
    named = re.findall(r"^# ([A-Z_]+)=", (PROJECT / "dot-env.example.txt").read_text(), re.MULTILINE)
    assert named and set(named) <= set(Settings.names())

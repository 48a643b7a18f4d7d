"""The settings in force as an operator may see them: secrets are masked, defaults are marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from typing import Any

from worker.core.settings import Settings
from worker.core.values import bare


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One setting; `is_default` where nothing else was configured or derived."""

    name: str
    value: str
    is_default: bool
    is_secret: bool


def shown_settings(settings: Settings) -> Iterator[ShownSetting]:
    """All settings in the order of their declaration."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        secret = bool(each.metadata["secret"])
        shown = _masked(value) if secret else _text(value)
        is_default = each.default is not MISSING and value == each.default
        yield ShownSetting(each.name.upper(), shown, is_default, secret)


def _masked(value: Any) -> str:
    """Only whether there is a value, and of lists how many."""
    if not value:
        return ""
    return f"set ({len(value)} entries)" if isinstance(value, tuple) else "set"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(_text(each) for each in value)
    text = str(value)
    # A URL may carry a password, or a key in its query.
    return bare(text) if "://" in text and ("@" in text or "?" in text) else text

"""A files directory that cannot be used for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unusable_files(home: Path) -> Iterator[None]:
    """A file replaces the directory."""
    directory, aside = home / "files", home / "files.aside"
    directory.mkdir(exist_ok=True)
    directory.rename(aside)
    directory.write_text("in the way")
    try:
        yield
    finally:
        directory.unlink()
        aside.rename(directory)

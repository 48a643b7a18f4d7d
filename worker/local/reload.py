"""`worker work` for authors: reloads agents and configuration when a file changes.

This process imports all of this package and none of the author's code. For each version of the author's code
it forks a child that imports it, so a reload does not restart Python. The previous child keeps working until
the new one takes work, so a version with mistakes changes nothing.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import structlog

from worker.agents.loading import module_names
from worker.core.logs import configure
from worker.core.processes import die_with_parent, end
from worker.core.settings import BadStart, Settings
from worker.local.console import Console
from worker.parts import Parts
from worker.parts.work import WorkProcesses

log = structlog.get_logger()

LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 1.0
_SUFFIXES = frozenset({".py", ".toml", ".yaml", ".yml", ".json"})
_SKIPPED = frozenset({"__pycache__", "node_modules"})
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Snapshot = Mapping[str, tuple[int, int]]


class WatchedWork(WorkProcesses):
    """Work processes for development; `ready` is called when they can take work."""

    def __init__(self, settings: Settings, ready: Callable[[list[str]], None]) -> None:
        super().__init__(settings)
        self._ready = ready
        console = Console(Path(settings.worker_state_dir))
        console.install()
        self.capabilities = {name: console.watch(each) for name, each in self.capabilities.items()}

    def _publish(self, parts: Parts) -> None:
        super()._publish(parts)
        self._ready(sorted(name for name in self.capabilities if not name.startswith("_")))


@dataclass
class Version:
    """One version of the author's code, loaded in a process of its own."""

    pid: int
    started: float
    ready: int
    takes_work: bool = False


class Reloader:
    """Keeps one version running and tries the next one when files change."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], folders: list[Path]) -> None:
        self._settings = settings
        self._environ = environ
        self._folders = folders
        self._versions: list[Version] = []
        self._seen: Snapshot = {}
        self._stopping = False
        self._try_at = 0.0

    def run(self) -> int:
        """Runs until SIGTERM."""
        for name in _SIGNALS:
            signal.signal(name, self._on_stop)
        while not self._stopping:
            self._reap()
            now, seen = time.monotonic(), self._look()
            if seen != self._seen or (not self._versions and now >= self._try_at):
                self._seen = seen
                self._load()
            self._greet()
            time.sleep(LOOK_SECONDS)
        for version in self._versions:
            end(version.pid, signal.SIGTERM)
        while self._versions:
            self._reap()
            time.sleep(0.02)
        return 0

    def _load(self) -> None:
        """Starts the current version of the files, replacing a version that is not up yet."""
        for version in self._versions:
            if not version.takes_work:
                end(version.pid, signal.SIGTERM)
        read, write = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(read)
            _become_version(self._environ, parent, write)
        os.close(write)
        os.set_blocking(read, False)
        self._versions.append(Version(pid, time.monotonic(), read))

    def _greet(self) -> None:
        """Once a version takes work, earlier versions finish theirs and exit."""
        for version in self._versions:
            if version.takes_work or not _reads(version.ready):
                continue
            version.takes_work = True
            older = self._versions[: self._versions.index(version)]
            for each in older:
                end(each.pid, signal.SIGTERM)
            if older:
                log.info("dev.reloaded", seconds=round(time.monotonic() - version.started, 2))

    def _reap(self) -> None:
        for version in list(self._versions):
            pid, status = os.waitpid(version.pid, os.WNOHANG)
            if pid == 0:
                continue
            os.close(version.ready)
            self._versions.remove(version)
            self._try_at = time.monotonic() + _AGAIN_SECONDS
            if os.waitstatus_to_exitcode(status) == 2:
                # The files are at fault: wait for a change.
                self._try_at = float("inf")
                then = "the version before goes on" if self._versions else "waiting for a change"
                log.error("dev.not_loaded", note=then)

    def _look(self) -> Snapshot:
        """Modification time and size of every file that may be code or configuration."""
        state = Path(self._settings.worker_state_dir).resolve()
        found = {}
        for path in _files(self._folders, state):
            try:
                about = path.stat()
            except OSError:
                continue
            found[str(path)] = (about.st_mtime_ns, about.st_size)
        return found

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True


def _become_version(environ: Mapping[str, str], parent: int, ready: int) -> None:
    """Runs the child: load, report ready, work until SIGTERM."""
    status = 1
    try:
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_DFL)
        die_with_parent(parent)
        importlib.invalidate_caches()
        WatchedWork(Settings.load(environ), lambda names: _tell(ready, names)).run()
        status = 0
    except BadStart as bad:
        print(bad.table(), file=sys.stderr, flush=True)
        status = 2
    except BaseException:
        log.exception("dev.failed")
    finally:
        sys.stdout.flush()
        os._exit(status)


def _tell(ready: int, names: list[str]) -> None:
    log.info("dev.loaded", agents=names)
    os.write(ready, b"1")


def _reads(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return False


def _files(folders: list[Path], state: Path) -> Iterator[Path]:
    for folder in folders:
        for place, names, files in os.walk(folder):
            names[:] = [name for name in names if _is_watched(Path(place, name), state)]
            for name in files:
                if os.path.splitext(name)[1] in _SUFFIXES:
                    yield Path(place, name)


def _is_watched(folder: Path, state: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _SKIPPED
    return not hidden and folder != state and not (folder / "pyvenv.cfg").exists()


def watched_folders(modules: tuple[str, ...]) -> list[Path]:
    """The current directory and others with authors' modules; installed packages do not change."""
    here = Path.cwd()
    found = [here]
    for name in modules:
        spec = find_spec(name.partition(".")[0])
        places = list(spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        for place in map(Path, filter(None, places)):
            folder = place if place.is_dir() else place.parent
            installed = "site-packages" in folder.parts or (folder / "py.typed").exists()
            if not installed and not folder.is_relative_to(here):
                found.append(folder)
    return found


def main() -> int:
    settings = Settings.load(os.environ)
    configure(settings)
    sys.dont_write_bytecode = True  # two versions saved within one second would share bytecode
    if sys.path and sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())
    return Reloader(settings, dict(os.environ), watched_folders(module_names(settings))).run()


if __name__ == "__main__":
    sys.exit(main())

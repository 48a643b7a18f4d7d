"""A worker in real processes on a real chain: gunicorn, warm processes, a clock, a facilitator, a store.

Whatever dies is started again by who starts it in production. Processes can be ended or frozen at
named points, the store can be put back to an earlier moment, and the chain says who has what.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import psutil
import redis

from tests.fakes.dollar import Rpc
from tests.fakes.record import Reads
from tests.fakes.seeker import HttpDoor, Seeker
from tests.fakes.shop import ROOT, SECOND, check_sums, inherited, shop_environ
from tests.waiting import eventually
from worker.contracts.signatures import address_of
from worker.local.chain import LocalChain
from worker.local.facilitator import LocalFacilitator
from worker.local.valkey import EmbeddedStore, free_port
from worker.parts import Parts
from worker.payments.checkpoints import CHECKPOINTS
from worker.settings import Settings

GAS_KEY = "0x" + "44" * 32
DOLLARS = 1_000_000


class House(Reads):
    """One worker; `close` ends everything that was started."""

    def __init__(self, home: Path, *, wait_s: float = 30.0, **more: str) -> None:
        self.home = home
        self.store = EmbeddedStore(home)
        self.points = home / "points"
        self.points.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.chain = LocalChain(home / "chain", ether={address_of(GAS_KEY): 10**21})
        self.chain.start()
        self.facilitator = LocalFacilitator(self.chain.url, GAS_KEY, wait_s=wait_s)
        self.facilitator.start()
        self.rpc = Rpc(self.chain.url)
        self.environ = shop_environ(
            home,
            self.store.start(),
            self.facilitator.url,
            PORT=str(self.port),
            PUBLIC_URL=self.url,
            RPC_URL=self.chain.url,
            NETWORK="base-sepolia",
            **{CHECKPOINTS: str(self.points)},
            **more,
        )
        self.settings = Settings.load(self.environ)
        self.programs: dict[str, subprocess.Popen[bytes]] = {}

    def open(self) -> House:
        self._run("web", "gunicorn", "-c", "config/gunicorn.py")
        self._run("work", "worker", "work")
        eventually(self._ready, 40, "a worker that is ready")
        # What the worker pays legs with.
        self.rpc("test_mint", self.wallet, DOLLARS)
        return self

    def _run(self, name: str, *command: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**inherited(), **self.environ},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, redis.RedisError):
            token = {"Authorization": f"Bearer {self.environ['KERNEL_TOKEN']}"}
            return self.door("GET", "/ready", headers=token).status == 200
        return False

    def close(self) -> None:
        for program in self.programs.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGCONT)
                os.killpg(program.pid, signal.SIGTERM)
        for program in self.programs.values():
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
        self.facilitator.close()
        self.chain.close()
        self.store.stop()

    # Who is there

    @cached_property
    def door(self) -> HttpDoor:
        return HttpDoor(self.url)

    @cached_property
    def parts(self) -> Parts:
        return Parts(self.settings, "cli")

    @property
    def wallet(self) -> str:
        return str(self.settings.worker_wallet)

    def seeker(self, units: int = DOLLARS) -> Seeker:
        """A wallet with so much money."""
        seeker = Seeker(self.door, "0x" + secrets.token_hex(32), self.now)
        if units:
            self.rpc("test_mint", seeker.wallet, units)
        return seeker

    def now(self) -> float:
        return self.parts.store.now() / SECOND

    def jump(self, seconds: float) -> None:
        """Moves the clocks of store and chain; the processes are there as before."""
        self.leap(seconds)
        for lane in ("express", "queue"):
            self.parts.store.sign_on(lane, "as-before-the-jump")
        eventually(lambda: (self.parts.store.clock_age() or 99) < 5, what="a tick after the jump")

    def leap(self, seconds: float) -> None:
        """The same without waiting for the processes to notice."""
        self.rpc("test_jump", int(seconds))
        self.parts.client.incrby(self.parts.keys.test_clock, int(seconds) * SECOND)

    # What processes meet

    def arm(self, role: str, point: str, what: str = "kill") -> Path:
        """The next process of this role that comes to this point is ended or frozen there."""
        file = self.points / f"{role}.{point}"
        waiting = file.with_suffix(".new")
        waiting.write_text(what)
        waiting.rename(file)
        return file

    def disarm(self) -> None:
        for file in self.points.iterdir():
            file.unlink(missing_ok=True)

    def web_pid(self) -> int:
        """The process that answers."""
        children = psutil.Process(self.programs["web"].pid).children()
        return int(next(child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE))

    def stopped(self) -> list[int]:
        """Frozen processes of ours."""
        found = []
        for program in self.programs.values():
            for child in psutil.Process(program.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.status() == psutil.STATUS_STOPPED:
                        found.append(child.pid)
        return found

    @contextmanager
    def block_time(self, seconds: float) -> Iterator[None]:
        """Meanwhile a block comes only so often."""
        self.rpc("test_setBlockTime", seconds)
        try:
            yield
        finally:
            self.rpc("test_setBlockTime", 0)

    # The store of earlier

    def snapshot(self) -> Path:
        """The store's files as they are now: every answered write is in them."""
        copy = self.home / f"snapshot-{secrets.token_hex(4)}"
        shutil.copytree(self.home / "store" / "appendonlydir", copy)
        return copy

    def roll_back(self, snapshot: Path) -> None:
        """The store dies and comes back as it was at the snapshot."""
        live = self.home / "store" / "appendonlydir"
        before = self.store.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        shutil.rmtree(live)
        shutil.copytree(snapshot, live)
        os.kill(before, signal.SIGKILL)
        eventually(lambda: self.store.pid not in (None, before), what="a new store")

        def answers() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(self.parts.client.ping())
            return False

        eventually(answers, what="a store that answers")

    # Money and the record

    def dollars(self, wallet: str) -> int:
        return self.rpc.dollars(wallet)

    def execution_of(self, contract_id: str) -> str | None:
        contract = self.parts.book.find(contract_id)
        return contract.execution if contract else None

    def check_books(self) -> None:
        check_sums(self.parts)

    def logs(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-4000:] for file in self.home.glob("*.log"))

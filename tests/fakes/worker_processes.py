"""A worker in real processes on a real chain: gunicorn, warm processes, a clock, a facilitator, a store.

Dead processes are restarted by whatever restarts them in production. Processes can be ended or frozen at
named points, the store can be rolled back to a snapshot, and the chain shows all balances.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import redis

from tests.fakes.dollar import Rpc
from tests.fakes.execution_reads import ExecutionReads
from tests.fakes.forgetful import Stores
from tests.fakes.official_facilitator import OfficialFacilitator
from tests.fakes.paid_worker import LANES, ROOT, SECOND, check_sums, inherited, paid_environ
from tests.fakes.seeker import HttpDoor, Seeker
from tests.waiting import eventually
from worker.contracts.signatures import address_of
from worker.core.settings import Settings
from worker.local.chain import LocalChain
from worker.local.facilitator import LocalFacilitator
from worker.local.valkey import EmbeddedStore, free_port
from worker.parts import Parts
from worker.payments.checkpoints import CHECKPOINTS

GAS_KEY = "0x" + "44" * 32
DOLLARS = 1_000_000


class WorkerProcesses(ExecutionReads):
    """One worker; `close` ends everything that was started."""

    def __init__(
        self,
        home: Path,
        *,
        wait_s: float = 30.0,
        official_facilitator: bool = False,
        store: Stores | None = None,
        **more: str,
    ) -> None:
        self.home = home
        self.store: EmbeddedStore | Stores = store or EmbeddedStore(home)
        self.points = home / "points"
        self.points.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.chain = LocalChain(home / "chain", ether={address_of(GAS_KEY): 10**21})
        self.chain.start()
        self._wait_s = wait_s
        self._leapt_s = 0
        self.facilitator: LocalFacilitator | OfficialFacilitator
        if official_facilitator:
            self.facilitator = OfficialFacilitator(self.chain.url, GAS_KEY, home / "facilitator.log")
        else:
            self.facilitator = LocalFacilitator(self.chain.url, GAS_KEY, wait_s=wait_s)
        self.facilitator.start()
        self.rpc = Rpc(self.chain.url)
        self.environ = paid_environ(
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

    def open(self, tree: Path = ROOT) -> WorkerProcesses:
        self.start("web", "gunicorn", "-c", "config/gunicorn.py", tree=tree)
        self.start("work", "worker", "work", tree=tree)
        eventually(self._ready, 40, "a worker that is ready")
        # The worker's funds for paying legs.
        self.rpc("test_mint", self.wallet, DOLLARS)
        return self

    def start(self, name: str, *command: str, tree: Path = ROOT, **more: str) -> None:
        """Starts one of the worker's programs, from this tree or another release's."""
        with (self.home / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**inherited(), **self.environ, **more},
                cwd=tree,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, redis.RedisError):
            token = {"Authorization": f"Bearer {self.environ['KERNEL_TOKEN']}"}
            return self.door("GET", "/ready", headers=token).status == 200
        return False

    def end(self, *names: str) -> None:
        """Ends programs as a host does: SIGTERM, and time to finish."""
        ending = [self.programs.pop(name) for name in names]
        for program in ending:
            program.terminate()
        for program in ending:
            program.wait(40)

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

    # Seekers and processes

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
        """A wallet with this much money."""
        seeker = Seeker(self.door, "0x" + secrets.token_hex(32), self.now)
        if units:
            self.rpc("test_mint", seeker.wallet, units)
        return seeker

    def now(self) -> float:
        return self.parts.store.now() / SECOND

    def jump(self, seconds: float) -> None:
        """Moves the clocks of store and chain; the processes stay registered."""
        self.leap(seconds)
        self.after_leap()

    def after_leap(self) -> None:
        """The processes are registered again, which by leaps they have not been for long."""
        for lane in LANES:
            self.parts.store.sign_on(lane, "as-before-the-jump")
        eventually(lambda: (self.parts.store.clock_age() or 99) < 5, description="a tick after the jump")

    def leap(self, seconds: float) -> None:
        """The same without waiting until the processes notice."""
        self.rpc("test_jump", int(seconds))
        self._leapt_s += int(seconds)
        # The whole distance, because a store that forgets may have lost the jump before this one.
        self.parts.client.set(self.parts.keys.test_clock, self._leapt_s * SECOND)

    # Crash points and signals

    def arm(self, role: str, point: str, effect: str = "kill") -> Path:
        """The next process of this role to reach this point is killed or frozen there."""
        file = self.points / f"{role}.{point}"
        waiting = file.with_suffix(".new")
        waiting.write_text(effect)
        waiting.rename(file)
        return file

    def disarm(self) -> None:
        for file in self.points.iterdir():
            file.unlink(missing_ok=True)

    def web_pid(self) -> int:
        """The process that answers requests."""
        children = psutil.Process(self.programs["web"].pid).children()
        return int(next(child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE))

    def takers(self, lane: str) -> list[int]:
        """The living processes that take work there."""
        names = self.parts.client.zrange(self.parts.keys.takers(lane), 0, -1)
        named = {name.decode().rpartition("-")[2] for name in names}
        children = psutil.Process(self.programs["work"].pid).children(recursive=True)
        return [child.pid for child in children if str(child.pid) in named]

    def stopped(self) -> list[int]:
        """Our frozen processes."""
        found = []
        for program in self.programs.values():
            for child in psutil.Process(program.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.status() == psutil.STATUS_STOPPED:
                        found.append(child.pid)
        return found

    @contextmanager
    def block_time(self, seconds: float) -> Iterator[None]:
        """Within the block, the chain mines only at this interval."""
        self.rpc("test_setBlockTime", seconds)
        try:
            yield
        finally:
            self.rpc("test_setBlockTime", 0)

    def restart_facilitator(self, *, away_s: float) -> None:
        """The facilitator ends with what it had under way, and is started again at the same address."""
        port = urlsplit(self.facilitator.url).port
        assert port is not None
        self.facilitator.close()
        time.sleep(away_s)
        self.facilitator = LocalFacilitator(self.chain.url, GAS_KEY, port, wait_s=self._wait_s)
        self.facilitator.start()

    # The store of earlier

    def snapshot(self) -> Path:
        """Copies the store's current files: they contain every acknowledged write."""
        copy = self.home / f"snapshot-{secrets.token_hex(4)}"
        shutil.copytree(self.home / "store" / "appendonlydir", copy)
        return copy

    def roll_back(self, snapshot: Path) -> None:
        """The store dies and restarts as it was at the snapshot."""
        live = self.home / "store" / "appendonlydir"
        assert isinstance(self.store, EmbeddedStore)
        before = self.store.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        shutil.rmtree(live)
        shutil.copytree(snapshot, live)
        os.kill(before, signal.SIGKILL)
        store = self.store
        eventually(lambda: store.pid not in (None, before), description="a new store")

        def answers() -> bool:
            with contextlib.suppress(redis.RedisError):
                return bool(self.parts.client.ping())
            return False

        eventually(answers, description="a store that answers")

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

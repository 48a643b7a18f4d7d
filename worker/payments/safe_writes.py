"""Writes that must not be lost: a claim and a settlement lease, before the facilitator is called.

If the store has replicas, such a write is on one of them before anything relies on it. Each process also
remembers the write count of its last write or query. A store that restarts with all the remembered writes has
lost nothing and holds back no contract.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import redis
import structlog

from worker.core.ids import new_id
from worker.payments.answers import ClaimAnswer, SettleBeginAnswer
from worker.payments.money_store import MoneyStore
from worker.store.commands import OneConnection, ask, one_connection
from worker.store.outage import note
from worker.store.scripts import A, Reply, Script, Value

log = structlog.get_logger()

# A replica answers within a millisecond or two; after a time-out, further waits are brief for a while.
WAIT_MS, WAIT_BRIEFLY_MS, BRIEFLY_S = 500, 10, 2.0
VOUCH_EVERY_S = 1.0
_WROTE = (ClaimAnswer.CLAIMED, SettleBeginAnswer.GO)


@dataclass
class Witness(MoneyStore):
    """What this process remembers of the store's writes."""

    name: str = field(default_factory=new_id, kw_only=True)
    _life: str = field(default="", init=False)
    _writes: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def wrote(self, life: str, writes: int) -> None:
        """Records an acknowledged write of this process. An earlier life's count stays until reported."""
        with self._lock:
            if life == self._life:
                self._writes = max(self._writes, writes)

    def vouch(self) -> None:
        """Reports that this process is running, and what it remembers."""
        with self._lock:
            life, writes, found = self._scripts.value(
                "vouch", name=self.name, known=self._life, counted=self._writes
            )
            self._life, self._writes = life.decode(), int(writes)
        if found == b"lost":
            log.error("store.data_lost", note="older contracts wait for the chain")
        elif found:
            log.warning("store.data_confirmed", note="all that this process remembers is there")

    def keep_vouching(self) -> None:
        """Reports in a separate thread, for a process without a clock."""

        def run() -> None:
            while True:
                try:
                    self.vouch()
                except redis.RedisError as error:
                    note(error, "witness")
                time.sleep(VOUCH_EVERY_S)

        threading.Thread(target=run, name="witness", daemon=True).start()


@dataclass
class SafeWrites(MoneyStore):
    """Makes such writes. Waits for a replica's answer apart: on the link, all others would wait too."""

    apart: redis.Redis = field(kw_only=True)
    witness: Witness | None = field(default=None, kw_only=True)
    # Whether the store had no replica with the last such write.
    alone: bool = field(default=False, init=False)
    _brief_until: float = field(default=0.0, init=False)

    @property
    def name(self) -> str:
        return self.witness.name if self.witness else "nobody"

    def make(self, script: Script[A], /, **arguments: Value) -> tuple[Reply[A], bool]:
        """The script's answer, and whether its write may be relied on.

        A script that wrote answers with a number, the count of such writes, the store's life, and '1' where
        the write must be on a replica too.
        """
        reply = self._scripts.run(script, **arguments)
        if reply.answer not in _WROTE:
            return reply, True
        life = reply.text(2)
        self.wrote(life, int(reply.text(1)))
        self.alone = reply.text(3) != "1"
        return reply, self.alone or self.kept(life)

    def wrote(self, life: str, writes: int) -> None:
        if self.witness is not None:
            self.witness.wrote(life, writes)

    def kept(self, life: str = "") -> bool:
        """Whether everything written so far is on a replica, where the store has any.

        `life`: the store's when it was written, because a new life may have lost it.
        """
        with one_connection(self.apart) as own:
            replicated, now = self._scripts.on(own).value("fence")
            if life and now.decode() != life:
                return False
            return replicated != b"1" or self._on_a_replica(own)

    def _on_a_replica(self, own: OneConnection) -> bool:
        """Waits until a replica has everything that this connection has written."""
        brief = time.monotonic() < self._brief_until
        if ask(own, "WAIT", 1, WAIT_BRIEFLY_MS if brief else WAIT_MS) >= 1:
            return True
        self._brief_until = time.monotonic() + BRIEFLY_S
        log.warning("store.no_replica")
        return False

"""The local chain as a service: `run` serves it until it is stopped.

`LocalChain` is the same inside a process, for tests. The state directory keeps the history, so balances,
hashes and nonces survive a restart.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from worker.local.httpd import Answer, JsonServer, as_json

FILE = "chain.sqlite"
ETHER = 10**18


class LocalChain:
    """The chain, served on a loopback port.

    `ether` and `dollars` are the accounts' initial balances, granted once in the life of the chain.
    `block_time` 0 mines each transaction at once; N makes a block every N seconds.
    """

    def __init__(
        self,
        state_dir: Path,
        port: int = 0,
        *,
        block_time: float = 0,
        ether: Mapping[str, int] | None = None,
        dollars: Mapping[str, int] | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        # Takes half a second to import: only the chain process pays for it.
        from worker.local.chain_store import ChainStore
        from worker.local.evm import Evm
        from worker.local.rpc import IDLE_BLOCK_SECONDS, Node

        evm = Evm(ChainStore(Path(state_dir) / FILE), block_time=block_time)
        evm.endow(ether or {}, dollars or {})
        self._node = Node(evm, IDLE_BLOCK_SECONDS if idle_seconds is None else idle_seconds)
        self._server = JsonServer(self._handle, port)
        self._miner = threading.Thread(target=self._node.keep_mining, daemon=True, name="miner")
        self.url = self._server.url
        self.port = self._server.port

    def _handle(self, method: str, path: str, body: bytes) -> Answer:
        if method == "POST":
            return 200, self._node.answer(body)
        return as_json(200, {"status": "ok"}) if path == "/health" else as_json(404, {"error": "not found"})

    def start(self) -> None:
        self._server.start()
        self._miner.start()

    def close(self) -> None:
        self._server.close()
        self._node.close()
        self._miner.join()

    def __enter__(self) -> LocalChain:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(
    state_dir: Path,
    port: int = 0,
    *,
    block_time: float = 0,
    ether: Mapping[str, int] | None = None,
    dollars: Mapping[str, int] | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the chain until SIGTERM or SIGINT; `ready` gets its URL once it responds."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with LocalChain(state_dir, port, block_time=block_time, ether=ether, dollars=dollars) as chain:
        if ready is not None:
            ready(chain.url)
        stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """`chain --state DIR [--port N] [--block-time S] [--ether ADDRESS=WEI] [--dollars ADDRESS=UNITS]`."""
    parser = argparse.ArgumentParser(prog="chain", description="A local chain with a test dollar.")
    parser.add_argument("--state", type=Path, default=Path("var/chain"))
    parser.add_argument("--port", type=int, default=8545)
    parser.add_argument("--block-time", type=float, default=0)
    parser.add_argument("--ether", type=_gift, action="append", default=[], metavar="ADDRESS=WEI")
    parser.add_argument("--dollars", type=_gift, action="append", default=[], metavar="ADDRESS=UNITS")
    given = parser.parse_args(argv)
    run(
        given.state,
        given.port,
        block_time=given.block_time,
        ether=dict(given.ether),
        dollars=dict(given.dollars),
        ready=lambda url: print(f"chain ready at {url}", flush=True),
    )
    return 0


def _gift(text: str) -> tuple[str, int]:
    address, _, amount = text.partition("=")
    return address, int(amount)


if __name__ == "__main__":
    raise SystemExit(main())

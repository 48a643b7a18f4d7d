"""A real local chain with a funded seeker, and a facilitator on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eth_account import Account

from tests.fakes.dollar import Rpc
from tests.fakes.ledger_setup import SEEKER
from worker.local.chain import ETHER, LocalChain
from worker.local.facilitator import LocalFacilitator

GAS = Account.create()


@contextmanager
def seekers_chain(home: Path) -> Iterator[Rpc]:
    with LocalChain(home, ether={GAS.address: 100 * ETHER}) as running:
        rpc = Rpc(running.url)
        rpc("test_mint", SEEKER, 10**9)
        yield rpc


@contextmanager
def facilitator_of(chain: Rpc) -> Iterator[str]:
    with LocalFacilitator(chain.url, "0x" + bytes(GAS.key).hex(), wait_s=5) as running:
        yield running.url

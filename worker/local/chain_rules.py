"""The local chain's rules, state database and first block.

Prague rules, with one exception: blocks follow the clock instead of running ahead of it, so two of them may
have the same second. The dollar has the address that it has on Base Sepolia.
"""

from __future__ import annotations

import json
from typing import Any

from eth.abc import BlockAPI
from eth.chains.base import MiningChain
from eth.consensus.applier import ConsensusApplier
from eth.consensus.noproof import NoProofConsensus
from eth.constants import BLANK_ROOT_HASH, ZERO_HASH32
from eth.db.atomic import AtomicDB
from eth.db.backends.base import BaseDB
from eth.vm.forks.prague import PragueVM
from eth_typing import BlockNumber
from eth_utils.address import to_canonical_address
from eth_utils.crypto import keccak

from worker.data import CHAIN
from worker.local.chain_store import ChainStore

CHAIN_ID = 84532
DOLLAR = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
GAS_LIMIT = 30_000_000
ZERO_ADDRESS = b"\x00" * 20
# Pays for gas and mints, on a chain where both are free; the key is public.
FAUCET_KEY = keccak(b"the faucet of the local chain")


class StateDatabase(BaseDB):
    """The dictionary that py-evm expects, stored in the chain's file."""

    def __init__(self, store: ChainStore) -> None:
        self._store = store

    def __getitem__(self, key: bytes) -> bytes:
        value = self._store.node(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._store.set_node(key, value)

    def __delitem__(self, key: bytes) -> None:
        if not self._store.drop_node(key):
            raise KeyError(key)

    def _exists(self, key: bytes) -> bool:
        return self._store.node(key) is not None


class LocalRules(PragueVM):
    """Prague, except that a block may have the same second as its parent."""

    @classmethod
    def validate_header(cls, header: Any, parent: Any) -> None:
        later = max(header.timestamp, parent.timestamp + 1)
        super().validate_header(header.copy(timestamp=later), parent)


class Chain(MiningChain):
    chain_id = CHAIN_ID
    vm_configuration = ConsensusApplier(NoProofConsensus).amend_vm_configuration(((0, LocalRules),))

    def create_header_from_parent(self, parent_header: Any, **params: Any) -> Any:
        params.setdefault("gas_limit", parent_header.gas_limit)
        return super().create_header_from_parent(parent_header, **params)


def artifact(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHAIN / f"{name}.json").read_text())
    return loaded


def genesis(db: AtomicDB, *, minter: bytes, timestamp: int) -> BlockAPI:
    """Write the first block: a rich faucet, and the dollar with the account that may mint it."""
    code = bytes.fromhex(artifact("TestDollar")["deployedBytecode"][2:])
    owner = int.from_bytes(minter, "big")
    state: Any = {
        minter: {"balance": 10**30, "nonce": 0, "code": b"", "storage": {}},
        to_canonical_address(DOLLAR): {"balance": 0, "nonce": 1, "code": code, "storage": {0: owner}},
    }
    params: Any = {
        "coinbase": ZERO_ADDRESS,
        "difficulty": 0,
        "extra_data": b"",
        "gas_limit": GAS_LIMIT,
        "mix_hash": ZERO_HASH32,
        "nonce": b"\x00" * 8,
        "timestamp": timestamp,
        "receipt_root": BLANK_ROOT_HASH,
        "transaction_root": BLANK_ROOT_HASH,
    }
    return Chain.from_genesis(db, params, state).get_canonical_block_by_number(BlockNumber(0))

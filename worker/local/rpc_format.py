"""Blocks, transactions and receipts of the local chain in the format of JSON-RPC nodes."""

from __future__ import annotations

from typing import Any

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from rlp import encode  # type: ignore[import-untyped]


def quantity(value: int) -> str:
    return hex(value)


def octets(value: bytes) -> str:
    return "0x" + bytes(value).hex()


def block(block: Any) -> dict[str, Any]:
    header = block.header
    return {
        "number": quantity(header.block_number),
        "hash": octets(header.hash),
        "parentHash": octets(header.parent_hash),
        "nonce": octets(header.nonce),
        "sha3Uncles": octets(header.uncles_hash),
        "logsBloom": octets(header.bloom.to_bytes(256, "big")),
        "transactionsRoot": octets(header.transaction_root),
        "stateRoot": octets(header.state_root),
        "receiptsRoot": octets(header.receipt_root),
        "withdrawalsRoot": octets(header.withdrawals_root),
        "parentBeaconBlockRoot": octets(header.parent_beacon_block_root),
        "requestsHash": octets(header.requests_hash),
        "miner": to_checksum_address(header.coinbase),
        "difficulty": "0x0",
        "totalDifficulty": "0x0",
        "mixHash": octets(header.mix_hash),
        "size": quantity(len(encode(block))),
        "extraData": octets(header.extra_data),
        "gasLimit": quantity(header.gas_limit),
        "gasUsed": quantity(header.gas_used),
        "blobGasUsed": quantity(header.blob_gas_used),
        "excessBlobGas": quantity(header.excess_blob_gas),
        "timestamp": quantity(header.timestamp),
        "baseFeePerGas": quantity(header.base_fee_per_gas),
        "transactions": [octets(transaction.hash) for transaction in block.transactions],
        "uncles": [],
        "withdrawals": [],
    }


def transaction(transaction: Any, block: Any | None, place: int) -> dict[str, Any]:
    """A transaction; without a block it is pending."""
    kind = transaction.type_id or 0
    parity = transaction.y_parity
    found: dict[str, Any] = {
        "type": quantity(kind),
        "hash": octets(transaction.hash),
        "nonce": quantity(transaction.nonce),
        "blockHash": octets(block.hash) if block else None,
        "blockNumber": quantity(block.number) if block else None,
        "transactionIndex": quantity(place) if block else None,
        "from": to_checksum_address(transaction.sender),
        "to": to_checksum_address(transaction.to) if transaction.to else None,
        "value": quantity(transaction.value),
        "gas": quantity(transaction.gas),
        "gasPrice": quantity(_paid(transaction, block)),
        "input": octets(transaction.data),
        "v": quantity(parity if kind else transaction.v),
        "r": quantity(transaction.r),
        "s": quantity(transaction.s),
    }
    if kind:
        found["chainId"] = quantity(transaction.chain_id)
        found["yParity"] = quantity(parity)
        found["accessList"] = [
            {
                "address": to_checksum_address(address),
                "storageKeys": [octets(slot.to_bytes(32, "big")) for slot in slots],
            }
            for address, slots in transaction.access_list
        ]
    if kind >= 2:
        found["maxFeePerGas"] = quantity(transaction.max_fee_per_gas)
        found["maxPriorityFeePerGas"] = quantity(transaction.max_priority_fee_per_gas)
    return found


def _paid(transaction: Any, block: Any | None) -> int:
    if block is None:
        return int(transaction.max_fee_per_gas)
    offered = transaction.max_priority_fee_per_gas + block.header.base_fee_per_gas
    return int(min(transaction.max_fee_per_gas, offered))


def receipts(block: Any, found: Any) -> list[dict[str, Any]]:
    """The receipts of a block, with logs numbered across the block."""
    answer: list[dict[str, Any]] = []
    used_before, log_index = 0, 0
    for place, (transaction, receipt) in enumerate(zip(block.transactions, found, strict=True)):
        common = {
            "blockHash": octets(block.hash),
            "blockNumber": quantity(block.number),
            "transactionHash": octets(transaction.hash),
            "transactionIndex": quantity(place),
        }
        logs = []
        for log in receipt.logs:
            logs.append(
                {
                    **common,
                    "address": octets(log.address),
                    "topics": [octets(topic.to_bytes(32, "big")) for topic in log.topics],
                    "data": octets(log.data),
                    "logIndex": quantity(log_index),
                    "blockTimestamp": quantity(block.header.timestamp),
                    "removed": False,
                }
            )
            log_index += 1
        answer.append(
            {
                **common,
                "type": quantity(transaction.type_id or 0),
                "from": to_checksum_address(transaction.sender),
                "to": to_checksum_address(transaction.to) if transaction.to else None,
                "contractAddress": None if transaction.to else _created(transaction),
                "cumulativeGasUsed": quantity(receipt.gas_used),
                "gasUsed": quantity(receipt.gas_used - used_before),
                "effectiveGasPrice": quantity(_paid(transaction, block)),
                "logs": logs,
                "logsBloom": octets(receipt.bloom.to_bytes(256, "big")),
                "status": quantity(int.from_bytes(receipt.state_root, "big")),
            }
        )
        used_before = receipt.gas_used
    return answer


def _created(transaction: Any) -> str:
    return to_checksum_address(keccak(encode([transaction.sender, transaction.nonce]))[-20:])

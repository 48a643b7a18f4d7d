"""EIP-712 digests, checked against published vectors and eth_account."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak as oracle_keccak
from eth_utils import to_checksum_address
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.core import evm
from worker.core.evm import is_address, is_bytes32, keccak
from worker.x402.networks import BASE, BASE_SEPOLIA, find_network, resolve_network
from worker.x402.typed_data import (
    RECEIPT,
    RECEIPT_DOMAIN,
    TRANSFER,
    UINT256_MAX,
    Authorization,
    Domain,
    Struct,
    digest,
    domain_separator,
    hash_struct,
    receipt_digest,
    transfer_digest,
)

VECTOR_KEY = "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"
VECTOR = Authorization(
    payer="0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266",
    to="0x70997970c51812dc3a010c7d01b50e0d17dc79c8",
    value=10000,
    valid_after=0,
    valid_before=4102444800,
    nonce="0x" + "ab" * 32,
)
VECTOR_DIGEST = "d17b92f94f62e381c08c9088f7b86700cde8d063a056ae9c3af83265e74eeedc"
VECTOR_SIGNATURE = (
    "5862cca4a2c703dfc5fed47dd67cb4fee5ce8dc7d76aac4f4df34be0203e87e7"
    "6e221af7d16f607dad50fa2aa1f2dad92ba2f2e6858e2db8c4295ce1ec454a341b"
)

PURE = [
    *(
        f"x402.{name}"
        for name in ("headers", "wire", "offer", "typed_data", "windows", "receipts", "networks")
    ),
    "x402.facilitator_answers",
    "payments.leg",
    "payments.leg_authorization",
]

addresses = st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())
uints = st.integers(min_value=0, max_value=UINT256_MAX)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def oracle(domain: Domain, struct: Struct, values: dict[str, Any]) -> bytes:
    """Return eth_account's hash of the same document."""
    separator: dict[str, Any] = {"name": domain.name, "version": domain.version, "chainId": domain.chain_id}
    fields = [("name", "string"), ("version", "string"), ("chainId", "uint256")]
    if domain.verifying_contract is not None:
        separator["verifyingContract"] = domain.verifying_contract
        fields.append(("verifyingContract", "address"))
    types = {"EIP712Domain": fields, struct.name: struct.fields}
    message = {
        name: bytes.fromhex(values[name][2:]) if kind == "bytes32" else values[name]
        for name, kind in struct.fields
    }
    signable = encode_typed_data(
        full_message={
            "types": {
                name: [{"name": field, "type": kind} for field, kind in fields]
                for name, fields in types.items()
            },
            "primaryType": struct.name,
            "domain": separator,
            "message": message,
        }
    )
    return oracle_keccak(b"\x19" + signable.version + signable.header + signable.body)


def test_keccak_is_not_sha3() -> None:
    """The empty input has the hash that Ethereum defines."""
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


@given(data=st.binary(max_size=500))
@settings(deadline=None)
def test_keccak_is_the_same_from_both_packages(data: bytes) -> None:
    """What is hashed in C has the hash of the package that stands in for it."""
    assert keccak(data) == evm._portable_keccak()(data) == oracle_keccak(data)


def test_eip_712_digest_matches_the_vector() -> None:
    """Separator, struct hash and digest of the published transfer match."""
    separator = domain_separator(BASE_SEPOLIA.domain)
    struct_hash = hash_struct(
        TRANSFER,
        {
            "from": VECTOR.payer,
            "to": VECTOR.to,
            "value": VECTOR.value,
            "validAfter": VECTOR.valid_after,
            "validBefore": VECTOR.valid_before,
            "nonce": VECTOR.nonce,
        },
    )
    assert separator.hex() == "71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818"
    assert struct_hash.hex() == "352bb7f4176e89bf936177a439f955300c8ee1ea6c3662049e3e152c9a81333f"
    assert transfer_digest(BASE_SEPOLIA.domain, VECTOR).hex() == VECTOR_DIGEST


def test_published_signature_matches_the_digest() -> None:
    """Recovery from our digest gives the published payer, and signing it gives the published bytes."""
    ours = transfer_digest(BASE_SEPOLIA.domain, VECTOR)
    signature = bytes.fromhex(VECTOR_SIGNATURE)
    assert Account._recover_hash(ours, signature=signature).lower() == VECTOR.payer
    assert Account.unsafe_sign_hash(ours, VECTOR_KEY).signature.hex() == VECTOR_SIGNATURE


@pytest.mark.parametrize("network", [BASE, BASE_SEPOLIA], ids=lambda network: network.name)
@given(
    payer=addresses,
    to=addresses,
    value=uints,
    after=uints,
    before=uints,
    nonce=st.binary(min_size=32, max_size=32),
)
@settings(max_examples=25, deadline=None)
def test_transfer_digests_match_eth_account(
    network: Any, payer: str, to: str, value: int, after: int, before: int, nonce: bytes
) -> None:
    """Any transfer on either network gets eth_account's digest."""
    authorization = Authorization(payer, to, value, after, before, "0x" + nonce.hex())
    values = {
        "from": payer,
        "to": to,
        "value": value,
        "validAfter": after,
        "validBefore": before,
        "nonce": authorization.nonce,
    }
    assert transfer_digest(network.domain, authorization) == oracle(network.domain, TRANSFER, values)


@given(network=texts, url=texts, payer=texts, issued=uints, transaction=texts)
@settings(max_examples=25, deadline=None)
def test_receipt_digests_match_eth_account(
    network: str, url: str, payer: str, issued: int, transaction: str
) -> None:
    """Receipts with any text get eth_account's digest."""
    payload = {
        "version": 1,
        "network": network,
        "resourceUrl": url,
        "payer": payer,
        "issuedAt": issued,
        "transaction": transaction,
    }
    assert receipt_digest(payload) == oracle(RECEIPT_DOMAIN, RECEIPT, payload)


def test_receipt_without_a_transaction_hashes_as_empty() -> None:
    """Omitting the optional transaction gives the digest of the empty text."""
    payload = {"version": 1, "network": "eip155:8453", "resourceUrl": "u", "payer": "p", "issuedAt": 1}
    assert receipt_digest(payload) == receipt_digest({**payload, "transaction": ""})
    assert receipt_digest(payload) != receipt_digest({**payload, "transaction": "0x1"})


def test_every_field_changes_the_digest() -> None:
    """Changing any field, or any part of the domain, changes the digest."""
    domain = BASE_SEPOLIA.domain
    changed = [
        Authorization(VECTOR.to, VECTOR.to, 10000, 0, 4102444800, VECTOR.nonce),
        Authorization(VECTOR.payer, VECTOR.payer, 10000, 0, 4102444800, VECTOR.nonce),
        Authorization(VECTOR.payer, VECTOR.to, 10001, 0, 4102444800, VECTOR.nonce),
        Authorization(VECTOR.payer, VECTOR.to, 10000, 1, 4102444800, VECTOR.nonce),
        Authorization(VECTOR.payer, VECTOR.to, 10000, 0, 4102444801, VECTOR.nonce),
        Authorization(VECTOR.payer, VECTOR.to, 10000, 0, 4102444800, "0x" + "ac" * 32),
    ]
    domains = [
        Domain("USD Coin", domain.version, domain.chain_id, domain.verifying_contract),
        Domain(domain.name, "1", domain.chain_id, domain.verifying_contract),
        Domain(domain.name, domain.version, 8453, domain.verifying_contract),
        Domain(domain.name, domain.version, domain.chain_id, BASE.asset),
        Domain(domain.name, domain.version, domain.chain_id),
    ]
    digests = {transfer_digest(domain, VECTOR)}
    digests |= {transfer_digest(domain, authorization) for authorization in changed}
    digests |= {transfer_digest(other, VECTOR) for other in domains}
    assert len(digests) == 12


def test_address_case_does_not_count() -> None:
    """A checksummed address and its lower-case form are the same bytes."""
    mixed = Authorization(
        "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", VECTOR.to, 10000, 0, 4102444800, VECTOR.nonce
    )
    assert transfer_digest(BASE_SEPOLIA.domain, mixed).hex() == VECTOR_DIGEST


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint256", -1),
        ("uint256", UINT256_MAX + 1),
        ("uint256", True),
        ("uint256", "1"),
        ("uint256", 1.0),
        ("address", "0x12"),
        ("address", VECTOR.to[2:]),
        ("address", VECTOR.to + "00"),
        ("address", VECTOR.to + "\n"),
        ("bytes32", "0x" + "zz" * 32),
        ("bytes32", "ab" * 32),
        ("string", b"bytes"),
        ("string", None),
        ("uint8", 1),
    ],
)
def test_value_of_a_wrong_type_is_refused(kind: str, value: Any) -> None:
    """A value that does not match its type exactly is an error and is never hashed."""
    with pytest.raises(ValueError, match="x is not a"):
        digest(RECEIPT_DOMAIN, Struct("T", (("x", kind),)), {"x": value})


def test_a_missing_value_is_refused() -> None:
    """A struct without one of its fields is an error."""
    with pytest.raises(ValueError, match="no value for issuedAt"):
        receipt_digest({"version": 1, "network": "n", "resourceUrl": "u", "payer": "p"})


def test_hex_formats() -> None:
    """Addresses and words are recognised only as 0x and the exact number of digits."""
    assert is_address("0x" + "aB" * 20) and is_bytes32("0x" + "aB" * 32)
    for wrong in (
        None,
        1,
        "",
        "0x",
        "0X" + "ab" * 20,
        "0x" + "ab" * 19,
        "0x" + "ab" * 20 + "\n",
        b"0x" + b"a" * 40,
    ):
        assert not is_address(wrong) and not is_bytes32(wrong)


def test_authorization_is_serialised_as_six_strings() -> None:
    """On the wire every value is a string, as x402 requires, and addresses have their checksum."""
    assert VECTOR.to_wire() == {
        "from": to_checksum_address(VECTOR.payer),
        "to": to_checksum_address(VECTOR.to),
        "value": "10000",
        "validAfter": "0",
        "validBefore": "4102444800",
        "nonce": VECTOR.nonce,
    }


def test_networks_resolve_by_either_name() -> None:
    """HIRE's name and the CAIP-2 id resolve to the same network, an unknown name is an error."""
    assert resolve_network("base") is resolve_network("eip155:8453") is BASE
    assert resolve_network(" Base-Sepolia ") is resolve_network("eip155:84532") is BASE_SEPOLIA
    assert BASE.asset_name == "USD Coin" and BASE_SEPOLIA.asset_name == "USDC"
    assert find_network("eip155:1") is None
    with pytest.raises(ValueError, match="base-sepolia"):
        resolve_network("ethereum")


def test_importing_payments_is_light() -> None:
    """The web process can import everything here without eth_account, web3, eth_abi or PyJWT."""
    modules = [*PURE, "payments.facilitator"]
    program = "import sys\n" + "".join(f"import worker.{name}\n" for name in modules)
    program += (
        "print([m for m in ('eth_account', 'web3', 'eth_abi', 'jwt', 'redis', 'flask') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_pure_modules_import_neither_store_nor_http() -> None:
    """Offers, windows, outcomes, wire and legs import no Redis, Flask or HTTP client."""
    program = "import sys\n" + "".join(f"import worker.{name}\n" for name in PURE)
    program += (
        "print([m for m in ('redis', 'flask', 'urllib3', 'requests', 'http.client') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

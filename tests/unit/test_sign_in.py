"""Sign-in-with-x against EIP-4361's own example and the official package."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from x402.extensions.sign_in_with_x.encode import encode_siwx_header
from x402.extensions.sign_in_with_x.types import SIWxExtension, SIWxPayload
from x402.extensions.sign_in_with_x.validate import validate_siwx_message

from worker.contracts.signatures import recover_text
from worker.x402.sign_in import SIGN_IN, SignIn, SignInInvalid, message

WALLET = Account.from_key("0x" + "11" * 32)
SIGN_IN_HERE = SignIn("https://worker.example", "eip155:8453", "a secret")
EXAMPLE = {
    "domain": "example.com",
    "address": "0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2",
    "uri": "https://example.com/login",
    "version": "1",
    "chainId": "eip155:1",
    "nonce": "32891756",
    "issuedAt": "2021-09-30T16:25:24Z",
}


def test_the_message_is_that_of_eip_4361() -> None:
    """The specification's example, and one without a statement, which has one more empty line."""
    rest = "URI: https://example.com/login\nVersion: 1\nChain ID: 1\nNonce: 32891756\nIssued At: "
    head = "example.com wants you to sign in with your Ethereum account:\n" + EXAMPLE["address"]
    assert message(EXAMPLE) == f"{head}\n\n\n{rest}2021-09-30T16:25:24Z"
    stated = {
        **EXAMPLE,
        "statement": "I accept the ExampleOrg Terms of Service: https://example.com/tos",
        "resources": ["ipfs://bafy/", "https://example.com/my-web2-claim.json"],
    }
    assert message(stated) == (
        f"{head}\n\nI accept the ExampleOrg Terms of Service: https://example.com/tos\n\n{rest}"
        "2021-09-30T16:25:24Z\nResources:\n- ipfs://bafy/\n- https://example.com/my-web2-claim.json"
    )


def official_proof(challenge: dict[str, Any]) -> SIWxPayload:
    """Return the official client's proof for a challenge; only the message is ours."""
    extension = SIWxExtension(**challenge)
    fields = extension.info.model_dump(by_alias=True, exclude_none=True)
    chain = extension.supported_chains[0].model_dump(by_alias=True, exclude_none=True)
    proof = {**fields, **chain, "address": WALLET.address}
    signature = WALLET.sign_message(encode_defunct(text=message(proof))).signature.hex()
    return SIWxPayload(**proof, signature=f"0x{signature}")


def test_an_official_proof_is_accepted_within_five_minutes() -> None:
    """The official models parse the challenge; the official server's checks pass, and so do ours."""
    import time

    now = int(time.time())
    payload = official_proof(SIGN_IN_HERE.challenge(now))
    checked = asyncio.run(validate_siwx_message(payload, "https://worker.example"))
    assert checked.is_valid, checked.invalid_message
    header = encode_siwx_header(payload)
    proof = SIGN_IN_HERE.check(header, now + 300, recover_text)
    assert proof.wallet == WALLET.address.lower()
    for other, at in (
        (SIGN_IN_HERE, now + 301),
        (SignIn("https://other.example", "eip155:8453", "a secret"), now),
        (SignIn("https://worker.example", "eip155:1", "a secret"), now),
        (SignIn("https://worker.example", "eip155:8453", "another"), now),
    ):
        with pytest.raises(SignInInvalid):
            other.check(header, at, recover_text)


@pytest.mark.parametrize("header", ["", "!", "e30=", "W10=", "bnVsbA=="])
def test_what_is_no_proof_is_refused(header: str) -> None:
    """Base64 that is not an object, or an object without the fields, is not a proof."""
    with pytest.raises(SignInInvalid):
        SIGN_IN_HERE.check(header, 0, recover_text)


def test_the_extension_has_its_registered_name() -> None:
    """The name under which a 402 contains the challenge."""
    from x402.extensions.sign_in_with_x.types import SIGN_IN_WITH_X

    assert SIGN_IN == SIGN_IN_WITH_X

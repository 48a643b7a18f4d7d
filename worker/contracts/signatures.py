"""Signs, recovers and verifies Ethereum signatures over contract hashes and other digests.

A party signs the ASCII text of the contract's hash per EIP-191. Some wallets sign the 32 bytes instead;
the verifier accepts and records that. The arithmetic uses libsecp256k1 if coincurve is installed, else
pure Python. eth_account and web3 are not used: they double a web process's start-up time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, Protocol

from worker.core.errors import BadRequest, Forbidden
from worker.core.evm import address_of_point, keccak, same_address
from worker.core.fields import shown

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

_SIGNATURE = re.compile(r"(?:sig_)?(?:0[xX])?([0-9a-fA-F]{130})")
_HASH = re.compile(r"sha256:([0-9a-f]{64})")
_KEY = re.compile(r"(?:0[xX])?([0-9a-fA-F]{64})")
# The last byte of a signature: a bare parity, or that plus 27.
_PARITY = {0: 0, 1: 1, 27: 0, 28: 1}


class SignatureInvalid(Forbidden):
    code = "SIGNATURE_INVALID"
    message = "the signature is invalid"
    advice = "Sign the hash as text with the wallet in the contract. You were not charged."


class Backend(Protocol):
    """Curve arithmetic. Points are 64 bytes; signatures are r and s with a parity."""

    name: str

    def public_key(self, key: bytes) -> bytes: ...

    def sign(self, digest: bytes, key: bytes) -> tuple[bytes, int]: ...

    def recover(self, digest: bytes, rs: bytes, parity: int) -> bytes:
        """Returns the signer's point; raises ValueError if there is none."""
        ...


class SignatureVerifier(Protocol):
    """Decides whether a wallet signed a contract's hash. Smart-contract wallets need another verifier."""

    def verify(self, contract_hash: str, signature: str, wallet: str, *, field: str) -> VerifiedSignature:
        """Returns the scheme that matched, or raises `SignatureInvalid`."""
        ...


@dataclass(frozen=True)
class VerifiedSignature:
    """The signer's address and the scheme that matched."""

    scheme: str
    address: str


class Eip191Verifier:
    """Verifies key-based wallets (EOAs): first over the text of the hash, then over its 32 bytes."""

    def verify(self, contract_hash: str, signature: str, wallet: str, *, field: str) -> VerifiedSignature:
        match = _HASH.fullmatch(contract_hash)
        if match is None:
            raise BadRequest(
                "not a contract hash", field="hash", expected="sha256:<64 hex>", received=shown(contract_hash)
            )
        raw = decode_signature(signature, field=field)
        signer = recover_digest(eip191_digest(contract_hash.encode()), raw, field=field)
        if same_address(signer, wallet):
            return VerifiedSignature("eip191-text", signer)
        other = recover_digest(eip191_digest(bytes.fromhex(match[1])), raw, field=field)
        if same_address(other, wallet):
            return VerifiedSignature("eip191-digest", other)
        raise SignatureInvalid(
            "signed by another key, or for another text",
            field=field,
            expected=shown(wallet),
            received=signer,
        )


def eip191_digest(message: bytes) -> bytes:
    """The digest that a wallet's personal_sign signs."""
    return keccak(b"\x19Ethereum Signed Message:\n" + str(len(message)).encode() + message)


def sign_text(text: str, key: str | bytes, *, using: Backend | None = None) -> str:
    """An EIP-191 signature over the text, as 0x and 130 hex digits."""
    return "0x" + sign_digest(eip191_digest(text.encode("utf-8")), key, using=using).hex()


def recover_text(text: str, signature: str, *, using: Backend | None = None) -> str:
    """The checksum address whose key signed the text."""
    return recover_digest(eip191_digest(text.encode("utf-8")), decode_signature(signature), using=using)


def sign_digest(digest: bytes, key: str | bytes, *, using: Backend | None = None) -> bytes:
    """65 bytes r, s, v over a finished digest, with a low s and v of 27 or 28."""
    if len(digest) != 32:
        raise ValueError("a digest is 32 bytes")
    rs, parity = (using or backend()).sign(digest, key_bytes(key))
    return rs + bytes([27 + parity])


def recover_digest(
    digest: bytes, signature: bytes, *, field: str = "signature", using: Backend | None = None
) -> str:
    """The checksum address whose key signed this digest."""
    if len(digest) != 32:
        raise ValueError("a digest is 32 bytes")
    if len(signature) != 65:
        raise SignatureInvalid(
            "the signature has a wrong length", field=field, expected="65 bytes", received=len(signature)
        )
    parity = _PARITY.get(signature[64])
    if parity is None:
        raise SignatureInvalid(
            "the signature's last byte is wrong", field=field, expected=[0, 1, 27, 28], received=signature[64]
        )
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    if not 0 < r < ORDER or not 0 < s <= ORDER // 2:
        # The signature with s mirrored is valid too; one payment must have exactly one signature.
        raise SignatureInvalid("the signature is out of range", field=field, expected="r within, s low")
    try:
        point = (using or backend()).recover(digest, signature[:64], parity)
    except ValueError:
        raise SignatureInvalid("no key can produce this signature", field=field) from None
    return address_of_point(point)


def decode_signature(text: Any, *, field: str = "signature") -> bytes:
    """The 65 bytes of a hex signature, with or without 0x, after an optional sig_."""
    match = _SIGNATURE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise SignatureInvalid(
            "the signature cannot be read",
            field=field,
            expected="0x and 130 hex digits",
            received=shown(text),
        )
    return bytes.fromhex(match[1])


def address_of(key: str | bytes, *, using: Backend | None = None) -> str:
    """The checksum address of a private key."""
    return address_of_point((using or backend()).public_key(key_bytes(key)))


def key_bytes(key: str | bytes) -> bytes:
    """The 32 bytes of a private key; the error never contains the key."""
    if isinstance(key, str):
        match = _KEY.fullmatch(key)
        key = bytes.fromhex(match[1]) if match else b""
    if len(key) != 32 or not 0 < int.from_bytes(key, "big") < ORDER:
        raise ValueError("a private key is 64 hex digits, not zero and below the order of the curve")
    return key


@cache
def backend(name: Literal["auto", "coincurve", "native"] = "auto") -> Backend:
    """The backend by name; `auto` picks the fast one if it is installed."""
    if name == "native":
        return _Native()
    try:
        return _Coincurve()
    except ImportError:
        if name == "coincurve":
            raise
        return _Native()


class _Coincurve:
    name = "coincurve"

    def __init__(self) -> None:
        import coincurve

        # Making a key costs more than a signature: each makes its public key. A process signs with few.
        self._private = lru_cache(maxsize=8)(coincurve.PrivateKey)
        self._public = coincurve.PublicKey

    def public_key(self, key: bytes) -> bytes:
        return bytes(self._public.from_valid_secret(key).format(compressed=False)[1:])

    def sign(self, digest: bytes, key: bytes) -> tuple[bytes, int]:
        signed = self._private(key).sign_recoverable(digest, hasher=None)
        return bytes(signed[:64]), signed[64]

    def recover(self, digest: bytes, rs: bytes, parity: int) -> bytes:
        found = self._public.from_signature_and_message(rs + bytes([parity]), digest, hasher=None)
        return bytes(found.format(compressed=False)[1:])


class _Native:
    name = "native"

    def __init__(self) -> None:
        from eth_keys.backends.native.main import NativeECCBackend
        from eth_keys.exceptions import BadSignature
        from eth_keys.main import KeyAPI

        self._keys = KeyAPI(NativeECCBackend())
        self._refusal = BadSignature

    def public_key(self, key: bytes) -> bytes:
        return bytes(self._keys.private_key_to_public_key(self._keys.PrivateKey(key)).to_bytes())

    def sign(self, digest: bytes, key: bytes) -> tuple[bytes, int]:
        signed = bytes(self._keys.ecdsa_sign(digest, self._keys.PrivateKey(key)).to_bytes())
        return signed[:64], signed[64]

    def recover(self, digest: bytes, rs: bytes, parity: int) -> bytes:
        try:
            signed = self._keys.Signature(rs + bytes([parity]))
            return bytes(self._keys.ecdsa_recover(digest, signed).to_bytes())
        except self._refusal as fault:
            raise ValueError("no such point") from fault

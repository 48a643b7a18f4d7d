"""Sign-in-with-x: authenticates a wallet without a payment (EIP-4361, keys only).

Challenges are not stored: a nonce carries a keyed digest of itself and its time, so that only ours pass.
Code that accepts a proof must also refuse its second use.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn
from urllib.parse import urlsplit

from worker.core.errors import BadRequest, Problem, Unauthorized
from worker.core.evm import is_address
from worker.x402.headers import decode, shown

SIGN_IN = "sign-in-with-x"
SIGN_IN_HEADER = "SIGN-IN-WITH-X"
# Lifetime of a challenge.
SECONDS = 300

_STATEMENT = "Read what you bought from this worker."
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,500}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_LINES = (
    ("URI", "uri"),
    ("Version", "version"),
    ("Chain ID", "chainId"),
    ("Nonce", "nonce"),
    ("Issued At", "issuedAt"),
    ("Expiration Time", "expirationTime"),
    ("Not Before", "notBefore"),
    ("Request ID", "requestId"),
)
_REQUIRED = ("domain", "address", "uri", "version", "chainId", "type", "nonce", "issuedAt", "signature")
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {name: {"type": "string"} for name in _REQUIRED},
    "required": list(_REQUIRED),
}


class SignInInvalid(Unauthorized):
    code = "SIGN_IN_INVALID"
    message = "the sign-in does not prove a wallet"
    advice = "Sign a fresh challenge, from GET /tasks or a 402, once, with the wallet that paid."


@dataclass(frozen=True, slots=True)
class SignInProof:
    """The wallet that signed, in lower case, and the single-use nonce."""

    wallet: str
    nonce: str


@dataclass(frozen=True)
class SignIn:
    """Issues challenges for one origin and chain, and verifies signed answers."""

    origin: str
    chain: str
    secret: str

    def challenge(self, now_s: int) -> dict[str, Any]:
        """The extension's entry: what to sign within five minutes."""
        issued = _time(now_s)
        info = {
            "domain": urlsplit(self.origin).netloc,
            "uri": self.origin,
            "version": "1",
            "statement": _STATEMENT,
            "nonce": self._nonce(os.urandom(8).hex(), issued),
            "issuedAt": issued,
            "expirationTime": _time(now_s + SECONDS),
        }
        chains = [{"chainId": self.chain, "type": "eip191"}]
        return {"info": info, "supportedChains": chains, "schema": _SCHEMA}

    def check(self, header: str, now_s: int, recover: Callable[[str, str], str]) -> SignInProof:
        """The proof in a SIGN-IN-WITH-X header; `recover` takes a text and its signature."""
        try:
            proof = decode(header, SIGN_IN_HEADER)
        except BadRequest as malformed:
            raise SignInInvalid(**malformed.details) from None
        self._expect_ours(proof, now_s)
        try:
            signer = recover(message(proof), proof["signature"])
        except Problem:
            _refuse("signature", "a signature of this challenge", "another")
        if signer.lower() != proof["address"].lower():
            _refuse("signature", f"signed by {proof['address']}", signer)
        return SignInProof(signer.lower(), proof["nonce"])

    def _expect_ours(self, proof: Mapping[str, Any], now_s: int) -> None:
        for name in _REQUIRED:
            if not isinstance(proof.get(name), str):
                _refuse(name, "text", proof.get(name))
        for name in ("statement", *(field for _, field in _LINES)):
            value = proof.get(name)
            if value is not None and not (isinstance(value, str) and _TEXT.fullmatch(value)):
                _refuse(name, "one line of text", value)
        ours = {
            "domain": urlsplit(self.origin).netloc,
            "uri": self.origin,
            "version": "1",
            "chainId": self.chain,
            "type": "eip191",
        }
        for name, expected in ours.items():
            if proof[name] != expected:
                _refuse(name, expected, proof[name])
        if not is_address(proof["address"]):
            _refuse("address", "0x and 40 hex digits", proof["address"])
        nonce, issued = proof["nonce"], proof["issuedAt"]
        if not _NONCE.fullmatch(nonce) or not hmac.compare_digest(self._nonce(nonce[:16], issued), nonce):
            _refuse("nonce", "a nonce from a challenge of this worker, with its issuedAt", nonce)
        age_s = now_s - int(datetime.fromisoformat(issued).timestamp())
        if age_s > SECONDS:
            _refuse("issuedAt", f"at most {SECONDS} s ago", f"{age_s} s ago")
        # The wallet may have signed an earlier expiry than ours.
        if now_s > _seconds(proof, "expirationTime", now_s):
            _refuse("expirationTime", "a time to come", proof["expirationTime"])
        if now_s < _seconds(proof, "notBefore", now_s):
            _refuse("notBefore", "a time that has come", proof["notBefore"])

    def _nonce(self, random: str, issued: str) -> str:
        text = f"sign-in:{random}:{issued}".encode()
        return random + hmac.new(self.secret.encode(), text, "sha256").hexdigest()[:16]


def message(proof: Mapping[str, Any]) -> str:
    """The text that the wallet signs (EIP-4361)."""
    head = f"{proof['domain']} wants you to sign in with your Ethereum account:\n{proof['address']}\n\n"
    statement = f"{proof['statement']}\n" if proof.get("statement") else ""
    values = {**proof, "chainId": proof["chainId"].rpartition(":")[2]}
    lines = [f"{label}: {values[name]}" for label, name in _LINES if values.get(name)]
    resources = proof.get("resources")
    if isinstance(resources, list) and resources:
        lines += ["Resources:", *(f"- {each}" for each in resources)]
    return f"{head}{statement}\n" + "\n".join(lines)


def _seconds(proof: Mapping[str, Any], name: str, default: int) -> float:
    """A time in a proof; `default` if it is missing."""
    if not proof.get(name):
        return default
    try:
        return datetime.fromisoformat(proof[name]).timestamp()
    except (ValueError, OverflowError):
        _refuse(name, "an RFC 3339 time", proof[name])


def _time(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _refuse(field: str, expected: str, received: Any) -> NoReturn:
    raise SignInInvalid(field=field, expected=expected, received=shown(received))

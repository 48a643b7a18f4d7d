"""Signatures with both backends: published vectors, hostile signatures, and imports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.contracts.signatures import (
    ORDER,
    Eip191Verifier,
    SignatureInvalid,
    SignatureVerifier,
    address_of,
    backend,
    decode_signature,
    eip191_digest,
    key_bytes,
    recover_digest,
    recover_text,
    sign_digest,
    sign_text,
)
from worker.core.errors import BadRequest
from worker.core.evm import checksum_address, is_address, keccak, same_address

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "hire-contracts.json").read_text("utf-8"))
KEYS, ADDRESSES = VECTORS["test_private_keys"], VECTORS["addresses"]
CASES = [
    pytest.param(vector, party, id=f"{vector['name']}-{party}")
    for vector in VECTORS["vectors"]
    for party in ("worker", "seeker")
]
KEY, TEXT = KEYS["worker"], VECTORS["vectors"][0]["hash"]
keys = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32, "big"))


@pytest.fixture(name="using", params=["coincurve", "native"])
def _using(request):
    return backend(request.param)


def rebuilt(raw: bytes, *, r: int | None = None, s: int | None = None, v: int | None = None) -> bytes:
    """Return the signature with some of its three numbers replaced."""
    r = int.from_bytes(raw[:32], "big") if r is None else r
    s = int.from_bytes(raw[32:64], "big") if s is None else s
    v = raw[64] if v is None else v
    return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([v])


@pytest.mark.parametrize(("vector", "party"), CASES)
def test_text_signatures_match_the_vectors(vector, party, using):
    """Each backend makes the published signature over the hash text and recovers its wallet."""
    signature = vector["eip191_text_of_hash"][party]
    assert sign_text(vector["hash"], KEYS[party], using=using) == signature
    assert recover_text(vector["hash"], signature, using=using) == ADDRESSES[party]


@pytest.mark.parametrize(("vector", "party"), CASES)
def test_digest_signatures_match_the_vectors(vector, party, using):
    """Each backend makes the published signature over the 32 digest bytes."""
    digest = eip191_digest(bytes.fromhex(vector["hash"].removeprefix("sha256:")))
    signature = sign_digest(digest, KEYS[party], using=using)
    assert "0x" + signature.hex() == vector["eip191_raw_digest"][party]
    assert recover_digest(digest, signature, using=using) == ADDRESSES[party]


@pytest.mark.parametrize(("vector", "party"), CASES)
def test_verifier_reports_the_matching_form(vector, party):
    """The text form is tried first, then the bytes, and the result names the form that matched."""
    verifier: SignatureVerifier = Eip191Verifier()
    for kind, scheme in (("eip191_text_of_hash", "eip191-text"), ("eip191_raw_digest", "eip191-digest")):
        found = verifier.verify(
            vector["hash"], vector[kind][party], ADDRESSES[party].lower(), field=f"signatures.{party}"
        )
        assert (found.scheme, found.address) == (scheme, ADDRESSES[party])


def test_swapped_signatures_are_refused():
    """The seeker's signature is not accepted as the worker's, in either form."""
    vector = VECTORS["vectors"][0]
    for kind in ("eip191_text_of_hash", "eip191_raw_digest"):
        with pytest.raises(SignatureInvalid) as caught:
            Eip191Verifier().verify(
                vector["hash"], vector[kind]["seeker"], ADDRESSES["worker"], field="signatures.worker"
            )
        assert caught.value.code == "SIGNATURE_INVALID"
        assert caught.value.details["field"] == "signatures.worker"
        assert caught.value.details["expected"] == ADDRESSES["worker"]


def test_a_signature_over_another_hash_is_refused():
    """With one digit of the hash changed, the signature does not verify."""
    vector = VECTORS["vectors"][0]
    other = vector["hash"][:-1] + ("0" if vector["hash"][-1] != "0" else "1")
    with pytest.raises(SignatureInvalid):
        Eip191Verifier().verify(
            other, vector["eip191_text_of_hash"]["worker"], ADDRESSES["worker"], field="signatures.worker"
        )


@pytest.mark.parametrize(
    "wallet", ["", "0x", "not a wallet", ADDRESSES["worker"] + "00", ADDRESSES["worker"][2:], "x" * 5000]
)
def test_invalid_wallet_never_matches(wallet):
    """A wallet that is not an address matches no signature."""
    with pytest.raises(SignatureInvalid):
        Eip191Verifier().verify(TEXT, sign_text(TEXT, KEY), wallet, field="signatures.worker")


@pytest.mark.parametrize("hash_text", ["", "sha256:", TEXT.upper(), TEXT[7:], TEXT + "\n", TEXT + "0"])
def test_verifier_accepts_only_contract_hashes(hash_text):
    """A hash in another format is malformed, even if somebody signed that exact text."""
    with pytest.raises(BadRequest) as caught:
        Eip191Verifier().verify(
            hash_text, sign_text(hash_text, KEY), ADDRESSES["worker"], field="signatures.worker"
        )
    assert caught.value.details["field"] == "hash"


@settings(max_examples=25, deadline=None)
@given(keys, st.binary(min_size=32, max_size=32))
def test_backends_agree_with_each_other_and_with_eth_account(key, digest):
    """Address, signature and recovery agree between both backends and the reference library."""
    fast, slow = backend("coincurve"), backend("native")
    signature = sign_digest(digest, key, using=fast)
    assert sign_digest(digest, key, using=slow) == signature
    assert int.from_bytes(signature[32:64], "big") <= ORDER // 2
    account = Account.from_key(key)
    for using in (fast, slow):
        assert address_of(key, using=using) == account.address
        assert recover_digest(digest, signature, using=using) == account.address


@settings(max_examples=25, deadline=None)
@given(keys, st.text(st.characters(codec="utf-8"), max_size=200))
def test_text_signatures_match_wallets(key, text):
    """We recover any text signed by a wallet library, and it recovers ours."""
    account = Account.from_key(key)
    theirs = account.sign_message(encode_defunct(text=text)).signature
    assert sign_text(text, key) == "0x" + bytes(theirs).hex()
    assert recover_text(text, bytes(theirs).hex()) == account.address


def test_any_flipped_bit_is_detected(using):
    """No single flipped bit of r, s or v leaves a signature of the same wallet."""
    digest = eip191_digest(TEXT.encode())
    raw = sign_digest(digest, KEY, using=using)
    bits = range(65 * 8) if using.name == "coincurve" else range(0, 65 * 8, 13)
    for bit in bits:
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(SignatureInvalid):
            assert recover_digest(digest, bytes(changed), using=using) != ADDRESSES["worker"]


def test_malleable_signature_is_refused(using):
    """The high-s twin recovers the same wallet mathematically and is still refused."""
    digest = eip191_digest(TEXT.encode())
    raw = sign_digest(digest, KEY, using=using)
    s = int.from_bytes(raw[32:64], "big")
    twin = rebuilt(raw, s=ORDER - s, v=55 - raw[64])
    assert using.recover(digest, twin[:64], twin[64] - 27) == using.public_key(key_bytes(KEY))
    with pytest.raises(SignatureInvalid, match="range"):
        recover_digest(digest, twin, using=using)


def test_both_v_values_are_accepted(using):
    """A bare parity and parity plus 27 are the same signature."""
    digest = eip191_digest(TEXT.encode())
    raw = sign_digest(digest, KEY, using=using)
    assert recover_digest(digest, rebuilt(raw, v=raw[64] - 27), using=using) == ADDRESSES["worker"]
    for v in (2, 3, 26, 29, 30, 35, 255):
        with pytest.raises(SignatureInvalid, match="last byte"):
            recover_digest(digest, rebuilt(raw, v=v), using=using)


@pytest.mark.parametrize(
    "numbers",
    [{"r": 0}, {"s": 0}, {"r": ORDER}, {"r": 2**256 - 1}, {"s": ORDER}, {"s": ORDER // 2 + 1}, {"r": 5}],
    ids=str,
)
def test_out_of_range_values_are_refused(numbers, using):
    """Zero, values beyond the order, a high s, and an r not on the curve are refused without a crash."""
    digest = eip191_digest(TEXT.encode())
    with pytest.raises(SignatureInvalid):
        recover_digest(digest, rebuilt(sign_digest(digest, KEY), **numbers), using=using)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=70) | st.binary(min_size=65, max_size=65))
def test_random_signatures_recover_or_are_refused(raw):
    """Both backends give the same result for arbitrary bytes."""
    answers = []
    for using in (backend("coincurve"), backend("native")):
        try:
            answers.append(recover_digest(b"\x07" * 32, raw, using=using))
        except SignatureInvalid as refusal:
            answers.append(refusal.message)
    assert answers[0] == answers[1]


def test_hex_prefix_is_optional():
    """A signature is parsed with sig_, with 0x, with both or neither, in any case of hex."""
    plain = sign_text(TEXT, KEY)[2:]
    for text in (plain, "0x" + plain, "sig_" + plain, "sig_0x" + plain, "0x" + plain.upper()):
        assert decode_signature(text).hex() == plain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "sig_abc",
        "0x" + "g" * 130,
        "0x" + "a" * 129,
        "0x" + "a" * 132,
        "0x" + "a " * 65,
        " 0x" + "a" * 130,
        "0x" + "a" * 130 + "\n",
        "0x0x" + "a" * 130,
        "a" * 1_000_000,
        "\u0661" * 130,
        None,
        7,
        b"a" * 65,
    ],
    ids=lambda text: repr(text)[:20],
)
def test_malformed_signatures_are_refused(text):
    """Anything but 130 hex digits is refused with the field, and long text is not echoed."""
    with pytest.raises(SignatureInvalid) as caught:
        decode_signature(text, field="signatures.seeker")
    assert caught.value.details["field"] == "signatures.seeker"
    assert len(str(caught.value.details.get("received"))) < 100


@pytest.mark.parametrize(
    "key",
    [
        "",
        "0x11",
        "11" * 33,
        "zz" * 32,
        "00" * 32,
        f"{ORDER:064x}",
        "ff" * 32,
        b"\x11" * 31,
        b"\0" * 32,
        "11" * 32 + "\n",
    ],
)
def test_invalid_keys_are_refused_without_echoing_them(key):
    """A key of wrong length or range raises a ValueError that does not contain the key."""
    with pytest.raises(ValueError) as caught:
        address_of(key)
    shown_key = key if isinstance(key, str) else key.hex()
    assert not shown_key or shown_key not in str(caught.value)


def test_keys_are_hex_or_bytes():
    """With or without 0x, or as bytes, the address is the same."""
    for key in (KEY, KEY[2:], bytes.fromhex(KEY[2:])):
        assert address_of(key) == ADDRESSES["worker"]


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_only_32_byte_digests_are_signed(length):
    """A digest of another length is a bug and raises ValueError."""
    with pytest.raises(ValueError, match="32 bytes"):
        sign_digest(b"x" * length, KEY)
    with pytest.raises(ValueError, match="32 bytes"):
        recover_digest(b"x" * length, b"\x01" * 65)


def test_keccak_is_not_sha3():
    """The hash of the empty input is the well-known one."""
    assert keccak(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


@pytest.mark.parametrize(
    "address",
    [
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
        "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
        "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
        "0x52908400098527886E0F7030069857D2E4169EE7",
    ],
)
def test_eip_55_checksum(address):
    """The examples of EIP-55 get its checksums."""
    assert checksum_address(address.lower()) == address
    assert checksum_address("0x" + address[2:].upper()) == address
    assert same_address(address, address.lower())


def test_address_validation():
    """An address is 0x and 20 bytes of hex; two texts that are not addresses are never equal."""
    assert is_address(ADDRESSES["seeker"])
    for text in ("", "0x", ADDRESSES["seeker"] + "\n", ADDRESSES["seeker"][:-1], "0X" + "a" * 40, None, 5):
        assert not is_address(text)
    assert not same_address("", "")
    with pytest.raises(ValueError, match="address"):
        checksum_address("0x12")


def run(code: str) -> str:
    signature = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert signature.returncode == 0, signature.stderr
    return signature.stdout.strip()


def test_auto_prefers_coincurve():
    """coincurve is chosen if it is installed."""
    assert backend().name == "coincurve"
    assert backend("auto") is backend("auto")


def test_auto_falls_back_without_coincurve():
    """Without coincurve the native backend gives the same signature, and requesting coincurve fails."""
    code = f"""
import sys
sys.modules["coincurve"] = None
from worker.contracts import signatures
try:
    signatures.backend("coincurve")
except ImportError:
    print(signatures.backend().name, signatures.sign_text({TEXT!r}, {KEY!r}))
"""
    assert run(code) == "native " + VECTORS["vectors"][0]["eip191_text_of_hash"]["worker"]


def test_importing_signatures_is_light():
    """Signing and recovering import neither eth_account, web3 nor the pure-Python curve."""
    code = f"""
import sys
from worker.contracts import signatures
signatures.recover_text({TEXT!r}, signatures.sign_text({TEXT!r}, {KEY!r}))
heavy = ("eth_account", "web3", "eth_keys", "eth_utils", "flask", "redis")
print([name for name in heavy if name in sys.modules])
"""
    assert run(code) == "[]"

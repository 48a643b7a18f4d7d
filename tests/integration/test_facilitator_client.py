"""The facilitator client against a faulty real server: every call has a defined outcome."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from eth_utils import to_checksum_address

from tests.fakes import facilitator_faults as faults
from tests.fakes.facilitator_server import FacilitatorServer
from tests.waiting import eventually
from worker.payments.facilitator import MAX_BODY, Facilitator, HttpFacilitator
from worker.payments.facilitator_auth import CdpAuth, StaticAuth
from worker.x402.facilitator_answers import (
    FacilitatorAnswer,
    Invalid,
    Settled,
    SettlementRefused,
    SettlementUnknown,
    Valid,
    VerificationUnknown,
    classify_settle,
    classify_verify,
    supports,
)

PAYER = str(to_checksum_address("0x" + "a1" * 20))
PAYEE = str(to_checksum_address("0x" + "b2" * 20))
ASSET = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
REQUIREMENTS: dict[str, Any] = {
    "scheme": "exact",
    "network": "eip155:84532",
    "amount": "10000",
    "asset": ASSET,
    "payTo": PAYEE,
    "maxTimeoutSeconds": 60,
    "extra": {"name": "USDC", "version": "2"},
}
SECRET = "5ec2e7" * 10
VALID_BEFORE = int(time.time()) + 600


def payload(nonce: int = 1) -> dict[str, Any]:
    """Return a payment payload; its signature is a marker that must never be logged."""
    return {
        "x402Version": 2,
        "accepted": REQUIREMENTS,
        "payload": {
            "signature": "0x" + SECRET,
            "authorization": {
                "from": PAYER,
                "to": PAYEE,
                "value": "10000",
                "validAfter": "0",
                "validBefore": str(VALID_BEFORE),
                "nonce": f"0x{nonce:064x}",
            },
        },
    }


def in_lower_case(document: Any) -> Any:
    """The same document with lower-case addresses, as in some contracts and old journals."""
    text = json.dumps(document)
    for address in (PAYER, PAYEE, ASSET):
        text = text.replace(address, address.lower())
    return json.loads(text)


def test_addresses_are_sent_in_eip_55(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """Whatever case the journal has, the facilitator gets EIP-55, both in `accepted` and in our terms."""
    client.verify(in_lower_case(payload()), in_lower_case(REQUIREMENTS))
    client.settle(in_lower_case(payload()), in_lower_case(REQUIREMENTS))
    for call in (*server.calls("verify"), *server.calls("settle")):
        assert call["body"]["paymentPayload"] == payload()
        assert call["body"]["paymentRequirements"] == REQUIREMENTS


@pytest.fixture(name="server")
def _server() -> Iterator[FacilitatorServer]:
    with FacilitatorServer() as server:
        yield server


@pytest.fixture(name="client")
def _client(server: FacilitatorServer) -> Iterator[HttpFacilitator]:
    client = HttpFacilitator(server.url, verify_s=10, settle_s=10)
    yield client
    client.close()


def settle(client: Facilitator, paid: dict[str, Any], *, earlier_unknown: bool = False) -> object:
    """Settle and classify."""
    return classify_settle(client.settle(paid, REQUIREMENTS), earlier_unknown=earlier_unknown)


def test_verify_settle_and_supported(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """Verify, settle and supported succeed, and carry exactly the stored payload and our terms."""
    paid = payload()
    assert classify_verify(client.verify(paid, REQUIREMENTS)) == Valid()
    found = settle(client, paid)
    (moved,) = server.transfers()
    assert found == Settled(moved["transaction"]) and server.charged(PAYER) == 10_000
    assert supports(client.supported(), "eip155:84532")
    for call in server.calls("verify") + server.calls("settle"):
        assert call["body"] == {"x402Version": 2, "paymentPayload": paid, "paymentRequirements": REQUIREMENTS}
        assert call["headers"]["content-type"] == "application/json"
        assert "authorization" not in call["headers"]


@pytest.mark.parametrize("status", [200, 400, 402])
def test_refusal_is_read_on_every_status(
    server: FacilitatorServer, client: HttpFacilitator, status: int
) -> None:
    """Facilitators refuse with 200, 400 or 402: the body decides, and nothing has moved."""
    server.plan("verify", faults.refuse("insufficient_funds", status=status))
    server.plan("settle", faults.refuse("insufficient_funds", status=status))
    assert classify_verify(client.verify(payload(), REQUIREMENTS)) == Invalid("insufficient_funds")
    assert settle(client, payload()) == SettlementRefused("insufficient_funds")
    assert server.charged() == 0


def test_pending_settlement_keeps_its_hash(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """settlement_pending for N calls is unknown with one hash, until the same payload settles."""
    server.plan("settle", faults.pending(moves=False), times=3)
    paid = payload()
    pending = [settle(client, paid, earlier_unknown=index > 0) for index in range(3)]
    assert len(set(map(repr, pending))) == 1
    assert isinstance(pending[0], SettlementUnknown) and pending[0].cause == "settlement_pending"
    assert pending[0].transaction is not None and server.charged() == 0
    assert settle(client, paid, earlier_unknown=True) == Settled(pending[0].transaction)
    assert server.charged() == 10_000


@pytest.mark.parametrize("moves", [False, True])
def test_dropped_connection_is_unknown_and_not_retried(
    server: FacilitatorServer, client: HttpFacilitator, moves: bool
) -> None:
    """A drop looks the same whether or not the money moved; the client sends exactly one call."""
    server.plan("settle", faults.drop(moves=moves))
    paid = payload()
    assert settle(client, paid) == SettlementUnknown("dropped")
    assert len(server.calls("settle")) == 1 and server.charged() == (10_000 if moves else 0)
    again = settle(client, paid, earlier_unknown=True)
    if moves:
        assert again == SettlementUnknown("invalid_exact_evm_nonce_already_used", None, nonce_used=True)
    else:
        assert isinstance(again, Settled)
    assert server.charged() == 10_000


def test_dropped_keep_alive_connection_is_not_retried(
    server: FacilitatorServer, client: HttpFacilitator
) -> None:
    """A reused connection that drops during a settle call causes no silent retry."""
    assert classify_verify(client.verify(payload(), REQUIREMENTS)) == Valid()
    server.plan("settle", faults.drop(moves=True))
    assert settle(client, payload()) == SettlementUnknown("dropped")
    assert len(server.calls("settle")) == 1


def test_repeated_settle_returns_the_first_hash(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """Where a repeated settle returns the first hash, the unknown ends as settled."""
    server.reconciles = True
    server.plan("settle", faults.drop(moves=True))
    paid = payload()
    settle(client, paid)
    assert isinstance(settle(client, paid, earlier_unknown=True), Settled)
    assert server.charged() == 10_000


@pytest.mark.parametrize("moves", [False, True])
def test_hanging_call_times_out(server: FacilitatorServer, moves: bool) -> None:
    """A facilitator that does not answer times out: settle is unknown, verify has no verdict."""
    client = HttpFacilitator(server.url, verify_s=0.3, settle_s=0.3)
    server.plan("settle", faults.hang(moves=moves))
    server.plan("verify", faults.hang())
    assert settle(client, payload()) == SettlementUnknown("timeout")
    assert classify_verify(client.verify(payload(), REQUIREMENTS)) == VerificationUnknown("timeout")
    assert server.charged() == (10_000 if moves else 0)
    server.release()
    client.close()


def test_trickling_body_times_out(server: FacilitatorServer) -> None:
    """A slowly trickling body does not extend the time limit."""
    client = HttpFacilitator(server.url, connect_s=0.2, verify_s=0.3, settle_s=0.3)
    server.plan("settle", faults.slow_body(0.1))
    assert settle(client, payload()) == SettlementUnknown("timeout")
    server.release()
    client.close()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (faults.garbage(moves=True), "garbage"),
        (faults.garbage(502), "http_502"),
        (faults.answer(200, "", moves=True), "empty"),
        (faults.answer(200, "[1]"), "garbage"),
        (faults.answer(200, "[" * 100_000), "garbage"),
        (faults.answer(200, '"' + "x" * MAX_BODY + '"'), "too_large"),
        (faults.answer(200, {}), "http_200"),
        (faults.answer(503, {"error": "later"}), "http_503"),
        (faults.answer(401, {"errorMessage": "unauthorized"}), "http_401"),
        (faults.no_hash(), "success_without_hash"),
        (faults.refuse("insufficient_funds", status=500), "insufficient_funds"),
        (faults.refuse("settlement_pending"), "settlement_pending"),
    ],
)
def test_uncertain_answers_are_unknown(
    server: FacilitatorServer, client: HttpFacilitator, fault: faults.Fault, cause: str
) -> None:
    """Garbage, empty, oversized and undecided responses are unknown and leave the client usable."""
    server.plan("settle", fault)
    found = settle(client, payload())
    assert isinstance(found, SettlementUnknown) and found.cause == cause
    assert classify_verify(client.verify(payload(2), REQUIREMENTS)) == Valid()


def test_a_redirect_is_not_followed(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """A payload is sent only to the configured address."""
    with FacilitatorServer() as other:
        elsewhere = (("Location", f"{other.url}/settle"),)
        server.plan("settle", faults.answer(307, "", headers=elsewhere))
        assert settle(client, payload()) == SettlementUnknown("http_307")
        assert other.calls() == []


def test_closed_port_and_unknown_host_are_unreachable() -> None:
    """A closed port and an unknown name have the same outcome: no connection."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        client = HttpFacilitator(f"http://127.0.0.1:{taken.getsockname()[1]}", connect_s=0.5)
        assert client.settle(payload(), REQUIREMENTS) == FacilitatorAnswer(fault="connect")
        assert client.supported() == FacilitatorAnswer(fault="connect")
    assert HttpFacilitator("http://facilitator.invalid", connect_s=0.5).supported() == FacilitatorAnswer(
        fault="connect"
    )


def test_server_without_tls_gets_nothing(server: FacilitatorServer) -> None:
    """An https address that answers in clear text receives nothing."""
    client = HttpFacilitator(server.url.replace("http:", "https:"), connect_s=1, settle_s=1)
    assert client.settle(payload(), REQUIREMENTS).fault == "tls"
    assert server.calls() == []
    assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED


def test_each_open_call_has_its_own_connection(server: FacilitatorServer) -> None:
    """More concurrent calls than are kept when idle are all answered, each settled once."""
    client = HttpFacilitator(server.url, kept=2, settle_s=5)
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(settle(client, payload(n)))) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 12 and all(isinstance(one, Settled) for one in found)
    assert server.charged() == 120_000 and server.overlaps == 0
    client.close()


def settle_together(client: HttpFacilitator, server: FacilitatorServer, nonces: range) -> None:
    """Settle these payments with calls that are all open at once."""
    server.plan("settle", *[faults.hang(moves=False)] * len(nonces))
    before = len(server.calls("settle"))
    threads = [threading.Thread(target=settle, args=(client, payload(nonce))) for nonce in nonces]
    for thread in threads:
        thread.start()
    eventually(lambda: len(server.calls("settle")) == before + len(nonces), 30, "all calls to be open")
    server.release()
    for thread in threads:
        thread.join(30)


def test_open_payments_find_kept_connections(server: FacilitatorServer) -> None:
    """As many connections are opened as calls were open at once, however many follow."""
    client = HttpFacilitator(server.url, settle_s=30)
    settle_together(client, server, range(1, 41))
    settle_together(client, server, range(41, 81))
    assert server.accepted == 40
    client.close()


def test_a_call_is_begun_where_a_connection_is_open(server: FacilitatorServer) -> None:
    """Its answer may be waited for in part, and the connection is used again."""
    with closing(HttpFacilitator(server.url)) as client:
        assert client.begin_verify(payload(), REQUIREMENTS) is None
        assert server.accepted == 0
        client.verify(payload(1), REQUIREMENTS)
        server.plan("verify", faults.hang(10))
        call = client.begin_verify(payload(2), REQUIREMENTS)
        assert call is not None and call.answer_within(0.05) is None
        assert client.begin_verify(payload(3), REQUIREMENTS) is None
        server.release()
        answered = call.answer()
        assert isinstance(classify_verify(answered), Valid)
        assert call.answer() is answered and call.answer_within(1) is answered
        client.verify(payload(4), REQUIREMENTS)
        assert server.accepted == 1 and len(server.calls("verify")) == 3


def test_a_call_that_was_left_ends_its_connection(server: FacilitatorServer) -> None:
    """Its answer is not read as that to the next."""
    with closing(HttpFacilitator(server.url)) as client:
        client.verify(payload(1), REQUIREMENTS)
        call = client.begin_verify(payload(2), REQUIREMENTS)
        assert call is not None
        call.leave()
        assert client.begin_verify(payload(3), REQUIREMENTS) is None
        client.verify(payload(4), REQUIREMENTS)
        assert server.accepted == 2


def test_a_connection_that_was_closed_when_idle_is_not_used(
    server: FacilitatorServer, client: HttpFacilitator
) -> None:
    """After the server has closed an idle connection the next call takes another one, and settles."""
    assert classify_verify(client.verify(payload(), REQUIREMENTS)) == Valid()
    server.cut_connections()
    assert isinstance(settle(client, payload()), Settled)
    assert len(server.calls("settle")) == 1 and server.accepted == 2


def serve_interim(listener: socket.socket) -> None:
    """Answers a connection's first request with 103, and its second one with what was due to the first."""
    link, _ = listener.accept()
    with link:
        link.recv(65_536)
        link.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        if not link.recv(65_536):
            return
        body = b'{"success":true,"transaction":"0x%s"}' % (b"aa" * 32)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def test_the_answer_to_one_payment_is_not_read_as_that_to_the_next() -> None:
    """After an interim answer the connection is not used again, because the final one is still to come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_interim, args=(listener,), daemon=True)
        server.start()
        client = HttpFacilitator(f"http://127.0.0.1:{listener.getsockname()[1]}", settle_s=1)
        assert isinstance(settle(client, payload(1)), SettlementUnknown)
        assert isinstance(settle(client, payload(2)), SettlementUnknown)
        server.join(30)
        client.close()


def test_a_connection_that_was_idle_for_long_is_not_used(server: FacilitatorServer) -> None:
    """A router may have forgotten it: the payment would get no answer."""
    times = [0.0]
    client = HttpFacilitator(server.url, clock=lambda: times[-1])
    for accepted in (1, 1, 2):
        assert classify_verify(client.verify(payload(), REQUIREMENTS)) == Valid()
        assert server.accepted == accepted
        times.append(times[-1] * 2 + 59)
    client.close()


def test_an_ipv6_address_needs_no_port() -> None:
    """The end of the address is not taken for a port: the call ends with an answer."""
    client = HttpFacilitator("https://[fe80::abcd]", connect_s=1)
    assert client.verify(payload(), REQUIREMENTS).fault == "connect"


def test_logs_contain_no_payload(server: FacilitatorServer, client: HttpFacilitator) -> None:
    """No signature, wallet or free text of a facilitator appears in a log line."""
    server.plan("settle", faults.refuse("insufficient_funds"), faults.refuse("Traceback: secret text here"))
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            client.settle(payload(), REQUIREMENTS)
        client.supported()
    assert [line["event"] for line in lines] == ["facilitator.answered"] * 3
    assert [line["code"] for line in lines] == ["insufficient_funds", "", ""]
    text = json.dumps(lines)
    for private in (SECRET, PAYER, PAYEE, "Traceback"):
        assert private not in text


def test_only_calls_that_fail_or_take_long_are_logged(server: FacilitatorServer) -> None:
    """A payment that settles has a line of its own; a call without a clear yes is logged however quick."""
    steps, times = [0.0], [0.0]

    def clock() -> float:
        times[0] += steps[0]
        return times[0]

    client = HttpFacilitator(server.url, clock=clock)
    with structlog.testing.capture_logs() as lines:
        client.verify(payload(), REQUIREMENTS)
        client.settle(payload(), REQUIREMENTS)
        assert lines == []
        server.plan("verify", faults.garbage(), faults.refuse("insufficient_funds"), faults.drop(moves=False))
        for _ in range(3):
            client.verify(payload(), REQUIREMENTS)
        steps[0] = 0.5
        client.settle(payload(2), REQUIREMENTS)
    client.close()
    assert [line["event"] for line in lines] == ["facilitator.answered"] * 4
    assert [(line["operation"], line["status"]) for line in lines] == [
        ("verify", 200),
        ("verify", 200),
        ("verify", None),
        ("settle", 200),
    ]
    assert lines[3]["duration_ms"] >= 1_000


def test_static_headers_are_sent(server: FacilitatorServer) -> None:
    """Fixed headers go with every call."""
    client = HttpFacilitator(server.url, StaticAuth({"Authorization": "Bearer abc", "X-Seller": "7"}))
    client.verify(payload(), REQUIREMENTS)
    client.supported()
    for call in server.calls():
        assert call["headers"]["authorization"] == "Bearer abc" and call["headers"]["x-seller"] == "7"
    client.close()


def ed25519_secret(key: ed25519.Ed25519PrivateKey) -> str:
    """Return the key in Coinbase's format: base64 of seed and public key."""
    raw = serialization.Encoding.Raw
    seed = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    return base64.b64encode(
        seed + key.public_key().public_bytes(raw, serialization.PublicFormat.Raw)
    ).decode()


def pem_secret(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the key as PEM on several lines."""
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def cdp_keys() -> list[tuple[str, str, Any]]:
    """Return every key format with its algorithm and public key."""
    edwards, elliptic = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    pem = pem_secret(elliptic)
    return [
        ("EdDSA", ed25519_secret(edwards), edwards.public_key()),
        ("ES256", pem, elliptic.public_key()),
        ("ES256", pem.replace("\n", "\\n"), elliptic.public_key()),
    ]


@pytest.mark.parametrize(
    ("algorithm", "secret", "public"), cdp_keys(), ids=["ed25519", "pem", "pem-one-line"]
)
def test_cdp_token_is_bound_to_its_call(
    server: FacilitatorServer, algorithm: str, secret: str, public: Any
) -> None:
    """Each call carries a fresh JWT for its own method and URL, verifiable with the public key."""
    client = HttpFacilitator(f"{server.url}/", CdpAuth("key-1", secret))
    client.verify(payload(), REQUIREMENTS)
    client.settle(payload(), REQUIREMENTS)
    client.supported()
    host = server.url.removeprefix("http://")
    seen = set()
    for call, method in zip(server.calls(), ("POST", "POST", "GET"), strict=True):
        token = call["headers"]["authorization"].removeprefix("Bearer ")
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, public, algorithms=[algorithm])
        assert (header["alg"], header["kid"], header["typ"]) == (algorithm, "key-1", "JWT")
        assert len(header["nonce"]) == 16 and header["nonce"].isdigit()
        assert (claims["sub"], claims["iss"]) == ("key-1", "cdp")
        assert claims["exp"] - claims["nbf"] == 120
        assert claims["uris"] == [f"{method} {host}/{call['operation']}"]
        seen.add(header["nonce"])
    assert len(seen) == 3
    client.close()


def test_cdp_token_covers_the_base_path() -> None:
    """The path of the base URL is part of the token's scope."""
    auth = CdpAuth("key-1", cdp_keys()[0][1], now=lambda: 1_800_000_000.9)
    token = auth.token("POST", "https://api.cdp.coinbase.com/platform/v2/x402/settle")
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["uris"] == ["POST api.cdp.coinbase.com/platform/v2/x402/settle"]
    assert claims["nbf"] == 1_800_000_000


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "not base64!",
        base64.b64encode(b"x" * 32).decode(),
        "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----",
        pem_secret(ec.generate_private_key(ec.SECP384R1())),
        pem_secret(ec.generate_private_key(ec.SECP256K1())),
    ],
)
def test_wrong_cdp_key_fails_at_startup(secret: str) -> None:
    """A key of another type fails at worker startup, without showing the key."""
    with pytest.raises(ValueError, match="the key is neither") as caught:
        CdpAuth("key-1", secret)
    assert secret == "" or secret not in str(caught.value)


def control(url: str, method: str, document: Any = None) -> Any:
    """Call the fake's control route."""
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{url}/_control", data=data, method=method)
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


def test_fake_facilitator_is_controlled_over_http() -> None:
    """Run as a separate process, the fake takes faults, balances and resets over its control route."""
    command = [sys.executable, "-m", "tests.fakes.facilitator_server", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        client = HttpFacilitator(url, settle_s=5)
        control(url, "POST", {"operation": "settle", "faults": [{"kind": "drop", "moves": True}], "times": 1})
        assert settle(client, payload()) == SettlementUnknown("dropped")
        state = control(url, "GET")
        assert [call["fault"] for call in state["calls"]] == ["drop"]
        assert [moved["value"] for moved in state["transfers"]] == [10_000] and state["overlaps"] == 0
        control(url, "POST", {"balances": {PAYER: 9_999}})
        assert settle(client, payload(2)) == SettlementRefused("invalid_exact_evm_insufficient_balance")
        control(url, "DELETE")
        assert control(url, "GET")["calls"] == [] and isinstance(settle(client, payload(2)), Settled)
        client.close()
    finally:
        process.terminate()
        process.wait(5)
        if process.stdout is not None:
            process.stdout.close()


def test_fake_facilitator_counts_overlapping_settles(server: FacilitatorServer) -> None:
    """Two open settles of one authorization are counted; no worker may ever send them."""
    client = HttpFacilitator(server.url, settle_s=5)
    server.plan("settle", faults.hang())
    paid = payload()
    first = threading.Thread(target=client.settle, args=(paid, REQUIREMENTS))
    first.start()
    while not server.calls("settle"):
        time.sleep(0.01)
    client.settle(paid, REQUIREMENTS)
    server.release()
    first.join(5)
    assert server.overlaps == 1 and server.charged() == 10_000
    client.close()

"""Classifying facilitator answers; anything uncertain is unknown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.x402.facilitator_answers import (
    NONCE_USED_CODES,
    REFUSED_CODES,
    FacilitatorAnswer,
    Invalid,
    Settled,
    SettlementRefused,
    SettlementUnknown,
    Valid,
    VerificationUnknown,
    classify_settle,
    classify_verify,
    clean_code,
    supports,
)

HASH = "0x" + "cd" * 32


def settle(status: int | None, body: dict[str, Any] | None, *, earlier_unknown: bool = False) -> object:
    """Classify a settle answer."""
    return classify_settle(FacilitatorAnswer(status, body), earlier_unknown=earlier_unknown)


def refusal(code: str | None, **more: Any) -> dict[str, Any]:
    """Return the body of a refusal."""
    return {"success": False, "errorReason": code, "transaction": "", "network": "", **more}


@pytest.mark.parametrize("earlier_unknown", [False, True])
def test_success_with_a_hash_is_settled(earlier_unknown: bool) -> None:
    """A success with a transaction hash is final, even after an unknown call."""
    body = {"success": True, "transaction": HASH.upper().replace("0X", "0x"), "network": "eip155:84532"}
    assert settle(200, body, earlier_unknown=earlier_unknown) == Settled(HASH)


@pytest.mark.parametrize("transaction", ["", None, "pending", "0x12", HASH + "00", HASH[2:], 1, True, [HASH]])
def test_success_without_a_hash_is_unknown(transaction: Any) -> None:
    """Success without a transaction hash proves nothing."""
    for status in (200, 500):
        assert settle(status, {"success": True, "transaction": transaction}) == SettlementUnknown(
            "success_without_hash"
        )
    assert settle(200, {"success": True}) == SettlementUnknown("success_without_hash")


@pytest.mark.parametrize("status", [199, 301, 402, 500, 502])
def test_success_on_a_failing_status_is_unknown(status: int) -> None:
    """A body that contradicts its status is unknown, with the hash to look for."""
    assert settle(status, {"success": True, "transaction": HASH}) == SettlementUnknown(f"http_{status}", HASH)


@pytest.mark.parametrize("status", [200, 400, 402, 403, 412])
@pytest.mark.parametrize("code", sorted(REFUSED_CODES))
def test_listed_code_is_refused(status: int, code: str) -> None:
    """Listed codes are believed on 2xx and 4xx without a transaction, and only without an earlier unknown."""
    for empty in (refusal(code), refusal(code, transaction=None), {"success": False, "errorReason": code}):
        assert settle(status, empty) == SettlementRefused(code)
        assert settle(status, empty, earlier_unknown=True) == SettlementUnknown(code)


@pytest.mark.parametrize("transaction", [HASH, "0x12", "pending", " ", 0, False, [], {}])
def test_a_refusal_with_any_transaction_is_unknown(transaction: Any) -> None:
    """A refusal with any value for the transaction is not believed."""
    found = settle(200, refusal("insufficient_funds", transaction=transaction))
    assert found == SettlementUnknown("insufficient_funds", HASH if transaction == HASH else None)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599, 600, 301, 302, 199])
def test_a_refusal_on_another_status_is_unknown(status: int) -> None:
    """A gateway or a crash may have cut an answer short: 5xx and 3xx refuse nothing."""
    assert settle(status, refusal("insufficient_funds")) == SettlementUnknown("insufficient_funds")
    assert settle(status, refusal(None)) == SettlementUnknown(f"http_{status}")


@pytest.mark.parametrize(
    "code",
    [
        "settlement_pending",
        "settle_exact_evm_transaction_confirmation_timed_out",
        "settle_exact_node_failure",
        "settle_exact_failed_onchain",
        "invalid_exact_evm_failed_to_get_receipt",
        "invalid_exact_evm_failed_to_execute_transfer",
        "invalid_exact_evm_transaction_failed",
        "invalid_exact_evm_transaction_simulation_failed",
        "invalid_exact_evm_transfer_event_mismatch",
        "invalid_exact_evm_nonce_already_used",
        "invalid_transaction_state",
        "transaction_failed",
        "unexpected_settle_error",
        "unexpected_verify_error",
        "unknown_error",
        "node_failure",
        "duplicate_settlement",
        "preflight_validation_failed",
        "smart_wallet_deployment_failed",
        "a_code_of_next_year",
        "Insufficient_Funds",
        "insufficient_funds ",
    ],
)
def test_ambiguous_codes_are_unknown(code: str) -> None:
    """Every unlisted code is unknown, even without a transaction and on a clean 200."""
    found = settle(200, refusal(code))
    assert isinstance(found, SettlementUnknown) and found.transaction is None


def test_pending_on_a_500_keeps_its_hash() -> None:
    """Coinbase reports settlement_pending with status 500; the hash is kept for the chain lookup."""
    body = refusal("settlement_pending", transaction=HASH)
    assert settle(500, body) == SettlementUnknown("settlement_pending", HASH)


def test_used_nonce_is_reported() -> None:
    """A used nonce is never a refusal: the transfer may be ours, or the payer's own."""
    for code in NONCE_USED_CODES:
        for earlier in (False, True):
            assert settle(200, refusal(code), earlier_unknown=earlier) == SettlementUnknown(
                code, None, nonce_used=True
            )
    assert not NONCE_USED_CODES & REFUSED_CODES


@pytest.mark.parametrize("success", [None, "true", "false", 0, 1, "", [], {}])
def test_non_boolean_success_is_unknown(success: Any) -> None:
    """Only true and false are answers."""
    body = {"success": success, "errorReason": "insufficient_funds", "transaction": ""}
    assert settle(200, body) == SettlementUnknown("http_200")
    assert settle(200, {"errorReason": "insufficient_funds"}) == SettlementUnknown("http_200")


@pytest.mark.parametrize(
    "code", [None, "", 7, ["insufficient_funds"], {"insufficient_funds": 1}, "x" * 121, "a b"]
)
def test_a_refusal_without_a_code_is_unknown(code: Any) -> None:
    """A missing code, or text that is not a code, refuses nothing."""
    assert settle(200, {"success": False, "errorReason": code, "transaction": ""}) == SettlementUnknown(
        "no_reason"
    )


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (FacilitatorAnswer(fault="timeout"), "timeout"),
        (FacilitatorAnswer(fault="dropped"), "dropped"),
        (FacilitatorAnswer(fault="connect"), "connect"),
        (FacilitatorAnswer(200, fault="garbage"), "garbage"),
        (FacilitatorAnswer(200, fault="too_large"), "too_large"),
        (FacilitatorAnswer(502, fault="garbage"), "http_502"),
        (FacilitatorAnswer(401, fault="empty"), "http_401"),
        (FacilitatorAnswer(), "no_answer"),
    ],
)
def test_no_answer_is_unknown(answer: FacilitatorAnswer, cause: str) -> None:
    """No answer or garbage is unknown for a settle and no verdict for a verify."""
    assert classify_settle(answer, earlier_unknown=False) == SettlementUnknown(cause)
    assert classify_verify(answer) == VerificationUnknown(cause)


json_values = st.none() | st.booleans() | st.integers() | st.text() | st.just(HASH) | st.lists(st.text())


@given(
    status=st.none() | st.integers(0, 700),
    success=json_values,
    code=json_values | st.sampled_from(sorted(REFUSED_CODES)),
    transaction=json_values,
    earlier_unknown=st.booleans(),
)
def test_only_certain_answers_are_final(
    status: int | None, success: Any, code: Any, transaction: Any, earlier_unknown: bool
) -> None:
    """Settled needs true and a hash; refused needs a listed code, no transaction and no earlier unknown."""
    body = {"success": success, "errorReason": code, "transaction": transaction}
    found = settle(status, body, earlier_unknown=earlier_unknown)
    if isinstance(found, Settled):
        assert success is True and transaction == HASH and status is not None and 200 <= status < 300
    elif isinstance(found, SettlementRefused):
        assert success is False and code in REFUSED_CODES and transaction in (None, "")
        assert not earlier_unknown and status is not None
        assert 200 <= status < 300 or 400 <= status < 500
    else:
        assert isinstance(found, SettlementUnknown) and found.cause


def test_a_valid_payment() -> None:
    """Only the boolean true in isValid, on 2xx, is valid."""
    assert classify_verify(FacilitatorAnswer(200, {"isValid": True, "payer": "0x"})) == Valid()
    for wrong in ("true", 1, None):
        assert classify_verify(FacilitatorAnswer(200, {"isValid": wrong})) == VerificationUnknown("http_200")
    assert classify_verify(FacilitatorAnswer(500, {"isValid": True})) == VerificationUnknown("http_500")
    assert classify_verify(FacilitatorAnswer(302, {"isValid": True})) == VerificationUnknown("http_302")


@pytest.mark.parametrize("status", [200, 400, 402])
def test_an_invalid_payment(status: int) -> None:
    """A verdict is read on 2xx and 4xx alike, with its code and a used-nonce flag."""
    body = {"isValid": False, "invalidReason": "insufficient_funds"}
    assert classify_verify(FacilitatorAnswer(status, body)) == Invalid("insufficient_funds")
    used = {"isValid": False, "invalidReason": "invalid_exact_evm_nonce_already_used"}
    assert classify_verify(FacilitatorAnswer(status, used)) == Invalid(
        "invalid_exact_evm_nonce_already_used", True
    )
    assert classify_verify(FacilitatorAnswer(status, {"isValid": False})) == Invalid("unspecified")
    failed = {"isValid": False, "invalidReason": "invalid_exact_evm_failed_to_parse_signature"}
    assert isinstance(classify_verify(FacilitatorAnswer(status, failed)), Invalid)


@pytest.mark.parametrize(
    "code",
    [
        "unexpected_verify_error",
        "unknown_error",
        "node_failure",
        "invalid_exact_evm_failed_to_get_balance",
        "invalid_exact_evm_failed_to_get_network_config",
        "invalid_exact_evm_failed_to_verify_signature",
        "settlement_pending",
    ],
)
def test_failed_verification_is_no_verdict(code: str) -> None:
    """Codes for the facilitator's own errors, and any 5xx, are no verdict on the payment."""
    assert classify_verify(
        FacilitatorAnswer(200, {"isValid": False, "invalidReason": code})
    ) == VerificationUnknown(code)
    assert classify_verify(
        FacilitatorAnswer(503, {"isValid": False, "invalidReason": "x"})
    ) == VerificationUnknown("http_503")


def test_billing_error_is_no_verdict() -> None:
    """A 402 about our own account says nothing about the seeker's payment."""
    assert classify_verify(FacilitatorAnswer(402, {"errorType": "payment_required"})) == VerificationUnknown(
        "http_402"
    )


def test_supported_networks_are_read() -> None:
    """Only V2 exact on exactly this network counts."""
    kind = {"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}
    assert supports(FacilitatorAnswer(200, {"kinds": [None, {}, kind]}), "eip155:84532")
    assert not supports(FacilitatorAnswer(200, {"kinds": [kind]}), "eip155:8453")
    assert not supports(FacilitatorAnswer(200, {"kinds": [{**kind, "x402Version": 1}]}), "eip155:84532")
    assert not supports(FacilitatorAnswer(200, {"kinds": "exact"}), "eip155:84532")
    assert not supports(FacilitatorAnswer(500, {"kinds": [kind]}), "eip155:84532")
    assert not supports(FacilitatorAnswer(fault="timeout"), "eip155:84532")


def test_only_error_codes_are_passed_on() -> None:
    """Third-party text is never stored or shown: a code is a short word, or it is dropped."""
    assert clean_code("insufficient_funds") == "insufficient_funds"
    for foreign in ("Traceback (most recent call last)", "a\nb", "", "x" * 121, None, 5, "code\n"):
        assert clean_code(foreign) == ""

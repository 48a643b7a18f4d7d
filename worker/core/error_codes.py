"""Register of every error code a caller can receive. `make docs` renders it as docs/errors.md.

A test finds every code used in the source and checks that the register is complete and has no unused rows.
An entry has three lines: code, statuses and charged; what it means; what to do. `charged` says whether
money moved when a request ends with this code:

    never     no money moved
    record    see `charged` in the answer, or the task's record
    depends   no if nothing was paid; after a payment the answer says null: send the same request again

Codes of failed executions and of the buying side are in failure_codes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Charged(StrEnum):
    NEVER = "never"
    RECORD = "record"
    DEPENDS = "depends"


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One code. Different doors, or the same door at different moments, may use different statuses."""

    code: str
    statuses: tuple[int, ...]
    charged: Charged
    meaning: str
    advice: str


def read_register(text: str) -> tuple[ErrorCode, ...]:
    """Parses the entries of a register from its text form."""
    lines = text.strip().splitlines()
    return tuple(_entry(*lines[at : at + 3]) for at in range(0, len(lines), 3))


def _entry(head: str, meaning: str, advice: str) -> ErrorCode:
    code, *statuses, charged = head.split()
    return ErrorCode(code, tuple(map(int, statuses)), Charged(charged), meaning.strip(), advice.strip())


ANY_REQUEST = read_register("""
INVALID_REQUEST 400 422 never
    The request is malformed: its JSON, a header or a field has the wrong form.
    Fix the field that the answer names and send the request again.
AMOUNT_INVALID 400 never
    An amount is not a plain decimal with at most six places.
    Write it as text, such as "0.5".
URL_REFUSED 400 never
    The worker does not call this URL: it is not https, or its host is not public.
    Give an https URL of a public host.
UNAUTHORIZED 401 never
    The credentials are missing or wrong, or a remote agent's session has ended.
    Send valid credentials; a remote agent connects again.
FORBIDDEN 403 never
    The credentials are valid, but do not allow this.
    Use other credentials.
NOT_FOUND 404 depends
    There is no such route, execution or file, or it belongs to somebody else.
    Check the address and the id.
METHOD_NOT_ALLOWED 405 never
    The route exists, but not with this method.
    Use a method listed in the Allow header.
REQUEST_TIMEOUT 408 depends
    The body of the request took too long to arrive.
    Send the whole body at once.
CONFLICT 409 never
    The current state does not allow this.
    Read the current state first.
TOO_LARGE 413 never
    The body exceeds the limit of this route.
    Send a smaller body.
FILE_TOO_LARGE 413 record
    A file exceeds the size limit of a deliverable.
    Deliver several smaller files.
UNSUPPORTED_MEDIA_TYPE 415 never
    The body is not JSON.
    Send application/json.
RATE_LIMITED 429 depends
    Too many requests, or too many failed attempts to log in.
    Wait as long as Retry-After says.
TRIALS_USED_UP 429 never
    The test dollars that a page lends its visitors are spent for today.
    Come back tomorrow, or hire with your own wallet.
HEADERS_TOO_LARGE 431 never
    The headers of the request are too large.
    Send fewer or shorter headers.
INTERNAL_ERROR 500 depends
    A bug, or an agent that raised an error of its own.
    Try again later; if it persists, tell the operator the request id.
SERVICE_UNAVAILABLE 503 depends
    The worker cannot do this right now.
    Send the same request again after Retry-After.
STORE_UNAVAILABLE 503 depends
    The worker's store is unavailable.
    Send the same request again after Retry-After; it is idempotent.
STORAGE_UNAVAILABLE 503 depends
    File storage is unavailable.
    Send the same request again after Retry-After.
UNREACHABLE 503 depends
    Another server, such as the facilitator or a webhook's host, gave no usable answer.
    Try again later; if it is your own host, check that it answers.
TIMED_OUT 503 depends
    Another server took too long; it may have received the call.
    Try again later.
""")

CONTRACTS = read_register("""
MISSING_CONTRACT_ID 400 never
    The request has no X-Contract-ID header.
    Send the id of a signed contract in X-Contract-ID.
CONTRACT_NOT_FOUND 404 depends
    No such contract is known here, or it is past its retention.
    PUT the signed contract to /contracts again; for a new one POST a draft first.
CONTRACT_NOT_SIGNED 403 409 never
    The worker has signed the contract and waits for the seeker's signature.
    Sign the hash and PUT the whole document to /contracts.
CONTRACT_EXPIRED 410 depends
    The contract's deadline has passed.
    Draft a new contract.
CONTRACT_ID_USED 409 never
    Another contract has this id.
    Choose another contract id.
CONTRACT_ID_WEAK 422 never
    The contract id is too easy to guess; whoever guesses it could read the result.
    Use ctr_ and 26 random letters and digits.
CONTRACT_HASH_MISMATCH 422 never
    The hash does not match the document.
    Send the document exactly as it was signed.
CONTRACT_PARTY_MISMATCH 403 422 never
    The contract names another worker, or a wallet that is not an address.
    Take the parties from the worker's manifest and draft again.
SIGNATURE_INVALID 403 never
    A signature is invalid, or made by another wallet.
    Sign the hash with the wallet that the contract names.
SIGNING_UNAVAILABLE 503 never
    The worker has no key to sign with.
    Tell the operator to set WORKER_KEY.
VERSION_UNSUPPORTED 422 never
    The contract follows another version of HIRE.
    Draft it in the version that the answer names.
TERMS_REFUSED 422 never
    The worker does not sign these terms.
    Change the term that the answer names and send the draft again.
CAPABILITY_AMBIGUOUS 422 never
    The worker sells several capabilities and the contract names none.
    Name one of them in task.capability.
CAPABILITY_UNAVAILABLE 422 503 depends
    The capability does not exist here (422), or no agent serves it now (503).
    Choose one that the manifest lists, or try again later.
PRICE_TOO_LOW 422 never
    The contract's price is below the capability's.
    Offer at least the price in the manifest.
CURRENCY_UNSUPPORTED 422 never
    The worker is paid in USDC only.
    Set terms.price.currency to USDC.
NETWORK_UNSUPPORTED 422 never
    The worker is paid on another network.
    Use a network that the answer lists.
UNSUPPORTED_PAYMENT_TRIGGER 422 never
    The worker signs only contracts that are paid on delivery.
    Set terms.payment_trigger to on_delivery.
SETTLEMENT_UNSUPPORTED 422 never
    The capability does not settle at the time that the terms require.
    Use a value that the answer lists.
CREATED_AT_OUT_OF_WINDOW 422 never
    created_at is more than ten minutes away from the worker's time.
    Check your clock and draft again.
DEADLINE_TOO_SOON 409 422 never
    The deadline leaves too little time for the work and its settlement.
    Draft a contract with a later deadline.
DEADLINE_TOO_FAR 422 never
    The deadline is more than seven days away.
    Draft a contract with an earlier deadline.
LATENCY_TOO_SHORT 422 never
    The promised latency is shorter than the capability allows.
    Set sla.max_latency_ms to at least the value in the answer.
TOO_MANY_RETRIES 422 never
    The contract asks for more free retries than the worker grants.
    Lower sla.retry_policy.
PLATFORM_FEE_TOO_HIGH 422 never
    The platform fee is higher than the worker accepts.
    Lower terms.platform_fee.percentage.
PLATFORM_FEE_UNPAYABLE 422 never
    The platform fee has no wallet that can be paid.
    Name an address in terms.platform_fee.wallet.
REFUND_CONDITION_UNSUPPORTED 422 never
    The worker does not promise a refund for this condition.
    Use the conditions that the answer lists.
SCHEMA_REFUSED 422 never
    A JSON Schema is too large, refers to another document, or cannot be compiled.
    Send a smaller, self-contained schema, or {} for none.
""")

PAYMENTS = read_register("""
PAYMENT_REQUIRED 402 never
    The task has not been paid for.
    Sign a payment for the offer in PAYMENT-REQUIRED and send the same request again.
PAYMENT_INVALID 400 402 never
    The payment is malformed, differs from the offer, or was refused by the facilitator.
    Sign a new payment for the offer in PAYMENT-REQUIRED.
PAYMENT_PAYER_MISMATCH 402 never
    The payment comes from another wallet than the contract's seeker.
    Sign it with the wallet that the contract names.
PAYMENT_SETTLEMENT_FAILED 402 never
    The settlement was refused and no money moved; a result that is ready stays sealed.
    Fix the cause (often the balance) and pay again; finished work is not repeated.
PAYMENT_USED 409 depends
    This payment belongs to another contract.
    Sign a new payment for this contract.
PAYMENT_IDENTIFIER_USED 409 never
    The payment-identifier was used with another payment.
    Choose another identifier.
SIGN_IN_REQUIRED 401 record
    The payment has gone to the chain, where everybody can read it, so it opens no result.
    Read the task with its token, or sign in with the wallet that paid (sign-in-with-x).
SIGN_IN_INVALID 401 never
    The SIGN-IN-WITH-X header does not prove a wallet, or was used before.
    Sign a fresh challenge from GET /tasks or a 402.
STILL_WORKING 504 record
    The completion takes longer than the request waits; the work goes on, and so does its payment.
    Read the task at poll_url with its task_token, or ask with stream=true.
TOO_MANY_PAYMENTS 409 never
    Too many payments for this contract have failed.
    Draft a new contract.
IDEMPOTENCY_CONFLICT 409 record
    The contract was already used with another input.
    Send the first input again to get its result; another input needs another contract.
EVIDENCE_NOT_READY 409 record
    The task has not ended, so there is no evidence of it yet.
    Poll the task; ask again once it has ended.
RESULT_EXPIRED 410 record
    The contract has ended and its result has been deleted.
    Keep the receipt; new work needs a new contract.
WINDOW_TOO_SHORT 409 never
    The work and its settlement would exceed the longest payment window.
    Try again when the queue is shorter.
SLA_UNREACHABLE 409 never
    The queue is too long for the latency that the contract promises.
    Draft a contract with more time, or try again later.
WORKER_BUSY 503 depends
    No room for the work now, or a possible payment is being looked up.
    Send the same request again after Retry-After; sign no other payment meanwhile.
UNPAID_WORK_LIMIT 503 depends
    This wallet, or all wallets that have never paid, have too much unpaid work.
    Send the same request again after Retry-After.
TASK_NOT_FOUND 404 depends
    No such task is known here, or the contract id does not belong to it.
    Check both ids, or send the request to /execute again.
SEALED 403 record
    The file can be fetched only after its payment has settled.
    Poll the task; the same URL works once it is completed.
FILE_NOT_FOUND 404 record
    The file does not exist, or its URL has expired.
    Check the address and its end date.
CANCEL_FORFEITS_PAYMENT 409 record
    The work was paid for and has begun; a cancel would end it without a refund.
    Wait for the result, or DELETE again with ?forfeit=true.
""")

SWARM_AND_KERNEL = read_register("""
VALIDATION_ERROR 400 413 422 never
    The kernel door's code for a request that is malformed or too large.
    Fix the request.
POLICY_BINDING_INVALID 400 never
    The worker does not evaluate this policy binding.
    Send a binding that the answer lists as accepted.
UNKNOWN_PROFILE 400 never
    The agent has no such profile.
    Use a profile that the answer lists.
UNKNOWN_TASK_TYPE 400 never
    No agent serves this task type.
    Use a task type that the answer lists.
TASK_EXPIRED 422 never
    The task has expired.
    Create a new task with a later expiry_ms.
SCHEMA_UNSATISFIABLE 422 never
    No answer can satisfy the task's output_schema.
    Correct task_contract.output_schema.
INVALID_OUTPUT 400 502 never
    The agent's answer cannot be sent as a candidate.
    Run the task again, or change output_schema.
STILL_RUNNING 503 never
    The task runs longer than this request waits.
    Post the same request again to get its result.
STILL_WAITING 503 never
    The task still waits for a place.
    Post the same request again to keep its place.
OVERLOADED 503 never
    No place became free in time.
    Run the task again, as a new one.
DAILY_LIMIT 503 never
    The kernel has used up its executions for today.
    Try again tomorrow (UTC), or ask the operator for a higher limit.
""")

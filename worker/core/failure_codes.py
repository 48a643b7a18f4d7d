"""Second half of the register: failed executions, the buying side and the operator's commands.

Failed executions list the statuses of the HIRE door first, then those of the swarm door where they differ.
An author's agent may define its own codes; the register has those of the agents that ship.
"""

from __future__ import annotations

from worker.core.error_codes import (
    ANY_REQUEST,
    CONTRACTS,
    PAYMENTS,
    SWARM_AND_KERNEL,
    ErrorCode,
    read_register,
)

FAILED_EXECUTIONS = read_register("""
INVALID_INPUT 422 record
    The input is not valid for the capability; an agent may report this during the work.
    Correct the named field and send the request again.
AGENT_FAILED 500 502 record
    The remote agent reported a failure.
    Read the message; a new contract may succeed.
CANCELLED 409 record
    The task was cancelled by its seeker or the operator.
    Start a new one if it is still wanted.
DEADLINE_MISSED 410 409 record
    The work was not finished before the contract's deadline.
    Draft a contract with a later deadline.
DUPLICATE_FILE 500 502 record
    The agent delivered two files of the same name.
    Tell the operator: the agent has a bug.
EXECUTION_TIMEOUT 504 record
    The work exceeded its time limit.
    Try again, or send a smaller input.
STEP_TIMEOUT 504 record
    A tool call exceeded its time limit.
    Try again.
SLA_TIMEOUT 504 record
    The work exceeded the latency that the contract promises.
    Draft a contract with a longer latency, or try again.
LOG_FULL 500 502 record
    The execution's log has no room for more steps or waits.
    Send a smaller input; tell the operator.
NOT_POSSIBLE 500 502 record
    The agent asked for a signal, an approval or a runner, which are not available here.
    Tell the operator.
NOT_REPLAYABLE 500 502 record
    After an interruption the agent did not repeat its earlier steps, or was replaced.
    Start a new task.
OUTPUT_INVALID 500 400 502 record
    The agent returned something that cannot be delivered.
    Try again; if it persists, tell the operator.
OUTPUT_SCHEMA_INVALID 500 400 502 record
    The agent's output does not fit the promised schema.
    Try again, or change the contract's output schema.
OUTPUT_TOO_LARGE 500 502 record
    The agent's streamed output exceeds the size limit.
    Ask for a shorter output.
PAYMENT_MISSING 500 never
    The payment did not arrive in time; the result was discarded.
    Start a new contract.
TOOL_DENIED 500 403 record
    The tool policy refused a call that the agent needs.
    Change the input; the operator decides what is allowed.
TOOL_FAILED 500 503 record
    A tool used up its tries.
    Try again.
TRANSIENT_FAILURE 503 record
    A temporary failure persisted through all allowed attempts.
    Try again later.
WAIT_EXPIRED 500 502 record
    No answer to the agent's question arrived in time.
    Start a new task and answer sooner.
WORKER_CRASHED 503 record
    The process that did the work was lost too often.
    Try again; if it persists, tell the operator.
UNSATISFIABLE_SCHEMA 500 400 record
    The brief agent cannot fill the output schema truthfully.
    Correct the output schema, or allow an answer that abstains.
CHAT_EMPTY 500 502 record
    The model gave no answer.
    Try again.
CHAT_INTERRUPTED 500 502 record
    The model's answer ended early.
    Try again.
CHAT_INVALID 500 502 record
    The model's endpoint answered in an unknown format.
    Try again; if it persists, tell the operator.
CHAT_NOT_CONFIGURED 500 502 record
    The chat agent's endpoint or model is not configured correctly.
    Tell the operator.
CHAT_REJECTED 500 502 record
    The model's endpoint refused this conversation.
    Change the conversation.
CHAT_TOO_LONG 500 502 record
    The conversation or the model's answer is too long.
    Shorten the conversation, or ask for a shorter answer.
CHAT_UNAUTHORIZED 500 502 record
    The model's endpoint refused the worker's credentials or account.
    Tell the operator.
""")

BUYING_SIDE = read_register("""
OFFER_REFUSED 402 never
    The worker's offer differs from the contract. No payment was signed.
    Ask the worker's operator, or hire another worker.
CONTRACT_REFUSED 422 never
    The worker did not sign the draft as sent. The seeker signed nothing.
    Draft again, or hire another.
SPEND_CAP_REACHED 402 never
    The payment would exceed the cap. No payment was signed.
    Raise the cap, or wait until earlier payments can no longer be taken.
WORKER_REFUSED 422 never
    The worker refused the request and took no payment.
    Fix what the message names.
PAYMENT_REFUSED 402 never
    The payment was refused and no money moved.
    Fix the cause (often the balance) and retry.
PAYMENT_UNKNOWN 503 depends
    A payment was sent and its outcome is unknown.
    Run the same command again: it sends the identical payment, which can be taken only once.
TASK_FAILED 500 record
    The work failed.
    Read the details; `charged` says whether you paid.
WORKER_UNREACHABLE 503 never
    The worker does not answer. No payment was sent.
    Try again later.
CERTIFICATE_UNTRUSTED 502 never
    The worker's certificate is not trusted. Nothing was sent.
    Check the address; for a private certificate authority set SSL_CERT_FILE.
ANSWER_UNREADABLE 502 depends
    The worker's answer does not follow the protocol.
    Check the address; tell the worker's operator.
CHECKSUM_MISMATCH 502 record
    A deliverable does not match its size or digest.
    Fetch it again; if it stays wrong, keep the receipt and tell the worker's operator.
RECEIPT_INVALID 502 record
    The work was delivered, but the receipt does not prove the payment.
    Keep the answer and ask the worker for a proper receipt.
HOST_NOT_ALLOWED 403 never
    The purse's rules do not allow it to pay this host.
    Add the host to the purse's hosts if it is meant.
SPENDING_DECLINED 403 never
    The amount is above the purse's limit for asking, and nobody agreed.
    Ask whoever owns the purse.
ALREADY_BOUGHT 409 record
    The purchase with this key is paid, and the seller does not answer it again.
    Use the answer that was received; a new key is a new purchase.
EVIDENCE_INVALID 422 record
    A file of evidence has a wrong signature or digest, or a part of it is missing.
    Fetch it again from the worker; if it stays wrong, do not rely on it.
PURCHASE_BUSY 409 record
    Another process is working on this purchase.
    Wait until it has ended.
NOT_SAVED 500 record
    The result is paid for but cannot be written to disk.
    Run the command again with another --out; it makes no second payment.
""")

OPERATORS = read_register("""
CHAIN_UNAVAILABLE 503 depends
    The chain could not be asked, or its answer cannot be trusted.
    Check RPC_URL. No payment was changed.
INVALID_POLICY 500 never
    The tool policy has errors.
    Correct the lines named; `worker policy check` reads a policy without starting.
WRONG_DATA_VERSION 503 never
    This release cannot use the data in the store.
    Deploy the release that the message names.
WEBHOOK_KEY_INVALID 422 never
    WEBHOOK_KEY is not an ed25519 key.
    Set whsk_ and the base64 of the key.
WEBHOOK_SECRET_INVALID 422 never
    The secret of a webhook is invalid.
    Give whsec_ and the base64 of 24 to 64 random bytes.
NOT_BUILT 500 never
    `worker init` could not build a wheel of the checkout that it runs from.
    Build one by hand (pip wheel --no-deps .) and name it with --package.
NOT_PROVEN 500 never
    `worker local --prove` found that the worker does not keep its promises.
    Look at the lines above it and at the log.
""")

REGISTER: dict[str, tuple[ErrorCode, ...]] = {
    "Any request": ANY_REQUEST,
    "Contracts": CONTRACTS,
    "Payments and results": PAYMENTS,
    "Swarm and kernel doors": SWARM_AND_KERNEL,
    "Failed executions": FAILED_EXECUTIONS,
    "The buying side (`worker hire`, `worker.seeker`)": BUYING_SIDE,
    "The operator's commands": OPERATORS,
}

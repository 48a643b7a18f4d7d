"""The plain door on a real store: quotes, purchases, replays and read access to results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_worker import PaidWorker, in_threads
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer, decoded, encoded
from tests.waiting import eventually
from worker.delivery.outbox import LeasedNotice, Notice
from worker.x402.sign_in import SIGN_IN

PRICE = 10_000
BODY = {"do": "ok", "text": "wörld"}


def buyer(paid_worker: PaidWorker, capability: str = "echo") -> PlainBuyer:
    return PlainBuyer(paid_worker.seeker(), capability)


def ended(buyer: PlainBuyer, task_id: str, token: str) -> DoorAnswer:
    """Polls until the task has ended and returns that response."""
    found: list[DoorAnswer] = []

    def over() -> bool:
        found.append(buyer.read(task_id, Authorization=f"Bearer {token}"))
        return bool(found[-1].json["status"] in ("completed", "failed"))

    eventually(over, 20, "the end of the task")
    return found[-1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("content_type", ["", "application/json", "text/plain"])
def test_an_empty_request_gets_the_offer(paid_worker: PaidWorker, method: str, content_type: str) -> None:
    """A request without payment or body, as crawlers send it, gets the full 402 for any content type."""
    door = buyer(paid_worker).seeker.door
    headers = {"Content-Type": content_type} if content_type else {}
    answer = door(method, "/buy/echo", None, headers)
    assert answer.status == 402
    required = answer.payment_required
    assert required["accepts"][0]["amount"] == str(PRICE)
    assert required["resource"]["url"].endswith("/buy/echo")
    assert {"payment-identifier", SIGN_IN} <= required["extensions"].keys()
    assert len(answer.header("PAYMENT-REQUIRED") or "") < 5_000
    assert method == "HEAD" or answer.json["x402Version"] == 1


def test_an_unpaid_request_is_checked_before_money(paid_worker: PaidWorker) -> None:
    """Invalid input is 422, an unknown capability 404, other content 415; valid input gets the 402."""
    plain = buyer(paid_worker)
    assert plain.ask(["a", "list"]).status == 422
    assert plain.ask(BODY).status == 402
    assert PlainBuyer(plain.seeker, "nothing").ask(BODY).status == 404
    answer = plain.ask(BODY, Content_Type="text/plain")
    assert answer.status == 415 and answer.header("PAYMENT-REQUIRED") is None


def test_asking_leaves_nothing_in_the_store(paid_worker: PaidWorker) -> None:
    """A 402 is built from the catalog alone, including its sign-in challenge."""
    plain = buyer(paid_worker)
    plain.ask(BODY)

    def names() -> set[bytes]:
        return {name for name in paid_worker.client.scan_iter() if b":rate:" not in name}

    before = names()
    assert plain.ask(BODY).status == 402 and plain.ask().status == 402
    assert names() == before


def test_receipt_names_the_address_of_the_purchase(paid_worker: PaidWorker) -> None:
    """Also for a V1 client, whose payments cannot name it."""
    plain = buyer(paid_worker)
    signed = decoded(plain.sign(BODY))["payload"]
    payment = {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": signed}
    answer = plain.ask(BODY, X_PAYMENT=encoded(payment))
    assert answer.status == 200
    assert answer.json["receipt"]["payload"]["resourceUrl"].endswith("/buy/echo")


def test_a_payment_buys_the_result(paid_worker: PaidWorker) -> None:
    """The response has the output, a receipt for this URL and the task's token; the wallet paid once."""
    plain = buyer(paid_worker)
    answer = plain.buy(BODY)
    assert answer.status == 200, answer.content
    body = answer.json
    assert body["status"] == "completed" and body["output"]["content"]["asked"] == BODY
    assert "contract_id" not in body and body["task_token"].startswith("tok_")
    assert body["receipt"]["payload"]["resourceUrl"].endswith("/buy/echo")
    response = answer.payment_response
    assert response is not None and response["success"] is True
    assert paid_worker.charged(plain.wallet) == PRICE
    record = paid_worker.execution(body["task_id"])
    assert record.door == "buy" and record.labels["payer"] == plain.wallet.lower()


def test_twenty_copies_are_one_purchase(paid_worker: PaidWorker) -> None:
    """Parallel copies of one request are claimed, run and settled once; no copy gets another 402."""
    plain = buyer(paid_worker)
    body = {"do": "sleep", "seconds": 0.5}
    payment = plain.sign(body)
    answers = in_threads(*[lambda: plain.send(body, payment, Prefer="wait=10")] * 20)
    assert {answer.status for answer in answers} <= {200, 202, 401}
    done = [answer.json for answer in answers if answer.status == 200]
    assert done and len({each["output"]["content"]["run"] for each in done}) == 1
    id = done[0]["task_id"]
    assert paid_worker.runs(id) == 1 and paid_worker.settles(plain.wallet) == 1
    assert paid_worker.charged(plain.wallet) == PRICE


def test_a_payment_is_bound_to_capability_and_input(paid_worker: PaidWorker) -> None:
    """The same payment with another body or at another URL is 409 and moves nothing."""
    plain = buyer(paid_worker)
    payment = plain.sign(BODY)
    assert plain.send(BODY, payment).status == 200
    for other, body in ((plain, {"do": "other"}), (PlainBuyer(plain.seeker, "long"), BODY)):
        answer = other.send(body, payment)
        assert (answer.status, answer.code) == (409, "IDEMPOTENCY_CONFLICT"), answer.content
        assert answer.header("PAYMENT-REQUIRED") is None and b'"output"' not in answer.content
    hired = plain.seeker.hire()
    assert hired.execute(BODY, payment).json["details"]["field"] == "resource.url"
    assert paid_worker.charged(plain.wallet) == PRICE


def test_a_settled_header_opens_nothing(paid_worker: PaidWorker) -> None:
    """A replayed settled payment gets the receipt and sign-in instructions, never result or token."""
    plain = buyer(paid_worker)
    payment = plain.sign(BODY)
    bought = plain.send(BODY, payment).json
    replay = plain.send(BODY, payment)
    assert (replay.status, replay.code) == (401, "SIGN_IN_REQUIRED")
    details = replay.json["error"]["details"]
    assert details["receipt"] == bought["receipt"] and details["charged"] is True
    assert replay.payment_response is not None and replay.payment_response["success"] is True
    assert replay.header("PAYMENT-REQUIRED") is None
    for secret in (bought["task_token"], bought["output"]["content"]["run"]):
        assert secret.encode() not in replay.content
    signed_in = plain.send(BODY, payment, SIGN_IN_WITH_X=plain.proof(details["extensions"][SIGN_IN]))
    assert signed_in.status == 200 and signed_in.json == bought
    assert paid_worker.charged(plain.wallet) == PRICE


def test_a_secret_identifier_recovers_a_lost_answer(paid_worker: PaidWorker) -> None:
    """The identical request with an unguessable identifier gets the stored response, even once expired."""
    plain = buyer(paid_worker)
    payment = plain.sign(BODY, identifier="pay_7d5d747be160e280504c099d984bcfe0")
    first = plain.send(BODY, payment)
    again = plain.send(BODY, payment)
    assert (again.status, again.content) == (200, first.content)
    assert again.header("Idempotent-Replayed") == "true"
    assert again.payment_response == first.payment_response
    other = plain.sign(BODY, identifier="pay_7d5d747be160e280504c099d984bcfe0")
    answer = plain.send(BODY, other)
    assert (answer.status, answer.code) == (409, "PAYMENT_IDENTIFIER_USED")
    # A guessable identifier names the purchase but is no credential.
    payment = plain.sign(BODY, identifier="order-number-00000001")
    assert plain.send(BODY, payment).status == 200
    assert plain.send(BODY, payment).code == "SIGN_IN_REQUIRED"
    assert paid_worker.charged(plain.wallet) == 2 * PRICE


def test_a_task_is_read_with_its_token(paid_worker: PaidWorker) -> None:
    """Long work answers 202 with a token, which is required for polling, streaming and cancelling."""
    plain = buyer(paid_worker, "long")
    body = {"do": "sleep", "seconds": 0.2}
    answer = plain.buy(body, Prefer="respond-async")
    assert answer.status == 202 and answer.header("Retry-After")
    pending = answer.json
    assert answer.header("Location") == pending["poll_url"] and pending["stream_url"]
    id, token = pending["task_id"], pending["task_token"]
    for headers in ({}, {"Authorization": "Bearer tok_0"}, {"X_Contract_ID": token}, {"X_Contract_ID": id}):
        assert plain.read(id, **headers).status == 404
    done = ended(plain, id, token)
    assert done.json["status"] == "completed" and done.json["task_token"] == token
    stream = plain.seeker.door("GET", f"/stream/{id}", None, {"Authorization": f"Bearer {token}"})
    assert b"execution.completed" in stream.content
    assert plain.seeker.door("GET", f"/stream/{id}").status == 404


def test_a_payer_signs_in(paid_worker: PaidWorker) -> None:
    """A proof by the payer's wallet lists its tasks and opens one, once, for that wallet only."""
    plain, stranger = buyer(paid_worker), buyer(paid_worker)
    bought = plain.buy(BODY).json
    proof = plain.proof()
    listed = plain.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": proof})
    assert [each["task_id"] for each in listed.json["tasks"]] == [bought["task_id"]]
    assert plain.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": proof}).code == "SIGN_IN_INVALID"
    assert plain.read(bought["task_id"], SIGN_IN_WITH_X=plain.proof()).json == bought
    assert stranger.read(bought["task_id"], SIGN_IN_WITH_X=stranger.proof()).status == 404
    listed = stranger.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": stranger.proof()})
    assert listed.json == {"tasks": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"domain": "evil.example"},
        {"uri": "https://evil.example"},
        {"chainId": "eip155:1"},
        {"nonce": "0" * 32},
        {"issuedAt": "2020-01-01T00:00:00Z"},
        {"expirationTime": "2020-01-01T00:00:00Z"},
        {"notBefore": "2199-01-01T00:00:00Z"},
        {"notBefore": "soon"},
        {"statement": "x\nURI: y"},
        {"address": "0x" + "12" * 20},
    ],
)
def test_a_proof_of_something_else_is_refused(paid_worker: PaidWorker, wrong: dict[str, Any]) -> None:
    """A wrong origin, chain, nonce, time or wallet is 401, even if the signature matches the text."""
    plain = buyer(paid_worker)
    answer = plain.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": plain.proof(**wrong)})
    assert (answer.status, answer.code) == (401, "SIGN_IN_INVALID"), answer.content


def test_a_challenge_expires(paid_worker: PaidWorker) -> None:
    """A challenge is invalid five minutes after its issue."""
    plain = buyer(paid_worker)
    proof = plain.proof()
    paid_worker.jump(301)
    assert plain.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": proof}).code == "SIGN_IN_INVALID"


def test_failed_work_costs_nothing(paid_worker: PaidWorker) -> None:
    """A failure, including input found invalid late, ends the purchase: no charge and no second run."""
    plain = buyer(paid_worker)
    for body, status in (({"do": "fail"}, 500), ({"do": "invalid"}, 422)):
        payment = plain.sign(body)
        answer = plain.send(body, payment)
        assert answer.status == status and answer.json["error"]["details"]["charged"] is False
        again = plain.send(body, payment)
        assert (again.status, again.header("Idempotent-Replayed")) == (status, "true")
        assert paid_worker.runs(answer.json["task_id"]) == 1
    assert paid_worker.charged(plain.wallet) == 0 and paid_worker.settles(plain.wallet) == 0


def test_work_paid_before_it_is_refunded_when_it_fails(paid_worker: PaidWorker) -> None:
    """A capability that settles first says so in its 402; a failure owes a full refund."""
    plain = buyer(paid_worker, "early")
    assert "before the work begins" in plain.ask().payment_required["resource"]["description"]
    answer = plain.buy({"do": "fail"}, Prefer="wait=10")
    details = answer.json["error"]["details"]
    assert details["charged"] is True and details["refund"]["amount"] == 20_000


def test_a_lost_settlement_is_found_and_paid_once(paid_worker: PaidWorker) -> None:
    """The facilitator settles and its response is lost: one charge, and the payer gets the result."""
    plain = buyer(paid_worker)
    paid_worker.fault("settle", plain.wallet, faults.drop(moves=True))
    answer = plain.buy(BODY, Prefer="wait=1")
    body = answer.json
    done = body if answer.status == 200 else ended(plain, body["task_id"], body["task_token"]).json
    assert done["status"] == "completed"
    assert paid_worker.charged(plain.wallet) == PRICE


def test_a_refused_settlement_delivers_nothing(paid_worker: PaidWorker) -> None:
    """402 without any part of the result, also for the identical request; a new payment buys anew."""
    plain = buyer(paid_worker)
    payment = plain.sign(BODY)
    paid_worker.fault("settle", plain.wallet, faults.refuse("insufficient_funds"))

    def answered() -> DoorAnswer | None:
        # In a store that has just started the record first waits for a comparison with the chain.
        answer = plain.send(BODY, payment)
        return None if answer.code == "WORKER_BUSY" else answer

    for _ in range(2):
        answer = eventually(answered, 30, "an answer from the record")
        assert answer is not None
        assert (answer.status, answer.code) == (402, "PAYMENT_SETTLEMENT_FAILED"), answer.content
        assert b'"run"' not in answer.content
        assert answer.payment_required["resource"]["url"].endswith("/buy/echo")
    assert plain.buy(BODY).status == 200
    assert paid_worker.charged(plain.wallet) == PRICE


def test_the_price_may_depend_on_the_input(paid_worker: PaidWorker) -> None:
    """The author's function prices each input; an empty request is quoted the maximum, more is refused."""
    plain = buyer(paid_worker, "by-length")

    def asked(body: Any) -> str:
        return str(plain.ask(body).payment_required["accepts"][0]["amount"])

    body = {"text": "seven.."}
    assert (asked(None), asked(body)) == ("50000", "7000")
    answer = plain.buy(body)
    assert answer.status == 200, answer.content
    assert paid_worker.charged(plain.wallet) == 7_000
    cheaper = plain.send({"text": "eight..."}, plain.sign(body))
    assert cheaper.status == 402 and cheaper.payment_required["accepts"][0]["amount"] == "8000"
    for body in ({"text": "x" * 51}, {"text": ""}):
        answer = plain.ask(body)
        assert (answer.status, answer.code) == (503, "WORKER_BUSY")
    assert paid_worker.charged(plain.wallet) == 7_000


def test_a_webhook_tells_the_end_without_a_credential(paid_worker: PaidWorker) -> None:
    """The body names the task, but neither a contract nor the task's token."""
    plain = buyer(paid_worker)
    refused = plain.ask(BODY, X_Webhook_URL="ftp://buyer.example/hook")
    assert refused.status == 400 and refused.header("PAYMENT-REQUIRED") is None
    bought = plain.buy(BODY).json
    webhooks = paid_worker.parts.webhooks
    assert webhooks is not None
    notice = Notice(bought["task_id"], "completed", 0)
    body = webhooks.body(LeasedNotice(notice, 1, 0, 1, None, paid_worker.execution(bought["task_id"])))
    assert json.loads(body)["task_id"] == bought["task_id"] and b"contract_id" not in body
    assert bought["task_token"].encode() not in body


def test_a_forged_copy_learns_nothing_before_settlement(paid_worker: PaidWorker) -> None:
    """Payer and nonce without the payer's signature are no credential, even while the work runs."""
    plain = buyer(paid_worker, "long")
    body = {"do": "sleep", "seconds": 1.0}
    payment = plain.sign(body)
    pending = plain.send(body, payment, Prefer="respond-async").json
    assert plain.send(body, payment, Prefer="respond-async").json["task_token"] == pending["task_token"]
    document = decoded(payment)
    document["payload"]["signature"] = "0x" + "11" * 64 + "1b"
    forged = plain.send(body, encoded(document), Prefer="respond-async")
    assert (forged.status, forged.code) == (401, "SIGN_IN_REQUIRED")
    assert forged.json["status"] == "pending" and pending["task_token"].encode() not in forged.content
    assert ended(plain, pending["task_id"], pending["task_token"]).json["status"] == "completed"


def test_a_refused_payment_leaves_nothing_for_long(paid_worker: PaidWorker) -> None:
    """A payment refused by the facilitator is 402, and its record expires with the authorization."""
    plain = buyer(paid_worker)
    payment = plain.sign(BODY)
    paid_worker.fault("verify", plain.wallet, faults.refuse("insufficient_funds"))
    answer = plain.send(BODY, payment)
    assert (answer.status, answer.code) == (402, "PAYMENT_INVALID"), answer.content
    listed = plain.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": plain.proof()}).json["tasks"]
    valid_before = int(decoded(payment)["payload"]["authorization"]["validBefore"])
    ends_by = paid_worker.stored(listed[0]["task_id"], "ends_by")
    assert ends_by <= (valid_before + 90) * 1_000_000

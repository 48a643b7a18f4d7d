"""`/v1/chat/completions` sells the chat agent in the form that OpenAI clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import DoorAnswer
from tests.waiting import eventually
from worker.doors import chat

PRICE = 50_000
WORDS = "a lighthouse, at night"
ANSWER = f"You said: {WORDS}"


class ChatBuyer(PlainBuyer):
    """A wallet that buys completions."""

    @property
    def path(self) -> str:
        return "/v1/chat/completions"


def request(said: str = WORDS, **more: Any) -> dict[str, Any]:
    return {"model": "m-1", "messages": [{"role": "user", "content": said}], **more}


def pieces(answer: DoorAnswer) -> list[dict[str, Any]]:
    """The stream's chunks, without its heartbeats and end."""
    lines = [line[6:] for line in answer.content.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.fixture(name="buyer")
def _buyer(paid_worker: PaidWorker) -> ChatBuyer:
    return ChatBuyer(paid_worker.seeker())


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_empty_request_gets_this_address_offer(buyer: ChatBuyer, method: str) -> None:
    """The 402 names this URL; catalogs list the capability's own address instead."""
    answer = buyer.seeker.door(method, buyer.path)
    assert answer.status == 402
    required = answer.payment_required
    assert required["resource"]["url"].endswith("/v1/chat/completions")
    assert required["accepts"][0]["amount"] == str(PRICE)
    assert "bazaar" not in required["extensions"] and "offer-receipt" in required["extensions"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"model": "m-2"}, "model"),
        ({"tools": []}, "tools"),
        ({"n": 2}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ],
)
def test_what_chat_cannot_do_is_refused_before_money(
    buyer: ChatBuyer, wrong: dict[str, Any], field: str
) -> None:
    """Unsupported parameters and other models are 422 without an offer, and name the field."""
    answer = buyer.ask(request() | wrong)
    assert answer.status == 422 and answer.header("PAYMENT-REQUIRED") is None
    assert answer.json["error"]["details"]["field"] == field
    assert answer.json["error"]["details"]["charged"] is False


def test_a_conversation_of_very_many_values_is_not_read(buyer: ChatBuyer) -> None:
    """A body is refused by its number of values before it costs the door anything."""
    answer = buyer.ask(request() | {"messages": [{}] * 3_000})
    assert answer.status == 413 and answer.header("PAYMENT-REQUIRED") is None


def test_a_payment_buys_a_completion(paid_worker: PaidWorker, buyer: ChatBuyer) -> None:
    """The answer is a chat.completion; the task is a purchase like any other, charged once."""
    answer = buyer.buy(request(max_completion_tokens=20))
    assert answer.status == 200, answer.content
    body = answer.json
    assert body["object"] == "chat.completion" and body["model"] == "m-1"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": ANSWER}
    response = answer.payment_response
    assert response is not None and response["success"] is True
    assert paid_worker.charged(buyer.wallet) == PRICE
    task = buyer.read(body["task_id"], Authorization=f"Bearer {body['task_token']}").json
    assert task["receipt"]["payload"]["resourceUrl"].endswith("/v1/chat/completions")


def test_a_stream_is_paid_for_and_then_sent(paid_worker: PaidWorker, buyer: ChatBuyer) -> None:
    """The settlement's headers come first, then the text in order, then the end."""
    answer = buyer.buy(request(stream=True))
    assert answer.status == 200 and (answer.header("Content-Type") or "").startswith("text/event-stream")
    response = answer.payment_response
    assert response is not None and response["success"] is True
    chunks = pieces(answer)
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == ANSWER
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert paid_worker.charged(buyer.wallet) == PRICE


def test_text_parts_and_developers_are_understood(buyer: ChatBuyer) -> None:
    """Content in parts is joined, and a developer's message is the system's."""
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "lighthouse"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    answer = buyer.buy({"model": "chat", "messages": messages})
    assert answer.json["choices"][0]["message"]["content"] == "You said: a lighthouse"


def test_paid_requests_are_not_repeated_by_the_client(paid_worker: PaidWorker, buyer: ChatBuyer) -> None:
    """Answers to paid requests tell OpenAI clients not to retry, since a retry would buy again."""
    payment = buyer.sign(request())
    assert buyer.ask(request()).header("X-Should-Retry") is None
    assert buyer.send(request(), payment).header("X-Should-Retry") == "false"
    other = buyer.send(request("something else"), payment)
    assert (other.status, other.code, other.header("X-Should-Retry")) == (
        409,
        "IDEMPOTENCY_CONFLICT",
        "false",
    )
    again = buyer.send(request(), payment)
    assert (again.status, again.code) == (401, "SIGN_IN_REQUIRED")
    assert paid_worker.charged(buyer.wallet) == PRICE


def test_a_slow_completion_is_read_later(
    paid_worker: PaidWorker, buyer: ChatBuyer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer takes too long, 504 says where it will be; nothing is lost or paid twice."""
    monkeypatch.setattr(chat, "WAIT_SECONDS", 0.5)
    answer = buyer.buy(request("be slow"))
    assert (answer.status, answer.code) == (504, "STILL_WORKING")
    assert answer.header("X-Should-Retry") == "false"
    body = answer.json
    credential = {"Authorization": f"Bearer {body['task_token']}"}
    eventually(
        lambda: buyer.read(body["task_id"], **credential).json["status"] == "completed",
        30,
        "the completion",
    )
    assert paid_worker.charged(buyer.wallet) == PRICE


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_that_breaks_off_is_refunded(
    paid_worker: PaidWorker, buyer: ChatBuyer, stream: bool
) -> None:
    """A failure after payment is an error in OpenAI's form, also in mid-stream, and owed back."""
    answer = buyer.buy(request("break off", stream=stream))
    error = pieces(answer)[-1]["error"] if stream else answer.json["error"]
    assert error["code"] == "CHAT_INTERRUPTED"
    assert not answer.content.endswith(b"[DONE]\n\n")
    id = pieces(answer)[0]["task_id"] if stream else answer.json["task_id"]
    assert paid_worker.money(id).payments[0].refund

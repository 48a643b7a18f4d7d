"""HIRE 06's failure example, as the shipped logo agent returns it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e.hire.hire_session import HireSession, hire_tree

BRIEF = "Create a minimalist logo for TechStartup Inc"
# The published response, without the contract id.
FAILURE = """{
  "status": "failed",
  "contract_id": "%s",
  "error": {
    "code": "INVALID_INPUT",
    "message": "Color format not recognized",
    "details": {
      "field": "colors[0]",
      "expected": "hex color",
      "received": "red"
    }
  }
}"""


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with the shipped agents."""
    agents = "worker.shipped.logo_design,hire_agents"
    with hire_tree(tmp_path_factory.mktemp("worker"), WORKER_ENV="test", WORKER_AGENTS=agents) as session:
        yield session


def internal(session: HireSession) -> int:
    """The number of the worker's internal executions in the store."""
    return int(session.store.zcard(session.keys.by_door("internal")))  # type: ignore[arg-type]


def test_invalid_colour_is_refused_before_payment_with_the_published_error(session: HireSession) -> None:
    """The published bytes, plus only whether it was charged and what to do; no 402 first."""
    contract = session.contract("logo-design", price="0.50")
    reply = session.execute(contract, {"brief": BRIEF, "colors": ["red"]})
    body = reply.json()
    assert reply.status_code == 422 and "PAYMENT-REQUIRED" not in reply.headers
    details = body["error"]["details"]
    assert (details.pop("charged"), bool(details.pop("advice"))) == (False, True)
    assert json.dumps(body, indent=2) == FAILURE % contract
    assert internal(session) == 0, "what nobody paid for is not kept"


def test_corrected_input_can_be_bought(session: HireSession) -> None:
    """The same contract with a valid colour gets its 402, and the payment buys the logos."""
    contract = session.contract("logo-design", price="0.50")
    input = {"brief": BRIEF, "colors": ["#FF5733", "#333333"]}
    assert session.execute(contract, input | {"colors": ["#FF5733", "blue"]}).status_code == 422
    reply = session.buy(contract, input)
    assert reply.status_code == 200 and len(reply.json()["deliverables"]) == 3


def test_first_request_with_a_payment_is_validated_too(session: HireSession) -> None:
    """Invalid input is refused even with a payment; the payment stays unused."""
    contract = session.contract("logo-design", price="0.50")
    payment = session.sign(session.execute(contract, {"brief": BRIEF}))
    reply = session.execute(contract, {"brief": BRIEF, "colors": ["red"]}, payment=payment)
    assert (reply.status_code, reply.json()["error"]["details"]["charged"]) == (422, False)
    assert session.execute(contract, {"brief": BRIEF}, payment=payment).status_code == 200


def test_hanging_author_check_is_stopped(session: HireSession) -> None:
    """An author's check that never ends is stopped: 503 within seconds, no 402, and the door stays open."""
    stuck = session.contract("hung-check")
    fine = session.contract("text")
    began = time.monotonic()
    reply = session.execute(stuck, {})
    took = time.monotonic() - began
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY")
    assert "PAYMENT-REQUIRED" not in reply.headers and took < 30
    assert session.execute(fine, {"text": "x"}).status_code == 402


def test_crashing_author_check_reveals_nothing(session: HireSession) -> None:
    """A bug in an author's check is not reported as an input error, and its text stays internal."""
    reply = session.execute(session.contract("broken-check"), {"secret": "s3cret"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "WORKER_BUSY")
    assert "s3cret" not in reply.text and "KeyError" not in reply.text

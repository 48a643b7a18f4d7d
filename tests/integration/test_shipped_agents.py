"""The shipped agents, tested with `worker.testing` as authors test theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import worker.shipped as shipped
from tests.fakes import openai_server as upstream
from tests.fakes.openai_server import DONE, event, serving
from worker.capabilities.declare import REGISTRY
from worker.shipped.chat import register
from worker.testing import run


@pytest.mark.parametrize(
    ("name", "price", "example"),
    [
        ("brief", "0.10", shipped.brief.EXAMPLE_OUTPUT),
        ("code-review", None, shipped.code_review.EXAMPLE_OUTPUT),
        ("explain-code", None, None),
        ("logo-design", "0.50", None),
    ],
)
def test_each_does_its_published_example_for_its_price(name: str, price: str | None, example: object) -> None:
    """The manifest's example completes, with the output shown in the manifest."""
    done = run(name)
    assert done.state == "completed", done.error
    assert done.charge == (price or REGISTRY.capabilities[name].price) != "0"
    assert example is None or done.output == example


def test_logos_are_files() -> None:
    """Three drawings, each delivered as SVG, with progress events."""
    done = run("logo-design", {"brief": "Acme"})
    assert list(done.files) == ["logo_v1.svg", "logo_v2.svg", "logo_v3.svg"]
    assert all(file.mime == "image/svg+xml" and "<svg" in file.text for file in done.files.values())
    assert done.progress[-1] == (1.0, "three logos are ready")


def test_walk_through_is_a_stream() -> None:
    """The streamed text is also delivered as a whole."""
    done = run("explain-code", {"code": "x = 1"})
    assert done.said == done.files["output.txt"].text != ""


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("logo-design", {"brief": "Acme", "colors": ["reddish"]}),
        ("code-review", {}),
        ("brief", {"prompt": 5}),
    ],
)
def test_unfit_input_costs_nothing(name: str, given: object) -> None:
    """Refused by schema or check, before any payment."""
    done = run(name, given)
    assert (done.state, done.charge, done.error["code"]) == ("refused", "0", "INVALID_INPUT")


def test_brief_abstains_for_a_kernel() -> None:
    """In a swarm it answers another task with confidence 0; hired, it refuses the same."""
    task = {"prompt": "What is the capital of France?"}
    answer = run("brief", task, swarm={}, stage="EXPLORE", output_schema=shipped.brief.OUTPUT_SCHEMA).output
    assert (answer["answer"], answer["confidence"]) == (shipped.brief.ABSTENTION, 0)
    assert run("brief", task).error["code"] == "INVALID_INPUT"


@pytest.fixture(name="chat")
def _chat() -> Iterator[None]:
    """The chat agent, declared as if an endpoint were configured."""
    assert register({"CHAT_BASE_URL": "http://127.0.0.1:9/v1", "CHAT_MODEL": "m-1"})
    yield
    del REGISTRY.capabilities["chat"]


def test_chat_streams_and_is_tried_again(chat: None) -> None:
    """Tokens are streamed; an unreachable endpoint costs attempts, but no time in a test."""
    with serving(upstream.streams(event("Hel"), event("lo", "stop"), DONE)) as server:
        settings = {"CHAT_BASE_URL": server.url, "CHAT_MODEL": "m-1"}
        done = run("chat", {"prompt": "hi"}, settings=settings)
        assert (done.state, done.said, done.charge) == ("completed", "Hello", "0.05")
    gone = run("chat", {"prompt": "hi"}, settings=settings)
    assert (gone.state, gone.error["code"], gone.attempts, gone.charge) == (
        "failed",
        "TRANSIENT_FAILURE",
        3,
        "0",
    )

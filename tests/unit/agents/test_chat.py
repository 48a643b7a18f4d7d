"""The chat agent against an endpoint on the loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import openai_server as upstream
from tests.fakes.job import FakeJob, run
from tests.fakes.openai_server import DONE, event, serving
from worker.agents.shipped import completions
from worker.agents.shipped.chat import MAX_CHARS, chat, register, request_body
from worker.errors import Failed, InvalidInput, Transient

KEY = "sk-very-secret-key"


def talk(url: str, given: Any = None, seconds: float = 10, **settings: Any) -> list[str]:
    chosen = {"CHAT_BASE_URL": url, "CHAT_MODEL": "m-1", "CHAT_API_KEY": KEY, **settings}
    job = FakeJob(given or {"prompt": "hello"}, settings=chosen, seconds=seconds)
    return run(chat, job)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reply", [upstream.streams, upstream.chunked])
def test_tokens_arrive_one_by_one(reply: Any) -> None:
    """Each event's text is a chunk of the stream, in order, however the bytes are framed."""
    with serving(reply(event("Hel"), event("lo"), event(""), event(None, "stop"), DONE)) as server:
        assert talk(server.url) == ["Hel", "lo"]


def test_request_is_what_the_dialect_asks() -> None:
    """The conversation, model and limits are sent with the key as bearer to /chat/completions."""
    with serving(upstream.streams(event("ok", "stop"), DONE)) as server:
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
        talk(server.url + "/", {"messages": messages, "max_tokens": 5, "temperature": 0})
        path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"messages": messages, "max_tokens": 5, "temperature": 0, "model": "m-1", "stream": True}


def test_no_key_sends_no_header() -> None:
    """An endpoint without a key gets no authorization header."""
    with serving(upstream.streams(event("ok", "stop"))) as server:
        assert talk(server.url, CHAT_API_KEY="") == ["ok"]
        assert "Authorization" not in server.requests[0][1]


def test_characters_split_between_packets_stay_whole() -> None:
    """A character cut in two by the network, odd line ends and comments do no harm."""
    raw = (
        event("é🦄") + b": keep-alive\n\n" + b"id: 7\nevent: x\n" + event("!", "stop").replace(b"\n", b"\r\n")
    )
    pieces = [raw[i : i + 3] for i in range(0, len(raw), 3)]
    with serving(upstream.streams(*pieces, DONE)) as server:
        assert talk(server.url) == ["é🦄", "!"]


def test_endpoints_that_do_not_stream_are_understood() -> None:
    """A whole JSON answer becomes one chunk."""
    whole = {"choices": [{"message": {"role": "assistant", "content": "all at once"}}]}
    with serving(upstream.answers(whole)) as server:
        assert talk(server.url) == ["all at once"]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_busy_endpoints_are_a_passing_fault(status: int) -> None:
    """Too many requests and server errors are worth another try, after the time they ask for."""
    with serving(upstream.refuses(status, b'{"error":"quota of org-77"}', Retry_After="7")) as server:
        with pytest.raises(Transient) as caught:
            talk(server.url)
        assert caught.value.retry_after == 7
        assert "org-77" not in str(caught.value)


@pytest.mark.parametrize(("header", "seconds"), [("999999", 60), ("-5", None), ("soon", None), ("²", None)])
def test_odd_retry_after_is_bounded_or_ignored(header: str, seconds: float | None) -> None:
    """An endpoint cannot make us wait for ever, nor break us with a header that is no number."""
    with serving(upstream.refuses(503, Retry_After=header)) as server:
        with pytest.raises(Transient) as caught:
            talk(server.url)
        assert caught.value.retry_after == seconds


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "CHAT_REJECTED"),
        (401, "CHAT_UNAUTHORIZED"),
        (403, "CHAT_UNAUTHORIZED"),
        (404, "CHAT_NOT_CONFIGURED"),
        (413, "CHAT_TOO_LONG"),
        (418, "CHAT_REJECTED"),
        (422, "CHAT_REJECTED"),
        (204, "CHAT_REJECTED"),
    ],
)
def test_refusals_are_final_and_keep_secrets(status: int, code: str) -> None:
    """A 4xx ends the task with a code; neither the key nor the endpoint's words are in it."""
    body = json.dumps({"error": {"message": f"bad key {KEY} of customer 4711"}}).encode()
    with serving(upstream.refuses(status, b"" if status == 204 else body)) as server:
        with pytest.raises(Failed) as caught:
            talk(server.url)
        failed = caught.value
    assert failed.code == code and failed.details == {"upstream_status": status}
    shown = f"{failed} {failed.message} {failed.details}"
    assert KEY not in shown and "4711" not in shown and "127.0.0.1" not in shown
    assert failed.__cause__ is None


def test_redirects_are_not_followed() -> None:
    """A redirect would carry the key elsewhere: it is refused and the other place is never asked."""
    with serving(upstream.streams(event("stolen", "stop"))) as other:
        away = upstream.refuses(307, Location=other.url + "/chat/completions")
        with serving(away) as server, pytest.raises(Failed) as caught:
            talk(server.url)
        assert caught.value.code == "CHAT_REJECTED" and other.requests == []


@pytest.mark.parametrize(
    "pieces",
    [
        (event("Hel"),),
        (event("Hel"), b'data: {"choices":[{"delta":{"conte'),
        (event("Hel"), b'data: {"error":{"message":"overloaded sk-very-secret-key"}}\n\n'),
    ],
)
def test_answers_that_break_off_end_the_task(pieces: tuple[bytes, ...]) -> None:
    """An answer that stops after its first word is neither taken for a whole one nor patched."""
    with serving(upstream.streams(*pieces)) as server, pytest.raises(Failed) as caught:
        talk(server.url)
    assert caught.value.code in {"CHAT_INTERRUPTED", "CHAT_INVALID"} and KEY not in str(caught.value)


@pytest.mark.parametrize(
    "pieces", [(), (event(""),), (b'data: {"error":{"message":"overloaded"}}\n\n',), (b": hello\n\n",)]
)
def test_streams_that_break_before_a_word_are_a_passing_fault(pieces: tuple[bytes, ...]) -> None:
    """As long as nobody has read a word, another try is worth it."""
    with serving(upstream.streams(*pieces)) as server, pytest.raises(Transient):
        talk(server.url)


def test_another_run_does_not_continue_an_answer() -> None:
    """After a crash in the middle the new run, whose words would differ, ends: nothing is spliced."""
    with serving(upstream.streams(event("Hel"), event("lo", "stop"))) as server:
        settings = {"CHAT_BASE_URL": server.url, "CHAT_MODEL": "m"}
        first = FakeJob({"prompt": "a"}, settings=settings)
        assert next(chat(first)) == "Hel"
        again = FakeJob({"prompt": "a"}, settings=settings, kept=first.kept)
        with pytest.raises(Failed) as caught:
            run(chat, again)
    assert caught.value.code == "CHAT_INTERRUPTED"


def test_cut_off_chunks_are_a_break() -> None:
    """A chunked body without its last chunk is not the end of an answer."""

    def reply(handler: upstream.Handler) -> None:
        handler.begin(200, "text/event-stream", Transfer_Encoding="chunked")
        handler.write(b"ffff\r\n" + event("Hel"))

    with serving(reply) as server, pytest.raises(Failed) as caught:
        talk(server.url)
    assert caught.value.code == "CHAT_INTERRUPTED"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (upstream.streams(b"data: not json\n\n"), "CHAT_INVALID"),
        (upstream.streams(b"data: [1,2]\n\n"), "CHAT_INVALID"),
        (upstream.streams(b"data: " + b"[" * 100_000 + b"\n\n"), "CHAT_INVALID"),
        (upstream.streams(event("", "stop"), DONE), "CHAT_EMPTY"),
        (upstream.streams(b"data: {}\n\n", b'data: {"choices":[5]}\n\n', DONE), "CHAT_EMPTY"),
        (upstream.answers({"choices": []}), "CHAT_INVALID"),
        (upstream.answers({"choices": [{"message": {"content": None}}]}), "CHAT_INVALID"),
        (upstream.answers({"choices": [{"message": {"content": ""}}]}), "CHAT_EMPTY"),
        (upstream.answers("text"), "CHAT_INVALID"),
        (upstream.refuses(200, b"<html>"), "CHAT_INVALID"),
    ],
)
def test_nonsense_is_refused(reply: Any, code: str) -> None:
    """What is not the dialect ends with a code, and never as an answer."""
    with serving(reply) as server, pytest.raises(Failed) as caught:
        talk(server.url)
    assert caught.value.code == code


def test_endless_lines_and_answers_are_cut_off() -> None:
    """An endpoint that never ends a line, an event or an answer is stopped."""
    blob = b"a" * 100_000
    with serving(upstream.streams(b"data: ", *[blob] * 12)) as server, pytest.raises(Failed) as line:
        talk(server.url)
    assert line.value.code == "CHAT_INVALID"
    with (
        serving(upstream.streams(*[b"data: " + blob + b"\n"] * 12)) as server,
        pytest.raises(Failed) as block,
    ):
        talk(server.url)
    assert block.value.code == "CHAT_INVALID"
    with serving(upstream.streams(*[event("b" * 100_000)] * 12)) as server, pytest.raises(Failed) as answer:
        talk(server.url)
    assert answer.value.code == "CHAT_TOO_LONG"


def test_a_silent_endpoint_is_left_in_time() -> None:
    """An endpoint that takes the request and says nothing costs no more than the time left."""
    with serving(upstream.hangs()) as server, pytest.raises(Transient):
        talk(server.url, seconds=2.3)


def test_a_trickling_endpoint_is_left_in_time() -> None:
    """Bytes that keep coming do not extend the time: the deadline counts, not the pause between bytes."""
    clock = iter([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    with serving(upstream.trickles(b": wait\n\n", 0.01)) as server:
        endpoint = completions.Endpoint(url=server.url + "/chat/completions", model="m")
        with pytest.raises(Transient, match="too slow"):
            list(completions.stream(endpoint, {"messages": []}, lambda: next(clock, 0.0)))


def test_no_time_left_asks_nobody() -> None:
    """Without time for an answer the endpoint is not asked at all."""
    with serving(upstream.streams(event("x", "stop"))) as server:
        with pytest.raises(Transient):
            talk(server.url, seconds=1.0)
        assert server.requests == []


def test_unreachable_endpoint_is_a_passing_fault_without_address() -> None:
    """A refused connection is worth another try, and the address is not shown."""
    with serving(upstream.streams()) as server:
        url = server.url
    with pytest.raises(Transient) as caught:
        talk(url)
    assert "127.0.0.1" not in str(caught.value) and caught.value.__cause__ is None


def test_key_is_not_in_any_representation() -> None:
    """An endpoint that lands in a log or a traceback does not show its key."""
    assert KEY not in repr(completions.Endpoint("https://x", "m", KEY))


@pytest.mark.parametrize(
    "settings",
    [
        {"CHAT_BASE_URL": "ftp://example.com"},
        {"CHAT_BASE_URL": "https://"},
        {"CHAT_BASE_URL": "https://user:pw@example.com"},
        {"CHAT_BASE_URL": "http://[::1"},
        {"CHAT_BASE_URL": 5},
        {"CHAT_MODEL": ""},
        {"CHAT_API_KEY": "a\r\nX-Evil: 1"},
        {"CHAT_API_KEY": "ключ"},
    ],
)
def test_bad_configuration_is_said_without_details(settings: dict[str, Any]) -> None:
    """A wrong setting ends the task as not configured; its value is not told."""
    with pytest.raises(Failed) as caught:
        talk("http://127.0.0.1:9", **settings)
    assert caught.value.code == "CHAT_NOT_CONFIGURED" and "evil" not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], ""),
        ({"x": 1}, "prompt"),
        ({"prompt": "a", "messages": []}, "prompt"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "a" * (MAX_CHARS + 1)}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}] * 101}, "messages"),
        ({"messages": [{"role": "user", "content": "a" * 150_000}] * 2}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a", "name": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1e9}, "max_tokens"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ],
)
def test_wrong_input_is_refused_before_anybody_is_asked(given: Any, field: str) -> None:
    """A conversation that is not one is refused by its field, without repeating what was said."""
    with pytest.raises(InvalidInput) as caught:
        request_body(given)
    assert caught.value.details["field"] == field
    assert len(str(caught.value.details)) < 200


def test_chat_is_offered_only_where_configured() -> None:
    """Without an endpoint or a model nothing is registered."""
    assert register({}) is False
    assert register({"CHAT_BASE_URL": "https://x"}) is False
    assert register({"CHAT_MODEL": "m"}) is False


def test_settings_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is the default; a profile's settings name another model."""
    with serving(upstream.streams(event("ok", "stop"))) as server:
        monkeypatch.setenv("CHAT_BASE_URL", server.url)
        monkeypatch.setenv("CHAT_MODEL", "from-environment")
        monkeypatch.delenv("CHAT_API_KEY", raising=False)
        run(chat, FakeJob({"prompt": "a"}))
        run(chat, FakeJob({"prompt": "a"}, settings={"CHAT_MODEL": "from-profile"}))
        assert [body["model"] for _, _, body in server.requests] == ["from-environment", "from-profile"]

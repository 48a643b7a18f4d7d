"""The chat agent against an endpoint on loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import openai_server as upstream
from tests.fakes.job import FakeJob, run
from tests.fakes.openai_server import DONE, event, serving
from worker.core.errors import Failed, InvalidInput, Transient
from worker.shipped import completions
from worker.shipped.chat import MAX_CHARS, chat, register, request_body

KEY = "sk-very-secret-key"


def talk(url: str, input: Any = None, seconds: float = 10, **settings: Any) -> list[str]:
    chosen = {"CHAT_BASE_URL": url, "CHAT_MODEL": "m-1", "CHAT_API_KEY": KEY, **settings}
    job = FakeJob(input or {"prompt": "hello"}, settings=chosen, seconds=seconds)
    return run(chat, job)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reply", [upstream.streams, upstream.chunked])
def test_tokens_arrive_one_by_one(reply: Any) -> None:
    """Each event's text is one chunk of the stream, in order, however the bytes are split."""
    with serving(reply(event("Hel"), event("lo"), event(""), event(None, "stop"), DONE)) as server:
        assert talk(server.url) == ["Hel", "lo"]


def test_request_matches_the_openai_api() -> None:
    """The request to /chat/completions has the conversation, model and limits, and the key as bearer."""
    with serving(upstream.streams(event("ok", "stop"), DONE)) as server:
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]
        talk(server.url + "/", {"messages": messages, "max_tokens": 5, "temperature": 0})
        path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"messages": messages, "max_tokens": 5, "temperature": 0, "model": "m-1", "stream": True}


def test_no_key_sends_no_authorization_header() -> None:
    """An endpoint without a key gets no Authorization header."""
    with serving(upstream.streams(event("ok", "stop"))) as server:
        assert talk(server.url, CHAT_API_KEY="") == ["ok"]
        assert "Authorization" not in server.requests[0][1]


def test_utf8_split_between_packets_is_joined() -> None:
    """A character split between packets, unusual line ends and comments are handled."""
    raw = (
        event("é🦄") + b": keep-alive\n\n" + b"id: 7\nevent: x\n" + event("!", "stop").replace(b"\n", b"\r\n")
    )
    pieces = [raw[i : i + 3] for i in range(0, len(raw), 3)]
    with serving(upstream.streams(*pieces, DONE)) as server:
        assert talk(server.url) == ["é🦄", "!"]


def test_non_streaming_endpoints_are_supported() -> None:
    """A whole JSON answer becomes one chunk."""
    whole = {"choices": [{"message": {"role": "assistant", "content": "all at once"}}]}
    with serving(upstream.answers(whole)) as server:
        assert talk(server.url) == ["all at once"]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_busy_endpoint_is_a_transient_failure(status: int) -> None:
    """429 and server errors are transient; their Retry-After is honoured."""
    with serving(upstream.refuses(status, b'{"error":"quota of org-77"}', Retry_After="7")) as server:
        with pytest.raises(Transient) as caught:
            talk(server.url)
        assert caught.value.retry_after == 7
        assert "org-77" not in str(caught.value)


@pytest.mark.parametrize(("header", "seconds"), [("999999", 60), ("-5", None), ("soon", None), ("²", None)])
def test_invalid_retry_after_is_bounded_or_ignored(header: str, seconds: float | None) -> None:
    """Retry-After from an endpoint is bounded, and ignored if it is not a number."""
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
def test_endpoint_refusal_is_final_and_hides_secrets(status: int, code: str) -> None:
    """A 4xx ends the task with a code that contains neither the key nor the endpoint's message."""
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
    """A redirect would forward the key: it is refused and the other host is never contacted."""
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
def test_truncated_answer_fails_the_task(pieces: tuple[bytes, ...]) -> None:
    """An answer that stops after its first word is neither accepted nor completed."""
    with serving(upstream.streams(*pieces)) as server, pytest.raises(Failed) as caught:
        talk(server.url)
    assert caught.value.code in {"CHAT_INTERRUPTED", "CHAT_INVALID"} and KEY not in str(caught.value)


@pytest.mark.parametrize(
    "pieces", [(), (event(""),), (b'data: {"error":{"message":"overloaded"}}\n\n',), (b": hello\n\n",)]
)
def test_stream_broken_before_output_is_transient(pieces: tuple[bytes, ...]) -> None:
    """A stream that breaks before any output can be retried."""
    with serving(upstream.streams(*pieces)) as server, pytest.raises(Transient):
        talk(server.url)


def test_retry_does_not_continue_a_partial_answer() -> None:
    """After a crash mid-stream the new run would differ, so it fails: nothing is spliced."""
    with serving(upstream.streams(event("Hel"), event("lo", "stop"))) as server:
        settings = {"CHAT_BASE_URL": server.url, "CHAT_MODEL": "m"}
        first = FakeJob({"prompt": "a"}, settings=settings)
        assert next(chat(first)) == "Hel"
        again = FakeJob({"prompt": "a"}, settings=settings, once_values=first.once_values)
        with pytest.raises(Failed) as caught:
            run(chat, again)
    assert caught.value.code == "CHAT_INTERRUPTED"


def test_truncated_chunk_is_a_broken_stream() -> None:
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
def test_malformed_response_is_refused(reply: Any, code: str) -> None:
    """A response outside the API's format fails with a code and is never used as an answer."""
    with serving(reply) as server, pytest.raises(Failed) as caught:
        talk(server.url)
    assert caught.value.code == code


def test_endless_response_is_cut_off() -> None:
    """An endpoint that never ends a line, an event or an answer is cut off."""
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


def test_silent_endpoint_times_out() -> None:
    """An endpoint that accepts the request and sends nothing costs no more than the remaining time."""
    with serving(upstream.hangs()) as server, pytest.raises(Transient):
        talk(server.url, seconds=2.3)


def test_trickling_endpoint_times_out() -> None:
    """Trickling bytes do not extend the time: the deadline applies, not the pause between bytes."""
    clock = iter([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    with serving(upstream.trickles(b": wait\n\n", 0.01)) as server:
        endpoint = completions.Endpoint(url=server.url + "/chat/completions", model="m")
        with pytest.raises(Transient, match="too slow"):
            list(completions.stream(endpoint, {"messages": []}, lambda: next(clock, 0.0)))


def test_no_call_without_remaining_time() -> None:
    """If too little time remains for an answer, the endpoint is not called."""
    with serving(upstream.streams(event("x", "stop"))) as server:
        with pytest.raises(Transient):
            talk(server.url, seconds=1.0)
        assert server.requests == []


def test_unreachable_endpoint_is_transient_and_hides_its_address() -> None:
    """A refused connection is transient, and the address is not shown."""
    with serving(upstream.streams()) as server:
        url = server.url
    with pytest.raises(Transient) as caught:
        talk(url)
    assert "127.0.0.1" not in str(caught.value) and caught.value.__cause__ is None


def test_key_is_not_in_any_repr() -> None:
    """The endpoint's repr in a log or a traceback does not contain its key."""
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
def test_invalid_configuration_is_reported_without_details(settings: dict[str, Any]) -> None:
    """An invalid setting fails the task as not configured, without showing the value."""
    with pytest.raises(Failed) as caught:
        talk("http://127.0.0.1:9", **settings)
    assert caught.value.code == "CHAT_NOT_CONFIGURED" and "evil" not in str(caught.value).lower()


@pytest.mark.parametrize(
    ("input", "field"),
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
        ({"prompt": "a", "temprature": 1}, "temprature"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1e9}, "max_tokens"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ],
)
def test_invalid_input_is_refused_before_the_call(input: Any, field: str) -> None:
    """An invalid conversation is refused by field, without echoing its content."""
    with pytest.raises(InvalidInput) as caught:
        request_body(input)
    assert caught.value.details["field"] == field
    assert len(str(caught.value.details)) < 200


def test_chat_is_offered_only_when_configured() -> None:
    """Without an endpoint or a model no agent is registered."""
    assert register({}) is False
    assert register({"CHAT_BASE_URL": "https://x"}) is False
    assert register({"CHAT_MODEL": "m"}) is False


def test_settings_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is the default; a profile's settings may name another model."""
    with serving(upstream.streams(event("ok", "stop"))) as server:
        monkeypatch.setenv("CHAT_BASE_URL", server.url)
        monkeypatch.setenv("CHAT_MODEL", "from-environment")
        monkeypatch.delenv("CHAT_API_KEY", raising=False)
        run(chat, FakeJob({"prompt": "a"}))
        run(chat, FakeJob({"prompt": "a"}, settings={"CHAT_MODEL": "from-profile"}))
        assert [body["model"] for _, _, body in server.requests] == ["from-environment", "from-profile"]

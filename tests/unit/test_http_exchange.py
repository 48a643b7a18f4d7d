"""Reading answers on kept connections: whole and well-formed, or none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.payments.http_exchange import (
    MAX_HEAD,
    BadAnswer,
    Exchange,
    HttpAnswer,
    NotYet,
    Overlong,
    header_lines,
)

MOST = 1_000
BODY = b'{"success":true}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n"
WHOLE = HEAD + b"\r\n" + BODY


PIECES = [
    b"HTTP/1.1",
    b" 200",
    b" OK",
    b"\r\n",
    b"\r",
    b"\n",
    b"\x00",
    b"a",
    b"X-Y",
    b":",
    b" ",
    b"\t",
    b",",
    b"\xe9",
]
PIECES += [
    b"Connection",
    b"close",
    b"Content-Length:",
    b"0",
    b"\x0b",
    b"(",
    b"\x85",
    b";",
    b"Z: z",
    b"~",
    b"\x1c",
]
OLD_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\x00]*)?")
OLD_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\x00]*?)[ \t]*")


def headers_line_by_line(head: bytes) -> dict[str, str] | None:
    """What a head says, read one line after the other; None if it is none."""
    first, *lines = head.split(b"\r\n")
    if OLD_STATUS.fullmatch(first) is None:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        found = OLD_FIELD.fullmatch(line)
        if found is None:
            return None
        name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class FakeSocket:
    """Receives these parts, then the end."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = [*parts]
        self.sent = b""

    def send(self, data: bytes) -> int:
        self.sent += data[:5]
        return len(data[:5])

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, most: int) -> bytes:
        if not self._parts:
            return b""
        part = self._parts.pop(0)
        if len(part) > most:
            self._parts.insert(0, part[most:])
        return part[:most]


def read(*parts: bytes, until: float = 1.0, clock: Iterator[float] | None = None) -> HttpAnswer:
    """The answer to a request on a connection that receives these parts."""
    times = clock or itertools.repeat(0.0)
    return sent(FakeSocket(*parts), until, lambda: next(times)).answer()


def sent(link: Any, until: float = 1.0, clock: Callable[[], float] = lambda: 0.0) -> Exchange:
    return Exchange(link, b"GET / HTTP/1.1\r\n\r\n", most=MOST, until=until, clock=clock)


@given(st.lists(st.sampled_from(PIECES), max_size=25).map(b"".join))
@settings(max_examples=2_000, deadline=None)
def test_any_head_is_read_as_line_by_line(rest: bytes) -> None:
    """Read all at once, a head has the same headers, and is refused for the same reasons."""
    for start in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 204"):
        head = (start + rest + b"\r\n\r\n").partition(b"\r\n\r\n")[0]
        expected = headers_line_by_line(head)
        try:
            answer = read(head + b"\r\n\r\n")
        except BadAnswer:
            framed = expected is not None and not expected.keys().isdisjoint(
                ("content-length", "transfer-encoding")
            )
            assert expected is None or framed
        else:
            assert answer.headers == expected


def test_a_request_is_sent_whole() -> None:
    """Though the connection takes its first bytes alone."""
    fake = FakeSocket(WHOLE)
    sent(fake).answer()
    assert fake.sent == b"GET / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 7, 60, 10_000])
def test_an_answer_is_read_however_it_arrives(size: int) -> None:
    """Status, headers and body are the same in one part and byte by byte."""
    answer = read(*[WHOLE[at : at + size] for at in range(0, len(WHOLE), size)])
    assert (answer.status, answer.body, answer.stays) == (200, BODY, True)
    assert answer.headers["content-type"] == "application/json"


class Halting(FakeSocket):
    """Nothing comes in time where a part is empty."""

    patience: float | None = 15.0

    def gettimeout(self) -> float | None:
        return self.patience

    def settimeout(self, patience: float | None) -> None:
        self.patience = patience

    def recv(self, most: int) -> bytes:
        if self._parts and not self._parts[0]:
            self._parts.pop(0)
            raise TimeoutError
        return super().recv(most)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 20, len(HEAD), len(HEAD) + 10])
def test_who_does_not_wait_longer_may_wait_again(cut: int, again: bool) -> None:
    """What has arrived is read once more then, wherever the answer stopped."""
    parts = [WHOLE[:cut], b"", WHOLE[cut:-1], *([b""] if again else []), WHOLE[-1:]]
    fake = Halting(*(parts if cut else parts[1:]))
    exchange = sent(fake)
    for _ in range(2 if again else 1):
        with pytest.raises(NotYet):
            exchange.answer_within(0.25)
        assert fake.patience == 15.0
    answer = exchange.answer()
    assert (answer.status, answer.body, answer.stays) == (200, BODY, True)


def test_a_wait_in_part_ends_however_much_comes() -> None:
    """A facilitator that sends one byte after the other, without a pause."""
    fake = Halting(*[bytes([byte]) for byte in WHOLE[:-1]])
    times = itertools.count(0.0, 0.01)
    exchange = sent(fake, 99.0, lambda: next(times))
    with pytest.raises(NotYet):
        exchange.answer_within(0.25)
    assert next(times) < 0.3
    fake._parts.append(WHOLE[-1:])
    assert exchange.answer().body == BODY


def test_what_has_come_is_read_without_a_wait() -> None:
    assert sent(Halting(WHOLE)).answer_within(0).body == BODY


def test_who_waits_in_part_gets_an_answer_that_comes_in_time() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n\r\n"
    fake = Halting(*[chunked[at : at + 7] for at in range(0, len(chunked), 7)])
    answer = sent(fake).answer_within(0.25)
    assert (answer.body, answer.stays) == (BODY, True)


@pytest.mark.parametrize("size", [1, 10_000])
def test_chunks_are_joined(size: int) -> None:
    """Chunks with extensions and trailers become one body, and the connection stays."""
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        b'8;a="b"\r\n{"succes\r\n08\r\ns":true}\r\n0\r\nX-After: 1\r\n\r\n'
    )
    answer = read(*[chunked[at : at + size] for at in range(0, len(chunked), size)])
    assert (answer.body, answer.stays) == (BODY, True)


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Connection: close\r\n\r\n" + BODY,
        HEAD + b"Connection: Keep-Alive, Close\r\n\r\n" + BODY,
        WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n" + BODY + b"\r\n0\r\n\r\n",
        WHOLE + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        WHOLE + b"\n",
    ],
)
def test_a_connection_with_an_uncertain_end_is_not_used_again(answer: bytes) -> None:
    """The body is read, but nothing follows on a connection that closes, has two lengths or says more."""
    found = read(answer)
    assert (found.status, found.body, found.stays) == (200, BODY, False)


@pytest.mark.parametrize("status", [101, 102, 103, 199])
def test_an_interim_answer_ends_the_connection(status: int) -> None:
    """Its final answer is not read as that to the next call."""
    answer = read(b"HTTP/1.1 %d Early\r\n\r\n" % status + WHOLE)
    assert (answer.status, answer.body, answer.stays) == (status, b"", False)


def test_continue_is_skipped() -> None:
    """100 Continue, though nobody asked for it, is followed by the answer."""
    answer = read(b"HTTP/1.1 100 Continue\r\n\r\n" * 3, WHOLE)
    assert (answer.status, answer.body, answer.stays) == (200, BODY, True)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_stays(status: int) -> None:
    """Such an answer ends with its head."""
    answer = read(b"HTTP/1.1 %d Nothing\r\n\r\n" % status)
    assert (answer.status, answer.body, answer.stays) == (status, b"", True)


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("framing", [b"Content-Length: 16", b"Transfer-Encoding: chunked"])
def test_an_answer_that_announces_a_body_it_may_not_have_ends_the_connection(
    status: int, framing: bytes
) -> None:
    """A body that follows later is not read as the answer to the next call."""
    answer = read(b"HTTP/1.1 %d Nothing\r\n%b\r\n\r\n" % (status, framing))
    assert (answer.status, answer.body, answer.stays) == (status, b"", False)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000 + WHOLE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        + (b"1;" + b"a" * 4_000 + b"\r\n \r\n") * 900
        + b"0\r\n\r\n",
    ],
    ids=["interim answers", "trailers", "chunk extensions"],
)
def test_an_answer_with_much_around_it_is_none(answer: bytes) -> None:
    """All that arrives is bounded: reading it keeps other requests waiting."""
    with pytest.raises(BadAnswer):
        read(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        HEAD,
        WHOLE[:-1],
        b"200 OK\r\n\r\n",
        b"\r\n" + WHOLE,
        WHOLE.replace(b"HTTP/1.1", b"HTTP/2"),
        WHOLE.replace(b"HTTP/1.1", b"http/1.1"),
        WHOLE.replace(b"200", b"20"),
        WHOLE.replace(b"200", b"0200"),
        WHOLE.replace(b"200", b"2000"),
        WHOLE.replace(b"200", b"+20"),
        WHOLE.replace(b"200 OK", b"200OK"),
        WHOLE.replace(b"\r\n", b"\n"),
        WHOLE.replace(b"OK", b"O\x00K"),
        WHOLE.replace(b"OK", b"OK\rContent-Length: 1"),
        HEAD + b"X-Folded: a\r\n b\r\n\r\n" + BODY,
        HEAD + b"No colon\r\n\r\n" + BODY,
        HEAD + b"Name : x\r\n\r\n" + BODY,
        HEAD + b": x\r\n\r\n" + BODY,
        HEAD + b"X: a\nContent-Length: 1\r\n\r\n" + BODY,
        HEAD + b"X: a\x00\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 16\r\n\r\n" + BODY,
        HEAD + b"Content-Length: 4\r\n\r\n" + BODY,
        *(
            WHOLE.replace(b": 16", b": " + length)
            for length in (b"-1", b"+16", b"1_6", b"0x10", b"16, 16", b"", b"1" * 16, "١٦".encode())
        ),
        *(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: %b\r\n\r\n10\r\n%b\r\n0\r\n\r\n" % (coding, BODY)
            for coding in (b"gzip, chunked", b"identity", b"chunked, chunked", b"xchunked")
        ),
        *(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
            for chunks in (
                b"10\r\n" + BODY,
                b"10\r\n" + BODY + b"\r\n",
                b"10\r\n" + BODY + b"\r\n0\r\n",
                b"10\r\n" + BODY + b"..0\r\n\r\n",
                b"0f\r\n" + BODY + b"\r\n0\r\n\r\n",
                b"-1\r\n\r\n0\r\n\r\n",
                b"0x10\r\n" + BODY + b"\r\n0\r\n\r\n",
                b"\r\n\r\n",
                b"f" * 9 + b"\r\n",
                b"1;" + b"a" * 5_000 + b"\r\nx\r\n0\r\n\r\n",
            )
        ),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD + b"\r\n\r\n",
    ],
)
def test_another_form_is_no_answer(answer: bytes) -> None:
    """What is cut short, ambiguous or malformed is not read as an answer, however it arrives."""
    for parts in ([answer], [answer[at : at + 1_000] for at in range(0, len(answer), 1_000)]):
        with pytest.raises(BadAnswer):
            read(*parts)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 402 No\r\nContent-Length: %d\r\n\r\n" % (MOST + 1),
        b"HTTP/1.1 402 No\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 402 No\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n%b\r\n1\r\n" % (b"x" * MOST),
        b"HTTP/1.1 402 No\r\n\r\n" + b"x" * (MOST + 1),
    ],
)
def test_too_large_a_body_is_refused_by_its_status(answer: bytes) -> None:
    """One byte more than the limit ends the reading; the status is known."""
    with pytest.raises(Overlong) as caught:
        read(answer)
    assert caught.value.status == 402


def test_the_largest_body_is_read() -> None:
    """A body of exactly the limit is read, with and without a length."""
    for head in (b"Content-Length: %d\r\n" % MOST, b""):
        assert len(read(b"HTTP/1.1 200 OK\r\n%b\r\n" % head + b"x" * MOST).body) == MOST


@pytest.mark.parametrize("part", [WHOLE[:1], WHOLE[:-3], WHOLE])
def test_what_arrives_too_late_is_not_read(part: bytes) -> None:
    """Neither a slow head nor a slow body extends the time."""
    with pytest.raises(TimeoutError):
        read(part, WHOLE[len(part) :], clock=iter([1.5, 2.0]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "a\r\nX: b"),
        ("Authorization", "a\n"),
        ("Authorization", "a\x00"),
        ("Authorization", "a\x7f"),
        ("Authorization", "snowman ☃"),
        ("Bad Name", "a"),
        ("Bad:Name", "a"),
        ("", "a"),
    ],
)
def test_no_header_can_end_its_line(name: str, value: str) -> None:
    """A name or value that would begin another header or the body is not sent."""
    with pytest.raises(ValueError, match="cannot be sent"):
        header_lines({"Accept": "application/json", name: value})

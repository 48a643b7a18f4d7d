"""Commands that share a link: batches, lost connections, and callers who leave."""

from __future__ import annotations

import contextlib
import linecache
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from types import FrameType
from typing import Any

import hiredis
import pytest
import redis

import worker.store.link as link_module
from tests.waiting import eventually
from worker.store.commands import packed
from worker.store.link import Begun, Link, _Call

PING = packed(("PING",))
SCRIPT = packed(("EVALSHA", "PING"))


class FakeStore:
    """Answers with what it is told to; `reads` are the batches that came, each as its number of commands.

    `patience`: how many seconds its clients wait for an answer.
    """

    patience = 30.0

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.opened = 0
        self.reachable = True
        self._ends: list[socket.socket] = []

    def connection(self) -> FakeConnection:
        return FakeConnection(self)

    def open(self) -> socket.socket:
        if not self.reachable:
            raise redis.ConnectionError("nobody is there")
        self.opened += 1
        ours, theirs = socket.socketpair()
        theirs.settimeout(self.patience)
        self._ends.append(ours)
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()
        return theirs

    def answer(self, data: bytes) -> None:
        self._ends[-1].sendall(data)

    def hang_up(self) -> None:
        self._ends[-1].shutdown(socket.SHUT_RDWR)

    def _read(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := end.recv(65_536):
                self.reads.append(data.count(b"PING"))

    def heard(self, *batches: int) -> None:
        eventually(lambda: tuple(self.reads) == batches, description=f"{self.reads} become {batches}")

    def close(self) -> None:
        for end in self._ends:
            end.close()


class FakeConnection:
    """What the link needs of a connection."""

    health_check_interval = 30
    next_health_check = 0.0

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._sock: socket.socket | None = None
        self.noticed: list[redis.RedisError] = []

    def connect(self) -> None:
        if self._sock is None:
            self._sock = self._store.open()

    def check_health(self) -> None:
        """Only an old connection is pinged."""

    def disconnect(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def notice(self, error: redis.RedisError) -> None:
        self.noticed.append(error)


class Caller:
    """One who asks in a thread of its own."""

    def __init__(self, ask: Callable[[], list[Any]]) -> None:
        self.found: Any = None
        self._ask = ask
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.found = self._ask()
        except BaseException as error:
            self.found = error

    def result(self) -> Any:
        return eventually(lambda: self.found)


class Linked:
    """A link to a fake store, and its callers."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.link = Link(self.store.connection)

    def asks(self, times: int = 1, expected: int = 1, *, command: bytes = PING) -> list[Caller]:
        """They ask one after another, each when the one before waits."""
        callers = []
        for _ in range(times):
            before = self.waiting()
            was_led = self.link._leader is not None
            callers.append(Caller(lambda: self.link.ask(command * expected, expected)))
            if was_led:
                eventually(lambda before=before: self.waiting() > before)  # type: ignore[misc]
        return callers

    def waiting(self) -> int:
        """How many have asked for what was not sent yet."""
        return len(self.link._short) + len(self.link._queue)

    def answered(self, reply: bytes, *batches: int) -> Any:
        """What a lone caller gets for this reply; `batches` are all that the store has heard by then."""
        [caller] = self.asks()
        self.store.heard(*batches)
        self.store.answer(reply)
        return caller.result()


@pytest.fixture(name="linked")
def _linked() -> Iterator[Linked]:
    linked = Linked()
    yield linked
    linked.link.close()
    linked.store.close()


def test_a_command_sent_ahead_is_read_with_the_next(linked: Linked) -> None:
    """Its caller goes on at once; replies keep the order of their commands."""
    ahead = [linked.link.begin(PING) for _ in range(3)]
    linked.store.answer(b"+a\r\n-ERR b\r\n+c\r\n")
    [after] = linked.asks()
    eventually(lambda: sum(linked.store.reads) == 4)
    linked.store.answer(b"+d\r\n")
    assert after.result() == [b"d"]
    [first, second, third] = [each.reply() for each in ahead]
    assert (first, third) == (b"a", b"c") and isinstance(second, redis.ResponseError)
    assert linked.store.opened == 1


def test_an_answer_to_what_was_sent_ahead_can_be_asked_for(linked: Linked) -> None:
    """Without another command; it may have come while nobody looked."""
    sent = linked.link.begin(PING)
    linked.store.heard(1)
    linked.store.answer(b"+a\r\n")
    assert sent.reply() == b"a" and sent.reply() == b"a"
    assert linked.answered(b"+b\r\n", 1, 1) == [b"b"] and linked.store.opened == 1


def test_what_was_sent_ahead_is_lost_with_its_connection(linked: Linked) -> None:
    """Its caller is told when it asks, and so is the command that met the loss; the next one goes on."""
    ahead = [linked.link.begin(PING) for _ in range(2)]
    eventually(lambda: sum(linked.store.reads) == 2)
    linked.store.hang_up()
    with pytest.raises(redis.ConnectionError):
        linked.link.ask(PING)
    for sent in ahead:
        with pytest.raises(redis.ConnectionError):
            sent.reply()
    [again] = linked.asks()
    eventually(lambda: linked.store.opened == 2 and sum(linked.store.reads) == 3)
    linked.store.answer(b"+b\r\n")
    assert again.result() == [b"b"]


def refused(linked: Linked, *sent: Begun) -> list[bool]:
    """What is known of these after hearing once more."""
    linked.link.hear()
    return [each.refused() for each in sent]


def test_what_has_come_is_heard_without_waiting(linked: Linked) -> None:
    """A part of an answer waits for its rest; an error, or the end of the connection, is known."""
    first, second = linked.link.begin(PING), linked.link.begin(PING)
    assert refused(linked, first, second) == [False, False]
    eventually(lambda: sum(linked.store.reads) == 2)
    linked.store.answer(b"+a\r\n-ER")
    eventually(lambda: linked.link.hear() or len(linked.link._out) == 1)
    assert refused(linked, first, second) == [False, False]
    linked.store.answer(b"R b\r\n")
    eventually(lambda: refused(linked, first, second) == [False, True])
    assert first.reply() == b"a" and isinstance(second.reply(), redis.ResponseError)
    lost = linked.link.begin(PING)
    linked.store.hang_up()
    eventually(lambda: refused(linked, lost) == [True])
    with pytest.raises(redis.ConnectionError):
        lost.reply()


def test_a_link_with_something_sent_ahead_stays_open(linked: Linked) -> None:
    """Closing it would lose the answer."""
    sent = linked.link.begin(PING)
    linked.link.close()
    linked.store.answer(b"+a\r\n")
    assert sent.reply() == b"a"


def test_a_lone_command_goes_at_once(linked: Linked) -> None:
    """It waits for nobody, and its caller gets the reply."""
    assert linked.answered(b"+PONG\r\n", 1) == [b"PONG"]


def test_commands_asked_meanwhile_go_together(linked: Linked) -> None:
    """What is asked while the store has the first goes in one write, and each caller gets its own reply."""
    [first] = linked.asks()
    linked.store.heard(1)
    others = linked.asks(10)
    linked.store.answer(b":100\r\n")
    assert first.result() == [100]
    linked.store.heard(1, 10)
    linked.store.answer(b"".join(b":%d\r\n" % number for number in range(10)))
    assert [each.result() for each in others] == [[number] for number in range(10)]


def test_a_batch_is_bounded(linked: Linked) -> None:
    """Whoever asks after sixty-four others goes with the batch after theirs."""
    [first] = linked.asks()
    linked.store.heard(1)
    others = linked.asks(70)
    linked.store.answer(b"+a\r\n")
    linked.store.heard(1, 64)
    linked.store.answer(b"+b\r\n" * 64)
    linked.store.heard(1, 64, 6)
    linked.store.answer(b"+c\r\n" * 6)
    assert [each.result() for each in [first, *others]] == [[b"a"]] + [[b"b"]] * 64 + [[b"c"]] * 6


def test_a_short_call_goes_before_scripts(linked: Linked) -> None:
    """It waits neither for those that asked before it nor for the rest of its batch."""
    [first] = linked.asks()
    linked.store.heard(1)
    scripts = linked.asks(70, command=SCRIPT)
    [short] = linked.asks()
    linked.store.answer(b"+a\r\n")
    linked.store.heard(1, 64)
    linked.store.answer(b"+b\r\n")
    assert short.result() == [b"b"]
    linked.store.answer(b"+c\r\n" * 63)
    linked.store.heard(1, 64, 7)
    linked.store.answer(b"+d\r\n" * 7)
    assert [each.result() for each in scripts] == [[b"c"]] * 63 + [[b"d"]] * 7 and first.result()


def test_short_calls_leave_scripts_their_room(linked: Linked) -> None:
    """However many there are, a quarter of a batch goes before scripts; what scripts leave is theirs too."""
    [first] = linked.asks()
    linked.store.heard(1)
    short, scripts = linked.asks(90), linked.asks(50, command=SCRIPT)
    linked.store.answer(b":0\r\n")
    linked.store.heard(1, 64)
    linked.store.answer(b"".join(b":%d\r\n" % number for number in range(1, 65)))
    linked.store.heard(1, 64, 64)
    linked.store.answer(b"".join(b":%d\r\n" % number for number in range(65, 129)))
    linked.store.heard(1, 64, 64, 12)
    linked.store.answer(b"".join(b":%d\r\n" % number for number in range(129, 141)))
    numbers = [each.result()[0] for each in [first, *short, *scripts]]
    assert numbers[1:17] == [*range(1, 17)] and numbers[91:139] == [*range(17, 65)]
    assert numbers[17:33] == [*range(65, 81)] and numbers[139:] == [81, 82]
    assert numbers[33:91] == [*range(83, 141)]


@pytest.mark.parametrize(
    "command",
    [SCRIPT, packed(("EVAL", "PING", 0)), PING * 80],
    ids=["a script that is known", "a script", "many commands"],
)
def test_what_takes_the_store_long_is_not_short(linked: Linked, command: bytes) -> None:
    """It waits for its turn."""
    expected = max(1, command.count(packed(("PING",))))
    [first] = linked.asks()
    linked.store.heard(1)
    scripts = linked.asks(64, command=SCRIPT)
    caller = Caller(lambda: linked.link.ask(command, expected))
    eventually(lambda: linked.waiting() == 65)
    linked.store.answer(b"+a\r\n")
    linked.store.heard(1, 64)
    linked.store.answer(b"+b\r\n" * 64)
    linked.store.heard(1, 64, expected)
    linked.store.answer(b"+c\r\n" * expected)
    assert caller.result() == [b"c"] * expected
    assert [each.result() for each in [first, *scripts]] == [[b"a"]] + [[b"b"]] * 64


def test_a_caller_wakes_with_its_own_replies(linked: Linked) -> None:
    """One whose replies are there does not wait for those behind it; only the leader reads to the end."""
    [first] = linked.asks()
    linked.store.heard(1)
    leader, one, other = linked.asks() + linked.asks(expected=2) + linked.asks()
    linked.store.answer(b"+a\r\n")
    assert first.result() == [b"a"]
    linked.store.heard(1, 4)
    linked.store.answer(b"+b\r\n+c\r\n+d\r\n")
    assert one.result() == [b"c", b"d"] and other.found is None
    linked.store.answer(b"+e\r\n")
    assert (leader.result(), other.result()) == ([b"b"], [b"e"])


def test_an_error_reply_belongs_to_one_caller(linked: Linked) -> None:
    """It is returned among the replies, and the connection learns of it."""
    [first] = linked.asks()
    linked.store.heard(1)
    one, other = linked.asks(2)
    linked.store.answer(b"+a\r\n")
    linked.store.heard(1, 2)
    linked.store.answer(b"-READONLY You can't write against a read only replica.\r\n+c\r\n")
    [error] = one.result()
    assert isinstance(error, redis.ReadOnlyError) and other.result() == [b"c"]
    assert linked.link._connection.noticed == [error] and first.result()


def test_a_lost_batch_is_never_sent_again(linked: Linked) -> None:
    """Everybody in it is told, and those behind it go on over a new connection."""
    [first] = linked.asks()
    linked.store.heard(1)
    others = linked.asks(3)
    linked.store.answer(b"+a\r\n")
    assert first.result() == [b"a"]
    linked.store.heard(1, 3)
    [behind] = linked.asks()
    linked.store.answer(b"+b\r\n")
    linked.store.hang_up()
    results = [each.result() for each in others]
    assert results[0] == [b"b"]
    assert [type(each) for each in results[1:]] == [redis.ConnectionError] * 2
    assert results[1] is not results[2]
    linked.store.heard(1, 3, 1)
    linked.store.answer(b"+c\r\n")
    assert behind.result() == [b"c"] and linked.store.opened == 2


def test_a_silent_store_costs_one_time_out(linked: Linked) -> None:
    """Who waits behind the batch is told with it, and its command is not sent."""
    linked.store.patience = 2.0
    [first] = linked.asks()
    linked.store.heard(1)
    others = linked.asks(3) + linked.asks(3, command=SCRIPT)
    assert {type(each.result()) for each in [first, *others]} == {redis.TimeoutError}
    assert linked.store.reads == [1]


def test_everybody_is_told_of_a_store_that_is_away(linked: Linked) -> None:
    """One attempt answers all who wait; the next command tries again."""
    [first] = linked.asks()
    linked.store.heard(1)
    others = linked.asks(3) + linked.asks(3, command=SCRIPT)
    linked.store.reachable = False
    linked.store.hang_up()
    assert {type(each.result()) for each in [first, *others]} == {redis.ConnectionError}
    linked.store.reachable = True
    assert linked.answered(b"+a\r\n", 1, 1) == [b"a"]


@pytest.mark.parametrize(
    ("reply", "then"),
    [
        (b"+a\r\n", FakeStore.hang_up),
        (b"+a\r\n", lambda store: store.answer(b"+stray\r\n")),
        (b"+a\r\n+stray\r\n", lambda store: None),
    ],
    ids=["closed while idle", "an unasked reply", "an unasked reply in the same read"],
)
def test_a_spoilt_connection_is_replaced(
    linked: Linked, reply: bytes, then: Callable[[FakeStore], object]
) -> None:
    """Replies belong to commands by their order alone, so nothing may come between."""
    assert linked.answered(reply, 1) == [b"a"]
    then(linked.store)
    assert linked.answered(b"+b\r\n", 1, 1) == [b"b"] and linked.store.opened == 2


@pytest.mark.parametrize("nonsense", [b"?\r\n", b"*-7\r\n"])
def test_nonsense_ends_the_connection(linked: Linked, nonsense: bytes) -> None:
    """The callers are told; the next batch goes over a new connection."""
    assert isinstance(linked.answered(nonsense, 1), redis.RedisError)
    assert linked.answered(b"+b\r\n", 1, 1) == [b"b"]


class Impatient:
    """A sleep that ends with an interrupt once `ready` is true."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def acquire(self) -> None:
        eventually(self._ready)
        raise KeyboardInterrupt

    def release(self) -> None:
        pass


def interrupted(
    linked: Linked, ready: Callable[[], bool], monkeypatch: pytest.MonkeyPatch, command: bytes = PING
) -> Caller:
    """A caller who waits, and is interrupted when `ready` is true."""
    with monkeypatch.context() as patched:
        patched.setattr(_Call, "sleep", lambda call: setattr(call, "asleep", Impatient(ready)))
        before = linked.waiting()
        caller = Caller(lambda: linked.link.ask(command))
        eventually(lambda: linked.waiting() > before or caller.found)
    return caller


@pytest.mark.parametrize("command", [PING, SCRIPT], ids=["short", "script"])
def test_a_caller_may_leave_the_queue(
    linked: Linked, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    """Its command is not sent, and nobody else's is lost."""
    [first] = linked.asks()
    linked.store.heard(1)
    gone = interrupted(linked, lambda: True, monkeypatch, command)
    assert isinstance(gone.result(), KeyboardInterrupt)
    [behind] = linked.asks()
    linked.store.answer(b"+a\r\n")
    assert first.result() == [b"a"]
    linked.store.heard(1, 1)
    linked.store.answer(b"+b\r\n")
    assert behind.result() == [b"b"]


def test_a_caller_may_leave_as_it_gets_the_lead(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lead goes to the next one in line."""
    [first] = linked.asks()
    linked.store.heard(1)
    gone = interrupted(linked, lambda: bool(first.found), monkeypatch)
    [behind] = linked.asks()
    linked.store.answer(b"+a\r\n")
    assert isinstance(gone.result(), KeyboardInterrupt)
    linked.store.heard(1, 1)
    linked.store.answer(b"+b\r\n")
    assert behind.result() == [b"b"]


def test_a_caller_may_leave_while_its_command_is_out(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply is read and dropped."""
    [first] = linked.asks()
    linked.store.heard(1)
    [second] = linked.asks()
    gone = interrupted(linked, lambda: linked.store.reads == [1, 2], monkeypatch)
    linked.store.answer(b"+a\r\n")
    assert isinstance(gone.result(), KeyboardInterrupt)
    linked.store.answer(b"+b\r\n+dropped\r\n")
    assert (first.result(), second.result()) == ([b"a"], [b"b"])
    assert linked.answered(b"+c\r\n", 1, 2, 1) == [b"c"]


def test_an_interrupted_leader_loses_its_batch(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others in it are told, as with any lost connection, and the link goes on."""

    def interrupted_read(self: Link) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Link, "_read", interrupted_read)
        with pytest.raises(KeyboardInterrupt):
            linked.link.ask(PING)
    [again] = linked.asks()
    eventually(lambda: linked.store.opened == 2 and sum(linked.store.reads) == 2)
    linked.store.answer(b"+a\r\n")
    assert again.result() == [b"a"]


def test_a_leader_may_leave_before_it_sends(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is not sent, and the link goes on."""

    def interrupted_sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("worker.store.link.time.sleep", interrupted_sleep)
        with pytest.raises(KeyboardInterrupt):
            linked.link.ask(PING)
    assert linked.answered(b"+a\r\n", 1) == [b"a"]


class Interrupt:
    """Raises KeyboardInterrupt in a thread, before this one of the lines that the link's code runs there."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.came = False

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != link_module.__file__:
            return None
        text = linecache.getline(link_module.__file__, frame.f_lineno).strip()
        # Between a lock's block and its release nothing can interrupt.
        if event == "line" and not self.came and not text.startswith("with "):
            self._left -= 1
            if self._left < 0:
                self.came = True
                raise KeyboardInterrupt
        return self.trace


class AnsweringStore(FakeStore):
    """Answers each command with its second word, once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def _read(self, end: socket.socket) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := end.recv(65_536):
                self.may.wait()
                reader.feed(data)
                while words := reader.gets():
                    end.sendall(b"+%b\r\n" % words[1])


def interrupted_at(line: int, role: str, commands: Sequence[str]) -> tuple[bool, dict[str, Any]]:
    """Whether a caller of the link came to this line, and what it and four others found.

    They send these commands in turn.
    """
    store, interrupt = AnsweringStore(), Interrupt(line)
    link = Link(store.connection)
    found: dict[str, Any] = {}

    def ask(name: str, trace: Any = None) -> None:
        sys.settrace(trace)
        try:
            [found[name]] = link.ask(packed((turn[name], name)))
        except BaseException as error:
            found[name] = error
        finally:
            sys.settrace(None)

    def started(name: str, trace: Any = None) -> threading.Thread:
        thread = threading.Thread(target=ask, args=(name, trace), daemon=True)
        thread.start()
        return thread

    names = ["victim", "a", "b", "c"] if role == "leader" else ["a", "victim", "b", "c"]
    turn = dict(zip([*names, "late"], cycle(commands), strict=False))
    callers = [started(name, interrupt.trace if name == "victim" else None) for name in names]
    store.may.set()
    for caller in callers:
        caller.join(30)
    started("late").join(30)
    link.close()
    store.close()
    return interrupt.came, found


@pytest.mark.parametrize("commands", [("GET",), ("EVALSHA",), ("EVALSHA", "GET"), ("GET", "EVALSHA")])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_nobody_waits_for_ever_wherever_a_caller_is_interrupted(role: str, commands: Sequence[str]) -> None:
    """A signal may come between any two lines; the others get their own replies, or are told."""
    for line in range(200):
        came, found = interrupted_at(line, role, commands)
        assert found.keys() == {"victim", "a", "b", "c", "late"}, f"somebody waits after line {line}"
        assert found["late"] == b"late"
        assert all(isinstance(each, BaseException) or each == name.encode() for name, each in found.items())
        if not came:
            return
    raise AssertionError("it is interrupted for ever")


def test_a_forked_child_opens_its_own_connection(linked: Linked) -> None:
    """It neither uses nor closes its parent's, even if it was forked while a batch was out."""
    [first] = linked.asks()
    linked.store.heard(1)
    child = os.fork()
    if child == 0:
        fresh = linked.link._leader is None and not linked.waiting() and linked.link._connection is None
        os._exit(0 if fresh else 1)
    assert os.waitpid(child, 0)[1] == 0
    linked.store.answer(b"+a\r\n")
    assert first.result() == [b"a"]


def test_a_closed_link_opens_again(linked: Linked) -> None:
    """Closing ends the connection of an idle link; a busy one keeps it."""
    [first] = linked.asks()
    linked.store.heard(1)
    linked.link.close()
    linked.store.answer(b"+a\r\n")
    assert first.result() == [b"a"]
    linked.link.close()
    assert linked.link._connection._sock is None
    assert linked.answered(b"+b\r\n", 1, 1) == [b"b"]

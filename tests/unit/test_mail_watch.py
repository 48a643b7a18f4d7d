"""What is heard of a mailbox: every message once and in order, whatever is late, missed or read instead."""

from __future__ import annotations

import random
from collections import deque

import pytest

from worker.engine.watch import Watch
from worker.remote.mail_watch import MailWatch


class Subscription:
    """Delivers what the store published when the test says so."""

    closed = False

    def add(self, watch: Watch) -> None:
        """Nobody else listens."""

    def drop(self, watch: Watch) -> None:
        """Nobody else listens."""


class Mailbox:
    """The store's list, and what it published and nobody has heard yet."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.published: deque[bytes] = deque()
        self.watch = MailWatch(Subscription(), "mail")
        self.sent: list[bytes] = []
        self.read = 0

    def post(self, item: bytes) -> None:
        self.items.append(item)
        self.published.append(b"%d %b" % (len(self.items), item))

    def hear(self) -> None:
        if self.published:
            self.watch.hear(self.published.popleft())

    def send(self) -> None:
        """The stream's step after it was woken."""
        found = self.watch.take()
        if not found:
            self.read += 1
            kept = self.watch.kept
            found = self.items[kept : kept + 4]
        self.sent += found
        self.watch.sent += len(found)

    def follow(self) -> None:
        """Hears all, then sends as long as the stream is woken."""
        while self.published:
            self.hear()
        while self.watch.wait(0):
            self.send()

    def drop(self) -> None:
        kept = self.watch.kept
        mark = self.watch.drop()
        del self.items[:kept]
        self.published.append(mark)


@pytest.mark.parametrize("seed", range(300))
def test_each_message_is_sent_once_and_in_order(seed: int) -> None:
    """However late news come, whatever is missed in between, and whoever else drops messages."""
    chance, box, made = random.Random(seed), Mailbox(), 0
    for _ in range(400):
        match chance.choice(["post", "post", "hear", "hear", "hear", "send", "drop", "miss", "other"]):
            case "post":
                made += 1
                box.post(b"%d with a blank" % made)
            case "hear":
                box.hear()
            case "send":
                box.send()
            case "drop" if box.watch.kept > 2:
                box.drop()
            case "miss" if chance.random() < 0.1:
                box.published.clear()
                box.watch.begin()
            case "other" if chance.random() < 0.1:
                box.published.append(chance.choice([b"", b"-7 another"]))
    while box.published:
        box.hear()
    while len(box.sent) < made:
        before = len(box.sent)
        box.send()
        assert len(box.sent) > before
    assert box.sent == [b"%d with a blank" % number for number in range(1, made + 1)]


def test_messages_are_not_read_once_the_place_is_known() -> None:
    """After the first messages are dropped, each one is sent as it was heard."""
    box = Mailbox()
    box.post(b"first")
    box.hear()
    box.send()
    assert (box.read, box.sent) == (1, [b"first"])
    box.drop()
    for number in range(100):
        box.post(b"%d" % number)
        while box.published:
            box.hear()
        assert box.watch.wait(0)
        box.send()
        if box.watch.kept > 7:
            box.drop()
    assert (box.read, len(box.sent)) == (1, 101)


def test_messages_beyond_those_kept_are_read() -> None:
    """A stream that falls behind reads its mailbox, which has them all."""
    box = Mailbox()
    box.post(b"first")
    box.send()
    box.drop()
    for number in range(50):
        box.post(b"%d" % number)
    while box.published:
        box.hear()
    while len(box.sent) < 51:
        box.send()
    assert box.sent[1:] == [b"%d" % number for number in range(50)] and box.read > 1


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_message_without_its_place_is_not_left_behind(before: int) -> None:
    """The previous release publishes no places: its message is sent without waiting for the next one."""
    box = Mailbox()
    box.post(b"first")
    box.follow()
    box.drop()
    for number in range(before):
        box.post(b"%d" % number)
    box.items.append(b"from the previous release")
    box.published.append(b"")
    box.post(b"last")
    box.follow()
    assert box.sent[1:] == [
        *(b"%d" % number for number in range(before)),
        b"from the previous release",
        b"last",
    ]


def test_the_end_of_a_mailbox_is_not_left_behind() -> None:
    """A connection that is cut right after a message: its stream looks into the mailbox and finds it gone."""
    box = Mailbox()
    box.post(b"first")
    box.follow()
    box.drop()
    box.post(b"heard, but its work is another's by now")
    box.items.clear()
    box.published.append(b"")
    read = box.read
    box.follow()
    assert box.read == read + 1 and box.sent == [b"first"]

"""Watches a connection's mailbox, and hears most messages from the subscription, without reading the mailbox.

Each message is published with the mailbox's length. Lengths begin again when sent messages are dropped, which
is published, too: as the subscription is in the store's order, from there on it is known which message each
length means. Until then, after anything may have been missed, and after news without a message, the mailbox
is read.
"""

from __future__ import annotations

from collections import deque

from worker.core.ids import new_id
from worker.engine.watch import Source, Watch

# Messages heard and not yet taken; more are read from the mailbox.
_MOST = 32


class MailWatch(Watch):
    """The watch of one open stream. Messages are counted from 1, from when it was opened."""

    def __init__(self, source: Source, channel: str) -> None:
        super().__init__(source, channel)
        # Messages sent, and those of them that the mailbox no longer has.
        self.sent = 0
        self._dropped = 0
        # Two streams of one mailbox would count differently.
        self._mark = new_id().encode()
        # What precedes the mailbox's first message, as far as it is known.
        self._before: int | None = None
        self._heard: deque[tuple[int, bytes]] = deque(maxlen=_MOST)

    @property
    def kept(self) -> int:
        """Messages sent that the mailbox still has."""
        return self.sent - self._dropped

    def drop(self) -> bytes:
        """Counts these as dropped; returns what to publish in the transaction that drops them."""
        self._dropped = self.sent
        return b"-%d %b" % (self._dropped, self._mark)

    def take(self) -> list[bytes]:
        """The next messages, as far as they were heard without a gap."""
        heard, found = self._heard, list[bytes]()
        while heard and heard[0][0] <= (following := self.sent + len(found) + 1):
            number, item = heard.popleft()
            if number == following:  # it is later if a thread has filled the queue meanwhile
                found.append(item)
        return found

    def hear(self, message: bytes) -> None:
        first, _, item = message.partition(b" ")
        if first.startswith(b"-"):
            if item == self._mark:
                self._before = int(first[1:])
            return
        if first and self._before is not None:
            number = self._before + int(first)
            if number <= self.sent:
                return  # it was read from the mailbox
            self._heard.append((number, item))
        elif not first:
            # The mailbox was deleted, or a message of an older release comes before the next one.
            self._heard = deque(maxlen=_MOST)
        self.wake()

    def begin(self) -> None:
        """Messages may have been missed."""
        self._before, self._heard = None, deque(maxlen=_MOST)
        self.wake()

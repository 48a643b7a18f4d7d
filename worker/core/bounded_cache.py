"""Values that a process keeps instead of making them again, bounded by size: many small or few large ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    """Values by name; the oldest leave first. Their sizes are what the caller says.

    A value that is larger than all of the room is not kept: it would leave none for the others.
    """

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[V, int]] = {}

    def get(self, name: str) -> V | None:
        kept = self._kept.get(name)
        return None if kept is None else kept[0]

    def add(self, name: str, value: V, size: int) -> None:
        with self._lock:
            self._drop(name)
            if size > self._most:
                return
            self._kept[name] = value, size
            self._left -= size
            while self._left < 0 and self._kept:
                self._drop(next(iter(self._kept)))

    def replace(self, name: str, value: V) -> None:
        """A newer value of the same size, if the name is still known."""
        with self._lock:
            if name in self._kept:
                self._kept[name] = value, self._kept[name][1]

    def drop(self, name: str) -> None:
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        _, size = self._kept.pop(name, (None, 0))
        self._left += size


def keep_by_length(most: int) -> Callable[[Callable[[str], V]], Callable[[str], V]]:
    """Keeps what a function makes of its texts, up to this many characters of them."""

    def keep(make: Callable[[str], V]) -> Callable[[str], V]:
        cache: BoundedCache[V] = BoundedCache(most)

        @wraps(make)
        def kept(text: str) -> V:
            found = cache.get(text)
            if found is None:
                found = make(text)
                cache.add(text, found, len(text))
            return found

        return kept

    return keep

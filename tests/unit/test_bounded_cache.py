"""What a process keeps in order not to make it again is bounded by bytes."""

from __future__ import annotations

import threading

from worker.core.bounded_cache import BoundedCache, keep_by_length


def test_a_value_that_is_added_again_counts_once() -> None:
    """Its new size counts, and what is dropped leaves room."""
    cache: BoundedCache[str] = BoundedCache(10)
    cache.add("a", "one", 8)
    cache.add("a", "two", 4)
    cache.add("b", "other", 6)
    assert (cache.get("a"), cache.get("b")) == ("two", "other")
    cache.drop("b")
    cache.drop("unknown")
    cache.add("c", "last", 6)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("two", None, "last")


def test_a_newer_value_of_a_known_name_keeps_its_turn() -> None:
    """The oldest leave first; a name that has left does not come back by a newer value."""
    cache: BoundedCache[str] = BoundedCache(10)
    cache.add("a", "one", 5)
    cache.add("b", "other", 5)
    cache.replace("a", "two")
    assert cache.get("a") == "two"
    cache.add("c", "last", 5)
    cache.replace("a", "three")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, "other", "last")


def test_a_value_beyond_the_bound_drives_no_others_out() -> None:
    """It is not kept, nor is the older value of its name."""
    cache: BoundedCache[str] = BoundedCache(10)
    cache.add("a", "one", 5)
    cache.add("b", "other", 5)
    cache.add("b", "huge", 11)
    assert (cache.get("a"), cache.get("b")) == ("one", None)


def test_results_are_kept_up_to_the_length_of_their_texts() -> None:
    """A text is worked on once while it is kept; one longer than the bound is worked on each time."""
    made: list[str] = []

    @keep_by_length(10)
    def length(text: str) -> int:
        made.append(text)
        return len(text)

    assert [length("aaaa"), length("aaaa"), length("bbbb")] == [4, 4, 4]
    assert made == ["aaaa", "bbbb"]
    assert [length("cccc"), length("aaaa")] == [4, 4]
    assert made == ["aaaa", "bbbb", "cccc", "aaaa"]
    assert [length("d" * 11), length("d" * 11)] == [11, 11] and made[4:] == ["d" * 11] * 2


def test_threads_leave_the_sizes_right() -> None:
    """After many threads have added and dropped, there is as much room as at first."""
    cache: BoundedCache[int] = BoundedCache(100)

    def work(start: int) -> None:
        for number in range(start, start + 2_000):
            cache.add(str(number % 50), number, 7)
            cache.drop(str((number + 1) % 50))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for number in range(50):
        cache.drop(str(number))
    cache.add("a", 1, 50)
    cache.add("b", 2, 50)
    assert (cache.get("a"), cache.get("b")) == (1, 2)
    cache.add("c", 3, 1)
    assert cache.get("a") is None

"""Refuses new work while the store's memory is nearly full, so that outcomes can still be written.

Unpaid contracts are refused first. A closed guard reopens only well below its limit (hysteresis), so that it
does not toggle while usage is close to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Share of a machine's memory that the store may use where nothing else limits it.
_SHARE_OF_MACHINE = 0.5


@dataclass
class Gate:
    """Closes above one share of the memory, opens again below another."""

    closes: float
    opens: float
    closed: bool = False

    def look(self, share: float) -> bool:
        """Whether it is closed at this share in use."""
        self.closed = share > (self.opens if self.closed else self.closes)
        return self.closed


@dataclass
class MemoryGuard:
    """`read` returns the server's memory report, `capacity` is the operator's own limit in bytes; 0: none."""

    read: Callable[[], Mapping[str, Any]]
    capacity: int = 0
    work: Gate = field(default_factory=lambda: Gate(0.75, 0.65))
    unpaid: Gate = field(default_factory=lambda: Gate(0.60, 0.50))

    def full(self) -> bool:
        """Whether new work is refused."""
        return self.work.look(self.share())

    def full_for_unpaid(self) -> bool:
        """Whether drafts and unpaid contracts are refused."""
        return self.unpaid.look(self.share())

    def share(self) -> float:
        """The share of memory in use; 0 if the store does not report it."""
        report = self.read()
        limit = limit_of(report, self.capacity)
        return int(report.get("used_memory", 0)) / limit if limit else 0.0


def limit_of(report: Mapping[str, Any], capacity: int = 0) -> int:
    """Bytes that the store may use: the store's or the operator's limit, else half the machine."""
    limits = [limit for limit in (int(report.get("maxmemory", 0)), capacity) if limit]
    machine = int(report.get("total_system_memory", 0)) * _SHARE_OF_MACHINE
    return min(limits) if limits else int(machine)

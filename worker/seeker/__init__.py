"""The other side: a client that hires a worker, pays it, follows the work and checks what it gets."""

from __future__ import annotations

from worker.seeker.client import Limits, Seeker
from worker.seeker.deliveries import Saved
from worker.seeker.draft import Order
from worker.seeker.drawer import Drawer, Purchase
from worker.seeker.listener import Listener
from worker.seeker.resource import Paid, pay
from worker.seeker.result import Result
from worker.seeker.wallet import Wallet

__all__ = [
    "Drawer",
    "Limits",
    "Listener",
    "Order",
    "Paid",
    "Purchase",
    "Result",
    "Saved",
    "Seeker",
    "Wallet",
    "pay",
]

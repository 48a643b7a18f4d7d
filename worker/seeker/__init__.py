"""The buying side: a client that hires a worker, pays it, follows the work and checks the result."""

from __future__ import annotations

from worker.seeker.client import Seeker, SpendLimits
from worker.seeker.deliveries import Saved
from worker.seeker.draft import Order
from worker.seeker.listener import Listener
from worker.seeker.plain_purchase import PlainResult
from worker.seeker.purchases import Purchase, PurchaseStore
from worker.seeker.purse import TOOL_TEXT, Budget, Purse
from worker.seeker.resource import PaidAnswer, pay
from worker.seeker.result import Result
from worker.seeker.spending import Question
from worker.seeker.wallet import Wallet

__all__ = [
    "Budget",
    "Listener",
    "Order",
    "PaidAnswer",
    "PlainResult",
    "Purchase",
    "PurchaseStore",
    "Purse",
    "Question",
    "Result",
    "Saved",
    "Seeker",
    "SpendLimits",
    "TOOL_TEXT",
    "Wallet",
    "pay",
]

"""The parts that notify seekers about their work."""

from __future__ import annotations

from functools import cached_property

from worker.delivery.deliverables import metadata
from worker.delivery.outbox import Outbox
from worker.delivery.webhook_pool import WebhookPool
from worker.delivery.webhooks import Webhooks
from worker.parts.paid import PaidParts


class NoticeParts(PaidParts):
    """Adds webhooks to the parts that sell."""

    @cached_property
    def outbox(self) -> Outbox:
        """Notices and their attempts. Without the signing key nothing is sent from here."""
        return Outbox(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def webhooks(self) -> Webhooks | None:
        if self.webhook_key is None:
            return None
        return Webhooks(
            self.outbox,
            self.executions,
            self.deliverables,
            self.outbound,
            self.webhook_key,
            contract_id=self.book.id_of,
            metadata=lambda execution: metadata(execution, self.catalog.get(execution.agent)),
            wallets=self.budget.wallets,
        )

    @cached_property
    def webhook_pool(self) -> WebhookPool | None:
        """Sends webhooks for the clock; None without a key to sign them."""
        return WebhookPool(self.webhooks) if self.webhooks is not None else None

"""The parts for discovery and proof: public documents, listings, signatures."""

from __future__ import annotations

import time
from functools import cached_property

from worker.contracts.book import SigningUnavailable
from worker.contracts.signatures import address_of, sign_digest
from worker.core.evm import checksum_address
from worker.doors.openapi.documents import Publisher
from worker.doors.site_documents import SiteDocuments
from worker.hiring.discovery import Discovery
from worker.hiring.evidence import Signer
from worker.parts.engine import EngineParts
from worker.payments.listings import ListingBook
from worker.x402.networks import Network, resolve_network
from worker.x402.signed_offers import OfferSigner


class PublicParts(EngineParts):
    """The worker's public statements about itself."""

    @cached_property
    def network(self) -> Network:
        return resolve_network(self.settings.network)

    @cached_property
    def discovery(self) -> Discovery:
        signed = OfferSigner(self.sign_statement, time.time) if self._statement_key else None
        return Discovery(self.settings, signed)

    @cached_property
    def site_documents(self) -> SiteDocuments:
        return SiteDocuments(self.settings, self.discovery, self.network.caip2, self._signing_address)

    @property
    def publisher(self) -> Publisher:
        return Publisher(
            self.settings.public_url,
            self.network.asset,
            self.site_documents.guidance(),
            self.settings.contact_email,
        )

    @cached_property
    def listings(self) -> ListingBook:
        return ListingBook(self.client, self.keys, self.store.now)

    # Statements: offers, receipts, evidence. They prove facts and move no money.

    @cached_property
    def statement_signer(self) -> Signer:
        settings = self.settings
        address, wallet = self._signing_address or "", settings.worker_wallet or ""
        return Signer.of(address, self.sign_statement, wallet, settings.worker_key)

    def sign_statement(self, digest: bytes) -> bytes:
        if self._statement_key is None:
            raise SigningUnavailable()
        return sign_digest(digest, self._statement_key)

    @property
    def _statement_key(self) -> str | None:
        return self.settings.signing_key or self.settings.worker_key

    @cached_property
    def _signing_address(self) -> str | None:
        key = self._statement_key
        return checksum_address(address_of(key)) if key else None

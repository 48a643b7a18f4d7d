"""The life of a contract here: a draft that we sign, then a document that both signed, then an execution."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from worker.contracts.canonical import contract_hash
from worker.contracts.ids import new_contract_id
from worker.contracts.schema import check_contract, is_open
from worker.contracts.signatures import Eip191Verifier, SignatureVerifier, sign_text
from worker.contracts.terms import LONGEST_US, Listing, Terms, parse_terms, refusals, which_capability
from worker.errors import Conflict, Problem, Unavailable
from worker.executions.keys import Keys
from worker.executions.record import Execution
from worker.executions.scripts import Scripts
from worker.store import as_bytes, as_mapping

_LUA = Path(__file__).parent / "lua"
HOUR_US = 3_600_000_000
DRAFT_US = HOUR_US
UNPAID_US = 24 * HOUR_US
MOST_DRAFTS = 10_000
MOST_UNPAID = 10_000


class SigningUnavailable(Unavailable):
    code = "SIGNING_UNAVAILABLE"
    message = "this worker has no key to sign with"
    advice = "Ask the operator to set WORKER_KEY; nothing was signed or charged."


class HashMismatch(Problem):
    code, status = "CONTRACT_HASH_MISMATCH", 422
    message = "the hash is not that of this document"
    advice = "Take the document as it was signed, byte for byte in its values, and send it again."


@dataclass(frozen=True)
class Contract:
    """A contract that both parties signed. `found`: the chain shows that it was paid for."""

    ref: str
    document: Mapping[str, Any]
    terms: Terms
    hash: str
    registered: int
    execution: str | None
    found: bool = False


SchemaCheck = Callable[[str, Terms], None]


@dataclass
class ContractBook:
    """Signs, keeps and finds contracts. The id is a credential: keys hold only a keyed hash of it."""

    client: redis.Redis
    keys: Keys
    secret: str
    listing: Callable[[], Listing]
    now: Callable[[], int]
    check_schemas: SchemaCheck
    key: str | None = field(default=None, repr=False)
    verifier: SignatureVerifier = field(default_factory=Eip191Verifier)
    test_clock: bool = False

    def __post_init__(self) -> None:
        clock = self.keys.test_clock if self.test_clock else None
        self._scripts = Scripts(self.client, test_clock=clock, folder=_LUA, common=_LUA / "_common.lua")

    def ref(self, contract_id: str) -> str:
        """How a contract is called wherever its id must not stand."""
        return hmac.new(self.secret.encode(), f"contract:{contract_id}".encode(), "sha256").hexdigest()[:32]

    def sign(self, draft: Mapping[str, Any]) -> dict[str, Any]:
        """The draft with our signature, if its terms are ours."""
        if self.key is None:
            raise SigningUnavailable()
        document = {name: value for name, value in draft.items() if name not in ("signatures", "hash")}
        document.setdefault("contract_id", new_contract_id())
        check_contract(document, draft=True)
        terms = parse_terms(document)
        listing = self.listing()
        refusals(terms, document, listing, self.now())
        capability = which_capability(terms, listing.capabilities)
        if not (is_open(terms.input_schema) and is_open(terms.output_schema)):
            self.check_schemas(capability, terms)
        digest = contract_hash(document)
        ref = self.ref(terms.contract_id)
        keys = [self.keys.draft(ref), self.keys.drafts, self.keys.contract(ref)]
        self._answer(self._scripts("draft", keys, [digest, DRAFT_US, MOST_DRAFTS]))
        signature = sign_text(digest, self.key)
        signed = datetime.fromtimestamp(self.now() // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            **document,
            "signatures": {
                "worker": signature,
                "timestamp": signed,
                "scheme": "eip191",
                "canonicalization": "RFC8785",
            },
            "hash": digest,
        }

    def register(self, document: Mapping[str, Any]) -> Contract:
        """Keeps a document that carries both signatures."""
        check_contract(document, draft=False)
        terms = parse_terms(document)
        digest = contract_hash(document)
        if document["hash"] != digest:
            raise HashMismatch(field="hash", expected=digest, received=document["hash"])
        for party, wallet in (("worker", terms.worker_wallet), ("seeker", terms.seeker_wallet)):
            self.verifier.verify(digest, document["signatures"][party], wallet, field=f"signatures.{party}")
        now = self.now()
        listing = self.listing()
        if self._known(terms.contract_id) is None:
            # Signed by us, so its terms were ours; what time has done to it is looked at again.
            _still_ours(terms, listing, now)
        ref = self.ref(terms.contract_id)
        until = min(terms.deadline, now + UNPAID_US)
        keys = [self.keys.contract(ref), self.keys.contracts, self.keys.draft(ref), self.keys.drafts]
        blob = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        self._answer(self._scripts("register", keys, [blob, digest, terms.created_at, until, MOST_UNPAID]))
        kept = self._known(terms.contract_id)
        if kept is None:
            raise Unavailable("the contract could not be kept")
        return kept

    def id_of(self, execution: Execution) -> str:
        """The id of the contract that an execution fulfils, for the seeker's own eyes."""
        document = self.client.hget(self.keys.contract(execution.raw["contract"].decode()), "document")
        return str(json.loads(as_bytes(document))["contract_id"]) if document else ""

    def find(self, contract_id: str) -> Contract | None:
        return self._known(contract_id)

    def is_draft(self, contract_id: str) -> bool:
        """Whether we signed it and wait for the seeker's signature."""
        return bool(self.client.exists(self.keys.draft(self.ref(contract_id))))

    def _known(self, contract_id: str) -> Contract | None:
        ref = self.ref(contract_id)
        raw = as_mapping(self.client.hgetall(self.keys.contract(ref)))
        if not raw:
            return None
        document = json.loads(raw["document"])
        execution = raw.get("execution")
        return Contract(
            ref=ref,
            document=document,
            terms=parse_terms(document),
            hash=raw["hash"].decode(),
            registered=int(raw["registered"]),
            execution=execution.decode() if execution else None,
            found="found_key" in raw,
        )

    def _answer(self, status: bytes) -> None:
        if status == b"differs":
            raise Conflict("another contract has this id", code="CONTRACT_ID_USED", field="contract_id")
        if status == b"full":
            raise Unavailable("too many contracts wait for their payment", retry_after=60)


def _still_ours(terms: Terms, listing: Listing, now: int) -> None:
    if terms.deadline <= now:
        raise Problem(
            "the contract's deadline has passed",
            code="CONTRACT_EXPIRED",
            status=410,
            field="terms.deadline",
            advice="Draft a new contract.",
        )
    if terms.deadline > now + LONGEST_US:
        raise Problem("the deadline is too far", code="DEADLINE_TOO_FAR", status=422, field="terms.deadline")
    if terms.worker_wallet.lower() != listing.wallet.lower():
        raise Problem(
            "the contract names another worker",
            code="CONTRACT_PARTY_MISMATCH",
            status=403,
            field="parties.worker.wallet",
        )

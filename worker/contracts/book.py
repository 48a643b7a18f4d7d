"""A contract's life cycle: a draft that we sign, a document that both parties signed, an execution."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from sys import getsizeof
from typing import Any

import redis

from worker.contracts.answers import DRAFT, REGISTER, DraftAnswer, RegisterAnswer
from worker.contracts.ids import new_contract_id
from worker.contracts.packed_document import pack_document, unpack_document
from worker.contracts.signatures import Eip191Verifier, SignatureVerifier, sign_text
from worker.contracts.term_keys import MOST_NAMED, unknown_keys
from worker.contracts.terms import LONGEST_US, Listing, Terms, parse_terms, refusals, which_capability
from worker.core.bounded_cache import BoundedCache, keep_by_length
from worker.core.canonical import contract_hash
from worker.core.errors import Conflict, Problem, Unavailable
from worker.core.keyed_hash import keyed_hash
from worker.engine.record import Execution
from worker.schemas.validators import check_contract, is_open
from worker.store.client import as_mapping, as_texts
from worker.store.data_model import Keys
from worker.store.data_version import PACKED, all_have
from worker.store.scripts import Scripts

# Prefix of the version in a purchase's document; a contract's version begins with HIRE/.
PURCHASE = "x402/"

_LUA = Path(__file__).parent / "lua"
# Shared functions for the quota of unpaid contracts; payments release it.
UNPAID_LUA = _LUA / "_unpaid.lua"
HOUR_US = 3_600_000_000
DRAFT_US = HOUR_US
# Clock skew between a seeker and us, or between two store servers.
CLOCKS_DIFFER_US = 60_000_000
# Drafts that are remembered; further ones are signed but not recorded.
MOST_DRAFTS = 10_000
# Bytes that an unpaid contract uses in the store besides its document.
_ENTRY_BYTES = 1_000
# An unpaid contract of a new wallet is not dropped for others before this age.
SHELTER_US = 600 * 1_000_000
# Characters of the ids whose hashes a process keeps.
_KEPT_CHARS = 64 * 1024
# Memory of the contracts that a process keeps: some 1,700 usual ones.
REMEMBERED_BYTES = 6 << 20
# What the terms of one take besides their text; what a value takes that was parsed, and an object or array.
_TERMS_BYTES, _VALUE_BYTES, _CONTAINER_BYTES = 1_500, 120, 240
# Entries dropped to make room for one contract; the largest contract has 128 kB, the smallest about 2.
_DROPPED_AT_ONCE = 70


@dataclass(frozen=True, slots=True)
class UnpaidQuota:
    """Quotas of unpaid contracts in bytes: a new wallet, one that has paid, all new wallets together."""

    own_new: int = 512 << 10
    own_paid: int = 4 << 20
    all_new: int = 4 << 20


class SigningUnavailable(Unavailable):
    code = "SIGNING_UNAVAILABLE"
    message = "this worker has no key to sign with"
    advice = "Ask the operator to set WORKER_KEY; nothing was signed or charged."


class HashMismatch(Problem):
    code, status = "CONTRACT_HASH_MISMATCH", 422
    message = "the hash does not match the document"
    advice = "Send the document exactly as it was signed."


@dataclass(frozen=True)
class Contract:
    """A contract that both parties signed, or the terms of a purchase without one (`is_purchase`).

    `text`: its document as JSON; parsed it takes five times as much memory. `found`: its payment was found
    on the chain. `drafted`: when we signed its draft, if that is still known.
    """

    ref: str
    text: str
    terms: Terms
    hash: str
    registered: int
    execution: str | None
    found: bool = False
    drafted: int = 0
    # Whether it was bought at the plain door, where a payment accepts our offer.
    is_purchase: bool = False

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.text)
        return document

    @property
    def door(self) -> str:
        return "buy" if self.is_purchase else "hire"

    @property
    def signed_us(self) -> int:
        """Estimated time of signing, erring early: a seeker's clock may be ahead of ours."""
        # Most seekers write whole seconds, so take the end of that second.
        created = self.terms.created_at // 1_000_000 * 1_000_000 + 999_999
        return min(created, self.drafted) if self.drafted else created - CLOCKS_DIFFER_US


SchemaCheck = Callable[[str, Terms, str], None]


class ContractMemory:
    """The contracts that this process read last, bounded by the memory that they take."""

    def __init__(self, most_bytes: int = REMEMBERED_BYTES) -> None:
        self._kept: BoundedCache[Contract] = BoundedCache(most_bytes)

    def get(self, ref: str) -> Contract | None:
        return self._kept.get(ref)

    def renew(self, contract: Contract) -> None:
        known = self._kept.get(contract.ref)
        if known is not None and known is not contract and known.hash == contract.hash:
            self._kept.replace(contract.ref, contract)

    def add(self, contract: Contract) -> None:
        self._kept.add(contract.ref, contract, memory_of(contract))


def memory_of(contract: Contract) -> int:
    """What a contract takes at most, in bytes: its text, its terms, and what of them stays parsed."""
    terms, text = contract.terms, contract.text
    size = _TERMS_BYTES + 2 * getsizeof(text)
    if any((terms.input_schema, terms.output_schema, terms.webhook, terms.refund_conditions)):
        size += _VALUE_BYTES * text.count(",") + _CONTAINER_BYTES * (text.count("{") + text.count("["))
    return size


@dataclass
class ContractBook:
    """Signs, stores and finds contracts. The id is a credential: keys contain only a keyed hash of it.

    `accepted_secrets`: other secrets with which stored contracts may have been hashed.
    """

    client: redis.Redis
    keys: Keys
    secret: str
    listing: Callable[[], Listing]
    now: Callable[[], int]
    check_schemas: SchemaCheck
    key: str | None = field(default=None, repr=False)
    accepted_secrets: tuple[str, ...] = field(default=(), repr=False)
    verifier: SignatureVerifier = field(default_factory=Eip191Verifier)
    quota: UnpaidQuota = field(default_factory=UnpaidQuota)
    test_clock: bool = False

    def __post_init__(self) -> None:
        self._memory = ContractMemory()
        # A request asks for them several times.
        self._hashes = keep_by_length(_KEPT_CHARS)(self._hash)
        self._scripts = Scripts(
            self.client, self.keys, _LUA, libraries=[UNPAID_LUA], test_clock=self.test_clock
        )

    def ref(self, contract_id: str) -> str:
        """The contract reference used wherever the id must not appear: the one under which it is stored."""
        return self._stored_among(self.refs(contract_id))

    def refs(self, contract_id: str) -> tuple[str, ...]:
        """All references that the contract may be stored under; new contracts get the first."""
        return self._hashes(f"contract:{contract_id}")

    def _hash(self, text: str) -> tuple[str, ...]:
        return tuple(keyed_hash(secret, text) for secret in (self.secret, *self.accepted_secrets))

    def _stored_among(self, refs: tuple[str, ...]) -> str:
        return max(refs, key=self._how_stored) if len(refs) > 1 else refs[0]

    def _how_stored(self, ref: str) -> tuple[bool, bool, bool]:
        with self.client.pipeline(transaction=False) as reads:
            reads.hexists(self.keys.contract(ref), "execution")
            reads.exists(self.keys.contract(ref))
            reads.exists(self.keys.draft(ref))
            executed, contract, draft = reads.execute()
        return bool(executed), bool(contract), bool(draft)

    def purchase_ref(self, payment_key: str) -> str:
        """The stored reference of a payment's purchase at the plain door."""
        return self._stored_among(self._hashes(f"purchase:{payment_key}"))

    def sign(self, draft: Mapping[str, Any], network: str = "") -> dict[str, Any]:
        """Checks the draft's terms and returns it with our signature. `network`: where it came from."""
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
            self.check_schemas(capability, terms, network)
        digest = contract_hash(document)
        ref = self.ref(terms.contract_id)
        stored = self._scripts.run(DRAFT, contract=ref, digest=digest, life=DRAFT_US, most=MOST_DRAFTS)
        self._accept(stored.answer)
        signature = sign_text(digest, self.key)
        ignored = unknown_keys(document)[:MOST_NAMED]
        signed = datetime.fromtimestamp(self.now() // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            **document,
            "signatures": {
                "worker": signature,
                "timestamp": signed,
                "scheme": "eip191",
                "canonicalization": "RFC8785",
                # Not part of the signed document, so that the seeker's document stays unchanged.
                **({"no_effect": ignored} if ignored else {}),
            },
            "hash": digest,
        }

    def register(self, document: Mapping[str, Any]) -> Contract:
        """Stores a document that carries both signatures."""
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
            # We signed it, so its terms were acceptable; recheck only what may have changed since.
            _still_ours(terms, listing, now)
        self._store(terms, digest, document)
        stored = self._known(terms.contract_id)
        if stored is None:
            raise Unavailable("the contract could not be stored")
        return stored

    def _store(self, terms: Terms, digest: str, document: Mapping[str, Any]) -> None:
        """Stores a signed contract; old unpaid ones of wallets that never paid make room for a new one."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode()) + _ENTRY_BYTES
        for _ in range(2):
            registered = self._scripts.run(
                REGISTER,
                contract=self.ref(terms.contract_id),
                document=pack_document(text, digest) if self._packs else text,
                digest=digest,
                created=terms.created_at,
                expires=terms.deadline,
                draft_life=DRAFT_US,
                seeker=terms.seeker_wallet.lower(),
                size=size,
                **asdict(self.quota),
                shelter=SHELTER_US,
                oldest=_DROPPED_AT_ONCE,
            )
            if registered.answer is not RegisterAnswer.CROWDED:
                break
            for entry in as_texts(registered.values):
                self._scripts.value("drop_unpaid", contract=entry.partition(" ")[0], entry=entry)
        self._accept(registered.answer)

    def id_of(self, execution: Execution) -> str:
        """The contract id of an execution; show it only to the seeker."""
        contract = self.by_ref(execution.contract) if execution.contract else None
        return contract.terms.contract_id if contract and not contract.is_purchase else ""

    def find(self, contract_id: str) -> Contract | None:
        return self._known(contract_id)

    def remembered(self, contract_id: str) -> Contract | None:
        """The contract as this process read it last; its document is what was signed, the rest may be old."""
        refs = self.refs(contract_id)
        return self._memory.get(refs[0]) if len(refs) == 1 else None

    def remembers(self, ref: str) -> bool:
        """Whether this process has read this contract or purchase lately."""
        return self._memory.get(ref) is not None

    def learn(self, contract: Contract) -> None:
        """Remembers what became of a remembered contract."""
        self._memory.renew(contract)

    def by_ref(self, ref: str) -> Contract | None:
        """A contract or purchase by its reference, which does not authorize the caller."""
        return self._read(ref)

    def is_draft(self, contract_id: str) -> bool:
        """Whether we signed it and the seeker's signature is missing."""
        return bool(self.client.exists(self.keys.draft(self.ref(contract_id))))

    def _known(self, contract_id: str) -> Contract | None:
        return self._read(self.ref(contract_id))

    def _read(self, ref: str) -> Contract | None:
        raw = as_mapping(self.client.hgetall(self.keys.contract(ref)))
        if not raw:
            return None
        hash, registered, execution = raw["hash"].decode(), int(raw["registered"]), raw.get("execution")
        text, terms, is_purchase = self._immutable(ref, hash, registered, raw["document"])
        contract = Contract(
            ref=ref,
            text=text,
            terms=terms,
            hash=hash,
            registered=registered,
            execution=execution.decode() if execution else None,
            found="found_key" in raw,
            drafted=int(raw.get("drafted", b"0")),
            is_purchase=is_purchase,
        )
        self._memory.add(contract)
        return contract

    def _immutable(self, ref: str, hash: str, registered: int, stored: bytes) -> tuple[str, Terms, bool]:
        """What never changes of a contract: its document and what follows from that.

        One that is registered again may have other signatures, which its hash leaves out.
        """
        known = self._memory.get(ref)
        if known is not None and (known.hash, known.registered) == (hash, registered):
            return known.text, known.terms, known.is_purchase
        text = unpack_document(stored.decode(), hash)
        document = json.loads(text)
        return text, parse_terms(document), str(document["version"]).startswith(PURCHASE)

    @cached_property
    def _packs(self) -> bool:
        return all_have(self.client, self.keys, PACKED)

    def _accept(self, answer: DraftAnswer | RegisterAnswer) -> None:
        if answer in (DraftAnswer.DIFFERS, RegisterAnswer.DIFFERS):
            raise Conflict("another contract has this id", code="CONTRACT_ID_USED", field="contract_id")
        if answer is RegisterAnswer.FULL:
            raise Unavailable("too many contracts of this wallet wait for their payment", retry_after=60)
        if answer is RegisterAnswer.CROWDED:
            raise Unavailable("too many contracts of new wallets wait for their payment", retry_after=60)


def _still_ours(terms: Terms, listing: Listing, now: int) -> None:
    if terms.deadline <= now:
        raise Problem(
            "the contract's deadline has passed",
            code="CONTRACT_EXPIRED",
            status=410,
            field="terms.deadline",
            advice="Draft a new contract.",
            charge_known=False,
        )
    if terms.deadline > now + LONGEST_US:
        raise Problem(
            "the deadline is too far in the future",
            code="DEADLINE_TOO_FAR",
            status=422,
            field="terms.deadline",
        )
    if terms.worker_wallet.lower() != listing.wallet.lower():
        raise Problem(
            "the contract names another worker",
            code="CONTRACT_PARTY_MISMATCH",
            status=403,
            field="parties.worker.wallet",
        )

"""The two dialects of the runtime protocol, and everything in a response that depends on them.

Deployed kernels and the published documents disagree. The spelling of a request shows which dialect it
follows; policies check the same things in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from worker.swarm import serde

PREFIX = "sha256:"


class Dialect(StrEnum):
    """The dialect a request uses."""

    KERNEL = "kernel"
    DOCUMENTS = "documents"


def of_verify(policy_hash: str) -> Dialect:
    """A policy hash with a `sha256:` prefix is the documents' spelling; kernels send bare hex."""
    return Dialect.DOCUMENTS if policy_hash.startswith(PREFIX) else Dialect.KERNEL


def of_execute(stage: str, policy_hash: str | None) -> Dialect:
    """The case of the stage decides; for a stage without case, the contract's policy hash does."""
    if stage.isupper():
        return Dialect.KERNEL
    if stage.islower():
        return Dialect.DOCUMENTS
    return of_verify(policy_hash or "")


def accepted_hashes(
    reading: Dialect, known: Iterable[str], policy_id: str, policy_params: Any
) -> tuple[str, ...]:
    """The policy hashes this dialect accepts, spelled as a request must spell them."""
    bare = [value.removeprefix(PREFIX) for value in known]
    if reading is Dialect.KERNEL:
        return tuple(bare)
    bare.append(hashlib.sha256(policy_id.encode() + serde.compact(policy_params)).hexdigest())
    return tuple(PREFIX + value for value in bare)


def spell_hash(reading: Dialect, bare: str) -> str:
    """A result hash as this dialect spells it."""
    return PREFIX + bare if reading is Dialect.DOCUMENTS else bare


def spell_codes(reading: Dialect, passed: bool, codes: Iterable[int]) -> list[int]:
    """Reason codes in this dialect: on a pass the documents want none, a kernel at least one."""
    return [] if passed and reading is Dialect.DOCUMENTS else list(codes)


def bad_answer_status(reading: Dialect) -> int:
    """The status when our own response does not fit: the documents say 400, but to a kernel 4xx is final."""
    return 400 if reading is Dialect.DOCUMENTS else 502


def keeps_expiry(reading: Dialect) -> bool:
    """Whether `expiry_ms` ends a task. The documents do not say, and their own example expired long ago."""
    return reading is Dialect.KERNEL

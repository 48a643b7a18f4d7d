"""The two readings of the runtime protocol, and everything in which an answer depends on them.

Kernels in the field and the published documents disagree. A request tells by its own spelling which one it
follows; what a policy checks is the same in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from worker.swarm import serde

PREFIX = "sha256:"


class Reading(StrEnum):
    """Whose words a request uses."""

    KERNEL = "kernel"
    DOCUMENTS = "documents"


def of_verify(policy_hash: str) -> Reading:
    """A policy hash with a `sha256:` prefix is the documents' spelling: kernels send bare hex."""
    return Reading.DOCUMENTS if policy_hash.startswith(PREFIX) else Reading.KERNEL


def of_execute(stage: str, policy_hash: str | None) -> Reading:
    """The stage's case decides; a stage without case leaves it to the contract's policy hash."""
    if stage.isupper():
        return Reading.KERNEL
    if stage.islower():
        return Reading.DOCUMENTS
    return of_verify(policy_hash or "")


def accepted_hashes(
    reading: Reading, known: Iterable[str], policy_id: str, policy_params: Any
) -> tuple[str, ...]:
    """The policy hashes that this reading accepts, spelled as a request must spell them."""
    bare = [value.removeprefix(PREFIX) for value in known]
    if reading is Reading.KERNEL:
        return tuple(bare)
    bare.append(hashlib.sha256(policy_id.encode() + serde.compact(policy_params)).hexdigest())
    return tuple(PREFIX + value for value in bare)


def spell_hash(reading: Reading, bare: str) -> str:
    """A result hash as this reading writes it."""
    return PREFIX + bare if reading is Reading.DOCUMENTS else bare


def spell_codes(reading: Reading, passed: bool, codes: Iterable[int]) -> list[int]:
    """Reason codes as this reading writes them: on a pass the documents want none, a kernel at least one."""
    return [] if passed and reading is Reading.DOCUMENTS else list(codes)


def bad_answer_status(reading: Reading) -> int:
    """The status when our own answer does not fit: the documents say 400, but to a kernel 4xx is final."""
    return 400 if reading is Reading.DOCUMENTS else 502


def keeps_expiry(reading: Reading) -> bool:
    """Whether `expiry_ms` ends a task. The documents do not say so, and their own example is long past it."""
    return reading is Reading.KERNEL

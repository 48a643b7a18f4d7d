"""A worker whose processes have not published a catalogue: not the seeker's fault."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import PaidDoor
from tests.fakes.seeker import DoorAnswer, FlaskDoor, Seeker
from tests.waiting import eventually
from worker.app import create_app
from worker.capabilities.declare import Capability

UNAVAILABLE = "CAPABILITY_UNAVAILABLE"


@pytest.fixture(name="seeker")
def _seeker(paid_door: PaidDoor) -> Seeker:
    return Seeker(FlaskDoor(create_app(paid_door.settings)), now=lambda: paid_door.now() / 1e6)


def is_refused(answer: DoorAnswer, status: int) -> bool:
    """Whether the missing catalogue refuses the request; descriptions are read once a second."""
    return (answer.status, answer.code) == (status, UNAVAILABLE)


def test_without_a_catalogue_a_seeker_is_told_to_come_back(paid_door: PaidDoor, seeker: Seeker) -> None:
    """Drafts and signed contracts get 503 with Retry-After, not 422, until a catalogue is published."""
    draft, hired = seeker.draft(), seeker.hire()
    keys = paid_door.parts.keys
    paid_door.parts.client.delete(keys.catalogs, keys.trees)
    eventually(lambda: is_refused(hired.execute(), 503), description="an empty catalogue")
    for refused in (seeker.door("POST", "/contracts", draft), hired.execute()):
        assert is_refused(refused, 503)
        assert refused.header("Retry-After") and refused.header("PAYMENT-REQUIRED") is None


def test_a_signed_capability_that_is_gone_may_come_back(paid_door: PaidDoor, seeker: Seeker) -> None:
    """A draft for a missing capability is refused permanently; a signed contract gets 503."""
    draft, hired = seeker.draft(), seeker.hire()
    paid_door.parts.catalog.publish([Capability("other", price="1")])
    eventually(lambda: is_refused(hired.execute(), 503), description="another catalogue")
    assert hired.execute().header("Retry-After")
    assert is_refused(seeker.door("POST", "/contracts", draft), 422)

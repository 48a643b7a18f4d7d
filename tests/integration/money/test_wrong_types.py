"""No script leaves half of its writes, whichever of its keys has a wrong type."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import PaidDoor
from tests.fakes.spoiled_keys import SpoiledKeys


def test_scripts_of_a_paid_task_write_all_or_nothing(
    paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the contract's draft to the settlement, each stops before its first write or is not concerned."""
    spoiled = SpoiledKeys(paid_door.parts.client, monkeypatch)
    deal = paid_door.deal()
    deal.execute({"do": "this"}, deal.payment())
    paid_door.step()
    id = deal.id or ""
    taken = paid_door.take(id)
    assert taken is not None
    assert paid_door.seal(taken) == "settling"
    paid_door.settle(id)
    assert paid_door.execution(id).state == "completed"
    begun = {"draft", "register", "claim", "verified", "take", "seal", "settle_begin", "settled"}
    assert begun <= spoiled.tried

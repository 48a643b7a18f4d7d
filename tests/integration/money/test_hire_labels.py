"""The labels that every hire has are found by its door and its contract, in old records and in new ones."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import PaidDoor
from tests.integration.money.test_kept_answers import completed
from worker.engine.listing import Filter
from worker.parts import Parts
from worker.store.data_version import DATA, PACKED


def listed(parts: Parts, *labels: tuple[str, str], state: str = "", limit: int = 50) -> list[str]:
    """Ids of all pages."""
    found, cursor = [], ""
    while True:
        page = parts.executions.page(Filter(labels=labels, state=state), cursor=cursor, limit=limit)
        found += [each.id for each in page.executions]
        cursor = page.next_cursor
        if not cursor:
            return found


@pytest.mark.parametrize("oldest", [PACKED - 1, PACKED])
@pytest.mark.parametrize("limit", [1, 50])
def test_hire_is_listed_by_its_labels(paid_door: PaidDoor, oldest: int, limit: int) -> None:
    """Once, beside others' executions with the same label, which come page by page."""
    parts = paid_door.parts
    parts.client.set(parts.keys.data_version, f"{DATA} {oldest}")
    deal, id = completed(paid_door)
    execution = parts.executions.get(id)
    ref = execution.contract
    assert execution.labels == {"door": "hire", "contract_ref": ref}
    assert parts.client.hexists(parts.keys.record(id), "labels") == (oldest < PACKED)
    others = [
        parts.executions.create("a", {}, door="kernel", labels={"contract_ref": ref, "door": door})[1]
        for door in ("hire", "other")
    ]
    of_contract, of_door = ("contract_ref", ref), ("door", "hire")
    assert sorted(listed(parts, of_contract, limit=limit)) == sorted([id, *others])
    assert sorted(listed(parts, of_contract, of_door, limit=limit)) == sorted([id, others[0]])
    assert sorted(listed(parts, of_door, limit=limit)) == sorted([id, others[0]])
    assert listed(parts, of_contract, state="completed", limit=limit) == [id]
    assert listed(parts, ("contract_ref", "another"), limit=limit) == []
    assert (
        parts.executions.page(Filter(labels=(of_door,)), limit=limit).executions[0].labels["door"] == "hire"
    )
    assert deal.execute({"do": "ok"}).final


@pytest.mark.parametrize("oldest", [PACKED - 1, PACKED])
def test_unpaid_hire_is_listed_by_its_contract_after_that_has_expired(
    paid_door: PaidDoor, oldest: int
) -> None:
    """As long as its record is kept, alone or with another label."""
    parts = paid_door.parts
    parts.client.set(parts.keys.data_version, f"{DATA} {oldest}")
    paid_door.facilitator.planned["verify"].append("no")
    deal = paid_door.deal()
    id = deal.execute({"do": "ok"}, deal.payment()).execution.id
    paid_door.step()
    assert parts.executions.get(id).phase == "offered"
    of_contract = ("contract_ref", parts.executions.get(id).contract)
    parts.client.delete(parts.keys.contract(of_contract[1]))
    completed(paid_door)
    assert listed(parts, of_contract) == [id]
    assert listed(parts, of_contract, ("door", "hire"), limit=1) == [id]
    assert listed(parts, of_contract, ("door", "buy")) == []

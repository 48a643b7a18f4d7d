"""Contracts at the dashboard: their ids open tasks, so no page, address or journal has them."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes.paid_door import PaidDoor
from tests.web_app import application

TOKEN = "t" * 32


def test_binding_to_a_contract_keeps_its_id_out_of_the_journal(paid_door: PaidDoor) -> None:
    """The id opens the task, and whoever may only look reads the journal: it has the reference."""
    deal, parts = paid_door.deal(), paid_door.parts
    id = deal.document["contract_id"]
    contract = parts.hiring.book.find(id)
    assert contract is not None
    # While the store does not have it, its money is listed instead of bound.
    parts.client.delete(parts.keys.contract(contract.ref))
    parts.client.zrem(parts.keys.contracts, parts.keys.contract(contract.ref))
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    assert paid_door.comparison.run()
    (listed,) = parts.found.listed()
    parts.hiring.book.register(deal.document)
    form = {"action": "bind", "transaction": listed.transaction, "log_index": listed.log_index, "to": id}
    with application(replace(paid_door.settings, kernel_token=TOKEN)) as app:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
        answer = app.test_client().post("/dashboard/money", data=form, headers=headers)
        assert answer.status_code == 303, answer.get_data(as_text=True)
        journal = app.test_client().get("/dashboard/journal", headers=headers).get_data(as_text=True)
    assert contract.ref in journal and id not in journal


def test_a_contract_is_found_by_its_id_without_the_id_in_an_address(paid_door: PaidDoor) -> None:
    """The form leads to the contract's reference, which the list of executions takes too."""
    deal, parts = paid_door.deal(), paid_door.parts
    id = deal.document["contract_id"]
    task = deal.execute({"do": "ok"}, deal.payment()).execution.id
    contract = parts.hiring.book.find(id)
    assert contract is not None
    with application(replace(paid_door.settings, kernel_token=TOKEN)) as app:
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/html"}
        found = app.test_client().post("/dashboard/contracts", data={"contract": id}, headers=headers)
        assert (found.status_code, found.headers["Location"]) == (303, f"/dashboard/contracts/{contract.ref}")
        shown = app.test_client().get(found.headers["Location"], headers=headers).get_data(as_text=True)
        assert task in shown and id not in shown
        for filter, listed in ((contract.ref, True), (id, False)):
            page = app.test_client().get(f"/dashboard/executions?contract={filter}", headers=headers)
            assert (task in page.get_data(as_text=True)) is listed
        unknown = app.test_client().post("/dashboard/contracts", data={"contract": "ctr_x"}, headers=headers)
        assert unknown.status_code == 404

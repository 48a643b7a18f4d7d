"""The operator's decisions about found money, made from the dashboard."""

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

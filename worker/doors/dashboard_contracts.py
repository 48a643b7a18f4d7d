"""Contracts and purchases: what was bought, by whom, for how much, and what is signed but not paid."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, request

from worker.contracts.book import Contract
from worker.core.errors import NotFound
from worker.doors.dashboard_session import PATH
from worker.doors.dashboard_view import DashboardView
from worker.engine.listing import Filter

PAGE = 50
DOORS = ("hire", "buy")
# The id of a contract opens its task, so only its seeker may read it.
_HIDDEN = "(hidden: it opens the task)"


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/contracts")
    def contracts() -> Response:
        services = view.services
        door = request.args.get("door", "hire")
        door = door if door in DOORS else "hire"
        page = services.executions.page(Filter(door=door), cursor=request.args.get("cursor", ""), limit=PAGE)
        more = urlencode({"door": door, "cursor": page.next_cursor}) if page.next_cursor else ""
        return view.page(
            "contracts",
            door=door,
            doors=DOORS,
            bought=page.executions,
            briefs=services.payment_briefs.of([each.id for each in page.executions]),
            next=more,
            unpaid=services.contract_list.unpaid(),
            unpaid_count=services.contract_list.count_unpaid(),
        )

    @blueprint.post("/contracts")
    def find_contract() -> Response:
        """A contract's id opens its task, so it travels in a form and the address has the reference."""
        found = view.services.book.find(view.text("contract", required=True, most=300))
        if found is None:
            raise NotFound("no contract has this id")
        return view.go(f"{PATH}/contracts/{found.ref}")

    @blueprint.get("/contracts/<ref>")
    def contract(ref: str) -> Response:
        found = view.services.contract_list.get(ref)
        if found is None:
            raise NotFound("no contract has this reference")
        execution = found.execution
        return view.page(
            "contract",
            contract=found,
            document=_shown(found),
            briefs=view.services.payment_briefs.of([execution]) if execution else {},
        )


def _shown(contract: Contract) -> dict[str, Any]:
    document = dict(contract.document)
    if "contract_id" in document:
        document["contract_id"] = _HIDDEN
    for named in ("terms", "parties"):
        if isinstance(document.get(named), dict) and "webhook" in document[named]:
            document[named] = {**document[named], "webhook": "(hidden: it may carry secrets)"}
    return {
        name: ("(hidden: it may carry secrets)" if name == "webhook" else value)
        for name, value in document.items()
    }

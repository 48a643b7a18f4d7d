"""The shop door: pages on which people see what is for sale, try it, and read what they ordered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, redirect, request
from werkzeug.wrappers import Response as AnyResponse

from worker.capabilities.declare import Capability
from worker.core.callers import network_of
from worker.core.errors import Forbidden, NotFound, Problem
from worker.core.settings import Settings
from worker.doors import shop_form
from worker.doors.answers import json_answer
from worker.doors.bodies import form
from worker.doors.hire import HireServices
from worker.doors.openapi.documents import seeker_operations
from worker.doors.pages import prefers_page, render, root
from worker.doors.shop_views import card, mime_of, title_of
from worker.doors.site_documents import SiteDocuments
from worker.doors.task_door import add_tasks, remember
from worker.engine.figures import Figures, MeasuredFigures
from worker.hiring.manifest import Manifest
from worker.hiring.task import TaskInput
from worker.hiring.trial_hires import TrialHires

NAME = "shop"
HOME = f"{NAME}.home"
# Figures and catalog change; a browser may keep a page for as long as a visitor reads it.
_HALF_A_MINUTE = "public, max-age=30"
# The request that follows a hire sees it begun; this long its payment is settled at once.
_FOLLOW_SECONDS = 60.0


@dataclass(frozen=True)
class ShopServices:
    """What the selling pages need beside the services of the hire door."""

    hire: HireServices
    manifest: Manifest
    figures: MeasuredFigures
    documents: SiteDocuments
    trials: TrialHires

    @property
    def settings(self) -> Settings:
        return self.hire.settings

    def sold(self, name: str) -> Capability:
        found = self.manifest.for_sale().get(name)
        if found is None:
            raise NotFound("this worker sells no such capability", advice="See what it sells.")
        return found

    def card(self, capability: Capability, figures: Figures) -> dict[str, Any]:
        settle = self.manifest.settle(capability)
        settings = self.settings
        shown = card(capability, figures, settle, settings.public_url, self.hire.network.caip2)
        shown["icon"] = capability.icon or settings.icon_url or ""
        return shown

    def worker_facts(self, figures: Figures) -> dict[str, Any]:
        """What proves that the worker is who it says and does what it promises."""
        return {
            "figures": figures,
            "wallet": self.settings.worker_wallet or "",
            "network": self.hire.network.name,
            "test_money": self.hire.network.name != "base",
            "signer": self.documents.signer or "",
            "did": self.documents.did(),
            "trial": self.trials.offered,
            "url": self.settings.public_url,
        }


def door(services: ShopServices) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)
    settings = services.settings

    @blueprint.get("/")
    def home() -> Response:
        if not prefers_page():
            response = json_answer(services.manifest.document())
            response.headers["Vary"] = "Accept"
            return response
        figures = services.figures.now()
        cards = [services.card(each, figures) for each in services.manifest.for_sale().values()]
        featured = next((each for each in cards if each["files"]), cards[0] if cards else None)
        fields = shop_form.fields_of(services.sold(featured["name"])) if featured else []
        facts = services.worker_facts(figures)
        page = render("shop/home.html", settings, cards=cards, featured=featured, fields=fields, **facts)
        return _kept(page)

    @blueprint.get("/c/<capability>")
    def show(capability: str) -> Response:
        return _kept(_capability_page(services, services.sold(capability)))

    @blueprint.get("/c/<capability>/example/<name>")
    def example(capability: str, name: str) -> Response:
        text = services.sold(capability).example_files.get(name)
        if text is None:
            raise NotFound("no such file")
        response = Response(text, mimetype=mime_of(name))
        # Authors' files: never code of this site.
        response.headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
        response.headers["Cache-Control"] = "public, max-age=3600"
        return response

    @blueprint.post("/c/<capability>/hire")
    def hire(capability: str) -> AnyResponse:
        services.trials.check_offered()
        _expect_own_page(settings)
        services.hire.slow_down(request.environ, "payments", settings.limit_executes)
        sold = services.sold(capability)
        sent = form()
        try:
            body = TaskInput.of(shop_form.read_form(sold, sent))
            task = services.trials.hire(sold.name, body, network_of(request.remote_addr))
        except Problem as refused:
            return _refused(services, sold, refused, sent)
        services.trials.follow(task, _FOLLOW_SECONDS)
        id = task.id
        response = redirect(f"{root(settings)}/t/{id}", 303)
        remember(response, settings, id, task.contract.terms.contract_id)
        return response

    @blueprint.get("/docs")
    def docs() -> Response:
        operations = seeker_operations()
        page = render("shop/docs.html", settings, operations=operations, url=settings.public_url)
        return _kept(page)

    add_tasks(blueprint, services.hire)
    return blueprint


def _capability_page(
    services: ShopServices, capability: Capability, status: int = 200, **given: Any
) -> Response:
    figures = services.figures.now()
    return render(
        "shop/capability.html",
        services.settings,
        status,
        card=services.card(capability, figures),
        others=[
            {"name": each.name, "title": title_of(each)}
            for each in services.manifest.for_sale().values()
            if each.name != capability.name
        ],
        fields=shop_form.fields_of(capability, given.get("form")),
        problem=given.get("problem"),
        **services.worker_facts(figures),
    )


def _refused(
    services: ShopServices, capability: Capability, problem: Problem, form: Mapping[str, str]
) -> Response:
    """The form again, with what the visitor sent and why it was refused."""
    response = _capability_page(services, capability, problem.status, problem=problem, form=form)
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    return response


def _expect_own_page(settings: Settings) -> None:
    """Refuses forms of other sites: they would spend the test dollars that are meant for visitors."""
    origin = request.headers.get("Origin")
    own = (request.host_url.rstrip("/"), settings.public_url.removesuffix(root(settings)))
    if origin is not None and origin not in own:
        raise Forbidden("this form was sent by another site", field="Origin", expected=own[0])


def _kept(page: Response) -> Response:
    page.headers["Cache-Control"] = _HALF_A_MINUTE
    page.headers["Vary"] = "Accept"
    page.add_etag()
    page.make_conditional(request)
    return page

"""The dashboard in a browser: what needs a decision is seen at once, and settled in two clicks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import NewPage, accessible
from tests.browser.operated import WATCHER, OperatedWorker
from tests.waiting import eventually

PATIENCE_MS = 30_000
PAGES = (
    "", "?over=week", "/executions", "/money", "/money?by=seeker", "/contracts", "/webhooks", "/agents",
    "/policy?agent=payout&tool=pay_out&arguments=%7B%22amount%22%3A%221%22%7D", "/settings", "/journal",
)  # fmt: skip
PHONE = {"width": 360, "height": 740}


@pytest.fixture(name="worker", scope="module")
def _worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedWorker]:
    worker = OperatedWorker(tmp_path_factory.mktemp("operated"))
    try:
        yield worker.start()
    finally:
        worker.close()


@pytest.fixture(name="page")
def _page(worker: OperatedWorker, new_page: NewPage) -> Page:
    """The operator's page, on the overview."""
    return worker.sign_in(new_page())


def shown(locator: Locator) -> None:
    """Waits until it is there, without reloading by hand."""
    expect(locator).to_be_visible(timeout=PATIENCE_MS)


def state(page: Page, name: str) -> None:
    shown(page.locator("h1 .badge", has_text=name))


def test_blocked_execution_appears_and_is_approved_in_two_clicks(worker: OperatedWorker, page: Page) -> None:
    """Without a reload it stands at the top; one click opens it, the next approves it, and it completes."""
    worker.local.create("payout", to="Ada", amount="7.25")
    item = page.get_by_role("link", name="Approval of pay_out").filter(has_text="7.25")
    shown(item)
    item.click()
    shown(page.get_by_role("heading", name="pay_out waits for your approval"))
    accessible(page)
    page.get_by_role("button", name="Approve").click()
    shown(page.get_by_text("Approve, execution"))
    state(page, "completed")
    expect(page.locator("#output + pre")).to_contain_text("7.25 to Ada")


def test_call_is_denied_with_a_reason_by_keyboard_alone(worker: OperatedWorker, page: Page) -> None:
    """Tab, type and Enter: the agent reads the reason, and the journal says who denied."""
    id = worker.local.create("payout", to="Mallory", amount="99")
    eventually(lambda: worker.parts.executions.get(id).state == "blocked", 30, "a wait for approval")
    page.goto(f"{worker.url}/executions/{id}")
    press_until(page, page.get_by_label("Reason needed to deny"))
    page.keyboard.type("not agreed")
    press_until(page, page.get_by_role("button", name="Deny"))
    page.keyboard.press("Enter")
    state(page, "failed")
    expect(page.get_by_text("not agreed").first).to_be_visible()
    page.goto(f"{worker.url}/journal")
    expect(page.get_by_role("row").filter(has_text="pay_out not agreed")).to_contain_text("Grace")


def press_until(page: Page, wanted: Locator) -> None:
    """Tabs until this element has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"the keyboard does not reach {wanted}")


def test_unknown_payments_get_their_two_decisions(worker: OperatedWorker, page: Page) -> None:
    """One landed, as the chain confirms; the other can never land. Neither needs a human any more."""
    transaction = worker.transfer(worker.landed)
    page.get_by_role("link", name="Unknown payment").first.click()
    landed, dead = (page.locator(f"#payment-{each.id}-1") for each in (worker.landed, worker.dead))
    expect(landed).to_contain_text("dropped")
    landed.get_by_label("It settled in the transaction").fill(transaction)
    landed.get_by_role("button", name="Settled").click()
    eventually(lambda: worker.setup.state(worker.landed) == "settled", 30, "a settled payment")
    dead.get_by_role("button", name="Refused").click()
    eventually(lambda: worker.setup.state(worker.dead) == "refused", 30, "a refused payment")
    shown(page.get_by_text("There is none: every payment"))
    page.goto(f"{worker.url}/journal")
    expect(page.get_by_role("row").filter(has_text="settle payment, for Grace")).to_contain_text("done")
    page.goto(worker.url)
    expect(page.get_by_role("link", name="Unknown payment")).to_have_count(0)


def test_webhook_is_sent_again(worker: OperatedWorker, page: Page) -> None:
    """Every attempt is listed, and one click sends it again at once."""
    worker.receiver.answers = [500] * 3
    id = worker.hire({"about": "bees"})
    page.goto(f"{worker.url}/webhooks")
    delivery = page.locator("article", has=page.get_by_role("link", name=id[-4:]))
    expect(delivery).to_contain_text("status 500", timeout=PATIENCE_MS)
    worker.receiver.answers = []
    delivery.get_by_role("button", name="Send again").click()
    expect(delivery).to_contain_text("status 204", timeout=PATIENCE_MS)
    page.goto(f"{worker.url}/executions/{id}")
    expect(page.locator("#payment-1")).to_contain_text("settled")
    expect(page.get_by_role("link", name="found.txt")).to_be_visible()
    accessible(page)


def test_execution_is_signalled_and_another_is_cancelled(worker: OperatedWorker, page: Page) -> None:
    """A wait gets its word with a payload; running work ends with a reason."""
    waiting, running = worker.local.create("letter"), worker.local.create("slow")
    eventually(lambda: worker.parts.executions.get(waiting).state == "blocked", 30, "a wait for a signal")
    page.goto(f"{worker.url}/executions/{waiting}")
    page.get_by_label("Payload").first.fill('{"text": "Better."}')
    page.get_by_role("button", name="Send the signal").click()
    state(page, "completed")
    page.goto(f"{worker.url}/executions/{running}")
    page.locator("summary", has_text="Cancel").click()
    page.get_by_label("Reason for the seeker").fill("asked by phone")
    page.get_by_role("button", name="Cancel this execution").click()
    state(page, "cancelled")
    expect(page.locator("#events")).to_contain_text("asked by phone")


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_is_accessible_and_fits(worker: OperatedWorker, new_page: NewPage, look: str) -> None:
    """In light and dark and on a phone axe finds nothing, and nothing is wider than the window."""
    options = {"dark": {"color_scheme": "dark"}, "phone": {"viewport": PHONE}}.get(look, {})
    page = worker.sign_in(new_page(**options))
    shaky = worker.local.create("shaky", broken=True)
    worker.local.ended(shaky)
    for path in (*PAGES, f"/executions/{shaky}"):
        page.goto(f"{worker.url}{path}")
        accessible(page)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} is {wide} px too wide"


def test_dashboard_works_without_javascript(worker: OperatedWorker, new_page: NewPage) -> None:
    """Signing in, reading, filtering and approving are plain links and forms."""
    id = worker.local.create("payout", to="Ada", amount="3")
    eventually(lambda: worker.parts.executions.get(id).state == "blocked", 30, "a wait for approval")
    page = worker.sign_in(new_page(java_script_enabled=False))
    row = page.locator(".attention li").filter(has_text=id[-4:])
    row.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("status").first).to_contain_text("Approve")
    worker.local.ended(id)
    page.goto(f"{worker.url}/executions")
    page.get_by_label("State").select_option("completed")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("link", name=id[-4:])).to_be_visible()


def test_watcher_sees_everything_and_no_button(worker: OperatedWorker, new_page: NewPage) -> None:
    """A read-only token opens the pages; nothing on them changes anything but the session."""
    id = worker.local.create("payout", to="Ada", amount="5")
    eventually(lambda: worker.parts.executions.get(id).state == "blocked", 30, "a wait for approval")
    page = worker.sign_in(new_page(), WATCHER)
    for path in ("", f"/executions/{id}", "/money", "/webhooks", "/settings"):
        page.goto(f"{worker.url}{path}")
        expect(page.get_by_role("contentinfo")).to_contain_text("ada")
        expect(page.locator("form[method=post]")).to_have_count(1)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()

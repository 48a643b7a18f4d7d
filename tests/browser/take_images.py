"""Takes the pictures of the pages; run by `make images`, not with the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import NewPage
from tests.browser.operated import OperatedWorker
from tests.e2e.tree import Local

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs/images"
PREVIEW = ROOT / "worker/data/pages/static/shop/preview.png"
WINDOW = {"width": 1200, "height": 760}
# The size that previews of links have.
CARD = {"width": 1200, "height": 630}
# Says nothing about one worker: every worker's pages use it.
PREVIEW_CARD = """
<style>
body { margin: 0; height: 630px; box-sizing: border-box; padding: 84px 96px; background: #0e1a2f; color: #fff;
  font-family: system-ui, sans-serif; display: flex; flex-direction: column; justify-content: space-between }
i { display: block; width: 72px; height: 72px; border-radius: 18px; background: #86b4ff }
h1 { font-size: 80px; line-height: 1.08; letter-spacing: -.03em; margin: 0 }
p { font-size: 34px; color: #b9c7dd; margin: 0 }
</style>
<i></i><h1>Hire a software agent.<br>Pay per task.</h1>
<p>Fixed prices in USDC &nbsp;·&nbsp; pay for results &nbsp;·&nbsp; signed receipts</p>
"""
PATIENCE_MS = 30_000


@pytest.fixture(name="url")
def _url(shop: Local) -> str:
    return str(shop.facts["url"])


def save(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path)


def hire(page: Page, url: str, capability: str) -> None:
    page.goto(f"{url}/c/{capability}")
    page.get_by_role("button", name="Hire it").click()
    expect(page.get_by_role("status")).to_have_text("Delivered", timeout=PATIENCE_MS)


def test_take_dashboard(tmp_path: Path, new_page: NewPage) -> None:
    """The operator's overview, and an execution with its timeline."""
    worker = OperatedWorker(tmp_path)
    try:
        worker.start()
        for number in range(30):
            worker.local.ended(worker.local.create("report", about=f"bees {number}"))
        worker.local.create("payout", to="Ada", amount="7.25")
        worker.receiver.answers = [500]
        bought = worker.hire({"about": "bees"})
        page = worker.sign_in(new_page(viewport=WINDOW))
        expect(page.get_by_role("button", name="Approve")).to_be_visible(timeout=PATIENCE_MS)
        page.screenshot(path=IMAGES / "dashboard.png")
        page.goto(f"{worker.url}/executions/{bought}")
        page.screenshot(path=IMAGES / "execution.png")
        page.close()
    finally:
        worker.close()


def test_take_images(url: str, new_page: NewPage) -> None:
    """The first page, a capability, a task, and the picture for links to the pages."""
    page = new_page(viewport=WINDOW)
    hire(page, url, "logo-design")
    save(page, IMAGES / "task.png")
    for path, name in (("/", "home"), ("/c/code-review", "capability")):
        page.goto(f"{url}{path}")
        save(page, IMAGES / f"{name}.png")
    page = new_page(viewport=CARD)
    page.set_content(PREVIEW_CARD)
    save(page, PREVIEW)

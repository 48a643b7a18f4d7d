"""The browser itself: what the page tests stand on."""

from __future__ import annotations

from tests.browser.conftest import NewPage
from tests.e2e.tree import Local


def test_browser_opens_the_worker(shop: Local, new_page: NewPage) -> None:
    """Chromium reaches a whole worker on this machine."""
    page = new_page()
    answer = page.goto(f"{shop.facts['url']}/health")
    assert answer is not None and answer.status == 200

"""A real browser and a whole `worker local` with a chain, for tests of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.e2e.tree import Local
from tests.system import program

# Chromium's own background requests would be refused, many at a time, on a machine without a network.
QUIET = (
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)
NewPage = Callable[..., Page]


@pytest.fixture(name="browser", scope="module")
def _browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=program("chromium"), args=list(QUIET), chromium_sandbox=False
        )
        yield browser
        browser.close()


@pytest.fixture(name="new_page")
def _new_page(browser: Browser) -> Iterator[NewPage]:
    """Opens a page in a context of its own; afterwards no page may have logged or raised an error.

    Options are those of a context: `viewport`, `color_scheme`, `java_script_enabled`.
    """
    errors: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(**options: object) -> Page:
        contexts.append(browser.new_context(**options))  # type: ignore[arg-type]
        page = contexts[-1].new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors, "the browser's console has errors"


def accessible(page: Page) -> None:
    """Asserts that axe finds nothing on this page."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """A `worker local` with chain, facilitator and the agents that ship."""
    shop = Local(
        tmp_path_factory.mktemp("shop"), "--web", "1", "--work", "1", FACILITATOR_URL="", WORKER_AGENTS=""
    )
    try:
        shop.start()
        yield shop
    finally:
        shop.close()

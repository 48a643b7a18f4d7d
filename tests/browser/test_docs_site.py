"""The site that `make site` makes of docs/: complete, without dead links, and readable as files."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import NewPage, accessible

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
ELSEWHERE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"')


def made(folder: Path, *pages: Path) -> subprocess.CompletedProcess[str]:
    """Makes the site as `make site` does, of other pages if they are named."""
    command = [sys.executable, "-m", "docs.site", str(folder), *map(str, pages)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


class QuietHandler(SimpleHTTPRequestHandler):
    """A static host without a log."""

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    done = made(folder)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder


@pytest.fixture(name="host")
def _host(site: Path) -> Iterator[str]:
    """The address of a static host; it outlives the browser's pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_page_is_in_the_navigation(site: Path) -> None:
    """The menu of the first page leads to each page of docs/."""
    menu = re.search(r'<div class="sidebar-tree">.*?</div>', (site / "index.html").read_text(), re.DOTALL)
    assert menu is not None
    linked = set(re.findall(r'href="([\w-]*)(?:\.html|#)"', menu.group(0)))
    assert linked == {"" if page == "index" else page for page in PAGES}


def test_every_page_can_be_searched(site: Path) -> None:
    """The index knows every page, and comes as a script, which a browser reads from a file too."""
    index = (site / "searchindex.js").read_text()
    assert index.startswith("Search.setIndex(")
    names = re.search(r'"?docnames"?: ?(\[.*?\])', index)
    assert names is not None and re.findall(r'"([\w-]+)"', names.group(1)) == PAGES


def test_nothing_comes_from_another_host(site: Path) -> None:
    """Scripts, styles and pictures of all pages are among its files."""
    for page in PAGES:
        assert not ELSEWHERE.search((site / f"{page}.html").read_text()), page


def test_dead_links_are_errors(tmp_path: Path) -> None:
    """A page or an anchor that does not exist, or a page without a place in the menu, ends the build."""
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# Start\n\n[page](gone.md), [anchor](lost.md#gone)\n")
    (pages / "lost.md").write_text("# Lost\n")
    done = made(tmp_path / "html", pages)
    assert done.returncode != 0
    for mistake in ("gone.md", "local id not found", "toc.not_included"):
        assert mistake in done.stderr, done.stderr


def test_the_files_can_be_searched(site: Path, new_page: NewPage) -> None:
    """Opened as files, the search finds a page and nothing is asked of the network."""
    page = new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").fill("refund")
    page.keyboard.press("Enter")
    page.locator("#search-results").get_by_role("link", name="Payments", exact=True).click()
    expect(page.get_by_role("heading", name="Refunds and fees")).to_be_visible()
    assert all(url.startswith("file:") for url in asked)


def test_a_static_host_serves_it_to_everybody(host: str, new_page: NewPage) -> None:
    """Served as it is, search results have excerpts; axe finds nothing in light and in dark."""
    for colours, name in (("light", "security"), ("dark", "webhooks")):
        page = new_page(color_scheme=colours)
        page.goto(f"{host}/{name}.html")
        accessible(page)
    page.goto(f"{host}/search.html?q=refund")
    expect(page.locator("#search-results .context").first).to_contain_text("refund", ignore_case=True)


def test_pages_fit_a_phone(site: Path, new_page: NewPage) -> None:
    """No page is wider than a phone; wide tables and pictures scroll by themselves."""
    page = new_page(viewport={"width": 390, "height": 800})
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name


def test_the_rooms_are_a_picture(site: Path, new_page: NewPage) -> None:
    """The Mermaid block is drawn, with each room, without a script."""
    page = new_page(java_script_enabled=False)
    page.goto((site / "architecture.html").as_uri())
    picture = page.get_by_role("img", name="The rooms")
    expect(picture).to_be_visible()
    assert {"doors", "engine", "payments", "store"} <= set(picture.locator("text").all_text_contents())

"""The selling pages in a browser: what is for sale, a hire from the page, and its result."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, Response, expect

from tests.browser.conftest import NewPage, accessible
from tests.e2e.hire.hire_session import HireSession
from tests.e2e.tree import Local

PATIENCE_MS = 30_000
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"
PHONE = {"width": 375, "height": 740}
PAGES = ("/", "/c/logo-design", "/c/code-review", "/docs")


@pytest.fixture(name="url")
def _url(shop: Local) -> str:
    return str(shop.facts["url"])


class Meta(HTMLParser):
    """Collects a page's meta tags by name or property."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "meta" and (name := found.get("property") or found.get("name")):
            self.tags[name] = found.get("content") or ""


def html(address: str) -> str:
    with urlopen(Request(address, headers={"Accept": BROWSER})) as answer:
        return str(answer.read().decode())


def delivered(page: Page) -> None:
    """Waits, without reloading by hand, until the page of a task shows its end."""
    expect(page.get_by_role("status")).to_have_text("Delivered", timeout=PATIENCE_MS)


def fits(page: Page) -> None:
    """Asserts that nothing makes the page wider than its window."""
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, f"{page.url} is {wide} px too wide"


def test_a_visitor_hires_a_logo_from_the_page(url: str, new_page: NewPage) -> None:
    """One click on the first page buys a real logo: it is followed live, shown, paid for and provable."""
    page = new_page()
    page.goto(f"{url}/")
    page.get_by_label("Brief").first.fill("A logo for the tea house Green Leaf")
    page.get_by_role("button", name="Hire it for 0.50 test dollars").click()
    delivered(page)
    logos = page.locator(".files img")
    expect(logos).to_have_count(3)
    for logo in logos.all():
        assert logo.evaluate("each => each.complete && each.naturalWidth > 0")
    expect(page.get_by_text("settled", exact=True)).to_be_visible()
    expect(page.get_by_text("Signed receipt")).to_be_visible()
    expect(page.get_by_text("Green Leaf").first).to_be_visible()
    accessible(page)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download the evidence file").click()
    assert saved.value.suggested_filename.startswith("evidence-")


def test_a_review_is_shown_as_a_table(url: str, new_page: NewPage) -> None:
    """The result of a review is a table with its findings, on a phone too."""
    page = new_page(viewport=PHONE)
    page.goto(f"{url}/c/code-review")
    page.get_by_role("button", name="Hire it").click()
    delivered(page)
    result = page.locator("section", has=page.get_by_role("heading", name="What came"))
    expect(result.get_by_role("columnheader", name="Message")).to_be_visible()
    expect(result.get_by_role("cell", name="unused-import")).to_be_attached()
    fits(page)
    accessible(page)


def test_a_hire_by_keyboard_alone(url: str, new_page: NewPage) -> None:
    """Skip link, form and button work with Tab and Enter, and what has the focus is visible."""
    page = new_page()
    page.goto(f"{url}/c/explain-code")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Hire it")
    for _ in range(20):
        page.keyboard.press("Tab")
        if button.evaluate("each => each === document.activeElement"):
            break
    expect(button).to_be_focused()
    assert button.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    delivered(page)
    expect(page.get_by_text("Walk-through")).to_be_visible()


def test_without_scripts_everything_can_be_read_and_hired(url: str, new_page: NewPage) -> None:
    """Pages are complete without JavaScript; the page of a task renews itself."""
    page = new_page(java_script_enabled=False)
    page.goto(f"{url}/")
    expect(page.get_by_role("heading", name="Logo design").first).to_be_visible()
    expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    page.goto(f"{url}/docs")
    expect(page.get_by_role("cell", name="/execute", exact=True)).to_be_visible()
    page.goto(f"{url}/c/brief")
    page.get_by_role("button", name="Hire it").click()
    delivered(page)


def test_a_task_opens_elsewhere_with_its_token(url: str, new_page: NewPage) -> None:
    """Another browser gets a form; a link with the token behind # opens the task and loses the token."""
    page = new_page()
    page.goto(f"{url}/c/brief")
    page.get_by_role("button", name="Hire it").click()
    delivered(page)
    address, token = page.url, page.locator("#token").inner_text()
    other = new_page()
    other.goto(address)
    accessible(other)
    other.get_by_label("Token or contract id").fill(token)
    other.get_by_role("button", name="Open").click()
    delivered(other)
    third = new_page()
    third.goto(f"{address}#{token}")
    delivered(third)
    assert token not in third.url


def test_a_contracts_task_opens_with_its_id(shop: Local, url: str, new_page: NewPage) -> None:
    """The form takes a contract's id too, sends it in its header, and shows the same page."""
    session = HireSession(shop)
    contract, done = session.done("code-review", {"code": "import os\n"}, price="0.25")
    page = new_page()
    page.goto(f"{url}/t/{done['task_id']}")
    page.get_by_label("Token or contract id").fill(contract)
    page.get_by_role("button", name="Open").click()
    delivered(page)
    expect(page.get_by_role("cell", name="unused-import")).to_be_visible()
    assert contract not in page.content()


def test_copy_buttons_copy(url: str, new_page: NewPage) -> None:
    """A copy button puts its text on the clipboard and says so."""
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{url}/c/logo-design")
    button = page.get_by_role("button", name="Copy curl")
    button.click()
    expect(button).to_have_text("Copied")
    assert "/buy/logo-design" in page.evaluate("navigator.clipboard.readText()")


def test_a_refused_input_is_explained_in_the_form(url: str) -> None:
    """What the agent's own check refuses is shown beside the form, with what was written."""
    request = Request(
        f"{url}/c/logo-design/hire",
        b"field.brief=Tea&field.colors=%23zzz",
        {"Accept": BROWSER, "Content-Type": "application/x-www-form-urlencoded"},
    )
    with pytest.raises(HTTPError) as refused:
        urlopen(request)
    with refused.value as answer:
        text = answer.read().decode()
        assert answer.status == 422 and 'role="alert"' in text
        assert "colors[0]" in text and "#zzz</textarea>" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_in_both_schemes(url: str, new_page: NewPage, scheme: str) -> None:
    """axe finds nothing on any page, light or dark, and dark pages are dark."""
    page = new_page(color_scheme=scheme)
    for path in PAGES:
        page.goto(f"{url}{path}")
        if path == "/docs":
            page.wait_for_selector("#viewer .opblock", timeout=PATIENCE_MS)
        accessible(page)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(int(part) for part in back.removeprefix("rgb(").rstrip(")").split(",")) > 384
        assert bright is (scheme == "light")


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_a_phone(url: str, new_page: NewPage, path: str) -> None:
    """Nothing is wider than a phone's window."""
    page = new_page(viewport=PHONE)
    page.goto(f"{url}{path}")
    if path == "/docs":
        page.wait_for_selector("#viewer .opblock", timeout=PATIENCE_MS)
    fits(page)


def test_the_first_page_is_small_and_comes_from_one_place(url: str, new_page: NewPage) -> None:
    """Before pictures it is less than 60 kB, uncompressed, and nothing is loaded from elsewhere."""
    page = new_page()
    answers: list[Response] = []
    page.on("response", lambda each: answers.append(each))
    page.goto(f"{url}/", wait_until="networkidle")
    kinds = ("document", "stylesheet", "script", "font")
    size = sum(len(each.body()) for each in answers if each.request.resource_type in kinds)
    assert 10_000 < size < 60_000
    assert all(each.url.startswith(url) for each in answers)


@pytest.mark.parametrize("path", ["/", "/c/logo-design"])
def test_links_to_a_page_have_a_preview(url: str, path: str) -> None:
    """Open Graph tags name the page, what it says, and a picture that exists."""
    meta = Meta()
    meta.feed(html(f"{url}{path}"))
    assert meta.tags["og:url"] == f"{url}{path}" and meta.tags["og:title"] and meta.tags["og:description"]
    assert meta.tags["description"] == meta.tags["og:description"]
    with urlopen(meta.tags["og:image"]) as picture:
        assert picture.headers["Content-Type"] == "image/png" and len(picture.read()) > 1_000
    if path != "/":
        assert "0.50 USDC" in meta.tags["og:title"]
        assert meta.tags["product:price:amount"] == "0.50"

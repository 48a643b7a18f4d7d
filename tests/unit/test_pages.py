"""Pages: when they are served, what protects them, and how their files are named and cached."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from tests.web_app import application
from worker.core.settings import Settings
from worker.doors.assets import assets
from worker.doors.pages import columns, prefers_page, render

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
AWAY = "redis://127.0.0.1:1"


@pytest.fixture(name="app", scope="module")
def _app() -> Iterator[Flask]:
    with application(Settings(redis_url=AWAY, worker_env="test")) as app:
        yield app


@pytest.fixture(name="client")
def _client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.mark.parametrize(
    ("accept", "page"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("text/html;q=0.5, application/json", False),
        ("text/html, application/json", False),
    ],
)
def test_only_a_preference_for_html_gets_a_page(app: Flask, accept: str, page: bool) -> None:
    """Browsers get pages; clients that take anything or JSON get JSON, as ever."""
    with app.test_request_context("/", headers={"Accept": accept}):
        assert prefers_page() is page


def test_pages_are_protected_by_their_headers(app: Flask) -> None:
    """No inline code, no foreign content, no frames, no address for other sites, and no shared cache."""
    settings = Settings(public_url="https://shop.example/worker")
    with app.test_request_context("/"):
        response = render("base.html", settings)
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert "frame-ancestors 'none'" in policy and response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["Referrer-Policy"] == "same-origin"
    assert response.headers["Cache-Control"] == "private, no-store"
    assert 'href="/worker/static/base.' in response.get_data(as_text=True)


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([{"a": 1, "b": 2}, {"b": 3, "c": 4}], ["a", "b", "c"]),
        ([{"a": 1}] * 20_000, ["a"]),
        ([], []),
        ([{}], []),
        ([{"a": 1}, 2], []),
        ([2, {"a": 1}], []),
        ([{"a": 1}, "text"], []),
        ([{str(n): n} for n in range(20_000)], []),
    ],
)
def test_rows_of_strangers_make_a_table_only_if_they_are_one(rows: list[object], names: list[str]) -> None:
    """Rows of other kinds, and so many columns that most cells would be empty, are listed instead."""
    assert columns(rows) == names


def test_static_files_are_kept_for_a_year_under_a_name_of_their_content(client: FlaskClient) -> None:
    """The name contains a digest, the answer an ETag; it is compressed where the client can read that."""
    styles = assets()["base.css"]
    plain = client.get(styles.address)
    assert plain.data == styles.content and plain.mimetype == "text/css"
    assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert client.get(styles.address, headers={"If-None-Match": plain.headers["ETag"]}).status_code == 304
    packed = client.get(styles.address, headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.data) == styles.content and packed.headers["ETag"] != plain.headers["ETag"]


@pytest.mark.parametrize("name", ["base.css", "base.000000000000.css", "../base.html", "%2e%2e/base.html"])
def test_other_names_are_not_found(client: FlaskClient, name: str) -> None:
    """Nothing but the listed files is served."""
    assert client.get(f"/static/{name}").status_code == 404


def test_a_wrong_address_is_a_page_in_a_browser_and_json_elsewhere(client: FlaskClient) -> None:
    """Only a browser gets a page for a route that does not exist."""
    page = client.get("/nothing", headers={"Accept": BROWSER})
    assert page.status_code == 404 and page.mimetype == "text/html" and b"Not found" in page.data
    for path, accept in (("/nothing", "*/*"), ("/v0/nothing", BROWSER), ("/health/nothing", "")):
        assert client.get(path, headers={"Accept": accept}).mimetype == "application/json"

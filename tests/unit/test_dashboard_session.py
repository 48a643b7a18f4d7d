"""Sign-in to the dashboard: cookies, tokens, origins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flask import Flask, Request, Response
from werkzeug.test import EnvironBuilder

from worker.core.errors import Unauthorized
from worker.core.settings import Settings
from worker.doors.dashboard_session import COOKIE, LIFE_SECONDS, Sessions, Visitor, WrongOrigin

TOKEN, WATCH = "t" * 32, "w" * 32
SETTINGS = Settings(
    public_url="https://worker.example/shop", kernel_token=TOKEN, watch_tokens=(("ada", WATCH),)
)
ABROAD = {"REMOTE_ADDR": "203.0.113.9"}


def sessions(settings: Settings = SETTINGS, failed: list[str] | None = None) -> Sessions:
    return Sessions(settings, "secret", (failed if failed is not None else []).append)


def asking(cookie: str = "", **headers: str) -> Request:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    cookies = {"Cookie": f"{COOKIE}={cookie}"} if cookie else {}
    builder = EnvironBuilder(
        "/dashboard", "http://10.0.0.1:8000", headers={**sent, **cookies}, environ_base=ABROAD
    )
    return Request(builder.get_environ())


def signed_in(own: Sessions, token: str = TOKEN, name: str = "Grace") -> str:
    """The Set-Cookie header of a sign-in."""
    with Flask("test").test_request_context():
        response = Response()
        own.begin(response, own.by_token(asking(), token, name))
        return response.headers["Set-Cookie"]


def value_of(header: str) -> str:
    return header.partition("=")[2].partition(";")[0]


def test_cookie_is_for_the_dashboard_alone() -> None:
    """HttpOnly, Secure on https, SameSite=Strict, with the dashboard's path and an end."""
    header = signed_in(sessions())
    for part in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/shop/dashboard", f"Max-Age={LIFE_SECONDS}"):
        assert part in header
    assert TOKEN not in header


def test_cookie_stands_for_its_visitor() -> None:
    """The operator keeps the name; a watcher has the name of the token and may change nothing."""
    own = sessions()
    operator = own.visitor(asking(value_of(signed_in(own))))
    watcher = own.visitor(asking(value_of(signed_in(own, WATCH, "Grace"))))
    assert operator is not None and (operator.name, operator.may_change) == ("Grace", True)
    assert watcher is not None and (watcher.name, watcher.may_change) == ("ada", False)
    assert operator.by_cookie and watcher.by_cookie


@pytest.mark.parametrize("change", [{"kernel_token": "u" * 32}, {"watch_tokens": ()}])
def test_new_tokens_end_all_sessions(change: dict[str, object]) -> None:
    """A cookie made under other tokens is worth nothing."""
    cookie = value_of(signed_in(sessions()))
    assert sessions(replace(SETTINGS, **change)).visitor(asking(cookie)) is None


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c[:-1] + ("1" if c[-1] == "0" else "0"),
        lambda c: "W10=." + c[4:],
        lambda c: "x",
        lambda c: "é.é",
    ],
)
def test_forged_cookies_are_nobody(forge) -> None:
    """A changed cookie, or text that never was one, does not sign in."""
    own = sessions()
    cookie = value_of(signed_in(own))
    assert own.visitor(asking(forge(cookie).encode("utf-8").decode("latin-1"))) is None


def test_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its life the cookie is worth nothing, whatever the browser does."""
    own = sessions()
    old = own._sign(Visitor("operator", "Grace", ends=1))
    assert own.visitor(asking(old)) is None


def test_wrong_tokens_count_against_their_address() -> None:
    """Bearers and sign-ins alike."""
    failed: list[str] = []
    own = sessions(failed=failed)
    for token in ("", "x" * 32, TOKEN + "x"):
        with pytest.raises(Unauthorized):
            own.by_token(asking(), token, "")
    with pytest.raises(Unauthorized):
        own.visitor(asking(Authorization="Bearer nothing"))
    assert failed == ["203.0.113.9"] * 4


@pytest.mark.parametrize("origin", ["https://worker.example", "http://10.0.0.1:8000"])
def test_changes_come_from_our_own_pages(origin: str) -> None:
    """The public address and the address asked for are ours."""
    sessions().check_origin(asking(Origin=origin))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://worker.example.evil", ""])
def test_changes_from_elsewhere_are_refused(origin: str) -> None:
    """Another site, a sandboxed page, and a name that only begins like ours."""
    with pytest.raises(WrongOrigin):
        sessions().check_origin(asking(Origin=origin))


def test_a_change_without_an_origin_needs_more_than_a_cookie() -> None:
    """Browsers name the origin of a form, so only a sign-in may come without."""
    with pytest.raises(WrongOrigin):
        sessions().check_origin(asking())
    sessions().check_origin(asking(), must_name=False)


def test_without_tokens_only_this_machine_is_the_operator() -> None:
    """As for the kernel's API: nobody else, and not through a proxy."""
    own = sessions(Settings())
    here = EnvironBuilder("/dashboard", "http://127.0.0.1:8000", environ_base={"REMOTE_ADDR": "127.0.0.1"})
    found = own.visitor(Request(here.get_environ()))
    assert found is not None and found.may_change and found.by_cookie
    assert own.visitor(asking()) is None

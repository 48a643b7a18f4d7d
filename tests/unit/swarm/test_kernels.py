"""Who may come in by the swarm door, and with what limits."""

from __future__ import annotations

import base64

import pytest

from worker.swarm.kernels import PER_DAY, Kernels, NoKey

KEYS = (("alpha", "first-password"), ("beta", "pass:with:colons"), ("gämma", "pässword"))


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize(("name", "password"), KEYS)
def test_a_key_is_shown_as_basic_or_bearer(name: str, password: str) -> None:
    """Both ways lead to the kernel whose key it is, however the scheme is written."""
    kernels = Kernels(KEYS)
    on_the_wire = password.encode().decode("latin-1")
    for shown in (basic(name, password), f"Bearer {on_the_wire}", f"bearer  {on_the_wire} "):
        assert kernels.who(shown).name == name
    assert kernels.who(basic(name, password).replace("Basic", "basic")).name == name


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Basic",
        "Basic ",
        "Bearer ",
        "Basic !!!",
        "Basic é",
        "Basic " + "A" * 9000,
        basic("alpha", ""),
        basic("alpha", "first-passwor"),
        basic("alpha", "first-password "),
        basic("beta", "first-password"),
        basic("", "first-password"),
        basic("alpha:first-password", ""),
        "Bearer alpha:first-password",
        "Bearer FIRST-PASSWORD",
        "Digest first-password",
        "first-password",
        "basic alpha:first-password",
        "Bearer " + base64.b64encode(b"alpha:first-password").decode(),
    ],
)
def test_anything_else_is_nobody(shown: str) -> None:
    """A wrong, cut, swapped or badly written key is refused like none at all, without naming any kernel."""
    with pytest.raises(NoKey) as caught:
        Kernels(KEYS).who(shown)
    assert caught.value.status == 401
    assert "alpha" not in str(caught.value) + caught.value.advice


def test_nobody_comes_in_without_keys() -> None:
    """No keys means closed, not open."""
    for shown in ("", basic("", ""), "Bearer "):
        with pytest.raises(NoKey):
            Kernels(()).who(shown)


def test_limits_are_the_kernels_own_or_the_rests() -> None:
    """A named kernel has its own limits, the others those of `*`; without any, places are split evenly."""
    limited = Kernels(KEYS, (("beta", 3, 25), ("*", 50, 10)))
    found = {name: limited.who(basic(name, password)) for name, password in KEYS}
    assert [(found[name].per_day, found[name].share) for name, _ in KEYS] == [(50, 10), (3, 25), (50, 10)]
    plain = Kernels(KEYS).who("Bearer first-password")
    assert (plain.per_day, plain.share) == (PER_DAY, 33)
    assert Kernels(KEYS[:1]).who("Bearer first-password").share == 100

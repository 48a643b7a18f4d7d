"""Kernel authentication and limits at the swarm door."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import pytest

from worker.store.wrong_credentials import TooManyFailures
from worker.swarm.kernels import PER_DAY, KernelKeyUnknown, Kernels

KEYS = (("alpha", "first-password"), ("beta", "pass:with:colons"), ("gämma", "pässword"))


def refuse_nobody(address: str) -> None:
    """A counter that does nothing."""


def known(keys: Iterable[tuple[str, str]], *limits: Any) -> Kernels:
    return Kernels(keys, *limits, failed=refuse_nobody)


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize(("name", "password"), KEYS)
def test_key_is_accepted_as_basic_or_bearer(name: str, password: str) -> None:
    """Basic and bearer both identify the kernel by its key, however the scheme is written."""
    kernels = known(KEYS)
    on_the_wire = password.encode().decode("latin-1")
    for shown in (basic(name, password), f"Bearer {on_the_wire}", f"bearer  {on_the_wire} "):
        assert kernels.authenticate(shown, "1.2.3.4").name == name
    assert kernels.authenticate(basic(name, password).replace("Basic", "basic"), "1.2.3.4").name == name


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
def test_unknown_credentials_are_refused(shown: str) -> None:
    """A wrong, truncated, swapped or malformed key is refused like a missing one, without naming a kernel."""
    with pytest.raises(KernelKeyUnknown) as caught:
        known(KEYS).authenticate(shown, "1.2.3.4")
    assert caught.value.status == 401
    assert "alpha" not in str(caught.value) + caught.value.advice


def test_door_is_closed_without_keys() -> None:
    """Without keys the door is closed, not open."""
    for shown in ("", basic("", ""), "Bearer "):
        with pytest.raises(KernelKeyUnknown):
            known(()).authenticate(shown, "1.2.3.4")


def test_limits_are_per_kernel_with_a_default() -> None:
    """A named kernel has its own limits, others those of `*`; without any, places are split evenly."""
    limited = known(KEYS, (("beta", 3, 25), ("*", 50, 10)))
    found = {name: limited.authenticate(basic(name, password), "1.2.3.4") for name, password in KEYS}
    assert [(found[name].per_day, found[name].share) for name, _ in KEYS] == [(50, 10), (3, 25), (50, 10)]
    plain = known(KEYS).authenticate("Bearer first-password", "1.2.3.4")
    assert (plain.per_day, plain.share) == (PER_DAY, 33)
    assert known(KEYS[:1]).authenticate("Bearer first-password", "1.2.3.4").share == 100


def test_only_wrong_keys_count_against_an_address() -> None:
    """A missing key does not count as a guess; the counter's refusal replaces the plain one."""
    counted: list[str] = []
    kernels = Kernels(KEYS, failed=counted.append)
    kernels.authenticate(basic(*KEYS[0]), "1.2.3.4")
    for shown in ("", "Bearer wrong", basic("alpha", "wrong")):
        with pytest.raises(KernelKeyUnknown):
            kernels.authenticate(shown, "1.2.3.4")
    assert counted == ["1.2.3.4"] * 2

    def enough(address: str) -> None:
        raise TooManyFailures(retry_after=60)

    with pytest.raises(TooManyFailures):
        Kernels(KEYS, failed=enough).authenticate("Bearer wrong", "1.2.3.4")
    assert Kernels(KEYS, failed=enough).authenticate(basic(*KEYS[0]), "1.2.3.4").name == "alpha"

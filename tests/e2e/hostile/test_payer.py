"""`worker hire` against hostile workers: the sixteen categories of the x402 red team, and controls.

Each case serves a worker that lies in one way, runs the command, and checks what the wallet signed:
only the contract's amount, to the contract's payee, in the network's dollar, with a short validity, once,
and sent to no other address. A case marked `delivers` must also end with the deliverable on disk: a payer
that signs nothing at all is safe and useless.

Without a contract (`--plain`) nobody has agreed on price and payee, so there the cap holds instead of them.
"""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path

import pytest
import requests

from tests.e2e.hostile import lies
from tests.e2e.hostile.lies import CATEGORIES, PERMIT2, PRICE, THIEF, Case, accepting, at_once
from tests.fakes.fake_worker import FILE, SEEKER_KEY, WORKER, FakeWorker
from tests.fakes.hostile_worker import Elsewhere, SignedAuthorization, authorizations, served
from tests.fakes.seeker import signed_payment
from worker.cli import main
from worker.x402.networks import BASE_SEPOLIA

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
HOUR = 3_600


CASES = [
    Case("accepts_ordering", "hostile entries stand first", lies.hostile_entries_first, 1, True),
    Case("accepts_ordering", "only hostile entries", lies.only_hostile_entries),
    Case("asset_swap", "another token", accepting(asset=lies.OTHER_TOKEN)),
    Case("asset_swap", "another name for the dollar", accepting(extra={"name": "Gold", "version": "2"})),
    Case("authorization_lifetime", "ten years", accepting(maxTimeoutSeconds=315_360_000)),
    Case("authorization_lifetime", "a day", accepting(maxTimeoutSeconds=86_400)),
    Case("budget_split", "each refused, the next asked for", lies.refused_and_asked_again, 2),
    Case("budget_split", "more than the cap at once", lies.dearer_than_the_cap),
    Case("challenge_injection", "instructions in the 402", lies.prose_in_the_402, 1, True),
    Case("challenge_injection", "a transfer method of its own", accepting(extra=PERMIT2)),
    Case("fake_delivery", "no file", lies.paid_and_nothing_delivered, 1),
    Case("fake_delivery", "other bytes", lies.paid_and_other_bytes, 1),
    Case("fake_delivery", "failed once paid", lies.paid_and_failed, 1),
    Case("ghost_paywall", "the deliverable costs extra", lies.deliverable_behind_a_paywall, 1),
    Case("ghost_paywall", "the poll costs extra", lies.poll_behind_a_paywall, 1),
    Case("lookalike_domain", "a similar name", lies.resource_with_a_similar_name),
    Case("lookalike_domain", "the manifest points elsewhere", lies.manifest_points_elsewhere, 1, True),
    Case("lookalike_domain", "the poll points elsewhere", lies.poll_url_elsewhere, 1, True),
    Case("price_bait", "the 402 asks for more", accepting(amount="900000")),
    Case("price_bait", "the contract says more", lies.contract_with_another_price),
    Case("prose_payment", "an error asks for a transfer", lies.prose_in_errors),
    Case("rail_switch", "the main network", accepting(**lies.MAIN_NETWORK)),
    Case("rail_switch", "an unknown network", accepting(network="eip155:1337")),
    Case("rail_switch", "another scheme", accepting(scheme="upto")),
    Case("recipient_redirect", "another payee", accepting(payTo=THIEF)),
    Case("recipient_redirect", "another payee in the contract", lies.contract_with_another_payee),
    Case("recipient_redirect", "a redirect", lies.redirected, 1, True),
    Case("recipient_redirect", "a redirect of the payment", lies.redirected_once_paid, 1, True),
    Case("replay", "delivered, and told to pay again", lies.delivered_then_asked_again, 1, True),
    Case("replay", "settled, and asked again", lies.settled_then_asked_again, 1),
    Case("resource_spoof", "the resource of another host", lies.resource_elsewhere),
    Case("retry_storm", "402 for ever", lies.asked_again_after_payment, 1),
    Case("retry_storm", "failed for ever", lies.busy_for_ever, 1),
    Case("unit_confusion", "eighteen decimals", accepting(amount="500000000000000000")),
    Case("unit_confusion", "a decimal point", accepting(amount="0.50")),
    Case("unit_confusion", "hexadecimal", accepting(amount="0x7a120")),
    Case("control", "a paid hire", lies.plain, 1, True),
    Case("control", "version 1", lies.speaks_version_1, 1, True),
    Case("control", "work that takes its time", lies.takes_its_time, 1, True),
    Case("control", "an answer was lost", lies.loses_the_first_answer, 1, True),
]  # fmt: skip
PLAIN_CASES = [
    Case("accepts_ordering", "hostile entries stand first", lies.hostile_rails_first, 1, True),
    Case("asset_swap", "another token", accepting(asset=lies.OTHER_TOKEN)),
    Case("asset_swap", "another name for the dollar", accepting(extra={"name": "Gold", "version": "2"})),
    Case("authorization_lifetime", "ten years", accepting(maxTimeoutSeconds=315_360_000)),
    Case("authorization_lifetime", "a day", accepting(maxTimeoutSeconds=86_400)),
    Case("budget_split", "each refused, the next asked for", lies.refused_and_asked_again, 1),
    Case("budget_split", "more than the cap at once", lies.dearer_than_the_cap),
    Case("challenge_injection", "instructions in the 402", lies.prose_in_the_402, 1, True),
    Case("challenge_injection", "a transfer method of its own", accepting(extra=PERMIT2)),
    Case("fake_delivery", "no file", lies.paid_and_nothing_delivered, 1),
    Case("fake_delivery", "other bytes", lies.paid_and_other_bytes, 1),
    Case("fake_delivery", "failed once paid", lies.paid_and_failed, 1),
    Case("ghost_paywall", "the deliverable costs extra", lies.deliverable_behind_a_paywall, 1),
    Case("ghost_paywall", "the poll costs extra", lies.poll_behind_a_paywall, 1),
    Case("lookalike_domain", "a similar name", lies.resource_with_a_similar_name),
    Case("lookalike_domain", "the poll points elsewhere", lies.poll_url_elsewhere, 1),
    Case("price_bait", "the 402 asks for more than the cap", accepting(amount="900000")),
    Case("price_bait", "more once it is paid", lies.dearer_once_paid, 1),
    Case("prose_payment", "an error asks for a transfer", lies.prose_in_errors),
    Case("rail_switch", "the main network", accepting(**lies.MAIN_NETWORK)),
    Case("rail_switch", "an unknown network", accepting(network="eip155:1337")),
    Case("rail_switch", "another scheme", accepting(scheme="upto")),
    Case("recipient_redirect", "a redirect", lies.redirected),
    Case("recipient_redirect", "a redirect of the payment", lies.redirected_once_paid, 1),
    Case("replay", "delivered, and told to pay again", lies.delivered_then_asked_again, 1, True),
    Case("replay", "settled, and asked again", lies.settled_then_asked_again, 1),
    Case("resource_spoof", "the resource of another host", lies.resource_elsewhere),
    Case("retry_storm", "402 for ever", lies.asked_again_after_payment, 1),
    Case("retry_storm", "failed for ever", lies.busy_for_ever, 1),
    Case("unit_confusion", "eighteen decimals", accepting(amount="500000000000000000")),
    Case("unit_confusion", "a decimal point", accepting(amount="0.50")),
    Case("unit_confusion", "hexadecimal", accepting(amount="0x7a120")),
    Case("control", "a paid request", lies.plain, 1, True),
    Case("control", "version 1", lies.speaks_version_1, 1, True),
    Case("control", "work that takes its time", lies.takes_its_time, 1, True),
    Case("control", "an answer was lost", lies.loses_the_first_answer, 1, True),
    Case("control", "a redirect within the address", lies.moved_within, 1, True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.category}: {case.name}")
def test_the_wallet_signs_only_what_the_contract_says(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile worker gets at most the contract's payment; an honest one is paid and delivers."""
    signed = _met(case, tmp_path, monkeypatch, "logo-design", "--max", "1.00")
    assert {each.to.lower() for each in signed} <= {WORKER.lower()}
    assert sum(each.value for each in signed) <= 2 * PRICE


@pytest.mark.parametrize("case", PLAIN_CASES, ids=lambda case: f"{case.category}: {case.name}")
def test_without_a_contract_the_wallet_signs_no_more_than_the_cap(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap, the network, the host and the window hold; an honest seller is paid once and delivers."""
    signed = _met(case, tmp_path, monkeypatch, "--plain", "--max", "0.50", "--network", "base-sepolia")
    assert sum(each.value for each in signed) <= PRICE


def _met(case: Case, home: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[SignedAuthorization]:
    """Serves the case, runs the command, and checks what holds in every case; what the wallet signed."""
    monkeypatch.setenv("SEEKER_KEY", SEEKER_KEY)
    worker, elsewhere = FakeWorker(), Elsewhere()
    began = time.time()
    with served(worker) as url, served(elsewhere):
        case.arrange(worker, elsewhere)
        code = main(_command(url + "/execute" * ("--plain" in options), home, *options))
    signed = list(authorizations(worker).values())
    assert len(signed) <= case.pays
    for each in signed:
        assert each.value == PRICE
        assert each.valid_before <= time.time() + HOUR and each.valid_before > began
        assert each.signed_for(BASE_SEPOLIA)
    assert elsewhere.requests == []
    assert (code == 0) is case.delivers
    if case.delivers:
        assert len(signed) == 1 and (home / "out" / "logo.svg").read_bytes() == FILE
    return signed


def test_every_category_of_the_red_team_has_a_case() -> None:
    """The sixteen published categories and the controls are covered both ways, and the page says how."""
    for cases in (CASES, PLAIN_CASES):
        assert {case.category for case in cases} == CATEGORIES
    page = PAGE.read_text().partition("## The payer's side")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| (\w+_\w+|replay) \|", page, re.MULTILINE)) == CATEGORIES - {"control"}
    for cases in (CASES, PLAIN_CASES):
        hostile = sum(case.category != "control" for case in cases)
        assert f"{hostile} hostile cases" in page
        assert f"{sum(case.delivers for case in cases)} cases that can be served" in page


@pytest.mark.parametrize("lie", [lies.deliverable_behind_a_paywall, lies.poll_behind_a_paywall])
def test_a_payment_sent_anywhere_is_counted(lie: lies.Arrange) -> None:
    """A payer that pays for a poll or a file would be noticed."""
    worker = FakeWorker()
    payment = signed_payment(worker.offer().payment_required(""), SEEKER_KEY, time.time())
    with served(worker) as url:
        lie(worker, Elsewhere())
        for header, path in (("PAYMENT-SIGNATURE", "/files/second"), ("X-PAYMENT", "/tasks/task-1")):
            requests.get(url + path, headers={header: payment}, timeout=30)
            assert len(authorizations(worker)) == 1, path
            worker.got.clear()


@pytest.mark.parametrize("option", ["logo-design", "--plain"])
def test_a_run_that_is_repeated_pays_no_second_time(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a fake delivery, rerunning the command resends the existing payment, however often it is run."""
    monkeypatch.setenv("SEEKER_KEY", SEEKER_KEY)
    worker = FakeWorker()
    with served(worker) as url:
        worker.plan = deque([worker.ask, *[at_once(worker.ask)] * 60])
        address = url + "/execute" * (option == "--plain")
        command = _command(address, tmp_path, option, "--max", "1.00")
        codes = {main(command) for _ in range(3)}
    assert codes == {1}
    assert len(authorizations(worker)) == 1


def _command(url: str, home: Path, *options: str) -> list[str]:
    return [
        "hire", url, *options, "--input", '{"brief":"A logo"}',
        "--keep", str(home / "purchases"), "--out", str(home / "out"),
    ]  # fmt: skip

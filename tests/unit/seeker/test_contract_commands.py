"""`worker contract` on files, and where `worker hire` takes its key from."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.seller import SEEKER, SEEKER_KEY, WORKER_KEY, Got, Seller
from worker.cli import main
from worker.cli.documents import wallet_of
from worker.cli.hire import View
from worker.errors import BadRequest
from worker.payments.wire import decode_payment
from worker.seeker.draft import Order, draft, read_listing
from worker.seeker.problems import particulars

Files = dict[str, Path]


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> Files:
    """A draft, both keys, and room for more."""
    document = draft(read_listing(Seller().manifest(), "logo-design"), Order("logo-design"), SEEKER, 1e9)
    made = {name: tmp_path / name for name in ("draft", "worker", "seeker", "offered", "contract", "asked")}
    made["draft"].write_text(json.dumps(document))
    made["worker"].write_text(WORKER_KEY)
    made["seeker"].write_text(SEEKER_KEY)
    return made


def sign(files: Files, source: str, target: str, key: str) -> int:
    return main(
        ["contract", "sign", str(files[source]), "--key", f"@{files[key]}", "--out", str(files[target])]
    )


def signed_by_both(files: Files) -> None:
    assert sign(files, "draft", "offered", "worker") == 0
    assert sign(files, "offered", "contract", "seeker") == 0


def test_both_sign_and_anybody_can_verify(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Worker first, then seeker; each signature is told with its wallet."""
    signed_by_both(files)
    assert main(["contract", "verify", str(files["offered"])]) == 1
    assert "has not signed" in capsys.readouterr().out
    assert main(["contract", "verify", str(files["contract"])]) == 0
    shown = capsys.readouterr().out
    assert f"seeker  ok {SEEKER}" in shown
    assert re.search(r"^sha256:[0-9a-f]{64}$", shown, re.MULTILINE)


def _dearer(contract: dict[str, Any]) -> None:
    contract["terms"]["price"]["amount"] = "0.6"


def _swapped(contract: dict[str, Any]) -> None:
    given = contract["signatures"]
    given["worker"], given["seeker"] = given["seeker"], given["worker"]


def _formless(contract: dict[str, Any]) -> None:
    del contract["terms"]["deadline"]


@pytest.mark.parametrize("change", [_dearer, _swapped, _formless])
def test_what_was_changed_does_not_verify(files: Files, change: Callable[[dict[str, Any]], None]) -> None:
    """A changed term, swapped signatures and a missing field are all found."""
    signed_by_both(files)
    contract = json.loads(files["contract"].read_text())
    change(contract)
    files["contract"].write_text(json.dumps(contract))
    assert main(["contract", "verify", str(files["contract"])]) == 1


def test_one_does_not_sign_what_is_not_right(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a foreign key, nor under a changed document, nor beside a false signature of the other."""
    files["seeker"].write_text("0x" + "33" * 32)
    assert sign(files, "draft", "offered", "seeker") == 1
    files["seeker"].write_text(SEEKER_KEY)
    sign(files, "draft", "offered", "worker")
    offered = json.loads(files["offered"].read_text())
    offered["terms"]["price"]["amount"] = "0.6"
    files["offered"].write_text(json.dumps(offered))
    assert sign(files, "offered", "contract", "seeker") == 1
    del offered["hash"]
    files["offered"].write_text(json.dumps(offered))
    assert sign(files, "offered", "contract", "seeker") == 1
    assert not files["contract"].exists()
    said = capsys.readouterr()
    assert SEEKER_KEY[2:] not in said.out + said.err


def _ask(files: Files, seller: Seller) -> None:
    """Writes the headers of a 402 as curl does."""
    answer = seller.ask(Got("POST", "/execute", {}, b""))
    lines = ["HTTP/1.1 402 Payment Required", *(f"{name}: {value}" for name, value in answer.headers.items())]
    files["asked"].write_text("\r\n".join(lines) + "\r\n\r\n")


def _pay(files: Files, *more: str) -> int:
    return main(
        [
            *("contract", "pay", str(files["contract"]), "--asked", str(files["asked"])),
            *("--url", "https://worker.example", "--key", f"@{files['seeker']}", *more),
        ]
    )


def test_a_payment_by_hand_is_what_the_contract_says(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed value is a payment of the price from the contract's seeker."""
    signed_by_both(files)
    _ask(files, Seller())
    capsys.readouterr()
    assert _pay(files) == 0
    paid = decode_payment(capsys.readouterr().out.strip()).authorization
    assert (paid.payer, paid.value) == (SEEKER.lower(), 500_000)


def test_a_payment_by_hand_is_checked_too(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Another price, a lower cap or another key, and nothing is signed."""
    signed_by_both(files)
    capsys.readouterr()
    _ask(files, Seller(price="0.6"))
    assert _pay(files) == 1
    _ask(files, Seller())
    assert _pay(files, "--max", "0.499999") == 1
    files["seeker"].write_text("0x" + "33" * 32)
    assert _pay(files) == 1
    assert capsys.readouterr().out == ""


def test_a_key_is_not_taken_from_the_command_line(tmp_path: Path) -> None:
    """Arguments are everybody's to read, so it is refused, and not repeated."""
    with pytest.raises(BadRequest) as raised:
        wallet_of(SEEKER_KEY, {})
    assert SEEKER_KEY not in f"{raised.value.message}{raised.value.details}{raised.value.advice}"
    assert wallet_of(None, {"SEEKER_KEY": SEEKER_KEY}).address == SEEKER
    (tmp_path / "key").write_text(WORKER_KEY)
    assert wallet_of(f"@{tmp_path / 'key'}", {"SEEKER_KEY": SEEKER_KEY}).address != SEEKER
    for environ in ({}, {"SEEKER_KEY": "  "}, {"SEEKER_KEY": "nonsense"}):
        with pytest.raises(BadRequest):
            wallet_of(None, environ)


def test_a_command_tells_which_of_its_words_is_wrong(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was expected is told with the refusal, in words and not as Python shows values."""
    words = ["hire", "http://127.0.0.1:9", "logo-design", "--key", f"@{files['seeker']}"]
    assert main([*words, "--deadline", "soon"]) == 1
    told = capsys.readouterr().err
    assert "field: --deadline" in told and "expected: a duration such as 30s" in told
    assert main([*words, "--input", "oops"]) == 1
    told = capsys.readouterr().err
    assert "field: --input" in told and "INVALID_REQUEST: the text is not JSON." in told
    seen = particulars(BadRequest(expected=["a", "b"], charged=False, note="unsaid"))
    assert seen == ["  expected: a, b", "  charged: no"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_moves_in_place_on_a_terminal_only() -> None:
    """A terminal gets one moving line; a file gets a line per change, without control characters."""
    for out, rewinds in ((io.StringIO(), 0), (Terminal(), 2)):
        view = View(out)
        for fraction in (0.1, 0.1, 0.6):
            payload = {"fraction": fraction, "message": "drawing \x1b[31mred"}
            view.tell("event", {"kind": "progress.updated", "payload": payload})
        view.tell("refused", {"reason": "insufficient_funds"})
        shown = out.getvalue()
        assert shown.count("drawing  [31mred") == 2
        assert "\x1b" not in shown
        assert shown.count("\r") // 2 == rewinds
        assert shown.endswith("- the payment was refused (insufficient_funds); no money moved\n")


def test_hostile_progress_shows_nothing_odd() -> None:
    """A fraction out of bounds or of no number at all does not break the view."""
    out = io.StringIO()
    view = View(out)
    for fraction in (-5, 7, None, "x", True):
        view.tell("event", {"kind": "progress.updated", "payload": {"fraction": fraction}})
    for line in out.getvalue().splitlines():
        assert re.fullmatch(r"  \[[#.]{24}\] +(0|100)%  ", line), line

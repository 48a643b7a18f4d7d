"""`worker contract` on files, and where `worker hire` reads its key from."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import SEEKER, SEEKER_KEY, WORKER_KEY, FakeWorker, ReceivedRequest
from worker.cli import main
from worker.cli.documents import wallet_of
from worker.cli.hire import HireProgress, Text
from worker.core.errors import BadRequest
from worker.seeker.draft import Order, draft, read_listing
from worker.seeker.problems import particulars
from worker.x402.wire import decode_payment

Files = dict[str, Path]


@pytest.fixture(name="files")
def _files(tmp_path: Path) -> Files:
    """Return paths: a draft, both keys, and the documents still to be written."""
    document = draft(read_listing(FakeWorker().manifest(), "logo-design"), Order("logo-design"), SEEKER, 1e9)
    files = {name: tmp_path / name for name in ("draft", "worker", "seeker", "offered", "contract", "asked")}
    files["draft"].write_text(json.dumps(document))
    files["worker"].write_text(WORKER_KEY)
    files["seeker"].write_text(SEEKER_KEY)
    return files


def sign(files: Files, source: str, target: str, key: str) -> int:
    return main(
        ["contract", "sign", str(files[source]), "--key", f"@{files[key]}", "--out", str(files[target])]
    )


def signed_by_both(files: Files) -> None:
    assert sign(files, "draft", "offered", "worker") == 0
    assert sign(files, "offered", "contract", "seeker") == 0


def test_signed_contract_verifies(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker signs first, then the seeker; each signature is reported with its wallet."""
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
    signatures = contract["signatures"]
    signatures["worker"], signatures["seeker"] = signatures["seeker"], signatures["worker"]


def _formless(contract: dict[str, Any]) -> None:
    del contract["terms"]["deadline"]


@pytest.mark.parametrize("change", [_dearer, _swapped, _formless])
def test_tampered_contract_does_not_verify(files: Files, change: Callable[[dict[str, Any]], None]) -> None:
    """A changed term, swapped signatures and a missing field are all detected."""
    signed_by_both(files)
    contract = json.loads(files["contract"].read_text())
    change(contract)
    files["contract"].write_text(json.dumps(contract))
    assert main(["contract", "verify", str(files["contract"])]) == 1


def test_invalid_contract_is_not_signed(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """Refuse to sign with an unrelated key, a changed document, or next to an invalid other signature."""
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
    printed = capsys.readouterr()
    assert SEEKER_KEY[2:] not in printed.out + printed.err


def _ask(files: Files, fake_worker: FakeWorker) -> None:
    """Write the headers of a 402 as curl does."""
    answer = fake_worker.ask(ReceivedRequest("POST", "/execute", {}, b""))
    lines = ["HTTP/1.1 402 Payment Required", *(f"{name}: {value}" for name, value in answer.headers.items())]
    files["asked"].write_text("\r\n".join(lines) + "\r\n\r\n")


def _pay(files: Files, *more: str) -> int:
    return main(
        [
            *("contract", "pay", str(files["contract"]), "--asked", str(files["asked"])),
            *("--url", "https://worker.example", "--key", f"@{files['seeker']}", *more),
        ]
    )


def test_payment_command_signs_the_contracts_terms(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed value is a payment of the price from the contract's seeker."""
    signed_by_both(files)
    _ask(files, FakeWorker())
    capsys.readouterr()
    assert _pay(files) == 0
    paid = decode_payment(capsys.readouterr().out.strip()).authorization
    assert (paid.payer, paid.value) == (SEEKER.lower(), 500_000)


def test_payment_command_checks_the_offer(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """With a different price, a lower cap or a different key, nothing is signed."""
    signed_by_both(files)
    capsys.readouterr()
    _ask(files, FakeWorker(price="0.6"))
    assert _pay(files) == 1
    _ask(files, FakeWorker())
    assert _pay(files, "--max", "0.499999") == 1
    files["seeker"].write_text("0x" + "33" * 32)
    assert _pay(files) == 1
    assert capsys.readouterr().out == ""


def test_key_is_not_accepted_as_an_argument(tmp_path: Path) -> None:
    """Arguments are visible to every user of the machine, so a key is refused and not echoed."""
    with pytest.raises(BadRequest) as raised:
        wallet_of(SEEKER_KEY, {})
    assert SEEKER_KEY not in f"{raised.value.message}{raised.value.details}{raised.value.advice}"
    assert wallet_of(None, {"SEEKER_KEY": SEEKER_KEY}).address == SEEKER
    (tmp_path / "key").write_text(WORKER_KEY)
    assert wallet_of(f"@{tmp_path / 'key'}", {"SEEKER_KEY": SEEKER_KEY}).address != SEEKER
    for environ in ({}, {"SEEKER_KEY": "  "}, {"SEEKER_KEY": "nonsense"}):
        with pytest.raises(BadRequest):
            wallet_of(None, environ)


def test_command_names_the_invalid_option(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """The error states what was expected in plain words, not as a Python repr."""
    words = ["hire", "http://127.0.0.1:9", "logo-design", "--key", f"@{files['seeker']}"]
    assert main([*words, "--deadline", "soon"]) == 1
    errors = capsys.readouterr().err
    assert "field: --deadline" in errors and "expected: a duration such as 30s" in errors
    assert main([*words, "--input", "oops"]) == 1
    errors = capsys.readouterr().err
    assert "field: --input" in errors and "INVALID_REQUEST: the text is not JSON." in errors
    seen = particulars(BadRequest(expected=["a", "b"], charged=False, note="unsaid"))
    assert seen == ["  expected: a, b", "  charged: no"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_overwrites_its_line_on_a_terminal_only() -> None:
    """A terminal gets one updating line; a file gets a line per change, without control characters."""
    for out, rewinds in ((io.StringIO(), 0), (Terminal(), 2)):
        view = HireProgress(out, Text(out))
        for fraction in (0.1, 0.1, 0.6):
            payload = {"fraction": fraction, "message": "drawing \x1b[31mred"}
            view.tell("event", {"kind": "progress.updated", "payload": payload})
        view.tell("refused", {"reason": "insufficient_funds"})
        shown = out.getvalue()
        assert shown.count("drawing  [31mred") == 2
        assert "\x1b" not in shown
        assert shown.count("\r") // 2 == rewinds
        assert shown.endswith("- the payment was refused (insufficient_funds); no money moved\n")


def test_hostile_progress_is_sanitised() -> None:
    """A progress fraction that is out of bounds or not a number does not break the display."""
    out = io.StringIO()
    view = HireProgress(out, Text(out))
    for fraction in (-5, 7, None, "x", True):
        view.tell("event", {"kind": "progress.updated", "payload": {"fraction": fraction}})
    for line in out.getvalue().splitlines():
        assert re.fullmatch(r"  \[[#.]{24}\] +(0|100)%  ", line), line


def chunk(view: HireProgress, text: str) -> None:
    view.tell("event", {"kind": "output.chunk", "payload": {"text": text}})


def streaming(view: HireProgress) -> None:
    view.tell("working", {"body": {"state": "running", "output": {"type": "stream"}}})


@pytest.mark.parametrize("shown", ["", "one\n", "one\ntw", "one\ntwo"])
def test_streamed_text_is_printed_once(shown: str) -> None:
    """Text received as chunks is not printed again; missing text is added and the last line is terminated."""
    errors, product = io.StringIO(), io.StringIO()
    text = Text(product)
    view = HireProgress(errors, text)
    streaming(view)
    for at in range(0, len(shown), 2):
        chunk(view, shown[at : at + 2])
    assert product.getvalue() == shown
    text.whole("one\ntwo")
    assert product.getvalue() == "one\ntwo\n"
    assert "one" not in errors.getvalue()


def test_final_text_that_differs_is_printed_whole() -> None:
    """A worker cannot hide what it delivered behind what it streamed."""
    product = io.StringIO()
    text = Text(product)
    text.chunk("one")
    text.whole("another")
    assert product.getvalue() == "one\nanother\n"


def test_messages_go_to_standard_error() -> None:
    """Messages beside a JSON result go to stderr with the progress, so stdout stays valid JSON."""
    errors, product = io.StringIO(), io.StringIO()
    view = HireProgress(errors, Text(product))
    chunk(view, "half way")
    assert (errors.getvalue(), product.getvalue()) == ("half way\n", "")


def test_delivered_text_cannot_move_the_cursor() -> None:
    """Control characters are kept in the saved file; a pipe gets every byte."""
    for out, control in ((io.StringIO(), True), (Terminal(), False)):
        text = Text(out)
        text.chunk("a\x1b[2J\tb\n")
        assert ("\x1b" in out.getvalue()) is control
        assert out.getvalue().endswith("\tb\n")

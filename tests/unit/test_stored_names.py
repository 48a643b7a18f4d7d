"""Composite names: each writer has a matching parser."""

from __future__ import annotations

import pytest

from worker.core.ids import new_id
from worker.engine import step_fields
from worker.remote.mail import MailReference, message_item, read_item
from worker.remote.members import consumer_member, consumer_of, epoch_of, offer_member, runner_of
from worker.store import money_fields
from worker.x402.payment_keys import PaymentKey


def test_payment_key_is_lower_case() -> None:
    """The same authorization has one key, in whatever case its addresses were written."""
    key = PaymentKey("eip155:8453", "0xAB", "0xCD", "0xEF")
    assert str(key) == "eip155:8453/0xab/0xcd/0xef"
    assert PaymentKey.parse(str(key)) == ("eip155:8453", "0xab", "0xcd", "0xef")


@pytest.mark.parametrize("text", ["", "eip155:8453", "eip155:8453/0xab"])
def test_truncated_key_has_empty_parts(text: str) -> None:
    """Missing parts are empty, and existing ones keep their position."""
    assert "/".join(PaymentKey.parse(text)).rstrip("/") == text


def test_fee_fields_are_recognised() -> None:
    """The hash also contains budgets, under other names."""
    assert money_fields.fee_wallet(money_fields.fee_field("0xab")) == "0xab"
    assert money_fields.fee_wallet("open 0xab") is None


def test_step_is_parsed_from_index_entries() -> None:
    """Members and fields give their execution and step; similar names do not."""
    assert step_fields.read_step_member(step_fields.step_member("x", "s")) == ("x", "s")
    assert step_fields.step_with_job(step_fields.step_field("s", "job")) == "s"
    assert step_fields.step_with_job(step_fields.step_field("s", "status")) is None
    assert step_fields.key_in("key a b") == "a b" and step_fields.key_in("s status") is None


def test_file_reference_fields_are_known() -> None:
    """Values, arguments, `once` values and signals may be packed; a step's status is not."""
    packed = [step_fields.once_field("n"), step_fields.signal_field(3), "s value", "s args"]
    assert all(map(step_fields.is_packed, packed))
    assert not step_fields.is_packed("s status") and step_fields.is_file(step_fields.file_field("n"))


def test_mailbox_item_is_a_message_or_a_reference() -> None:
    """The body of a message may contain anything."""
    assert read_item(message_item("tool.result", b'{"a": "b c"}')) == ("tool.result", b'{"a": "b c"}')
    assert read_item(b"@signal x 7") == MailReference("signal", "x", "7")


def test_connection_is_parsed_from_its_members() -> None:
    """Both member forms end with the epoch."""
    epoch = new_id()
    assert epoch_of(offer_member("r", "c", epoch)) == epoch_of(consumer_member("c", epoch)) == epoch
    assert consumer_of(consumer_member("c", epoch)) == "c"
    assert runner_of(offer_member("r", "c", epoch)) == "r"

"""Unpaid contracts and refused payments: how much they may leave in the store."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.fakes.paid_door import Deal, PaidDoor, asked
from worker.contracts import book
from worker.contracts.book import SHELTER_US, UnpaidQuota
from worker.contracts.signatures import address_of
from worker.core.errors import Unavailable
from worker.core.states import Phase
from worker.local.valkey import EmbeddedStore

KB = 1 << 10
SECOND = 1_000_000


@pytest.fixture(name="paid_door")
def _paid_door(client: redis.Redis, valkey: EmbeddedStore, tmp_path: Path) -> PaidDoor:
    door = PaidDoor(tmp_path, client, valkey.url)
    door.hiring.book.quota = UnpaidQuota(own_new=6 * KB, own_paid=12 * KB, all_new=12 * KB)
    return door


def wallet_key() -> str:
    return "0x" + secrets.token_hex(32)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(Unavailable) as caught:
        call()
    assert caught.value.retry_after
    return caught.value.message


def bytes_of_new(door: PaidDoor) -> int:
    return int(door.parts.client.hget(door.parts.keys.unpaid_bytes, "new") or 0)


def stored(door: PaidDoor, deal: Deal) -> bool:
    return door.hiring.book.find(deal.document["contract_id"]) is not None


def test_an_unpaid_contract_lives_until_its_deadline(paid_door: PaidDoor) -> None:
    """It expires at its deadline, neither earlier nor later."""
    deal = paid_door.deal()
    ref = paid_door.hiring.book.ref(deal.document["contract_id"])
    left_ms = paid_door.parts.client.pttl(paid_door.parts.keys.contract(ref))
    assert 5.9 * 3600_000 < int(left_ms) <= 6 * 3600_000


def test_a_wallet_has_its_own_quota(paid_door: PaidDoor) -> None:
    """A new wallet fills only its own quota, not the next wallet's; a wallet that paid has a larger one."""
    key = wallet_key()
    count = 0
    while bytes_of_new(paid_door) + 2 * KB < 6 * KB:
        paid_door.deal(key=key)
        count += 1
    assert count >= 2
    assert "this wallet" in refused(lambda: [paid_door.deal(key=key) for _ in range(2)])
    other = paid_door.deal()
    paid_door.parts.client.hset(paid_door.parts.keys.wallets, f"paid {other.wallet}", 10_000)
    for _ in range(count + 1):
        paid_door.deal(key=other.key)


def test_new_wallets_share_a_quota(paid_door: PaidDoor) -> None:
    """Sybils fill it, wallets that paid are served; after a while the oldest contracts make room."""
    first = paid_door.deal()
    with pytest.raises(Unavailable, match="new wallets"):
        for _ in range(20):
            paid_door.deal()
    payer = wallet_key()
    paid_door.parts.client.hset(paid_door.parts.keys.wallets, f"paid {address_of(payer).lower()}", 10_000)
    assert stored(paid_door, paid_door.deal(key=payer))
    assert stored(paid_door, first)
    paid_door.jump(SHELTER_US // SECOND + 1)
    newcomer = paid_door.deal()
    assert stored(paid_door, newcomer) and not stored(paid_door, first)
    assert bytes_of_new(paid_door) <= 12 * KB


def test_a_verified_payment_frees_the_quota(paid_door: PaidDoor) -> None:
    """A contract being paid for no longer counts as unpaid and is never dropped for others."""
    deal = paid_door.deal()
    before = bytes_of_new(paid_door)
    deal.execute({"do": "ok"}, deal.payment())
    assert bytes_of_new(paid_door) == before > 0
    paid_door.step()
    assert deal.id and paid_door.execution(deal.id).phase is Phase.WORKING
    assert bytes_of_new(paid_door) == 0
    assert paid_door.parts.client.zcard(paid_door.parts.keys.unpaid) == 0


def test_a_contract_past_its_deadline_frees_the_quota(paid_door: PaidDoor) -> None:
    """The next registered contract frees it."""
    paid_door.deal()
    one = bytes_of_new(paid_door)
    paid_door.jump(7 * 3600)
    paid_door.deal()
    assert bytes_of_new(paid_door) == one


def files_of(door: PaidDoor) -> list[Path]:
    return [each for each in Path(door.settings.files_url).rglob("*") if each.is_file()]


@pytest.mark.parametrize("size", [10 * KB, 900 * KB], ids=["in the record", "in a file"])
def test_a_refused_payment_leaves_no_input(paid_door: PaidDoor, size: int) -> None:
    """A refusal for an empty wallet deletes the input; the same input is accepted with a good payment."""
    deal = paid_door.deal()
    body = {"text": "x" * size}
    paid_door.facilitator.planned["verify"].append("no")
    deal.execute(body, deal.payment())
    paid_door.step()
    assert deal.id is not None and paid_door.execution(deal.id).phase is Phase.OFFERED
    client, keys = paid_door.parts.client, paid_door.parts.keys
    assert files_of(paid_door) == []
    left = sum(int(client.memory_usage(key) or 0) for key in (keys.record(deal.id), keys.log(deal.id)))
    assert left <= 4 * KB
    ref = paid_door.hiring.book.ref(deal.document["contract_id"])
    assert int(client.pttl(keys.contract(ref))) > 0
    assert bytes_of_new(paid_door) > 0

    deal.execute(body, deal.payment())
    paid_door.step()
    execution = paid_door.take(deal.id)
    assert execution is not None
    assert paid_door.parts.executions.input(execution) == body
    assert execution.context["terms"]["price"] == "0.01"
    assert int(client.pttl(keys.contract(ref))) == -1 and bytes_of_new(paid_door) == 0


def test_a_store_that_fills_refuses_contracts_before_work(paid_door: PaidDoor) -> None:
    """Above 60 % new contracts are refused and signed ones are still sold; above 75 % nothing is."""
    deal, guard = paid_door.deal(), paid_door.parts.conditions.load.guard
    guard.read = lambda: {"used_memory": 61, "maxmemory": 100}
    refused(paid_door.parts.conditions.check_takes_contracts)
    assert asked(lambda: deal.execute({})).status == 402
    guard.read = lambda: {"used_memory": 76, "maxmemory": 100}
    refused(lambda: deal.execute({}))
    guard.read = lambda: {"used_memory": 50, "maxmemory": 100}
    paid_door.parts.conditions.check_takes_contracts()


def test_drafts_never_keep_others_from_signing(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above a limit drafts are signed but not stored: the seeker holds the signature."""
    monkeypatch.setattr(book, "MOST_DRAFTS", 0)
    assert stored(paid_door, paid_door.deal())


def test_contracts_verified_by_an_older_process_make_room(paid_door: PaidDoor) -> None:
    """An older process leaves their entries; being paid for, they stay, and do not block others."""
    keys, client = paid_door.parts.keys, paid_door.parts.client
    deals = []
    while bytes_of_new(paid_door) + 3 * KB < 12 * KB:
        deals.append(paid_door.deal())
        client.persist(keys.contract(paid_door.contract(deals[-1]).ref))
    paid_door.jump(SHELTER_US // SECOND + 1)
    for _ in range(4):
        paid_door.deal()
    assert all(stored(paid_door, deal) for deal in deals)

"""SECRET_KEY rotation: contracts and links of the previous secret stay valid while it is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as with_changes

import pytest

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import FlaskDoor, Hired, Seeker
from worker.app import create_app

NEW = "Vn2rXo0sT9qLm4wYb7KcJ8dZf5hGp1aE"
PRICE = 10_000


@dataclass
class Rotation:
    """One worker before and after its secret rotation, on the same store."""

    worker: PaidWorker

    def __post_init__(self) -> None:
        settings = self.worker.settings
        old = str(settings.secret_key)
        self.prepared = FlaskDoor(create_app(with_changes(settings, accepted_secret_keys=(NEW,))))
        self.replaced = FlaskDoor(
            create_app(with_changes(settings, secret_key=NEW, accepted_secret_keys=(old,)))
        )
        self.old_refused = FlaskDoor(create_app(with_changes(settings, secret_key=NEW)))

    def at(self, door: FlaskDoor, hired: Hired) -> Hired:
        seeker = Seeker(door, hired.seeker.key, self.worker.now)
        return with_changes(hired, seeker=seeker)


@pytest.fixture(name="rotation")
def _rotation(paid_worker: PaidWorker) -> Rotation:
    return Rotation(paid_worker)


def test_contract_goes_on_under_the_accepted_secret(rotation: Rotation) -> None:
    """A contract signed before the rotation is paid once and delivered by old and new processes."""
    before = rotation.worker.seeker().hire()
    after = rotation.at(rotation.replaced, before)
    paid = after.pay()
    assert paid.status == 200, paid.content
    assert before.execute().json["task_id"] == paid.json["task_id"]
    assert rotation.worker.settles(before.seeker.wallet) == 1


def test_putting_a_paid_contract_again_makes_no_second_one(rotation: Rotation) -> None:
    """A seeker that starts over gets its paid result and no second 402."""
    before = rotation.worker.seeker().hire()
    task = before.pay().json["task_id"]
    after = rotation.at(rotation.replaced, before)
    assert after.seeker.door("PUT", "/contracts", before.document).status == 200
    assert after.execute().json["task_id"] == task
    assert rotation.worker.charged(before.seeker.wallet) == PRICE


def test_old_and_new_processes_agree_during_the_rotation(rotation: Rotation) -> None:
    """A contract made under the new secret is known to processes that accept but do not yet use it."""
    new = Seeker(rotation.replaced, now=rotation.worker.now).hire()
    task = new.pay().json["task_id"]
    assert rotation.at(rotation.prepared, new).execute().json["task_id"] == task


def test_links_open_while_their_secret_is_accepted(rotation: Rotation) -> None:
    """A link from before the rotation works until its secret is no longer accepted."""
    hired = rotation.worker.seeker().hire()
    link = hired.pay().json["deliverables"][0]["url"]
    path = "/files/" + link.partition("/files/")[2]
    assert rotation.replaced("GET", path).status == 200
    assert rotation.old_refused("GET", path).status == 404
    assert rotation.at(rotation.old_refused, hired).execute().status == 404

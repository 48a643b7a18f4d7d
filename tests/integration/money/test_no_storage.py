"""Without file storage no 402 is issued; a deleted directory is recreated."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.unusable_files import unusable_files
from tests.waiting import eventually
from worker.store.outage import count_bugs

LONG = {"do": "ok", "text": "x" * 40_000}
PRICE = 10_000


@contextmanager
def broken_storage(paid_worker: PaidWorker) -> Iterator[None]:
    """Returns once the worker has noticed that files can be stored again."""
    try:
        with unusable_files(paid_worker.home):
            yield
    finally:
        eventually(
            lambda: ready(paid_worker)["checks"]["files"] == "ok", description="files that can be stored"
        )


def ready(paid_worker: PaidWorker) -> dict:
    token = {"Authorization": f"Bearer {paid_worker.environ['KERNEL_TOKEN']}"}
    return paid_worker.app.test_client().get("/ready", headers=token).get_json()


def errors(paid_worker: PaidWorker) -> int:
    return int(paid_worker.parts.store.stats().get("worker_storage_errors_total", 0))


def test_an_emptied_directory_costs_no_delivery(paid_worker: PaidWorker) -> None:
    """Warm processes and the web process recreate the directory, without a restart."""
    assert paid_worker.seeker().hire().pay(LONG).status == 200
    shutil.rmtree(paid_worker.home / "files")
    done = paid_worker.seeker().hire().pay(LONG)
    assert done.status == 200 and done.json["output"]["content"]["asked"] == LONG
    shutil.rmtree(paid_worker.home / "files" / "tmp")
    assert paid_worker.seeker().hire().pay(LONG).status == 200


def test_without_storage_no_payment_is_asked_for(paid_worker: PaidWorker) -> None:
    """A failing storage is reported by /ready and counted; a hire is refused before any cost."""
    count_bugs(paid_worker.client, paid_worker.parts.keys.stats)
    hired, before = paid_worker.seeker().hire(), errors(paid_worker)
    header = hired.sign()
    with broken_storage(paid_worker):
        eventually(lambda: ready(paid_worker)["checks"]["files"] != "ok", description="a look at the storage")
        found = ready(paid_worker)
        assert found["failing"] == ["files"] and "log" in found["checks"]["files"]
        for refused in (hired.execute(), hired.execute(None, header), hired.execute(LONG, header)):
            assert (refused.status, refused.code) == (503, "STORAGE_UNAVAILABLE")
            assert refused.header("PAYMENT-REQUIRED") is None and refused.header("Retry-After")
        assert hired.execute().json["error"]["details"]["charged"] is False
        assert errors(paid_worker) > before
    assert hired.execute(None, header).status == 200
    assert paid_worker.charged(hired.seeker.wallet) == PRICE

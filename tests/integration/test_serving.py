"""What the living trees of processes serve, as the store knows it."""

from __future__ import annotations

from tests.engine import Engine
from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.capabilities.serving import StoredServing


def test_a_machine_that_was_suspended_serves_without_a_pause(engine: Engine) -> None:
    """Its tree was silent for hours, and what it can run is still known at its next sign of life."""
    serving = StoredServing(engine.client, engine.keys, test_clock=True)
    for tree in ("back", "gone"):
        Catalog(serving).publish([Capability(f"of-{tree}", description="d")], tree=tree)
    engine.advance(2 * 3600)
    assert serving.publish("back", "")
    [description] = serving.read().descriptions
    assert b"of-back" in description
    assert not serving.publish("gone", "")

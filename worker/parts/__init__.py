"""What every process is made of: settings in, connected parts out. Nothing here opens a connection.

`engine.py` has the parts that do the work, `paid.py` adds those that sell it; here the swarm's come to them.
"""

from __future__ import annotations

from functools import cached_property

from worker.executions.load import LoadMeter
from worker.parts.paid import PaidParts
from worker.swarm.answers import Identity
from worker.swarm.full_schema import FullSchema
from worker.swarm.kernels import Kernels
from worker.swarm.places import Places
from worker.swarm.reading_evidence import ReadEvidence
from worker.swarm.serving import Serving, Stricter


class Parts(PaidParts):
    """The parts of one process; each is made when it is first asked for."""

    @cached_property
    def kernels(self) -> Kernels:
        return Kernels(self.settings.swarm_keys, self.settings.swarm_limits)

    @cached_property
    def serving(self) -> Serving:
        settings = self.settings
        places = Places(self.store, LoadMeter(self.store), patience=settings.swarm_patience)
        hashes: dict[str, tuple[str, ...]] = {}
        for policy_id, digest in settings.swarm_policy_hashes:
            hashes[policy_id] = (*hashes.get(policy_id, ()), digest)
        origins = settings.swarm_evidence_hosts
        return Serving(
            executions=self.executions,
            catalog=self.catalog,
            places=places,
            files=self.files,
            deliverables=self.deliverables,
            identity=Identity(settings.swarm_provider_family, settings.swarm_model_id),
            stricter=Stricter(
                hashes=hashes,
                full_schema=FullSchema(self.executions, places)
                if settings.swarm_full_schema == "on"
                else None,
                origins=origins,
                fetch=ReadEvidence(settings.worker_env, origins) if origins else None,
            ),
        )

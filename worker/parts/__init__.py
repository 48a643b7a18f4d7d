"""The parts of every process: settings in, connected parts out. Nothing here opens a connection.

`engine.py` has the parts that do the work, `paid.py` adds those that sell it, and this module the swarm's.
"""

from __future__ import annotations

from functools import cached_property, partial

from worker.parts.operator import OperatorParts
from worker.schemas.validators import CompiledSchemas
from worker.swarm.admission import Admission
from worker.swarm.answers import RuntimeIdentity
from worker.swarm.evidence_fetch import EvidenceReader
from worker.swarm.full_schema import FullSchema
from worker.swarm.kernels import Kernels
from worker.swarm.serving import ExtraChecks, SwarmRuntime


class Parts(OperatorParts):
    """The parts of one process; each is created on first use."""

    @cached_property
    def kernels(self) -> Kernels:
        settings = self.settings
        return Kernels(settings.swarm_keys, settings.swarm_limits, failed=self.wrong_credentials.add)

    @cached_property
    def serving(self) -> SwarmRuntime:
        settings = self.settings
        places = Admission(self.store, self.load_meter, patience=settings.swarm_patience)
        hashes: dict[str, tuple[str, ...]] = {}
        for policy_id, digest in settings.swarm_policy_hashes:
            hashes[policy_id] = (*hashes.get(policy_id, ()), digest)
        origins = settings.swarm_evidence_hosts
        return SwarmRuntime(
            executions=self.executions,
            catalog=self.catalog,
            places=places,
            files=self.files,
            deliverables=self.deliverables,
            identity=RuntimeIdentity(settings.swarm_provider_family, settings.swarm_model_id),
            stricter=ExtraChecks(
                hashes=hashes,
                full_schema=FullSchema(self.executions, places)
                if settings.swarm_full_schema == "on"
                else None,
                origins=origins,
                fetch=EvidenceReader(settings.worker_env, origins) if origins else None,
            ),
            validators=CompiledSchemas(),
            connected=partial(self.remote_store.present, "agent"),
        )

"""For authors' tests: runs an agent on an in-memory engine, or hires it from a complete local worker.

    from worker.testing import run

    done = run(word_count, {"text": "to be or not"})
    assert done.output == {"words": 4}
    assert done.charge == "0.02"

`run` needs no setting and no network. For a complete worker with a paying seeker, put
`pytest_plugins = ["worker.testing.fixtures"]` into conftest.py and use the fixture `hire`.
"""

from __future__ import annotations

from worker.testing.local_worker import Hire, LocalWorker
from worker.testing.result import AgentFailed, Run, RunFile
from worker.testing.running import Expires, run

__all__ = ["AgentFailed", "Expires", "Hire", "LocalWorker", "Run", "RunFile", "run"]

"""The swarm modules do not depend on store, web or network."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_swarm_imports_no_store_no_web_and_no_client() -> None:
    """A new process that imports every module here has loaded neither Redis, Flask nor an HTTP client."""
    program = (
        "import sys\n"
        "from worker.swarm import answers, candidate, evidence, fetching, run_names, wire\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'redis', 'rq', 'flask', 'requests', 'urllib3', 'web3', 'jsonschema'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

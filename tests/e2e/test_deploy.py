"""docs/deploy.md, executed as written: install, start, hire over HTTPS, replace every process, restore."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.deployed import Deployed, blocks, table_commands
from tests.e2e.tree import ROOT
from tests.waiting import eventually

PAGE = ROOT / "docs/deploy.md"
EXTRAS = (
    "WORKER_AGENTS=worker.shipped,slow_agents\nHANDBACK_GRACE=1s\nLIMIT_EXECUTES=6000\nLIMIT_CONTRACTS=600\n"
)


@pytest.fixture(name="deployed", scope="module")
def _deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    deployed = Deployed(tmp_path_factory.mktemp("deployed"))
    try:
        deployed.begin()
        yield deployed
    finally:
        deployed.close()


def hire(deployed: Deployed, number: int) -> subprocess.Popen[str]:
    """A buyer's command in its own shell."""
    given = json.dumps({"to": 5, "number": number})
    return subprocess.Popen(
        [
            *(str(deployed.app / ".venv/bin/python"), "-m", "worker", "hire", deployed.url, "count"),
            *("--input", given, "--key", "@seeker.key", "--max", "0.10", "--out", f"hired-{number}"),
        ],
        cwd=deployed.app,
        env=deployed.environ(seeker=True),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def running(deployed: Deployed) -> int:
    curl = 'curl -s -H "Authorization: Bearer $KERNEL_TOKEN" "$PUBLIC_URL/v0/executions?status=running"'
    return len(json.loads(deployed.shell(curl, seeker=True))["executions"])


def restart(deployed: Deployed, dyno: psutil.Process, line: str, number: int) -> None:
    """Stops one process while both work dynos have work, and starts its replacement."""
    deployed.stop_dyno(dyno)
    deployed.shell(f"honcho start {line} >> again-{number}.log 2>&1 &")


def test_the_page_deploys_hires_and_survives_a_rolling_deploy(deployed: Deployed) -> None:
    """The page from its top: every command works as described, no double charge, the ledger balances."""
    deployed.run("Install")
    deployed.run("Settings", 0)
    deployed.run("Settings", 1)
    with (deployed.app / ".env").open("a") as settings:
        settings.write(EXTRAS)
    deployed.run("The first hire", 0)
    deployed.start_chain()
    deployed.run("Store")
    said = eventually_sound(deployed)
    assert "wrong" not in said and "... learnt at the first contact" in said, said
    deployed.start_nginx()
    deployed.run("Start")
    eventually(deployed.ready, 60, "two web and two work processes behind nginx")
    said = deployed.run("The first hire", 1, seeker=True)
    assert re.search(r"0\.5", said), said
    assert len(list((deployed.app / "hired").rglob("*.svg"))) == 3

    number = 0
    ports = deployed.ports
    for kind, lines in {
        "web": [f"-p {ports['web']} web", f"-p {ports['web2']} web"],
        "worker": ["worker", "worker"],
    }.items():
        for dyno, line in zip(deployed.dynos(kind), lines, strict=True):
            hires = [hire(deployed, number := number + 1) for _ in range(2)]
            eventually(lambda: running(deployed) == 2, 30, f"both work\n{deployed.logs()}")
            restart(deployed, dyno, line, number)
            for each in hires:
                told, _ = each.communicate(timeout=90)
                assert each.returncode == 0, f"{kind}: {told}\n{deployed.logs()}"
            eventually(deployed.ready, 30, f"ready again\n{deployed.logs()}")
    report = deployed.shell("python -m worker money report --csv")
    assert "all,9,1.3,1.3,0,0,0" in report, report  # a logo for 0.50 and eight counts for 0.10, each once


def eventually_sound(deployed: Deployed) -> str:
    """Retries doctor, as a person would, since the store has just started."""
    found: list[str] = []

    def sound() -> bool:
        try:
            found.append(deployed.run("Check"))
        except AssertionError as refused:
            found.append(str(refused))
            return False
        return True

    eventually(sound, 30, "doctor finds nothing wrong")
    return found[-1]


def test_what_to_do_at_three_in_the_morning(deployed: Deployed) -> None:
    """Each command of the table works on an existing execution."""
    curl = 'curl -s -H "Authorization: Bearer $KERNEL_TOKEN" "$PUBLIC_URL/v0/executions?limit=1"'
    execution = json.loads(deployed.shell(curl, seeker=True))["executions"][0]["id"]
    commands = list(table_commands(PAGE))
    assert len(commands) > 8
    for command in commands:
        said = deployed.shell(command.replace("EXECUTION", execution) + " 2>&1", seeker=True)
        assert said.strip() or command.startswith("rm "), command
        assert '"error"' not in said, said
        deployed.ran.add(command)


def test_a_new_token_counts_after_a_restart(deployed: Deployed) -> None:
    """The rotated token is accepted, the old one is not."""
    before = token(deployed)
    deployed.run("Rotate keys")
    after = token(deployed)
    assert before != after
    for dyno, name in zip(deployed.dynos("web"), ("web", "web2"), strict=True):
        deployed.stop_dyno(dyno)
        deployed.shell(f"honcho start -p {deployed.ports[name]} web >> rotated.log 2>&1 &")
    eventually(deployed.ready, 30, f"the new token opens\n{deployed.logs()}")
    status = "curl -s -o /dev/null -w '%{http_code}' $PUBLIC_URL/ready -H 'Authorization: Bearer "
    assert deployed.shell(f"{status}{before}'", seeker=True) == "401"


def test_an_upgrade_is_checked_before_it_starts(deployed: Deployed) -> None:
    """The upgrade's commands pass on a running deployment."""
    deployed.run("Upgrade")


def test_a_copy_is_restored(deployed: Deployed) -> None:
    """The store's copy, loaded into an empty one, has every key, and the worker continues with it."""
    deployed.run("Backup and restore", 0)
    for kind in ("web", "worker"):
        for dyno in deployed.dynos(kind):
            deployed.stop_dyno(dyno)
    [store] = [
        each for each in psutil.process_iter() if str(deployed.ports["store"]) in " ".join(words(each))
    ]
    store.terminate()
    store.wait(20)
    said = deployed.run("Backup and restore", 1)
    assert int(said.split()[-1]) > 50, said
    deployed.run("Start")
    eventually(deployed.ready, 60, f"ready on the restored store\n{deployed.logs()}")
    assert "all,9,1.3,1.3,0,0,0" in deployed.shell("python -m worker money report --csv")


def test_every_command_of_the_page_was_run(deployed: Deployed) -> None:
    """Every block and every table row of the page is run."""
    everything = {block for each in blocks(PAGE).values() for block in each} | set(table_commands(PAGE))
    assert everything - deployed.ran == set()


def token(deployed: Deployed) -> str:
    found = re.search(r"^KERNEL_TOKEN=(.+)$", (deployed.app / ".env").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if "redis" in process.name() else []
    except psutil.Error:
        return []

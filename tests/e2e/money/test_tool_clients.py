"""Third-party command-line payers, agent tools and SDKs buy at the plain door, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import npm, pypi
from tests.e2e.money.test_official_clients import BODY, PRICE, Balances
from tests.e2e.money.test_plain_clients import check
from tests.fakes.worker_processes import WorkerProcesses

PAYERS = Path(__file__).parent / "python"
CHAT_PRICE = 50_000
VALIDATORS = Path(__file__).parents[1] / "validators"


def ran(command: list[str], cwd: Path, asked: str = "", **environ: str) -> str:
    """Runs a program with stdin `asked`; returns its output if it exits with 0."""
    done = subprocess.run(
        command,
        env={**os.environ, **environ},
        cwd=cwd,
        input=asked,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stdout


def test_mppx_buys(processes: WorkerProcesses, tmp_path: Path) -> None:
    """The mppx command line buys with one command."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    folder = npm.installed(VALIDATORS, "node-validators", "--legacy-peer-deps")
    url = f"{processes.url}/buy/echo"
    words = [url, "--protocol", "x402", "--silent", "--json-body", json.dumps(BODY)]
    command = ["node", "node_modules/mppx/dist/bin.js", *words, "--rpc-url", processes.chain.url]
    printed = ran(command, folder, MPPX_PRIVATE_KEY=seeker.key, HOME=str(tmp_path))
    check(processes, balances, 200, json.loads(printed))


def test_mcp_tool_buys(processes: WorkerProcesses, tmp_path: Path) -> None:
    """An agent with x402-mcp reads the price with its tool, confirms it and gets the result."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    bought = by_python("x402-mcp", processes, seeker.key, tmp_path)
    assert bought["price"]["amount"] == str(PRICE) and bought["price"]["asset"] == "USDC"
    check(processes, balances, bought["status"], bought["body"])


def test_uvd_sdk_buys(processes: WorkerProcesses, tmp_path: Path) -> None:
    """uvd-x402-sdk buys with one call, in the V1 dialect."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    bought = by_python("uvd-x402-sdk", processes, seeker.key, tmp_path)
    check(processes, balances, bought["status"], bought["body"])


def test_openai_client_buys_completions(processes: WorkerProcesses, tmp_path: Path) -> None:
    """x402-openai, a drop-in OpenAI client, buys a whole completion and a streamed one at /v1."""
    seeker = processes.seeker()
    balances = Balances(processes, seeker.wallet)
    body = {"model": "m-1", "messages": [{"role": "user", "content": "hello there"}]}
    python = pypi.installed(PAYERS / "openai-requirements.txt", "python-openai")
    bought = paid_by(python, "x402-openai", f"{processes.url}/v1", body, seeker.key, tmp_path)
    assert bought["whole"] == bought["streamed"] == "You said: hello there"
    assert bought["pieces"] > 2 and bought["finish"] == "stop"
    assert len(set(bought["tasks"])) == 2
    assert balances.moved() == (-2 * CHAT_PRICE, 2 * CHAT_PRICE)


def by_python(payer: str, processes: WorkerProcesses, key: str, home: Path) -> dict[str, Any]:
    """The response that a Python payer got from the plain door."""
    python = pypi.installed(PAYERS / "requirements.txt", "python-payers")
    return paid_by(python, payer, f"{processes.url}/buy/echo", BODY, key, home)


def paid_by(python: Path, payer: str, url: str, body: Any, key: str, home: Path) -> dict[str, Any]:
    """What a Python payer got, run in its own environment."""
    asked = json.dumps({"url": url, "body": body})
    command = [str(python), str(PAYERS / "pay.py"), payer]
    bought: dict[str, Any] = json.loads(ran(command, home, asked, SEEKER_KEY=key, HOME=str(home)))
    return bought

"""The programs in examples/ and the code on the pages of docs/, run on one worker with a chain."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import npm
from tests.e2e.hire.hire_session import HireSession
from tests.e2e.hire.webhook_receiver import Call, Receiver
from tests.e2e.kernel.sdks import Sdk
from tests.e2e.tree import Local
from tests.fakes.openai_server import says, serving
from tests.waiting import eventually
from worker.local.valkey import free_port
from worker.policy.file import load

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HERE = Path(__file__).parent
STORY = "A lighthouse keeper counted ships until one counted back."
AGENT_KEY = "key-for-this-laptop"
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
PATIENCE = 60


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE
    )


def commands(example: str) -> list[str]:
    """The commands in the head of an example, a terminal each."""
    head = (EXAMPLES / example).read_text().split('"""')[1]
    return [
        re.sub(r"^    ", "", each, flags=re.MULTILINE)
        for each in re.findall(r"(?:^    .*\n)+", head, re.MULTILINE)
    ]


@dataclass
class Shop:
    """The worker that sells the examples, and a reader's second terminal beside it."""

    local: Local
    home: Path

    def environ(self) -> dict[str, str]:
        facts = self.local.facts
        return {
            **os.environ,
            "HOME": str(self.home),
            "URL": facts["url"],
            "KEY": "var/local.json",
            "KERNEL_TOKEN": facts["kernel_token"],
            "KERNEL": f"{facts['swarm']['user']}:{facts['swarm']['password']}",
            "SELLER": f"{facts['url']}/buy/readability",
            "PYTHONPATH": str(ROOT),
        }

    def shell(self, lines: str) -> str:
        """What these lines print when pasted."""
        lines = "set -e\n" + lines.replace("http://127.0.0.1:8000", self.local.facts["url"])
        done = subprocess.run(
            ["bash", "-c", lines],
            cwd=self.home,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.home,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """One tree that sells all examples, with their configuration and that of the swarm page."""
    home = tmp_path_factory.mktemp("shop")
    config = home / "worker.toml"
    config.write_text("\n".join([(EXAMPLES / "worker.toml").read_text(), *blocks("swarm.md", "toml")]))
    with serving(says(STORY)) as model:
        local = Local(
            home,
            *("--web", "1", "--work", "1"),
            FACILITATOR_URL="",
            PYTHONPATH=str(EXAMPLES),
            WORKER_AGENTS="readability,storyteller,newsletter,worker.shipped",
            WORKER_CONFIG=str(config),
            POLICY=str(EXAMPLES / "policy.yaml"),
            AGENT_KEYS=f"agent:translator:{AGENT_KEY}",
            MODEL_URL=model.url,
        )
        try:
            local.start()
            python = home / ".venv/bin/python"
            python.parent.mkdir(parents=True)
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
            (home / "var").symlink_to(local.state)
            yield Shop(local, home)
        finally:
            local.close()


@pytest.mark.parametrize("example", ["readability", "storyteller", "newsletter"])
def test_an_example_says_how_it_is_started(example: str) -> None:
    """The first command of its head loads it by its own name."""
    assert f"WORKER_AGENTS={example} " in commands(f"{example}.py")[0]


def test_the_function_runs_and_is_hired(shop: Shop) -> None:
    """The lines in its head run it as the operator, and buy it with a file."""
    printed = shop.shell(commands("readability.py")[1])
    assert json.loads(printed.split("}")[0] + "}") == {"words_per_sentence": 3.5, "letters_per_word": 4.0}
    assert [path.read_text() for path in shop.local.state.rglob("hardest-words.txt")] == ["Buy\nme"]


def test_the_model_streams_its_story(shop: Shop) -> None:
    """The lines in its head print what the model wrote, piece by piece."""
    assert STORY in shop.shell(commands("storyteller.py")[1])


def test_the_remote_agent_connects_and_is_hired(shop: Shop, request: pytest.FixtureRequest) -> None:
    """With the official SDK and its own key it does what is run and bought."""
    log = shop.home / "translator.log"
    sdk = Sdk("0.4.8", str(EXAMPLES / "translator.py"))
    program = sdk.program("agent", "translator", shop.local.facts["url"], log, key=AGENT_KEY)
    program.start()
    request.addfinalizer(program.stop)
    started, install, run = commands("translator.py")
    assert f"AGENT_KEYS=agent:translator:{AGENT_KEY} " in started and AGENT_KEY in install
    eventually(
        lambda: '"connected": true' in shop.shell(".venv/bin/python -m worker agents translator --json"),
        30,
        "the agent connects",
    )
    printed = shop.shell(run)
    assert '"bon matin"' in printed
    assert any("bonjour" in path.read_text() for path in (shop.local.state / "hired").rglob("*.json"))


@pytest.mark.parametrize(("answer", "wanted"), [("", '"completed"'), (" --deny --reason no", '"failed"')])
def test_the_tool_waits_for_a_person(shop: Shop, answer: str, wanted: str) -> None:
    """Nothing is mailed before the operator approves; a denial ends the work."""
    line = commands("newsletter.py")[1]
    running = subprocess.Popen(
        ["bash", "-c", line],
        cwd=shop.home,
        env=shop.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stderr is not None
        id = next(found[1] for text in running.stderr if (found := re.match(r"execution (\S+)", text)))
        show = f".venv/bin/python -m worker executions show {id} --json"
        eventually(lambda: '"blocked"' in shop.shell(show), 30, "it waits for approval")
        shop.shell(f".venv/bin/python -m worker executions approve {id}{answer}")
        out, _ = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert wanted in shop.shell(show)
    assert ("characters to readers@example.com" in out) == (not answer)


def test_the_first_lines_of_the_docs_run(shop: Shop) -> None:
    """The start page's lines list agents, run one, hire one and show the payment."""
    printed = shop.shell("".join(blocks("index.md", "bash")))
    assert "logo-design" in printed and "settled" in printed
    assert len(list((shop.local.state / "hired").rglob("*.svg"))) == 3


def test_code_for_buyers_runs(shop: Shop) -> None:
    """The page's shell line hires; its program buys with and without a contract within its rules."""
    shop.shell("".join(blocks("buying.md", "bash")))
    [program] = blocks("buying.md", "python")
    bought, hired = shop.python(program).splitlines()
    assert "Bees dance." in bought and re.fullmatch(r"0x[0-9a-f]{64}", bought.split()[-1])
    assert "Bees dance." in hired and float(hired.split()[-1]) < 5


def test_code_about_payments_runs(shop: Shop) -> None:
    """One payment is sent until there is an answer; the operator's lines show where the money is."""
    [program] = blocks("payments.md", "python")
    printed = shop.python(program)
    assert printed.startswith("200 ") and "letters_per_word" in printed
    assert "settled" in shop.shell("".join(blocks("payments.md", "bash")))


def test_code_for_kernels_runs(shop: Shop) -> None:
    """An execution is created, followed to its end and found; the policy loads as it is shown."""
    printed = shop.shell("".join(blocks("kernel.md", "bash")))
    assert "event: execution.completed" in printed and '"status":"completed"' in printed
    [policy] = blocks("kernel.md", "yaml")
    (shop.home / "policy.yaml").write_text(policy)
    load(shop.home / "policy.yaml")


def test_code_for_swarms_runs(shop: Shop) -> None:
    """The page's task gets a candidate, and its candidate a verdict."""
    capabilities, candidate, verdict = json_values(shop.shell("".join(blocks("swarm.md", "bash"))))
    assert "swarm" in capabilities["task_types"]
    assert candidate["candidate_output"]["answer"] and verdict["passed"] is True


def json_values(text: str) -> list[dict[str, object]]:
    """The JSON documents that follow each other in a text."""
    decoder, values, at = json.JSONDecoder(), [], 0
    while at < len(text):
        value, end = decoder.raw_decode(text, at)
        values.append(value)
        at = end + len(text[end:]) - len(text[end:].lstrip())
    return values


# Webhooks


@pytest.fixture(name="call", scope="module")
def _call(shop: Shop) -> Call:
    """A call that the worker made for a paid task, signed with secret and key."""
    session = HireSession(shop.local)
    with Receiver() as receiver:
        hook = {"url": receiver.url(), "secret": SECRET}
        session.done("readability", {"text": "Tell me."}, price="0.05", webhook=hook)
        return receiver.wait(1, PATIENCE)[0]


@contextmanager
def serving_program(command: list[str], folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """A receiver of the page as a process: its address, and what it has printed once it is ended."""
    port = free_port()
    environ = {**os.environ, "PORT": str(port), "WEBHOOK_SECRET": SECRET}
    program = subprocess.Popen(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True)

    def ended() -> str:
        program.terminate()
        return program.communicate(timeout=PATIENCE)[0]

    def listens() -> bool:
        assert program.poll() is None, "the receiver ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(listens, 30, "the receiver")
        yield f"http://127.0.0.1:{port}/", ended
    finally:
        program.kill()
        program.wait()


def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """The status that a receiver answers a webhook with."""
    sent = {name: value for name, value in headers.items() if name.startswith("webhook-")}
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **sent})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.fixture(name="node", scope="module")
def _node() -> Path:
    return npm.installed(HERE / "webhook_libraries", "webhook-libraries")


@pytest.mark.parametrize("language", ["python", "js"])
def test_receivers_with_a_secret_verify_a_webhook(
    call: Call, language: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The page's receivers take the worker's call once, however often it comes, and no changed one."""
    source = blocks("webhooks.md", language)[0]
    if language == "python":
        program, command = tmp_path / "receiver.py", [sys.executable]
    else:
        program, command = request.getfixturevalue("node") / "receiver.mjs", [shutil.which("node") or "node"]
    program.write_text(source)
    with serving_program([*command, str(program)], tmp_path) as (url, ended):
        assert post(url, call.body + b" ", call.headers) == 400
        assert post(url, call.body, {**call.headers, "webhook-id": "another"}) == 400
        assert [post(url, call.body, call.headers) for _ in range(2)] == [204, 204]
        assert ended() == f"task_completed {call.payload['task_id']}\n"


@pytest.mark.parametrize("language", ["python", "js"])
def test_the_public_key_verifies_a_webhook(
    shop: Shop, call: Call, language: str, request: pytest.FixtureRequest
) -> None:
    """The page's functions accept the worker's call with the manifest's key, and no changed or old one."""
    with urllib.request.urlopen(f"{shop.local.facts['url']}/manifest", timeout=30) as answer:
        key = json.load(answer)["metadata"]["webhook_public_key"]
    source = blocks("webhooks.md", language)[1]
    old = {**call.headers, "webhook-timestamp": str(int(call.headers["webhook-timestamp"]) - 600)}

    def by_python(headers: dict[str, str], body: bytes) -> bool:
        scope: dict[str, Callable[..., bool]] = {}
        exec(source, scope)
        return scope["verified"](key, headers, body)

    def by_node(headers: dict[str, str], body: bytes) -> bool:
        folder = request.getfixturevalue("node")
        (folder / "page.mjs").write_text(source)
        sent = {"key": key, "headers": headers, "body": base64.b64encode(body).decode()}
        done = subprocess.run(
            ["node", "verified.mjs", "page.mjs"],
            cwd=folder,
            input=json.dumps(sent),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout == "true\n"

    verified = by_python if language == "python" else by_node
    assert verified(call.headers, call.body)
    assert not verified(call.headers, call.body + b" ")
    assert not verified(old, call.body)
